"""Kernel messages: the OOM killer, hung tasks, machine checks, PCIe errors, links, crashes, boots."""

from __future__ import annotations

import re

from trackside.catalog.signals import signal_name
from trackside.logs.line import Line
from trackside.logs.pattern import Parser, Pattern
from trackside.model import Event, Role

_KILLED = re.compile(r"Kill(?:ed)? process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<comm>[^)]{1,40})\)")
_SIZES = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")
_CONSTRAINT = re.compile(r"oom-kill:constraint=(?P<constraint>\w{1,40})(?P<rest>.{0,2000})")
_KEY = re.compile(r"(oom_memcg|task_memcg|task|pid)=([^,\s]{1,300})")
_LIMIT = re.compile(r"memory: usage \d{1,15}kB, limit (\d{1,15})kB")
_SLURM = re.compile(r"job_(\d{1,12})/step_(\w{1,20})")
_HUNG = re.compile(
    r"INFO: task (?P<comm>.{1,40}?):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,6}) seconds"
)
_SEGFAULT = re.compile(
    r"(?P<comm>[^\s\[\]:]{1,40}(?: [^\s\[\]:]{1,20})?)\[(?P<pid>\d{1,10})\]:? (?P<what>segfault "
    r"at (?=[0-9a-f]+ ip)|general protection|trap [a-z ]{4,24})"
)
_TRAPS = {"segfault at": 11, "general protection": 11, "trap invalid opcode": 4, "trap divide error": 8}
_TRAINS = re.compile(
    (
        r"^(?:python|pt_|ray|torch|train|deepspeed|accelerate|mpi|julia|cuda|nccl|megatron|java|"
        r"tensorflow|jax|vllm|worker)"
    ),
    re.IGNORECASE,
)
_EDAC = re.compile(r"EDAC \w{1,12}\d?: (?P<count>\d{1,9}) (?P<kind>CE|UE)\b")
_AER = re.compile(
    r"AER: (?:Multiple )?(?P<one>Correct\w{2,5}|Uncorrect\w{2,5})(?P<fatal> \((?:Non-)?Fatal\))?|"
    r"PCIe Bus Error: severity=(?P<two>Correct\w{2,5}|Uncorrect\w{2,5})(?P<more> "
    r"\((?:Non-)?Fatal\))?"
)
_LINK = re.compile(
    r"(?P<device>mlx\d_core \S{1,40}(?: \S{1,24})?|mlx\d_\d{1,2}|hfi1_\d|\S{2,16}: NIC|"
    r"(?:interface|slave) \S{2,16}|ib\d{1,2}|en[\w]{2,14}|eth\d{1,2}|bond\d{1,2})"
    r":?,? ?.{0,60}?[Ll]ink (?:is |status definitely )?(?P<state>[Dd]own|DOWN|[Uu]p|UP)\b"
)
ABOVE = 150
"""Lines of an OOM report that may stand between the cgroup's limit and the kill."""


def _killed(line: Line) -> Event | None:
    found = _KILLED.search(line.text)
    if found is None:
        return None
    pid = int(found["pid"])
    sizes = [int(size) for size in _SIZES.findall(line.text)]
    in_group = "cgroup out of memory" in line.text
    told: dict[str, str] = line.notes("kernel").get(str(pid), {})
    group = told.get("oom_memcg")
    return line.event(
        "oom_kill",
        Role.ROOT,
        scope="cgroup" if in_group or told.get("constraint") == "CONSTRAINT_MEMCG" else "host",
        pid=pid,
        comm=found["comm"],
        rss_bytes=sum(sizes) * 1024 if sizes else None,
        limit_bytes=_limit(line) if in_group else None,
        cgroup=group,
        step=_step(group),
    )


