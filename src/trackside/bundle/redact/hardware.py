"""Redacts GPU UUIDs, serial numbers, InfiniBand GUIDs, and systemd's machine and boot ids.

They identify a machine as reliably as its host name. The owner can look them up in the mapping for a vendor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackside.bundle.redact.kind import WORD_END, LeakPattern, NumberedKind
from trackside.bundle.redact.literal import LiteralKind
from trackside.bundle.redact.prefilter import LinePattern, literal


class GpuUuids(NumberedKind):
    """UUIDs after ``GPU-`` and ``MIG-``, in full or only their first eight digits."""

    plural = "GPU UUIDs"
    pattern = re.compile(
        rf"(?<![A-Za-z0-9])(?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{0,3}}(?:-[0-9a-fA-F]{{12}})?{WORD_END}"
    )
    line_pattern = rb"(?:GPU|MIG)-[0-9a-fA-FG]"

    def key(self, text: str) -> str | None:
        """The first eight digits of the UUID."""
        return re.sub(r"^(?:MIG-)?(?:GPU-)?", "", text)[:8].lower()

    def pseudonym(self, number: int) -> str:
        """A pseudonym of eight digits."""
        return f"{number:08x}"

    def _replacement(self, match: re.Match[str]) -> str:
        prefix, digits = re.match(r"((?:MIG-)?(?:GPU-)?)(.*)", match[0], re.DOTALL).groups()  # type: ignore[union-attr]
        filled = super()._replacement(match) + "-0000-4000-8000-000000000000"
        return str(prefix) + filled[: len(digits)]

    def leak_patterns(self) -> Iterable[LeakPattern]:
        return (
            LeakPattern(f"{word}-{key}", pseudonym)
            for key, pseudonym in self.pseudonyms.items()
            for word in ("GPU", "MIG")
        )


class Serials(LiteralKind):
    """Serial numbers of cards and boards. A number labeled as such once is replaced everywhere."""

    plural, word = "serial numbers", "serial"
    pattern = re.compile(
        r"(?i)(?=[sbc])(?:serial(?:[ _-]?(?:number|no|num))?|board[ _]id|chassis[ _]serial)[\"']?"
        r"[ \t]*(?:[:=>]|[ \t])[ \t]*[\"']?([A-Z0-9][A-Z0-9-]{7,31})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """The serial number, if it has at least three digits."""
        return text if sum(letter.isdigit() for letter in text) >= 3 and text.lower() != "0x00000000" else None


class MachineIds(LiteralKind):
    """systemd's machine ids and boot ids."""

    plural, word = "machine and boot ids", "id"
    pattern = re.compile(
        r"(?:_MACHINE_ID|_BOOT_ID|MachineID|machine-id|[Bb]oot[_ ]?[Ii][Dd])[^\w\n]{1,6}([0-9a-f]{32})\b", re.ASCII
    )


class Guids(NumberedKind):
    """GUIDs of InfiniBand ports and devices: sixteen hex digits or four groups of four. A GUID labeled as such once is
    replaced everywhere."""

    plural = "InfiniBand GUIDs"
    pattern = re.compile(
        r"(?i)guid[\"')]{0,2}[ \t]*[:=.]*[ \t]*[\"']?(?:0x)?([0-9a-f]{16}|[0-9a-f]{4}(?::[0-9a-f]{4}){3})(?![0-9a-z:])"
    )
    _pattern = re.compile(
        r"(?<![0-9A-Za-z])(?:0[xX])?([0-9A-Fa-f]{16})(?![0-9A-Za-z])"
        r"|(?<![\w:])([0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?![\w:])"
    )

    def key(self, text: str) -> str | None:
        """The digits of the GUID; None if it is not set (all 0 or f)."""
        digits = text.lower().replace(":", "")
        return digits if set(digits) - {"0", "f"} else None

    def pseudonym(self, number: int) -> str:
        """A locally administered GUID."""
        return f"02000000{number:08x}"

    def line_patterns(self) -> Iterable[LinePattern]:
        return (
            literal(spelling, caseless=True) for key in self.pseudonyms for spelling in (key, _grouped_by_four(key))
        )

    def redact(self, text: str) -> str:
        return self._pattern.sub(self._replace_known, text) if self.pseudonyms else text

    def _replace_known(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        pseudonym = self.pseudonyms.get(digits.lower().replace(":", ""))
        return (
            match[0]
            if pseudonym is None
            else match[0].replace(digits, _grouped_by_four(pseudonym) if match[2] else pseudonym)
        )

    def leak_patterns(self) -> Iterable[LeakPattern]:
        for key, pseudonym in self.pseudonyms.items():
            yield LeakPattern(key, pseudonym, r"(?:(?<![A-Za-z0-9])|(?<=0[xX]))")
            yield LeakPattern(_grouped_by_four(key), pseudonym, r"(?<![\w:])", r"(?![\w:])")


def _grouped_by_four(digits: str) -> str:
    return ":".join(digits[index : index + 4] for index in range(0, 16, 4))
