"""NVIDIA Xid and SXid numbers: mnemonic, usual cause, and what to do.

Sources: NVIDIA's Xid catalog, docs.nvidia.com/deploy/xid-errors (Ampere and newer; mnemonics, recovery actions), and the
older table of causes in the same documentation (hardware, driver or application per number); NVIDIA's Fabric Manager user
guide, appendix D (SXid).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Blame = Literal["hardware", "application", "either", "informational"]

_RC = "ROBUST_CHANNEL_"
_H: Blame = "hardware"
_A: Blame = "application"
_E: Blame = "either"
_I: Blame = "informational"

_ACTIONS: Mapping[str, str] = {  # on a drained node
    "ignore": "none for this Xid alone; look at the other Xids around it",
    "restart": "restart the application; if it recurs on the same GPU, test the GPU",
    "check": "check the application (compute-sanitizer, cuda-gdb); if the same GPU reports it under other jobs, test the GPU",
    "reset": "reset the GPU; if it recurs, contact the vendor",
    "firmware": "reset the GPU; if it recurs, update driver and GPU firmware, and report it with nvidia-bug-report.sh",
    "ecc": "reset the GPU; run the field diagnostic if SRAM limits are exceeded or it recurs",
    "reboot": "power-cycle the node, check PCIe and power; if it recurs, replace the GPU",
    "link": "check the NVLink at both ends, then reset the GPUs; if it recurs, contact the vendor",
    "watch": "no immediate action; monitor the count and reset the GPU at the next maintenance",
    "update": "update driver and firmware",
    "power": "check the auxiliary power and that the board is seated",
    "154": "follow the action in the message: reset the GPU or reboot the node",
    "vm": "restart the virtual machine",
    "unused": "not expected on data center GPUs; contact the vendor",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid number."""

    number: int
    mnemonic: str
    blame: Blame
    action: str
    by_reset: bool = False
    """Whether NVIDIA's first advice is to reset the GPU."""

    @property
    def name(self) -> str:
        """The mnemonic in words: ``GPU has fallen off the bus``."""
        words = self.mnemonic.removeprefix("ROBUST_CHANNEL_").split("_")
        return " ".join(word if word in _ACRONYMS else word.lower() for word in words)


_ACRONYMS = frozenset(
    [
        "CE",
        "CTXSW",
        "DBE",
        "DRAM",
        "ECC",
        "FECS",
        "GPU",
        "GSP",
        "IO",
        "MMU",
        "NVDEC",
        "NVENC",
        "NVJPG",
        "NVLINK",
        "PBDMA",
        "PCI",
        "PMU",
        "RPC",
        "SBE",
        "SRAM",
    ]
)


