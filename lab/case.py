"""A case of the lab: how a failure is produced, and the expected verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.points import StepReader
from lab.stage import Stage

Play = Callable[[Stage], None]


@dataclass(frozen=True)
class LabCase:
    """One run with (at most) one injected fault.

    `expected` is what the injection makes certain. `marks` are patterns that the
    recorded inputs must contain, so that a run in which the fault did not happen is not
    recorded. `reader` reads the logged steps; with
    `no_progress` there is nothing to read and the scenario says so. `progress_keys` are
    the parts of the progress that are certain.
    """

    name: str
    play: Play
    expected: Mapping[str, Any]
    story: str
    marks: tuple[str, ...] = ()
    reader: StepReader | None = None
    no_progress: bool = False
    progress_keys: tuple[str, ...] = ("points", "first", "last")
    needs: tuple[str, ...] = field(default=())

    @property
    def family(self) -> str:
        return str(self.expected["family"])

    @property
    def folder(self) -> str:
        return f"{self.family.lower()}/lab-{self.name}"
