"""A node's state in its kernel log: crashes, hung tasks, machine checks, PCIe errors, links, boots."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_EDAC = re.compile(r"EDAC \w{1,12}\d?: (?P<count>\d{1,9}) (?P<kind>CE|UE)\b")
_AER = re.compile(
    r"AER: (?:Multiple )?(?P<one>Correct\w{2,5}|Uncorrect\w{2,5})(?P<fatal> \((?:Non-)?Fatal\))?|"
    r"PCIe Bus Error: severity=(?P<two>Correct\w{2,5}|Uncorrect\w{2,5})(?P<more> "
    r"\((?:Non-)?Fatal\))?"
)

PARSER = Parser("kernel-node", "a node's state in kernel messages", "system", planes=("kernel",))


@PARSER.pattern(
    rb"INFO: task [^\n\r]{1,60} blocked for more than ",
    r"INFO: task (?P<comm>.{1,40}?):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,6}) seconds",
    safety="A task in uninterruptible sleep: storage or driver; a confirmation, because a task normally only waits "
    "there.",
    matches=("[Sat Mar  4 10:10:10 2023] INFO: task python:280058 blocked for more than 120 seconds.",),
    avoids=("INFO: task queue blocked for more than a minute",),
)
def _hung_task(line: Line, match: re.Match[str]) -> Event:
    pid, seconds = int(match["pid"]), int(match["seconds"])
    return line.event("hung_task", EventRole.CONFIRMATION, comm=match["comm"], pid=pid, seconds=seconds)


@PARSER.pattern(
    rb"(Kernel panic - not syncing|BUG: unable to handle |kernel BUG at |Oops: [0-9a-f]{4} \[#)",
    safety="After a panic the node is down; after an oops it may go on without the task.",
    matches=(
        "[ 812.3] Kernel panic - not syncing: Fatal machine check",
        "<1>[  201.654822] BUG: unable to handle kernel NULL pointer dereference at           (null)",
        "[ 812.3] kernel BUG at mm/slub.c:305!",
    ),
    avoids=("kernel.panic = 10", "Rebooting in 30 seconds after a panic"),
)
def _crash(line: Line) -> Event:
    is_panic = "Kernel panic - not syncing" in line.text
    role = EventRole.ROOT if is_panic else EventRole.CONFIRMATION
    return line.event("kernel_crash", role, what="panic" if is_panic else "oops", detail=line.text.strip()[:300])


@PARSER.pattern(
    rb"(EDAC [A-Za-z0-9]{1,12}: [0-9]{1,9} [CU]E |AER: (Multiple )?(C|Unc)orrect|PCIe Bus Error: "
    rb"severity=|\[Hardware Error\]: (event severity|Machine check events logged)|Uncorrected "
    rb"hardware memory error)",
    safety="Corrected errors are observations; set-up lines of MCE and EDAC do not count.",
    matches=(
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
        "EDAC MC1: 2 UE memory scrubbing error on unknown label",
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "mce: [Hardware Error]: Machine check events logged",
        "{1}[Hardware Error]: event severity: fatal",
    ),
    avoids=(
        "MCE: In-kernel MCE decoding enabled.",
        "EDAC MC: Ver: 3.0.0",
        "acpi PNP0A08:00: _OSC: platform does not support [SHPCHotplug AER LTR DPC]",
    ),
)
def _machine_check(line: Line) -> Event | None:
    text = line.text
    if match := _EDAC.search(text):
        if match["count"] == "0":
            return None
        return _machine_check_event(line, "edac", "corrected" if match["kind"] == "CE" else "uncorrected")
    if match := _AER.search(text):
        corrected = (match["one"] or match["two"]).lower().startswith("correct")
        fatal = "(Fatal)" in (match["fatal"] or match["more"] or "")
        return _machine_check_event(line, "aer", "corrected" if corrected else "fatal" if fatal else "uncorrected")
    if "[Hardware Error]" not in text:
        return None
    if "event severity" in text or "Machine check events logged" in text or "Uncorrected" in text:
        lower = text.lower()
        severity = "fatal" if "fatal" in lower else "uncorrected" if "uncorrected" in lower else "corrected"
        return _machine_check_event(line, "mce", severity)
    return None


def _machine_check_event(line: Line, source: str, severity: str) -> Event:
    role = EventRole.OBSERVATION if severity == "corrected" else EventRole.CONFIRMATION
    return line.event("machine_check", role, what=source, severity=severity, detail=line.text.strip()[:300])


@PARSER.pattern(
    rb"(ink (is |status definitely )?(down|Down|DOWN)|(NIC|[0-9]:) Link (is )?(Up|up|UP))",
    r"(?P<device>mlx\d_core \S{1,40}(?: \S{1,24})?|mlx\d_\d{1,2}|hfi1_\d|\S{2,16}: NIC|"
    r"(?:interface|slave) \S{2,16}|ib\d{1,2}|en[\w]{2,14}|eth\d{1,2}|bond\d{1,2})"
    r":?,? ?.{0,60}?[Ll]ink (?:is |status definitely )?(?P<state>[Dd]own|DOWN|[Uu]p|UP)\b",
    safety="A network device by name; 'link is not ready' is set-up.",
    matches=(
        "mlx5_core 0000:12:00.0 ens1f0np0: Link down",
        "mlx5_core 0000:0c:00.0: mlx5_0 Port 1: Link DOWN",
        "igb 0000:b1:00.0 ens20f0: igb: ens20f0 NIC Link is Down",
        "bond0: link status definitely down for interface eth2, disabling it",
        "igb 0000:b1:00.0 ens20f0: igb: ens20f0 NIC Link is Up 1000 Mbps Full Duplex",
    ),
    avoids=("IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready", "the download link is down"),
)
def _link_state(line: Line, match: re.Match[str]) -> Event:
    down = match["state"].lower() == "down"
    return line.event(
        "link_down",
        EventRole.CONFIRMATION if down else EventRole.OBSERVATION,
        device=match["device"].removesuffix(": NIC").strip(" :,"),
        state="down" if down else "up",
    )


@PARSER.pattern(
    rb"Linux version [0-9]",
    r"Linux version (\d\S{2,80}) \(",
    safety="The first line of a boot, with its compiler in parentheses; an inventory's line has none.",
    matches=("[    0.000000] Linux version 5.15.0-91-generic (buildd@lcy) (gcc 11.4.0) #101-Ubuntu SMP",),
    avoids=("OS: Linux version 5.15",),
)
def _boot(line: Line, match: re.Match[str]) -> Event:
    return line.event("boot", EventRole.OBSERVATION, version=match[1])