_ENGINES: Mapping[str, tuple[int, ...]] = {
    "CE": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "NVDEC": (68, 83, 84, 88, 89, 96, 97, 98),
    "NVJPG": (82, 99, 100, 101, 102, 103, 104, 105),
}
"""Copy engines and decoders: Xid numbers in the order of the engines."""
_UNUSED = """
1 ~FIFO_ERROR_FIFO_METHOD 2 ~FIFO_ERROR_SW_METHOD 3 ~FIFO_ERROR_UNK_METHOD 4 ~FIFO_ERROR_CHANNEL_BUSY
5 ~FIFO_ERROR_RUNOUT_OVERFLOW 6 ~FIFO_ERROR_PARSE_ERR 7 ~FIFO_ERROR_PTE_ERR 9 ~GR_ERROR_INSTANCE
10 ~GR_ERROR_SINGLE_STEP 12 ~GR_ERROR_SW_METHOD 15 ~SCANLINE_TIMEOUT 16 ~VBLANK_CALLBACK_TIMEOUT
17 ~PARAMETER_ERROR 18 ~BUS_MASTER_TIMEOUT_ERROR 19 ~DISP_MISSED_NOTIFIER 20 ~MPEG_ERROR_SW_METHOD
21 ~ME_ERROR_SW_METHOD 22 ~VP_ERROR_SW_METHOD 23 ~RC_LOGGING_ENABLED 24 ~GR_SEMAPHORE_TIMEOUT
26 ~FIFO_ERROR_FBISTATE_TIMEOUT 27 ~VP_ERROR 28 ~VP2_ERROR 29 ~BSP_ERROR 30 ~BAD_ADDR_ACCESS 33 ~SEC_ERROR
34 ~MSVLD_ERROR 35 ~MSPDEC_ERROR 36 ~MSPPP_ERROR 42 ~VIC_ERROR 47 ~NVENC0_ERROR
49 SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY 50 SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR
51 SILENT_RUNNING_STRESS_TEST_FAILURE 52 SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE
53 SILENT_RUNNING_TEMP_REDUCED_CLOCKING 55 SILENT_RUNNING_TEMPERATURE_READ_ERROR 56 DISPLAY_CHANNEL_EXCEPTION
59 PMU_ERROR 65 ~NVENC1_ERROR 73 ~NVENC2_ERROR 81 ~VGA_SUBSYSTEM_ERROR 87 NVTELEMETRY_DRIVER_REPORT 90 LTC_ERROR
91 RESERVED_XID 108 NVLINK_REMOTE_TRANSLATION_ERROR 111 BUNDLE_ERROR_EVENT 112 DISP_SUPERVISOR_ERROR
113 DP_LT_FAILURE 114 HEAD_RG_UNDERFLOW 115 CORE_CHANNEL_REGS 116 WINDOW_CHANNEL_REGS 117 CURSOR_CHANNEL_REGS
118 HEAD_REGS 122 SPI_PMU_RPC_READ_FAIL 123 SPI_PMU_RPC_WRITE_FAIL 124 SPI_PMU_RPC_ERASE_FAIL 125 INFOROM_FS_ERROR
138 ~DLA_ERROR 152 ~DLA_SMMU_ERROR 153 ~DLA_TIMEOUT
"""
"""Numbers that NVIDIA's catalog marks as unused on A100 to GB200; ``~`` stands for ROBUST_CHANNEL_."""


