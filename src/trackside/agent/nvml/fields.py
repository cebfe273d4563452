"""NVML's fields: counters and gauges that one call returns together.

Numbers and units: nvml.h, as declared by nvidia-ml-py. Times are in nanoseconds, power in milliwatts, energy in
millijoules, NVLink traffic in KiB before Blackwell and in bytes since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from trackside.agent.source import Labels

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field that is the total of all links."""
MAX_LINKS = 36
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of NVML's union of values for each type number."""


class NvmlField(NamedTuple):
    """One field. ``scope``: the link that it is read from, for fields of links."""

    number: int
    metric: str
    labels: Labels = ()
    scale: float = 1.0
    scope: int = 0


def _throttle(number: int, reason: str) -> NvmlField:
    return NvmlField(number, "gpu_throttle_seconds_total", (("reason", reason),), 1e-9)


def _nvlink(number: int, kind: str) -> NvmlField:
    return NvmlField(number, "gpu_nvlink_errors_total", (("kind", kind),))


FIELDS: tuple[NvmlField, ...] = (
    NvmlField(3, "gpu_ecc_correctable_total"),
    NvmlField(4, "gpu_ecc_uncorrectable_total"),
    NvmlField(5, "gpu_ecc_correctable_lifetime_total"),
    NvmlField(6, "gpu_ecc_uncorrectable_lifetime_total"),
    NvmlField(29, "gpu_pages_retired_total", (("cause", "single_bit"),)),
    NvmlField(30, "gpu_pages_retired_total", (("cause", "double_bit"),)),
    NvmlField(31, "gpu_pages_pending"),
    NvmlField(142, "gpu_rows_remapped_correctable_total"),
    NvmlField(143, "gpu_rows_remapped_uncorrectable_total"),
    NvmlField(144, "gpu_row_remap_pending"),
    NvmlField(145, "gpu_row_remap_failed"),
    NvmlField(82, "gpu_memory_temperature_celsius"),
    NvmlField(83, "gpu_energy_joules_total", (), 1e-3),
    NvmlField(186, "gpu_power_instant_watts", (), 1e-3),
    NvmlField(94, "gpu_pcie_replays_total"),
    NvmlField(173, "gpu_pcie_errors_total", (("kind", "correctable"),)),
    NvmlField(174, "gpu_pcie_errors_total", (("kind", "nack_received"),)),
    NvmlField(177, "gpu_pcie_errors_total", (("kind", "nack_sent"),)),
    NvmlField(197, "gpu_pcie_tx_bytes_total"),
    NvmlField(198, "gpu_pcie_rx_bytes_total"),
    NvmlField(138, "gpu_nvlink_tx_bytes_total", (), 1024.0, ALL_LINKS),
    NvmlField(139, "gpu_nvlink_rx_bytes_total", (), 1024.0, ALL_LINKS),
    NvmlField(230, "gpu_recovery_action"),
    _throttle(74, "sw_power_cap"),
    _throttle(75, "thermal"),
    _throttle(76, "sync_boost"),
    _throttle(77, "board_limit"),
    _throttle(78, "low_utilization"),
    _throttle(79, "reliability"),
    _throttle(80, "below_application_clocks"),
    _throttle(81, "below_base_clocks"),
    _throttle(269, "sw_thermal_slowdown"),
    _throttle(270, "hw_thermal_slowdown"),
    _throttle(271, "hw_power_brake_slowdown"),
    _nvlink(38, "crc_flit"),
    _nvlink(45, "crc_data"),
    _nvlink(52, "replay"),
    _nvlink(59, "recovery"),
    _nvlink(160, "ecc"),
)
"""Fields read in each reading."""

LINK_COUNTERS: Sequence[tuple[int, str]] = ((2, "crc_flit"), (3, "crc_data"), (0, "replay"), (1, "recovery"))
"""nvmlDeviceGetNvLinkErrorCounter: a link's share of the totals above, read if any of them is not 0."""

_NVLINK5 = (
    NvmlField(202, "gpu_nvlink_tx_bytes_total"),
    NvmlField(204, "gpu_nvlink_rx_bytes_total"),
    _nvlink(206, "malformed"),
    _nvlink(207, "buffer_overrun"),
    _nvlink(208, "receive"),
    _nvlink(209, "remote"),
    _nvlink(210, "general"),
    _nvlink(211, "local_integrity"),
    _nvlink(212, "discards"),
    _nvlink(213, "recovered"),
    _nvlink(214, "recovery_failed"),
    _nvlink(215, "recovery"),
    _nvlink(219, "effective"),
    _nvlink(221, "symbol"),
)


def fields_by_link(links: int) -> tuple[NvmlField, ...]:
    """Fields of each link, which Blackwell and later have instead of the totals."""
    return tuple(field._replace(scope=link) for field in _NVLINK5 for link in range(min(links, MAX_LINKS)))


class FieldRequest:
    """Reads several fields of one GPU by one call. The array is kept because creating it costs more than the call."""

    def __init__(self, api: Any, fields: Sequence[NvmlField]) -> None:
        self.fields = tuple(fields)
        self._array = (api.c_nvmlFieldValue_t * len(self.fields))()
        self._call = api.nvmlLib.nvmlDeviceGetFieldValues
        for value, field in zip(self._array, self.fields, strict=True):
            value.fieldId, value.scopeId = field.number, field.scope

    def read(self, handle: Any) -> tuple[int, list[tuple[NvmlField, int, float]]]:
        """NVML's return code of the call; and (field, its return code, value in the metric's unit) for each field."""
        if not self.fields:
            return 0, []
        code = int(self._call(handle, len(self.fields), self._array))
        if code:
            return code, []
        answers = []
        for value, field in zip(self._array, self.fields, strict=True):
            value_type = value.valueType
            is_valid = value.nvmlReturn == 0 and value_type < len(_VALUES)
            number = float(getattr(value.value, _VALUES[value_type])) * field.scale if is_valid else 0.0
            answers.append((field, value.nvmlReturn, number))
        return code, answers
