"""One GPU that is read repeatedly: values that it does not support, or that hardly change, are read less often."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from trackside.agent.nvml.fields import FIELDS, MAX_LINKS, FieldRequest, NvmlField, fields_by_link
from trackside.agent.nvml.library import LOST_CODES, NOT_SUPPORTED_CODES, UNUSABLE_CODES, GpuDevice, Library
from trackside.agent.nvml.probes import FAULTY_LINKS, NvmlProbe, ProbeValue, probes_of
from trackside.agent.source import AgentSourceUnavailable, Labels
from trackside.catalog.metrics import METRICS

RETRY_UNSUPPORTED_S = 300.0
"""Interval at which unsupported values are tried again: ECC and MIG can be switched, and a restriction lifted."""
_LINK_COUNT = 91


class GpuUnreachable(Exception):
    """The GPU cannot be reached, or needs a reset: NVML's message."""


@dataclass(slots=True)
class _ProbeState:
    """State of a probe."""

    probe: NvmlProbe
    due: float = 0.0
    values: tuple[ProbeValue, ...] = ()
    error_code: int = 0
    """The return code that means not supported; 0 if supported."""


class NvmlGpu:
    """One GPU: its probes and fields, and which of them it supports. Values are in the units of their metrics."""

    def __init__(self, library: Library, device: GpuDevice) -> None:
        """Prepare the probes that the GPU may support. Raises GpuUnreachable if it could not be identified."""
        self._api, self.device = library.api, device
        self._error: Any = library.error
        if device.handle is None:
            raise GpuUnreachable("it could not be identified when the agent started")
        self._probes = [_ProbeState(probe) for probe in probes_of(self._api, device.handle)]
        self._links = _ProbeState(FAULTY_LINKS)
        self._unsupported: dict[NvmlField, int] = {}
        self._request: FieldRequest | None = None
        self._fields_due = 0.0
        self._by_link: frozenset[NvmlField] = frozenset()
        """The fields that count errors of a single NVLink; empty if the driver has none."""
        self.failures: list[str] = []
        """Errors of the last reading that do not mean that the GPU is lost; one line each."""

    def read(self, skipped_metrics: Collection[str] = ()) -> Iterator[ProbeValue]:
        """Read all values, except probes whose metrics are all in ``skipped_metrics``. Raises GpuUnreachable, and
        AgentSourceUnavailable if NVML itself is gone."""
        now = time.monotonic()
        self.failures.clear()
        for state in self._probes:
            if not set(state.probe.metrics) <= set(skipped_metrics):
                yield from self._probe(state, now)
        link_errors = 0.0
        for value in self._fields(now):
            yield value
            link_errors += value[2] if value[0] == "gpu_nvlink_errors_total" else 0.0
        if link_errors and not self._by_link:
            yield from self._probe(self._links, now)

    def unsupported(self) -> dict[str, int]:
        """Unsupported functions and fields -> NVML's return code."""
        codes = {state.probe.name: state.error_code for state in self._probes if state.error_code}
        return codes | {f"field {field.number}": code for field, code in self._unsupported.items()}

    def _probe(self, state: _ProbeState, now: float) -> tuple[ProbeValue, ...]:
        if now < state.due:
            return state.values
        state.values = ()
        try:
            state.values = tuple(
                value for value in state.probe.read(self._api, self.device.handle) if _is_plausible(value)
            )
            state.due, state.error_code = now + state.probe.reuse_s, 0
        except self._error as error:
            if error.value in NOT_SUPPORTED_CODES:
                state.due, state.error_code = now + RETRY_UNSUPPORTED_S, error.value
            self.check(error.value, state.probe.name)
        return state.values

    def _fields(self, now: float) -> Iterator[ProbeValue]:
        if self._request is None or now >= self._fields_due:
            self._select_fields(now)
        assert self._request is not None
        sums: dict[tuple[str, Labels], float] = {}
        code, answers = self._request.read(self.device.handle)
        self.check(code, "nvmlDeviceGetFieldValues")
        for field, code_of_field, value in answers:
            if code_of_field in NOT_SUPPORTED_CODES:
                self._unsupported[field] = code_of_field
            elif code_of_field:
                self.check(code_of_field, f"field {field.number}")
            elif self._by_link and field in self._by_link:
                key = field.metric, field.labels
                sums[key] = sums.get(key, 0.0) + value
                if value and field.metric == "gpu_nvlink_errors_total":
                    yield field.metric, (*field.labels, ("link", str(field.scope))), value
            elif _is_plausible(sample := (field.metric, field.labels, value)):
                yield sample
        if len(answers) and any(field in self._unsupported for field in self._request.fields):
            self._request = FieldRequest(
                self._api, [field for field in self._request.fields if field not in self._unsupported]
            )
        yield from ((metric, labels, value) for (metric, labels), value in sums.items())

    def _select_fields(self, now: float) -> None:
        """Select all fields; unsupported ones are found by reading, and left out until the next selection."""
        self._unsupported.clear()
        _, answers = FieldRequest(self._api, [NvmlField(_LINK_COUNT, "")]).read(self.device.handle)
        links = int(answers[0][2]) if answers and answers[0][1] == 0 else 0
        _, answers_of_first_link = FieldRequest(self._api, fields_by_link(1) if links else ()).read(self.device.handle)
        is_newer = any(
            code_of_field == 0
            for field, code_of_field, _ in answers_of_first_link
            if field.metric == "gpu_nvlink_errors_total"
        )
        self._by_link = frozenset(fields_by_link(min(links, MAX_LINKS))) if is_newer else frozenset()
        self._request = FieldRequest(self._api, [*FIELDS, *sorted(self._by_link)])
        self._fields_due = now + RETRY_UNSUPPORTED_S

    def check(self, code: int, function: str) -> None:
        """Handle NVML's return code: raises GpuUnreachable or AgentSourceUnavailable, or notes a failure."""
        if code in LOST_CODES:
            raise GpuUnreachable(str(self._error(code)))
        if code in UNUSABLE_CODES:
            raise AgentSourceUnavailable(f"NVML is no longer available: {self._error(code)}")
        if code and code not in NOT_SUPPORTED_CODES:
            self.failures.append(f"{function}: {self._error(code)}")


def _is_plausible(value: ProbeValue) -> bool:
    """Whether a value is in its metric's range; NVML sets all bits if it has no value."""
    metric = METRICS[value[0]]
    return metric.low <= value[2] <= metric.high