_TABLE: dict[int, tuple[str, Blame, str]] = {
    **{
        int(number): (mnemonic.replace("~", _RC), _E, "unused")
        for number, mnemonic in re.findall(r"(\d+) (\S+)", _UNUSED)
    },
    **{
        number: (f"{_RC}{engine}{index}_ERROR", _E, "restart")
        for engine, numbers in _ENGINES.items()
        for index, number in enumerate(numbers)
    },
    8: (_RC + "FIFO_ERROR_IDLE_TIMEOUT", _E, "restart"),
    11: (_RC + "GR_ERROR_MISSING_HW", _A, "check"),
    13: (_RC + "GR_EXCEPTION", _A, "check"),
    14: (_RC + "FAKE_ERROR", _I, "ignore"),
    25: (_RC + "GR_ILLEGAL_NOTIFY", _A, "check"),
    31: (_RC + "FIFO_ERROR_MMU_ERR_FLT", _A, "check"),
    32: (_RC + "PBDMA_ERROR", _E, "check"),
    37: (_RC + "FECS_ERR_UNIMP_FIRMWARE_METHOD", _E, "ignore"),
    38: (_RC + "FECS_ERR_WATCHDOG_TIMEOUT", _E, "ignore"),
    43: (_RC + "RESETCHANNEL_VERIF_ERROR", _A, "ignore"),
    44: (_RC + "GR_FAULT_DURING_CTXSW", _E, "ignore"),
    45: (_RC + "PREEMPTIVE_REMOVAL", _I, "ignore"),
    46: (_RC + "GPU_TIMEOUT_ERROR", _H, "reset"),
    48: (_RC + "GPU_ECC_DBE", _H, "ecc"),
    54: ("SILENT_RUNNING_PWR_REDUCED_CLOCKING", _H, "power"),
    57: ("FB_LINK_TRAINING_FAILURE_ERROR", _H, "reset"),
    58: ("FB_MEMORY_ERROR", _H, "reset"),
    60: (_RC + "SEC2_ERROR", _E, "restart"),
    61: ("PMU_BREAKPOINT", _H, "reset"),
    62: ("PMU_HALT_ERROR", _H, "reset"),
    63: ("INFOROM_DRAM_RETIREMENT_EVENT", _I, "watch"),
    64: ("INFOROM_DRAM_RETIREMENT_FAILURE", _H, "reset"),
    66: (_RC + "FECS_ERR_REG_ACCESS_VIOLATION", _E, "ignore"),
    67: (_RC + "FECS_ERR_VERIF_VIOLATION", _E, "ignore"),
    69: (_RC + "GR_CLASS_ERROR", _A, "check"),
    74: ("NVLINK_ERROR", _H, "link"),
    78: ("VGPU_START_ERROR", _I, "update"),
    79: (_RC + "GPU_HAS_FALLEN_OFF_THE_BUS", _H, "reboot"),
    80: ("PBDMA_PUSHBUFFER_CRC_MISMATCH", _E, "check"),
    86: (_RC + "OFA0_ERROR", _E, "restart"),
    92: ("EXCESSIVE_SBE_INTERRUPTS", _I, "watch"),
    93: ("INFOROM_ERASE_LIMIT_EXCEEDED", _I, "ignore"),
    94: (_RC + "CONTAINED_ERROR", _H, "restart"),
    95: (_RC + "UNCONTAINED_ERROR", _H, "reset"),
    106: ("SMBPBI_TEST_MESSAGE", _I, "ignore"),
    107: ("SMBPBI_TEST_MESSAGE_SILENT", _I, "ignore"),
    109: (_RC + "CTXSW_TIMEOUT_ERROR", _E, "reset"),
    110: ("SEC_FAULT_ERROR", _H, "reset"),
    119: ("GSP_RPC_TIMEOUT", _H, "firmware"),
    120: ("GSP_ERROR", _H, "firmware"),
    121: ("C2C_ERROR", _I, "watch"),
    136: ("ALI_TRAINING_FAIL", _H, "link"),
    137: ("NVLINK_PRIV_ERR", _A, "check"),
    139: (_RC + "OFA1_ERROR", _E, "restart"),
    140: ("UNRECOVERABLE_ECC_ERROR_ESCAPE", _H, "reset"),
    141: (_RC + "FAST_PATH_ERROR", _E, "ignore"),
    142: (_RC + "NVENC3_ERROR", _E, "restart"),
    143: ("GPU_INIT_ERROR", _H, "reset"),
    144: ("NVLINK_SAW_ERROR", _H, "link"),
    145: ("NVLINK_RLW_ERROR", _H, "link"),
    146: ("NVLINK_TLW_ERROR", _H, "link"),
    147: ("NVLINK_TREX_ERROR", _H, "link"),
    148: ("NVLINK_NVLPW_CTRL_ERROR", _H, "link"),
    149: ("NVLINK_NETIR_ERROR", _H, "link"),
    150: ("NVLINK_MSE_ERROR", _H, "link"),
    151: (_RC + "KEY_ROTATION_ERROR", _E, "vm"),
    154: ("GPU_RECOVERY_ACTION_CHANGED", _I, "154"),
    155: ("NVLINK_SW_DEFINED_ERROR", _E, "link"),
    156: ("RESOURCE_RETIREMENT_EVENT", _H, "reset"),
    157: ("RESOURCE_RETIREMENT_FAILURE", _H, "watch"),
    158: ("GPU_FATAL_TIMEOUT", _H, "reset"),
    159: (_RC + "CHI_NON_DATA_ERROR", _E, "restart"),
    160: ("CHANNEL_RETIREMENT_EVENT", _I, "watch"),
    161: ("CHANNEL_RETIREMENT_FAILURE", _I, "watch"),
    162: ("PSHC_REENGAGED", _I, "ignore"),
    163: ("PSHC_DISENGAGED", _I, "watch"),
    164: ("PSHC_LOW_LIFETIME", _I, "watch"),
    165: ("PSHC_ZERO_LIFETIME", _I, "watch"),
    166: ("NVLINK_SECURE_CRYPTO_ERR", _E, "reset"),
    167: ("PCIE_FATAL_TIMEOUT", _H, "reboot"),
    168: ("REDUCED_GPU_MEMORY_CAPACITY", _H, "reset"),
    169: ("SEC2_HALT_ERROR", _H, "reset"),
    170: ("NVLINK_SECURE_OTHER", _E, "reset"),
    171: ("UNCORRECTABLE_DRAM_ERROR", _H, "ecc"),
    172: ("UNCORRECTABLE_SRAM_ERROR", _H, "ecc"),
}