def _constraint(line: Line) -> Event | None:
    """The OOM killer's record of its choice. Where the kill itself stands on the next lines, that one tells."""
    found = _CONSTRAINT.search(line.text)
    if found is None:
        return None
    fields = {"constraint": found["constraint"], **dict(_KEY.findall(found["rest"]))}
    pid = int(fields["pid"]) if fields.get("pid", "").isdigit() else None
    if pid is not None:
        line.notes("kernel")[str(pid)] = fields
        if any(
            f"ill process {pid} " in near.text or f"illed process {pid} " in near.text for near in line.following(3)
        ):
            return None
    group = fields.get("oom_memcg")
    return line.event(
        "oom_kill",
        Role.ROOT,
        scope="cgroup" if fields["constraint"] == "CONSTRAINT_MEMCG" else "host",
        pid=pid,
        comm=fields.get("task"),
        limit_bytes=_limit(line) if group else None,
        cgroup=group,
        step=_step(group),
    )


def _limit(line: Line) -> int | None:
    for near in line.preceding(ABOVE):
        if found := _LIMIT.search(near.text):
            return int(found[1]) * 1024
        if "invoked oom-killer" in near.text:
            break
    return None


def _step(group: str | None) -> str | None:
    found = _SLURM.search(group or "")
    return f"{found[1]}.{found[2]}" if found else None


def _hung(line: Line) -> Event | None:
    found = _HUNG.search(line.text)
    if found is None:
        return None
    pid, seconds = int(found["pid"]), int(found["seconds"])
    return line.event("hung_task", Role.CONFIRMATION, comm=found["comm"], pid=pid, seconds=seconds)


def _crash(line: Line) -> Event | None:
    found = _SEGFAULT.search(line.text)
    if found is None:
        return None
    number = next((n for text, n in _TRAPS.items() if found["what"].startswith(text)), 5)
    comm = found["comm"].split("traps: ")[-1].strip()
    return line.event(
        "process_exit",
        Role.CONFIRMATION if _TRAINS.match(comm) else Role.FACT,
        source="kernel",
        signal=number,
        signal_name=signal_name(number),
        pid=int(found["pid"]),
        comm=comm,
    )


def _machine_check(line: Line) -> Event | None:
    text = line.text
    if found := _EDAC.search(text):
        if found["count"] == "0":
            return None
        return _checked(line, "edac", "corrected" if found["kind"] == "CE" else "uncorrected")
    if found := _AER.search(text):
        corrected = (found["one"] or found["two"]).lower().startswith("correct")
        fatal = "(Fatal)" in (found["fatal"] or found["more"] or "")
        return _checked(line, "aer", "corrected" if corrected else "fatal" if fatal else "uncorrected")
    if "[Hardware Error]" not in text:
        return None
    if "event severity" in text or "Machine check events logged" in text or "Uncorrected" in text:
        lower = text.lower()
        severity = "fatal" if "fatal" in lower else "uncorrected" if "uncorrected" in lower else "corrected"
        return _checked(line, "mce", severity)
    return None


def _checked(line: Line, what: str, severity: str) -> Event:
    role = Role.FACT if severity == "corrected" else Role.CONFIRMATION
    return line.event("machine_check", role, what=what, severity=severity, detail=line.text.strip()[:300])


def _link(line: Line) -> Event | None:
    found = _LINK.search(line.text)
    if found is None:
        return None
    down = found["state"].lower() == "down"
    return line.event(
        "link_down",
        Role.CONFIRMATION if down else Role.FACT,
        device=found["device"].removesuffix(": NIC").strip(" :,"),
        state="down" if down else "up",
    )


def _boot(line: Line) -> Event | None:
    found = re.search(r"Linux version (\d\S{2,80}) \(", line.text)
    return line.event("boot", Role.FACT, version=found[1]) if found else None


