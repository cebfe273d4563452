"""A standstill of a run's GPUs, and how it is told. Pure.

A run that waits in a collective keeps its GPUs busy without work; the one that it waits for is cold, gone, or doing
something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.gpu.activity import Flags, GpuActivity, middle
from trackside.facts.gpu.apart import Apart
from trackside.facts.gpus import of_gpu
from trackside.finding import Claim, claim
from trackside.query import Reducer

UNITLESS = ("launches", "collectives")
"""Units that a sentence names itself."""
_ACTIVITY = {"engine": "engine activity", "sm": "SM activity"}
"""Ask -> what it is called beside its level."""
MOST_CITED = 8
"""GPUs of which each is cited, of those that stand apart."""


@dataclass(frozen=True)
class Still:
    """The GPUs did no work from a moment to the end of what was watched."""

    evidence: Evidence
    seen: GpuActivity
    since: float
    """By then it had begun; POSIX seconds."""
    after: float
    """Work was last seen in the window that ends here."""
    until: float
    seconds: Value
    sure: bool
    """Long enough in itself; else only for a run as short as this one, or beside other evidence."""
    apart: Apart
    held: bool | None
    """Whether most GPUs keep their memory; None where it was not sampled."""

    @property
    def odd(self) -> tuple[str, ...]:
        """The GPUs that the others wait for, as far as they tell."""
        return self.seen.named(self.apart.odd)

    @property
    def frozen(self) -> bool:
        """Whether GPUs wait busily, which only a collective (or a kernel without end) makes them do."""
        return bool(self.apart.spinning.any())

    def figure(self, name: str, how: Reducer = "median", before: bool = False) -> Value | None:
        """What a metric read during the standstill, or while there was work; None where it wasn't sampled."""
        grid = self.evidence.grid(name)
        if grid is None:
            return None
        part = grid.during(self._worked_from(grid), self.after) if before else grid.during(self.after, self.until)
        value = part.value(how, unit="" if grid.unit in UNITLESS else None)
        return None if value.value is None else value

    def _worked_from(self, grid: Grid) -> float:
        """When the first work was seen: what was before it, the run's start-up, is no level to compare with."""
        worked = self.seen.times[self.seen.active & (self.seen.times <= self.after)]
        return float(worked[0]) - self.seen.step if len(worked) else float(grid.times[0]) - grid.step

    def _of_those(self, name: str, rows: Flags) -> Value | None:
        """The median of some of the GPUs during the standstill."""
        grid, values = self.evidence.grid(name), self.seen.signal(name)
        if grid is None or values is None:
            return None
        level = middle(values[rows][:, (self.seen.times > self.after) & (self.seen.times <= self.until)])
        unit = "" if grid.unit in UNITLESS else grid.unit
        some = [
            of_gpu(grid, gpu).during(self.after, self.until).value("median", unit) for gpu in self.seen.named(rows)[:3]
        ]
        return derived(round(float(level), 4), *some, unit=unit) if some else None

    def shows(self) -> list[Claim]:
        """What tells that there was no work, and who stands apart."""
        told: list[Claim] = []
        for name in ("launches", "collectives"):
            now, grid = self.figure(name, "sum"), self.evidence.grid(name)
            if now is not None and grid is not None:
                told.append(claim(f"rest_{name}", now=now, whole=grid.value("sum", unit=""), seconds=self.seconds))
        for name, key in (("sm", "sm"), ("power", "power"), ("engine", "busy"), ("utilisation", "busy")):
            now, before = self.figure(name), self.figure(name, before=True)
            if now is not None and before is not None and (name == "sm" or not told):
                told.append(claim(f"rest_{key}", now=now, before=before, seconds=self.seconds))
        told += self._waiting() + self._stands_apart()
        memory = self.figure("memory") if self.held else None
        return [*told, claim("memory_held", memory=memory)] if memory is not None else told

    def _waiting(self) -> list[Claim]:
        count = int(self.apart.spinning.sum())
        name = self.seen.busy_by or "power"
        level_now = self._of_those(name, self.apart.spinning)
        if not count or level_now is None:
            return []
        number = derived(count, level_now, unit="GPUs" if count > 1 else "GPU")
        if name != "power":
            level_now = replace(level_now, unit="share")
        if name == "power":
            return [claim("spin_power", count=number, power=level_now)]
        return [claim("spin", count=number, busy=level_now, signal=derived(_ACTIVITY.get(name, name), level_now))]

    def _stands_apart(self) -> list[Claim]:
        odd, why = self.odd, self.apart.why
        if not odd:
            return []
        if why in ("behind", "absent"):
            return self._counted(odd)
        name = {"gone": "power"}.get(why) or (self.seen.busy_by or "power")
        names = [each for each in (name, "sm", "power", "launches", "memory") if self.evidence.grid(each) is not None]
        grid = self.evidence.grid(names[0])
        assert grid is not None
        during = grid.during(self.after, self.until)
        own = [of_gpu(during, gpu).value("count" if why == "gone" else "median", unit="") for gpu in odd[:MOST_CITED]]
        gpus = derived(odd, *own)
        if why == "cold":
            most = max(own, key=lambda value: value.number if value.value is not None else -1.0)
            return [claim("odd_cold", gpus=gpus, level=most, signal=derived(names[0], most))]
        if why == "gone":
            return [claim("odd_gone", gpus=gpus, samples=during.value("count", unit="samples"))]
        return [claim(f"odd_{why}", gpus=gpus)]

    def _counted(self, odd: tuple[str, ...]) -> list[Claim]:
        entered, left = self.evidence.grid("entered"), self.evidence.grid("left")
        assert entered is not None
        own = [of_gpu(entered, gpu).value("last", unit="") for gpu in odd[:MOST_CITED]]
        if self.apart.why == "behind" or left is None:
            return [claim("odd_behind", gpus=derived(odd, *own), mine=own[0], theirs=entered.value("max", unit=""))]
        done = of_gpu(left, odd[0]).value("last", unit="")
        return [claim("odd_absent", gpus=derived(odd, *own), mine=own[0], theirs=done)]
