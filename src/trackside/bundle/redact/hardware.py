"""UUIDs of GPUs, serial numbers, InfiniBand GUIDs, and the ids that a machine or a start of it has for its journal.

They name a machine as surely as its host name does. A vendor who needs one gets it from the owner's mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackside.bundle.redact.kind import AFTER, Patterned, Trace
from trackside.bundle.redact.literal import Literal
from trackside.bundle.redact.sieve import Sign, literal


class GpuUuids(Patterned):
    """``GPU-`` and ``MIG-`` with a UUID, or with its first eight digits."""

    name = "GPU UUIDs"
    pattern = re.compile(
        rf"(?<![A-Za-z0-9])(?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{0,3}}(?:-[0-9a-fA-F]{{12}})?{AFTER}"
    )
    sign = rb"(?:GPU|MIG)-[0-9a-fA-FG]"

    def key(self, text: str) -> str | None:
        """Its first eight digits."""
        return re.sub(r"^(?:MIG-)?(?:GPU-)?", "", text)[:8].lower()

    def named(self, number: int) -> str:
        """Eight digits."""
        return f"{number:08x}"

    def _named(self, match: re.Match[str]) -> str:
        begin, rest = re.match(r"((?:MIG-)?(?:GPU-)?)(.*)", match[0], re.DOTALL).groups()  # type: ignore[union-attr]
        filled = super()._named(match) + "-0000-4000-8000-000000000000"
        return str(begin) + filled[: len(rest)]

    def traces(self) -> Iterable[Trace]:
        return (Trace(f"{word}-{key}", name) for key, name in self.names.items() for word in ("GPU", "MIG"))


class Serials(Literal):
    """Serial numbers of cards and boards, wherever they stand once one place has called them so."""

    name, word = "serial numbers", "serial"
    pattern = re.compile(
        r"(?i)(?=[sbc])(?:serial(?:[ _-]?(?:number|no|num))?|board[ _]id|chassis[ _]serial)[\"']?"
        r"[ \t]*(?:[:=>]|[ \t])[ \t]*[\"']?([A-Z0-9][A-Z0-9-]{7,31})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """One with three digits at least."""
        return text if sum(letter.isdigit() for letter in text) >= 3 and text.lower() != "0x00000000" else None


class MachineIds(Literal):
    """What systemd calls a machine and a start of it."""

    name, word = "machine and boot ids", "id"
    pattern = re.compile(
        r"(?:_MACHINE_ID|_BOOT_ID|MachineID|machine-id|[Bb]oot[_ ]?[Ii][Dd])[^\w\n]{1,6}([0-9a-f]{32})\b", re.ASCII
    )


class Guids(Patterned):
    """Of InfiniBand's ports and devices: sixteen digits or four groups of four, wherever they stand once one place has
    called them so."""

    name = "InfiniBand GUIDs"
    pattern = re.compile(
        r"(?i)guid[\"')]{0,2}[ \t]*[:=.]*[ \t]*[\"']?(?:0x)?([0-9a-f]{16}|[0-9a-f]{4}(?::[0-9a-f]{4}){3})(?![0-9a-z:])"
    )
    _known = re.compile(
        r"(?<![0-9A-Za-z])(?:0[xX])?([0-9A-Fa-f]{16})(?![0-9A-Za-z])"
        r"|(?<![\w:])([0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?![\w:])"
    )

    def key(self, text: str) -> str | None:
        """Its digits; none for one that nobody has set."""
        digits = text.lower().replace(":", "")
        return digits if set(digits) - {"0", "f"} else None

    def named(self, number: int) -> str:
        """Of those that are given locally."""
        return f"02000000{number:08x}"

    def signs(self) -> Iterable[Sign]:
        return (literal(each, caseless=True) for key in self.names for each in (key, _in_fours(key)))

    def replaced(self, text: str) -> str:
        return self._known.sub(self._renamed, text) if self.names else text

    def _renamed(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        name = self.names.get(digits.lower().replace(":", ""))
        return match[0] if name is None else match[0].replace(digits, _in_fours(name) if match[2] else name)

    def traces(self) -> Iterable[Trace]:
        for key, name in self.names.items():
            yield Trace(key, name, r"(?:(?<![A-Za-z0-9])|(?<=0[xX]))")
            yield Trace(_in_fours(key), name, r"(?<![\w:])", r"(?![\w:])")


def _in_fours(digits: str) -> str:
    return ":".join(digits[place : place + 4] for place in range(0, 16, 4))