PARSER = Parser(
    id="kernel",
    title="kernel messages",
    kind="system",
    planes=("kernel", "log"),
    patterns=(
        Pattern(
            "oom-killed",
            rb"ut of memory: Kill(ed)? process [0-9]",
            _killed,
            "Host memory; the GPU's 'CUDA out of memory' has no process that was killed.",
            matches=(
                (
                    "[ 3132.57] Memory cgroup out of memory: Killed process 21461 (python3) total-vm:1899440kB, "
                    "anon-rss:193424kB, file-rss:121096kB, shmem-rss:0kB, UID:0 pgtables:1064kB oom_score_adj:0"
                ),
                "Out of memory: Kill process 456 (python) score 50 or sacrifice child",
                "Out of memory: Killed process 123, UID 48, (httpd).",
            ),
            avoids=("CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory: Killed by hand"),
        ),
        Pattern(
            "oom-choice",
            rb"oom-kill:constraint=",
            _constraint,
            "Counted once with the kill that follows it.",
            matches=(
                (
                    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
                    "oom_memcg=/slurm_n1/uid_1000/job_49148/step_batch,"
                    "task_memcg=/slurm_n1/uid_1000/job_49148/step_batch,task=python3,pid=21461,uid=0"
                ),
                (
                    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
                    "task_memcg=/user.slice,task=python,pid=9,uid=0"
                ),
            ),
            avoids=("oom-kill: constraint unknown",),
        ),
        Pattern(
            "hung",
            rb"INFO: task [^\n\r]{1,60} blocked for more than ",
            _hung,
            "A task in uninterruptible sleep: storage or driver; a confirmation, since waiting is its normal cause.",
            matches=("[Sat Mar  4 10:10:10 2023] INFO: task python:280058 blocked for more than 120 seconds.",),
            avoids=("INFO: task queue blocked for more than a minute",),
        ),
        Pattern(
            "crash",
            rb"\]:? (segfault at [0-9a-f]{1,16} ip|general protection |trap (invalid opcode|divide error|int3))",
            _crash,
            "Any program of the node: only those that look like training confirm, others are facts.",
            matches=(
                "[171167.6] python[123]: segfault at 7f0 ip 00007f sp 00007ffe error 4 in libtorch_cpu.so[7f+1000]",
                "traps: pt_main_thread[99] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
                "traps: python3[5] trap invalid opcode ip:7f sp:7f error:0 in libfoo.so[7f+1]",
            ),
            avoids=("the array[3] segfault at night",),
        ),
        Pattern(
            "machine-check",
            (
                rb"(EDAC [A-Za-z0-9]{1,12}: [0-9]{1,9} [CU]E |AER: (Multiple )?(C|Unc)orrect|PCIe Bus Error: "
                rb"severity=|\[Hardware Error\]: (event severity|Machine check events logged)|Uncorrected "
                rb"hardware memory error)"
            ),
            _machine_check,
            "Corrected errors are facts; set-up lines of MCE and EDAC are none.",
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
        ),
        Pattern(
            "link",
            rb"(ink (is |status definitely )?(down|Down|DOWN)|(NIC|[0-9]:) Link (is )?(Up|up|UP))",
            _link,
            "A network device by name; 'link is not ready' is set-up.",
            matches=(
                "mlx5_core 0000:12:00.0 ens1f0np0: Link down",
                "mlx5_core 0000:0c:00.0: mlx5_0 Port 1: Link DOWN",
                "igb 0000:b1:00.0 ens20f0: igb: ens20f0 NIC Link is Down",
                "bond0: link status definitely down for interface eth2, disabling it",
                "igb 0000:b1:00.0 ens20f0: igb: ens20f0 NIC Link is Up 1000 Mbps Full Duplex",
            ),
            avoids=("IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready", "the download link is down"),
        ),
        Pattern(
            "boot",
            rb"Linux version [0-9]",
            _boot,
            "The first line of a kernel's life, with its compiler in brackets; an inventory's line has none.",
            matches=("[    0.000000] Linux version 5.15.0-91-generic (buildd@lcy) (gcc 11.4.0) #101-Ubuntu SMP",),
            avoids=("OS: Linux version 5.15",),
        ),
    ),
)
