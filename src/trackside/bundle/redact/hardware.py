"""UUIDs of GPUs, serial numbers, and the ids that a machine or one start of it has for its journal.

They name a machine as surely as its host name does. A vendor who needs one gets it from the owner's mapping.
"""

from __future__ import annotations

import re

from trackside.bundle.redact.kind import AFTER, Patterned
from trackside.bundle.redact.literal import Literal


class GpuUuids(Patterned):
    """``GPU-`` and ``MIG-`` with a UUID, or with its first eight digits."""

    name = "GPU UUIDs"
    pattern = re.compile(
        rf"(?<![A-Za-z0-9])(?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{0,3}}(?:-[0-9a-fA-F]{{12}})?{AFTER}"
    )

    def key(self, text: str) -> str | None:
        """Its first eight digits."""
        return re.sub(r"^(?:MIG-)?(?:GPU-)?", "", text)[:8].lower()

    def named(self, key: str, number: int) -> str:
        """Eight digits."""
        name = f"{number:08x}"
        return name if name not in self._found else self.named(key, number + (1 << 24))

    def _named(self, match: re.Match[str]) -> str:
        begin, rest = re.match(r"((?:MIG-)?(?:GPU-)?)(.*)", match[0], re.DOTALL).groups()  # type: ignore[union-attr]
        filled = super()._named(match) + "-0000-4000-8000-000000000000"
        return str(begin) + filled[: len(rest)]

    def skipped(self, text: str) -> bool:
        """Whether it names none."""
        return "GPU-" not in text and "MIG-" not in text


class Serials(Literal):
    """Serial numbers of cards and boards, wherever they stand once one place has called them so."""

    name, word = "serial numbers", "serial"
    pattern = re.compile(
        r"(?i)(?=[sbc])(?:serial(?:[ _-]?(?:number|no|num))?|board[ _]id|chassis[ _]serial)[\"']?\s*(?:[:=>]|\s)\s*"
        r"[\"']?([A-Z0-9][A-Z0-9-]{7,31})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """One with three digits at least."""
        return text if sum(letter.isdigit() for letter in text) >= 3 and text.lower() not in ("0x00000000",) else None


class MachineIds(Literal):
    """What systemd calls a machine and a start of it."""

    name, word = "machine and boot ids", "id"
    pattern = re.compile(r"(?:_MACHINE_ID|_BOOT_ID|MachineID|machine-id|[Bb]oot[_ ]?[Ii][Dd])\W{1,6}([0-9a-f]{32})\b")