XIDS: Mapping[int, Xid] = {
    number: Xid(number, mnemonic, blame, _ACTIONS[action], action in ("reset", "firmware", "ecc"))
    for number, (mnemonic, blame, action) in sorted(_TABLE.items())
}
"""1 to 172"""


def xid(number: int) -> Xid:
    """The entry of a number; an unknown number blames neither side."""
    return XIDS.get(number) or Xid(number, "UNKNOWN", "either", "look it up in NVIDIA's Xid catalog")


# -- NVLink 5 (Blackwell), Xid 144 to 150

NVLINK5 = range(144, 151)
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{2,30})\s+(?P<severity>Fatal|Nonfatal|Non-fatal)\s+XC\d\s+i\d\s+Link\s+-?\d{1,3}"
    r"\s+\(0x[0-9a-fA-F]{1,8}[ )]?(?P<status>0x[0-9a-fA-F]{1,8})?"
)
_RESET: Mapping[str, int] = {
    "SAW_MVB": 0x12,
    "RLW_REMAP": 0xC0,
    "RLW_RSPCOL": 0x02,
    "RLW_SRC_TRACK": 0x31,
    "RLW_TAGSTATE": 0x00120002,
    "TLW_CTRL": 0x04,
    "TLW_RX": 0x04,
    "TLW_TX": 0x04,
}
"""Unit -> bits of the second word (error status) for which NVIDIA's table requires a GPU reset"""


def is_mild(number: int, detail: str) -> bool:
    """Whether the text after an Xid 144 to 150 describes a non-fatal error for which NVIDIA's table does not require a GPU
    reset."""
    match = _NVLINK5.search(detail) if number in NVLINK5 else None
    if match is None or match["severity"] == "Fatal":
        return False
    bits = next((bits for unit, bits in _RESET.items() if match["unit"].startswith(unit)), 0)
    return not int(match["status"] or "0", 16) & bits


_RECOVERY = re.compile(r"recovery action changed from .{1,60}? to 0x[0-9a-fA-F]{1,2} \(([\w /]{2,40})\)")


def recovery_action(detail: str) -> str | None:
    """The action that Xid 154 requests, in the driver's words (GPU Reset Required, ...); None if not in the text."""
    match = _RECOVERY.search(detail)
    return match[1] if match else None


# -- NVSwitch SXid

SXID_ALWAYS_FATAL = frozenset({10003, *range(23001, 23018)})
"""Fatal to the whole fabric: all GPUs and switches need a reset."""
SXID_CORRECTED = frozenset(
    {11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071}
    | {24001, 24002, 24003, 22013}
)
"""Errors without impact, such as single-bit errors that the switch corrects."""


def sxid_fatal(number: int, text: str) -> bool | None:
    """Whether an SXid is fatal: according to the line, else to the lists; None if unknown."""
    if re.search(r"\bNon-?fatal\b", text, re.IGNORECASE):
        return False
    if re.search(r"\bFatal\b", text, re.IGNORECASE):
        return True
    if number in SXID_ALWAYS_FATAL:
        return True
    return False if number in SXID_CORRECTED else None
