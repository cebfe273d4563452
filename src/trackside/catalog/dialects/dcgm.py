"""DCGM's fields, as named by dcgm-exporter (``DCGM_FI_...``) and by its 1.x versions (``dcgm_`` and DCGM's tag).

Numbers, names, tags and short names: dcgm_fields.h and dcgm_fields.cpp of DCGM 2.0 to 4.7, which renamed many fields
but kept their numbers. Units where the comments in these files are wrong: the violation counters are nanoseconds (NVML's
nvmlDeviceGetViolationStatus), NVLink bandwidth is KiB/s divided by 1000, and the PCIe and NVLink "bytes" of the
profiling fields are bytes a second, whatever type an exporter's counters file gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from trackside.catalog.dialect import Dialect, ForeignMetric, Guess
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label

_PERCENT, _MIB, _MHZ, _MILLI, _KB, _NS = 0.01, float(1 << 20), 1e6, 1e-3, 1e3, 1e-9
_MB_S = 1.024e6


class FieldMapping(NamedTuple):
    """One field. ``names``: without ``DCGM_FI_``, newest last. ``tag``, ``short``: empty if unknown."""

    number: int
    names: str
    tag: str
    short: str
    metric: str
    scale: float = 1.0
    labels: Mapping[str, str] = {}
    guess: Guess = ""

    @property
    def foreign(self) -> ForeignMetric:
        """What the field maps to."""
        return ForeignMetric(self.metric, self.scale, self.labels, self.guess)


_BASE = (
    FieldMapping(4, "DEV_COUNT", "device_count", "DVCNT", "gpu_visible_gpus"),
    FieldMapping(90, "DEV_BAR1_TOTAL", "bar1_total", "B1TTL", "gpu_bar1_total_bytes", _MIB),
    FieldMapping(92, "DEV_BAR1_USED", "bar1_used", "B1USE", "gpu_bar1_used_bytes", _MIB),
    FieldMapping(93, "DEV_BAR1_FREE", "bar1_free", "B1FRE", "gpu_bar1_free_bytes", _MIB),
    FieldMapping(100, "DEV_SM_CLOCK", "sm_clock", "SMCLK", "gpu_sm_clock_hertz", _MHZ),
    FieldMapping(101, "DEV_MEM_CLOCK", "memory_clock", "MMCLK", "gpu_memory_clock_hertz", _MHZ),
    FieldMapping(102, "DEV_VIDEO_CLOCK", "video_clock", "VICLK", "gpu_clock_hertz", _MHZ, {"kind": "video"}),
    FieldMapping(110, "DEV_APP_SM_CLOCK", "sm_app_clock", "SACLK", "gpu_sm_clock_requested_hertz", _MHZ),
    FieldMapping(112, "DEV_CLOCK_THROTTLE_REASONS DEV_CLOCKS_EVENT_REASONS", "current_clock_throttle_reasons", "DVCCTR",
          "gpu_throttle_reasons"),
    FieldMapping(113, "DEV_MAX_SM_CLOCK", "sm_max_clock", "SMMAX", "gpu_sm_clock_max_hertz", _MHZ),
    FieldMapping(114, "DEV_MAX_MEM_CLOCK", "memory_max_clock", "MMMAX", "gpu_memory_clock_max_hertz", _MHZ),
    FieldMapping(140, "DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS", "memory_temp", "MMTMP", "gpu_memory_temperature_celsius"),
    FieldMapping(150, "DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS", "gpu_temp", "TMPTR", "gpu_temperature_celsius"),
    FieldMapping(151, "DEV_MEM_MAX_OP_TEMP DEV_MEMORY_MAX_OP_TEMP_CELSIUS", "gpu_mem_max_op_temp", "GMMOT",
          "gpu_temperature_limit_celsius", 1.0, {"kind": "memory_operating"}),
    FieldMapping(152, "DEV_GPU_MAX_OP_TEMP DEV_GPU_MAX_OP_TEMP_CELSIUS", "gpu_max_op_temp", "GGMOT",
          "gpu_temperature_limit_celsius", 1.0, {"kind": "operating"}),
    FieldMapping(153, "DEV_GPU_TEMP_LIMIT DEV_GPU_TEMP_MARGIN_CELSIUS", "", "", "gpu_temperature_margin_celsius"),
    FieldMapping(155, "DEV_POWER_USAGE DEV_BOARD_POWER_WATTS", "power_usage", "POWER", "gpu_power_watts"),
    FieldMapping(156, "DEV_TOTAL_ENERGY_CONSUMPTION", "total_energy_consumption", "TOTEC", "gpu_energy_joules_total", _MILLI),
    FieldMapping(157, "DEV_POWER_USAGE_INSTANT DEV_BOARD_POWER_RAW_WATTS", "power_usage_instant", "POINST",
          "gpu_power_instant_watts"),
    FieldMapping(158, "DEV_SLOWDOWN_TEMP DEV_GPU_TEMP_SLOWDOWN_CELSIUS", "slowdown_temp", "SDTMP",
          "gpu_temperature_limit_celsius", 1.0, {"kind": "slowdown"}),
    FieldMapping(159, "DEV_SHUTDOWN_TEMP DEV_GPU_TEMP_SHUTDOWN_CELSIUS", "shutdown_temp", "SHTMP",
          "gpu_temperature_limit_celsius", 1.0, {"kind": "shutdown"}),
    FieldMapping(160, "DEV_POWER_MGMT_LIMIT DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", "power_management_limit", "PMLMT",
          "gpu_power_limit_watts"),
    FieldMapping(161, "DEV_POWER_MGMT_LIMIT_MIN DEV_BOARD_POWER_LIMIT_MIN_WATTS", "power_management_limit_min", "PMMIN",
          "gpu_power_limit_range_watts", 1.0, {"kind": "min"}),
    FieldMapping(162, "DEV_POWER_MGMT_LIMIT_MAX DEV_BOARD_POWER_LIMIT_MAX_WATTS", "power_management_limit_max", "PMMAX",
          "gpu_power_limit_range_watts", 1.0, {"kind": "max"}),
    FieldMapping(163, "DEV_POWER_MGMT_LIMIT_DEF DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS", "power_management_limit_default", "PMDEF",
          "gpu_power_limit_range_watts", 1.0, {"kind": "default"}),
    FieldMapping(164, "DEV_ENFORCED_POWER_LIMIT DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "enforced_power_limit", "EPLMT",
          "gpu_power_limit_watts"),
    FieldMapping(170, "DEV_FABRIC_MANAGER_STATUS", "", "", "gpu_fabric_state"),
    FieldMapping(190, "DEV_PSTATE DEV_GPU_PSTATE", "pstate", "PSTAT", "gpu_pstate"),
    FieldMapping(191, "DEV_FAN_SPEED", "fan_speed", "FANSP", "gpu_fan_speed_ratio", _PERCENT),
    FieldMapping(200, "DEV_PCIE_TX_THROUGHPUT", "pcie_tx_throughput", "TXTPT", "gpu_pcie_tx_bytes_per_second", _KB),
    FieldMapping(201, "DEV_PCIE_RX_THROUGHPUT", "pcie_rx_throughput", "RXTPT", "gpu_pcie_rx_bytes_per_second", _KB),
    FieldMapping(202, "DEV_PCIE_REPLAY_COUNTER DEV_PCIE_REPLAY_TOTAL", "pcie_replay_counter", "RPCTR", "gpu_pcie_replays_total"),
    FieldMapping(203, "DEV_GPU_UTIL", "gpu_utilization", "GPUTL", "gpu_utilization_ratio", _PERCENT),
    FieldMapping(204, "DEV_MEM_COPY_UTIL", "mem_copy_utilization", "MCUTL", "gpu_memory_utilization_ratio", _PERCENT),
    FieldMapping(206, "DEV_ENC_UTIL", "enc_utilization", "ECUTL", "gpu_encoder_utilization_ratio", _PERCENT),
    FieldMapping(207, "DEV_DEC_UTIL", "dec_utilization", "DCUTL", "gpu_decoder_utilization_ratio", _PERCENT),
    FieldMapping(230, "DEV_XID_ERRORS DEV_XID_ERROR", "xid_errors", "XIDER", "gpu_xid_last"),
    FieldMapping(235, "DEV_PCIE_MAX_LINK_GEN", "pcie_max_link_gen", "PCIMG", "gpu_pcie_link_generation_max"),
    FieldMapping(236, "DEV_PCIE_MAX_LINK_WIDTH", "pcie_max_link_width", "PCIMW", "gpu_pcie_link_width_max"),
    FieldMapping(237, "DEV_PCIE_LINK_GEN", "pcie_link_gen", "PCILG", "gpu_pcie_link_generation"),
    FieldMapping(238, "DEV_PCIE_LINK_WIDTH", "pcie_link_width", "PCILW", "gpu_pcie_link_width"),
    FieldMapping(250, "DEV_FB_TOTAL", "fb_total", "FBTTL", "gpu_memory_total_bytes", _MIB),
    FieldMapping(251, "DEV_FB_FREE", "fb_free", "FBFRE", "gpu_memory_free_bytes", _MIB),
    FieldMapping(252, "DEV_FB_USED", "fb_used", "FBUSD", "gpu_memory_used_bytes", _MIB),
    FieldMapping(253, "DEV_FB_RESERVED", "fb_resv", "FBRSV", "gpu_memory_reserved_bytes", _MIB),
    FieldMapping(254, "DEV_FB_USED_PERCENT DEV_FB_USED_RATIO", "fb_usdp", "FBUSP", "gpu_memory_used_ratio", guess="ratio"),
    FieldMapping(310, "DEV_ECC_SBE_VOL_TOTAL", "ecc_sbe_volatile_total", "ESVTL", "gpu_ecc_correctable_total"),
    FieldMapping(311, "DEV_ECC_DBE_VOL_TOTAL", "ecc_dbe_volatile_total", "EDVTL", "gpu_ecc_uncorrectable_total"),
    FieldMapping(312, "DEV_ECC_SBE_AGG_TOTAL", "ecc_sbe_aggregate_total", "ESATL", "gpu_ecc_correctable_lifetime_total"),
    FieldMapping(313, "DEV_ECC_DBE_AGG_TOTAL", "ecc_dbe_aggregate_total", "EDATL", "gpu_ecc_uncorrectable_lifetime_total"),
    FieldMapping(346, "DEV_THRESHOLD_SRM DEV_SRAM_EXCEEDED", "ecc_threshold_sram", "ECCTHRSRM", "gpu_sram_threshold_exceeded"),
    FieldMapping(390, "DEV_RETIRED_SBE DEV_PAGE_RETIRED_SBE_TOTAL", "retired_pages_sbe", "RPSBE", "gpu_pages_retired_total", 1.0,
          {"cause": "single_bit"}),
    FieldMapping(391, "DEV_RETIRED_DBE DEV_PAGE_RETIRED_DBE_TOTAL", "retired_pages_dbe", "RPDBE", "gpu_pages_retired_total", 1.0,
          {"cause": "double_bit"}),
    FieldMapping(392, "DEV_RETIRED_PENDING DEV_PAGE_RETIRED_PENDING", "retired_pages_pending", "RPPEN", "gpu_pages_pending"),
    FieldMapping(393, "DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "uncorrectable_remapped_rows", "URMPS",
          "gpu_rows_remapped_uncorrectable_total"),
    FieldMapping(394, "DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_CORRECTABLE_TOTAL", "correctable_remapped_rows", "CRMPS",
          "gpu_rows_remapped_correctable_total"),
    FieldMapping(395, "DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_FAILED", "row_remap_failure", "RRF", "gpu_row_remap_failed"),
    FieldMapping(396, "DEV_ROW_REMAP_PENDING", "row_remap_pending", "RRP", "gpu_row_remap_pending"),
    FieldMapping(1523, "DEV_GPU_RECOVERY_ACTION", "", "", "gpu_recovery_action"),
    FieldMapping(1501, "DEV_PCIE_CORRECTABLE_ERROR_TOTAL", "", "", "gpu_pcie_errors_total", 1.0, {"kind": "correctable"}),
)  # fmt: skip

_PROFILING = (
    FieldMapping(1001, "PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO", "gr_engine_active", "GRACT", "gpu_engine_active_ratio"),
    FieldMapping(1002, "PROF_SM_ACTIVE PROF_SM_UTIL_RATIO", "sm_active", "SMACT", "gpu_sm_active_ratio"),
    FieldMapping(1003, "PROF_SM_OCCUPANCY PROF_SM_OCCUPANCY_RATIO", "sm_occupancy", "SMOCC", "gpu_sm_occupancy_ratio"),
    FieldMapping(1004, "PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO", "tensor_active", "TENSO", "gpu_tensor_active_ratio"),
    FieldMapping(1005, "PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO", "dram_active", "DRAMA", "gpu_dram_active_ratio"),
    FieldMapping(1009, "PROF_PCIE_TX_BYTES", "pcie_tx_bytes", "PCITX", "gpu_pcie_tx_bytes_per_second"),
    FieldMapping(1010, "PROF_PCIE_RX_BYTES", "pcie_rx_bytes", "PCIRX", "gpu_pcie_rx_bytes_per_second"),
    FieldMapping(1011, "PROF_NVLINK_TX_BYTES", "nvlink_tx_bytes", "NVLTX", "gpu_nvlink_tx_bytes_per_second"),
    FieldMapping(1012, "PROF_NVLINK_RX_BYTES", "nvlink_rx_bytes", "NVLRX", "gpu_nvlink_rx_bytes_per_second"),
    FieldMapping(1091, "PROF_PCIE_TX_BYTES_TOTAL", "", "", "gpu_pcie_tx_bytes_total"),
    FieldMapping(1092, "PROF_PCIE_RX_BYTES_TOTAL", "", "", "gpu_pcie_rx_bytes_total"),
    FieldMapping(1532, "PROF_NVLINK_TX_BYTES_PER_LINK", "", "", "gpu_nvlink_tx_bytes_per_second"),
    FieldMapping(1533, "PROF_NVLINK_RX_BYTES_PER_LINK", "", "", "gpu_nvlink_rx_bytes_per_second"),
)  # fmt: skip

_PIPES = (
    FieldMapping(1006, "PROF_PIPE_FP64_ACTIVE PROF_FP64_UTIL_RATIO", "fp64_active", "FP64A", "fp64"),
    FieldMapping(1007, "PROF_PIPE_FP32_ACTIVE PROF_FP32_UTIL_RATIO", "fp32_active", "FP32A", "fp32"),
    FieldMapping(1008, "PROF_PIPE_FP16_ACTIVE PROF_FP16_UTIL_RATIO", "fp16_active", "FP16A", "fp16"),
    FieldMapping(
        1013, "PROF_PIPE_TENSOR_IMMA_ACTIVE PROF_IMMA_UTIL_RATIO", "tensor_imma_active", "TIMMA", "tensor_int"
    ),
    FieldMapping(
        1014, "PROF_PIPE_TENSOR_HMMA_ACTIVE PROF_HMMA_UTIL_RATIO", "tensor_hmma_active", "THMMA", "tensor_half"
    ),
    FieldMapping(
        1015, "PROF_PIPE_TENSOR_DFMA_ACTIVE PROF_DFMA_UTIL_RATIO", "tensor_dfma_active", "TDFMA", "tensor_double"
    ),
    FieldMapping(1016, "PROF_PIPE_INT_ACTIVE PROF_INT_UTIL_RATIO", "integer_active", "INTAC", "int"),
)

_VIOLATIONS = (
    FieldMapping(240, "DEV_POWER_VIOLATION", "power_violation", "PVIOL", "sw_power_cap"),
    FieldMapping(241, "DEV_THERMAL_VIOLATION", "thermal_violation", "TVIOL", "thermal"),
    FieldMapping(242, "DEV_SYNC_BOOST_VIOLATION", "sync_boost_violation", "SBVIO", "sync_boost"),
    FieldMapping(243, "DEV_BOARD_LIMIT_VIOLATION", "board_limit_violation", "BLVIO", "board_limit"),
    FieldMapping(244, "DEV_LOW_UTIL_VIOLATION", "low_util_violation", "LUVIO", "low_utilization"),
    FieldMapping(245, "DEV_RELIABILITY_VIOLATION", "reliability_violation", "RVIOL", "reliability"),
    FieldMapping(246, "DEV_TOTAL_APP_CLOCKS_VIOLATION", "app_clock_violation", "TAPCV", "below_application_clocks"),
    FieldMapping(247, "DEV_TOTAL_BASE_CLOCKS_VIOLATION", "base_clock_violation", "TAPBC", "below_base_clocks"),
    FieldMapping(1420, "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "", "", "sw_power_cap"),
    FieldMapping(1421, "DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_COUNT_NS", "", "", "sync_boost"),
    FieldMapping(1422, "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "", "", "sw_thermal_slowdown"),
    FieldMapping(1423, "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "", "", "hw_thermal_slowdown"),
    FieldMapping(1424, "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "", "", "hw_power_brake_slowdown"),
)  # fmt: skip

# DCGM 4.7 added fields in base units. Before, GPU_UTIL_RATIO was a name of field 203, in percent.
_BASE_UNITS = (
    FieldMapping(1600, "DEV_BAR1_CAPACITY_BYTES", "", "", "gpu_bar1_total_bytes"),
    FieldMapping(1601, "DEV_BAR1_USED_BYTES", "", "", "gpu_bar1_used_bytes"),
    FieldMapping(1602, "DEV_BAR1_FREE_BYTES", "", "", "gpu_bar1_free_bytes"),
    FieldMapping(1603, "DEV_SM_CLOCK_HERTZ", "", "", "gpu_sm_clock_hertz"),
    FieldMapping(1604, "DEV_MEMORY_CLOCK_HERTZ", "", "", "gpu_memory_clock_hertz"),
    FieldMapping(1605, "DEV_VIDEO_CLOCK_HERTZ", "", "", "gpu_clock_hertz", 1.0, {"kind": "video"}),
    FieldMapping(1606, "DEV_SM_APP_CLOCK_HERTZ", "", "", "gpu_sm_clock_requested_hertz"),
    FieldMapping(1608, "DEV_SM_MAX_CLOCK_HERTZ", "", "", "gpu_sm_clock_max_hertz"),
    FieldMapping(1609, "DEV_MEMORY_MAX_CLOCK_HERTZ", "", "", "gpu_memory_clock_max_hertz"),
    FieldMapping(1611, "DEV_GPU_ENERGY_JOULES_TOTAL", "", "", "gpu_energy_joules_total"),
    FieldMapping(1612, "DEV_FAN_SPEED_RATIO", "", "", "gpu_fan_speed_ratio"),
    FieldMapping(1613, "DEV_GPU_UTIL_RATIO", "", "", "gpu_utilization_ratio", guess="ratio"),
    FieldMapping(1614, "DEV_MEMORY_UTIL_RATIO", "", "", "gpu_memory_utilization_ratio", guess="ratio"),
    FieldMapping(1615, "DEV_ENC_UTIL_RATIO", "", "", "gpu_encoder_utilization_ratio", guess="ratio"),
    FieldMapping(1616, "DEV_DEC_UTIL_RATIO", "", "", "gpu_decoder_utilization_ratio", guess="ratio"),
    FieldMapping(1625, "DEV_FB_CAPACITY_BYTES", "", "", "gpu_memory_total_bytes"),
    FieldMapping(1626, "DEV_FB_FREE_BYTES", "", "", "gpu_memory_free_bytes"),
    FieldMapping(1627, "DEV_FB_USED_BYTES", "", "", "gpu_memory_used_bytes"),
    FieldMapping(1628, "DEV_FB_RESERVED_BYTES", "", "", "gpu_memory_reserved_bytes"),
)

# NVLink 5: one field for all links of a GPU, or for one where the series carries a link.
_NVLINK5 = {
    1204: ("RX_MALFORMED_PACKET_ERRORS RX_PACKET_MALFORMED_TOTAL", "malformed"),
    1205: ("RX_BUFFER_OVERRUN_ERRORS RX_PACKET_DROPPED_TOTAL", "buffer_overrun"),
    1206: ("RX_ERRORS RX_ERROR_TOTAL", "receive"),
    1207: ("RX_REMOTE_ERRORS RX_REMOTE_ERROR_TOTAL", "remote"),
    1208: ("RX_GENERAL_ERRORS RX_GENERAL_ERROR_TOTAL", "general"),
    1209: ("LOCAL_LINK_INTEGRITY_ERRORS INTEGRITY_ERROR_TOTAL", "local_integrity"),
    1210: ("TX_DISCARDS", "discards"),
    1211: ("LINK_RECOVERY_SUCCESSFUL_EVENTS RECOVERY_SUCCESSFUL_TOTAL", "recovered"),
    1212: ("LINK_RECOVERY_FAILED_EVENTS RECOVERY_FAILED_TOTAL", "recovery_failed"),
    1213: ("LINK_RECOVERY_EVENTS RECOVERY_EVENT_TOTAL", "recovery"),
    1214: ("RX_SYMBOL_ERRORS RX_SYMBOL_ERROR_TOTAL", "symbol"),
    1219: ("EFFECTIVE_ERRORS EFFECTIVE_ERROR_TOTAL", "effective"),
    1220: ("ECC_ERROR_TOTAL", "ecc"),
}

# Field numbers of links 0.., then of the total; later links got the numbers that were still free.
_LINKS = {
    "CRC_FLIT_ERROR": ("crc_flit", (*range(400, 406), *range(451, 457), 406, 407, 408, 481, 482, 483), 409),
    "CRC_DATA_ERROR": ("crc_data", (*range(410, 416), *range(457, 463), 416, 417, 418, 484, 485, 486), 419),
    "REPLAY_ERROR": ("replay", (*range(420, 426), *range(463, 469), 426, 427, 428, 487, 488, 489), 429),
    "RECOVERY_ERROR": ("recovery", (*range(430, 436), *range(469, 475), 436, 437, 438, 491, 492, 493), 439),
}
_LINK_SHORT = {"crc_flit": "NFEL", "crc_data": "NDEL", "replay": "NREL", "recovery": "NRCL"}
_LINK_TAG = {"crc_flit": "flit_crc", "crc_data": "data_crc", "replay": "replay", "recovery": "recovery"}
_BANDWIDTH = (*range(440, 446), *range(475, 481), 446, 447, 448, 494, 495, 496)


def _nvlink() -> Iterator[FieldMapping]:
    """NVLink errors and traffic, in total and per link."""
    errors, both = "gpu_nvlink_errors_total", "gpu_nvlink_bytes_per_second"
    for name, (kind, numbers, total) in _LINKS.items():
        short, tag = _LINK_SHORT[kind], f"nvlink_{_LINK_TAG[kind]}_error_count"
        names = f"DEV_NVLINK_{name}_COUNT_TOTAL DEV_NVLINK_{name}_TOTAL"
        yield FieldMapping(total, names, f"{tag}_total", f"{short}T", errors, 1.0, {"kind": kind})
        for link, number in enumerate(numbers):
            names = f"DEV_NVLINK_{name}_COUNT_L{link} DEV_NVLINK_{name}_L{link}_TOTAL"
            labels = {"kind": kind, "link": str(link)}
            yield FieldMapping(number, names, f"{tag}_l{link}", f"{short}{link}", errors, 1.0, labels)
    names = "DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_THROUGHPUT_TOTAL"
    yield FieldMapping(449, names, "nvlink_bandwidth_total", "NBWLT", both, _MB_S)
    for link, number in enumerate(_BANDWIDTH):
        names = f"DEV_NVLINK_BANDWIDTH_L{link} DEV_NVLINK_THROUGHPUT_L{link}"
        yield FieldMapping(number, names, f"nvlink_bandwidth_l{link}", f"NBWL{link}", both, _MB_S, {"link": str(link)})
    for way, first, rate, first_rate, count in (("TX", 825, 843, 1040, 1201), ("RX", 879, 897, 1041, 1203)):
        metric = f"gpu_nvlink_{way.lower()}_bytes_per_second"
        names = f"DEV_NVLINK_{way}_BANDWIDTH_TOTAL DEV_NVLINK_{way}_THROUGHPUT_TOTAL"
        yield FieldMapping(rate, names, "", "", metric, _MB_S)
        names = f"DEV_NVLINK_COUNT_{way}_BYTES DEV_NVLINK_{way}_BYTES_TOTAL"
        yield FieldMapping(count, names, "", "", f"gpu_nvlink_{way.lower()}_bytes_total")
        for link in range(18):
            labels = {"link": str(link)}
            names = f"DEV_NVLINK_{way}_BANDWIDTH_L{link} DEV_NVLINK_{way}_THROUGHPUT_L{link}"
            yield FieldMapping(first + link, names, "", "", metric, _MB_S, labels)
            yield FieldMapping(first_rate + 2 * link, f"PROF_NVLINK_L{link}_{way}_BYTES", "", "", metric, 1.0, labels)
    for number, (ends, kind) in _NVLINK5.items():
        names = " ".join(f"DEV_NVLINK_{middle}{end}" for end in ends.split() for middle in ("COUNT_", ""))
        yield FieldMapping(number, names, "", "", errors, 1.0, {"kind": kind})
    for number, kind in ((1216, "SYMBOL"), (1218, "EFFECTIVE")):
        names = f"DEV_NVLINK_COUNT_{kind}_BER_FLOAT DEV_NVLINK_{kind}_BER_RATIO"
        yield FieldMapping(number, names, "", "", "gpu_nvlink_bit_error_ratio", 1.0, {"kind": kind.lower()})


def _ecc() -> Iterator[FieldMapping]:
    """ECC errors per location; field numbers alternate between single and double bit."""
    first = {
        ("VOL", 314): "L1 L2 DEV REG TEX", ("AGG", 324): "L1 L2 DEV REG TEX", ("VOL", 334): "SHM CBU",
        ("AGG", 338): "SHM CBU", ("VOL", 342): "SRM", ("AGG", 344): "SRM",
    }  # fmt: skip
    places = {
        "L1": "l1", "L2": "l2", "DEV": "dram", "REG": "register", "TEX": "texture", "SHM": "shared", "CBU": "cbu",
        "SRM": "sram",
    }  # fmt: skip
    for (span, start), names in first.items():
        for index, name in enumerate(names.split()):
            for bit, kind in enumerate(("correctable", "uncorrectable")):
                labels = {"location": places[name], "kind": kind + ("_lifetime" if span == "AGG" else "")}
                field = f"DEV_ECC_{'SD'[bit]}BE_{span}_{name}"
                yield FieldMapping(start + 2 * index + bit, field, "", "", "gpu_ecc_location_total", 1.0, labels)


def _banks() -> Iterator[FieldMapping]:
    for index, level in enumerate(("MAX", "HIGH", "PARTIAL", "LOW", "NONE")):
        names = f"DEV_BANKS_REMAP_ROWS_AVAIL_{level} DEV_BANK_REMAP_AVAIL_{level}"
        yield FieldMapping(385 + index, names, "", "", "gpu_row_remap_banks", 1.0, {"level": level.lower()})


FIELDS: tuple[FieldMapping, ...] = (
    *_BASE,
    *_PROFILING,
    *(field._replace(metric="gpu_pipe_active_ratio", labels={"kind": field.metric}) for field in _PIPES),
    *(field._replace(metric="gpu_throttle_seconds_total", scale=_NS, labels={"reason": field.metric}) for field in _VIOLATIONS),
    *_BASE_UNITS,
    *_nvlink(),
    *_ecc(),
    *_banks(),
)  # fmt: skip
"""All fields that map to a metric"""

# Metrics that dcgm-exporter computes itself, and spellings in use that neither DCGM nor the exporter has.
_OTHER: Mapping[str, ForeignMetric] = {
    "DCGM_EXP_XID_ERRORS_COUNT": ForeignMetric("gpu_xid_events"),
    "DCGM_FI_DEV_XID_ERRORS_ACTIVE": ForeignMetric("gpu_xid_events"),
    "DCGM_EXP_CLOCK_EVENTS_COUNT": ForeignMetric("gpu_throttle_events"),
    "DCGM_EXP_GPU_HEALTH_STATUS": ForeignMetric("gpu_health"),
    "DCGM_FI_DEV_TENSOR_ACTIVE": ForeignMetric("gpu_tensor_active_ratio", guess="ratio"),
    "dcgm_frame_buffer_free": ForeignMetric("gpu_memory_free_bytes", _MIB),
    "dcgm_frame_buffer_used": ForeignMetric("gpu_memory_used_bytes", _MIB),
    "dcgm_frame_buffer_total": ForeignMetric("gpu_memory_total_bytes", _MIB),
    "dcgm_mem_clock": ForeignMetric("gpu_memory_clock_hertz", _MHZ),
    "dcgm_mem_temp": ForeignMetric("gpu_memory_temperature_celsius"),
    "dcgm_nvlink_crc_flit_error_count_total": ForeignMetric("gpu_nvlink_errors_total", labels={"kind": "crc_flit"}),
    "dcgm_nvlink_crc_data_error_count_total": ForeignMetric("gpu_nvlink_errors_total", labels={"kind": "crc_data"}),
    **{
        f"dcgm_{field.names.split()[0].lower()}": replace(
            field.foreign, guess="ratio" if field.metric.endswith("_ratio") else ""
        )
        for field in FIELDS
        if 1001 <= field.number <= 1012  # the first profiling fields, PROF_...
    },
}

_EVENTS = {
    "clocks_setting": "applications_clocks_setting", "power_cap": "sw_power_cap", "sw_thermal": "sw_thermal_slowdown",
    "hw_thermal": "hw_thermal_slowdown", "hw_power_brake": "hw_power_brake_slowdown",
    "display_clocks": "display_clock_setting",
}  # fmt: skip

DIALECT = Dialect(
    id="dcgm",
    title="DCGM (dcgm-exporter)",
    names={
        **{f"DCGM_FI_{name}": field.foreign for field in FIELDS for name in field.names.split()},
        **{f"dcgm_{field.tag}": field.foreign for field in FIELDS if field.tag},
        **_OTHER,
    },
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        **GPU_LABELS,
        "device": Label("gpu", "index"),
        "gpu_i_id": Label("mig"),
        "gpu_i_profile": Label("mig"),
        "dcgm_fi_driver_version": Label("driver"),
        "nvlink": Label("link", "index"),
        "xid": Label("xid"),
        "clock_event": Label("reason", "text", _EVENTS),
        "health_watch": Label("kind"),
    },
    unneeded=(
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",  # served by default
        "DCGM_FI_DRIVER_VERSION",
        "DCGM_FI_NVML_VERSION",
        "DCGM_FI_DEV_BRAND",
        "DCGM_FI_DEV_SERIAL",  # texts
    ),
)
