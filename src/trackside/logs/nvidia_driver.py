"""NVIDIA's kernel driver: Xid, NVSwitch SXid, unreachable GPUs; and what tools print about a lost GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.xid import is_mild, recovery_action, sxid_fatal, xid
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_PID = re.compile(r"pid=(\d{1,10})")
_NAME = re.compile(r"name=([^,\s<]{1,40})")
_PREFIX = re.compile(r"^(?:,? ?(?:pid='?[^,]{1,20}|name=[^,]{1,40}|Channel ID \S{1,12}(?= )))+,? ?")
_BUS = re.compile(r"(?:PCI:|GPU |GPU at )?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)")
_LOST = re.compile(
    r"fallen off the bus|fell off the bus|RmInitAdapter failed|rm_init_adapter failed|GPU is lost"
    r"|Unable to determine the device handle for (?:GPU|gpu)|GPU is not responding|GPU recovery required",
    re.IGNORECASE,
)

PARSER = Parser("nvidia-driver", "NVIDIA kernel driver", "system", planes=("kernel", "log"))


@PARSER.pattern(
    rb"NVRM: Xid \(",
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{7,16})[^)]{0,40}\): (?P<number>\d{1,4})(?P<rest>.{0,1000})",
    safety="Never a cause by itself: 13, 31, 43 and 45 usually point to the application, 63 and 92 are maintenance.",
    matches=(
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
        (
            "[171167.62] NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 "
            "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:41:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM "
            "(0x1). RST: No, D-RST: No"
        ),
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ),
    avoids=("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03", "NVRM: Xid (see the docs)"),
)
def _xid(line: Line, match: re.Match[str]) -> Iterator[Event]:
    number, tail = int(match["number"]), match["rest"]
    pid, name = _PID.search(tail), _NAME.search(tail)
    detail = _PREFIX.sub("", tail.lstrip(", ")).strip()
    entry = xid(number)
    action = recovery_action(detail) if number == 154 else None
    blames_gpu = entry.blame == "hardware" and not is_mild(number, detail)
    wants_reset = action is not None and action != "None"
    yield line.event(
        "xid",
        EventRole.CONFIRMATION if blames_gpu or wants_reset else EventRole.OBSERVATION,
        xid=number,
        pci=match["pci"],
        pid=int(pid[1]) if pid else None,
        process=name[1] if name else None,
        detail=detail or None,
    )
    if number == 79:
        yield line.event("gpu_lost", EventRole.CONFIRMATION, pci=match["pci"], detail=detail or None)


@PARSER.pattern(
    rb"SXid \(PCI:",
    r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]{7,16})[^)]{0,20}\): (?P<number>\d{5}), (?P<rest>.{0,500})",
    safety="The line says whether it is fatal; corrected link errors are observations.",
    matches=(
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 19047, Fatal, Link 32 egress ECC DBE",
    ),
    avoids=("SXid (PCI: unknown)",),
)
def _sxid(line: Line, match: re.Match[str]) -> Event:
    number = int(match["number"])
    fatal = sxid_fatal(number, match["rest"])
    role = EventRole.CONFIRMATION if fatal else EventRole.OBSERVATION
    return line.event("sxid", role, sxid=number, pci=match["pci"], fatal=fatal, detail=match["rest"].strip())


@PARSER.pattern(
    rb"(f[ae]ll(en)? off the bus|RmInitAdapter failed|rm_init_adapter failed|GPU is lost|Unable to "
    rb"determine the device handle for (GPU|gpu))",
    safety="The driver or a tool cannot reach the GPU; the Xid 79 line is read with its number.",
    matches=(
        "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x24:0x65:1432)",
        (
            "Unable to determine the device handle for GPU 0000:9B:00.0: GPU is lost.  Reboot the system "
            "to recover this GPU"
        ),
    ),
    avoids=("he has fallen off the bike", "nothing fell off"),
)
def _lost_gpu(line: Line) -> Event | None:
    if "Xid (" in line.text or not _LOST.search(line.text):
        return None
    bus = _BUS.search(line.text)
    detail = line.text.strip()[-300:]
    return line.event("gpu_lost", EventRole.CONFIRMATION, pci=bus[1] if bus else None, detail=detail)
