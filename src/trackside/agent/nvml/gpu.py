"""One GPU read again and again: what it can't tell is asked seldom, what hardly changes too."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from trackside.agent.nvml.fields import FIELDS, MOST_LINKS, Asked, Field, by_link
from trackside.agent.nvml.library import GONE, LOST, NOT_SUPPORTED, Device, Library
from trackside.agent.nvml.probes import FAULTY_LINKS, Given, Probe, probes_of
from trackside.agent.source import Labels, Unavailable
from trackside.catalog.metrics import METRICS

ASK_AGAIN_S = 300.0
"""When what isn't supported is asked again: ECC and MIG can be switched, and a restriction lifted."""
_LINK_COUNT = 91


class Lost(Exception):
    """The GPU can't be reached, or needs a reset before it can be used: NVML's words."""


@dataclass(slots=True)
class _Asking:
    """A probe's state."""

    probe: Probe
    due: float = 0.0
    given: tuple[Given, ...] = ()
    refused: int = 0
    """The code by which it isn't supported."""


class Gpu:
    """One GPU: its probes and fields, and what of them it supports. Numbers are in the units of their metrics."""

    def __init__(self, library: Library, device: Device) -> None:
        """Raises Lost."""
        self._api, self.device = library.api, device
        self._error: Any = library.error
        if device.handle is None:
            raise Lost("it did not say what it is when the agent began")
        self._probes = [_Asking(probe) for probe in probes_of(self._api, device.handle)]
        self._links = _Asking(FAULTY_LINKS)
        self._left_out: dict[Field, int] = {}
        self._asked: Asked | None = None
        self._fields_due = 0.0
        self.failures: list[str] = []
        """What went wrong at the last reading though the GPU is there; a line each."""

    def read(self, spared: Collection[str] = ()) -> Iterator[Given]:
        """All that it tells now, but for what metrics in ``spared`` alone would need. Raises Lost, and Unavailable
        where NVML itself is gone."""
        now = time.monotonic()
        self.failures.clear()
        for asking in self._probes:
            if not set(asking.probe.metrics) <= set(spared):
                yield from self._probe(asking, now)
        broken = 0.0
        for given in self._fields(now):
            yield given
            broken += given[2] if given[0] == "gpu_nvlink_errors_total" else 0.0
        if broken and not self._by_link:
            yield from self._probe(self._links, now)

    def unsupported(self) -> dict[str, int]:
        """What it does not support: function or field -> NVML's code."""
        found = {asking.probe.name: asking.refused for asking in self._probes if asking.refused}
        return found | {f"field {field.number}": code for field, code in self._left_out.items()}

    def _probe(self, asking: _Asking, now: float) -> tuple[Given, ...]:
        if now < asking.due:
            return asking.given
        asking.given = ()
        try:
            asking.given = tuple(each for each in asking.probe.ask(self._api, self.device.handle) if _plausible(each))
            asking.due, asking.refused = now + asking.probe.after_s, 0
        except self._error as error:
            if error.value in NOT_SUPPORTED:
                asking.due, asking.refused = now + ASK_AGAIN_S, error.value
            self.heed(error.value, asking.probe.name)
        return asking.given

    def _fields(self, now: float) -> Iterator[Given]:
        if self._asked is None or now >= self._fields_due:
            self._choose(now)
        assert self._asked is not None
        sums: dict[tuple[str, Labels], float] = {}
        code, answers = self._asked.ask(self.device.handle)
        self.heed(code, "nvmlDeviceGetFieldValues")
        for field, refused, value in answers:
            if refused in NOT_SUPPORTED:
                self._left_out[field] = refused
            elif refused:
                self.heed(refused, f"field {field.number}")
            elif self._by_link and field in self._by_link:
                key = field.metric, field.labels
                sums[key] = sums.get(key, 0.0) + value
                if value and field.metric == "gpu_nvlink_errors_total":
                    yield field.metric, (*field.labels, ("link", str(field.scope))), value
            elif _plausible(given := (field.metric, field.labels, value)):
                yield given
        if len(answers) and any(field in self._left_out for field in self._asked.fields):
            self._asked = Asked(self._api, [each for each in self._asked.fields if each not in self._left_out])
        yield from ((metric, labels, value) for (metric, labels), value in sums.items())

    def _choose(self, now: float) -> None:
        """All fields there are: those not supported are found out, and left out until the next time."""
        self._left_out.clear()
        _, answers = Asked(self._api, [Field(_LINK_COUNT, "")]).ask(self.device.handle)
        links = int(answers[0][2]) if answers and answers[0][1] == 0 else 0
        _, first = Asked(self._api, by_link(1) if links else ()).ask(self.device.handle)
        newer = any(refused == 0 for field, refused, _ in first if field.metric == "gpu_nvlink_errors_total")
        self._by_link = frozenset(by_link(min(links, MOST_LINKS))) if newer else frozenset()
        self._asked = Asked(self._api, [*FIELDS, *sorted(self._by_link)])
        self._fields_due = now + ASK_AGAIN_S

    _by_link: frozenset[Field] = frozenset()

    def heed(self, code: int, asked: str) -> None:
        """What an answer's code means for the GPU and the source."""
        if code in LOST:
            raise Lost(str(self._error(code)))
        if code in GONE:
            raise Unavailable(f"NVML went away: {self._error(code)}")
        if code and code not in NOT_SUPPORTED:
            self.failures.append(f"{asked}: {self._error(code)}")


def _plausible(given: Given) -> bool:
    """Whether a value can be; NVML writes all bits set where it has none."""
    metric = METRICS[given[0]]
    return metric.low <= given[2] <= metric.high
