"""Lines of the kernel log that faults cause."""

from __future__ import annotations

from trackside.sim.act import Act, Place
from trackside.sim.stage import Stage

XID_TEXT = {
    13: "Graphics SM Warp Exception on (GPC 3, TPC 2, SM 1): Illegal Instruction Encoding",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f41_00000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    43: "Ch 00000008",
    45: "Ch 00000010",
    48: "DBE (double bit error) ECC error: An uncorrectable double bit error (DBE) has been detected on GPU in the "
    "framebuffer at partition 5, subpartition 0.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap a row",
    74: "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x0,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL).",
}
"""Xid -> what the driver says after it."""


def xid(stage: Stage, act: Act, place: Place, time: float, code: int) -> None:
    """The driver's line, and DCGM's last-Xid gauge."""
    pci = stage.pci(place.gpu)[4:-2].lower()
    owner = f"pid={stage.pid(act, place.rank)}, name=python3"
    if code in (79, 64):
        owner = "pid='<unknown>', name=<unknown>"
    stage.log_kernel(time, place.node, f"NVRM: Xid (PCI:{pci}): {code}, {owner}, {XID_TEXT[code]}")
    stage.change(place.node, place.gpu, time + 0.5, "xid", to=float(code))


def oom_kill(stage: Stage, act: Act, place: Place, time: float, gib: float, cgroup: bool, worker: bool = False) -> None:
    """The kernel kills a process for want of memory."""
    pid = stage.pid(act, place.rank) + (3001 if worker else 0)
    task = f"/system.slice/slurmstepd.scope/job_{act.job}/step_0/user/task_0"
    if cgroup:
        constraint = f"CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_{act.job}"
        head = "Memory cgroup out of memory"
    else:
        constraint = "CONSTRAINT_NONE,nodemask=(null),cpuset=step_0,mems_allowed=0-1,global_oom"
        head = "Out of memory"
    kib = int(gib * (1 << 20))
    lines = (
        "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        f"oom-kill:constraint={constraint},task_memcg={task},task=python3,pid={pid},uid=1000",
        f"{head}: Killed process {pid} (python3) total-vm:{kib * 2}kB, anon-rss:{kib}kB, file-rss:81920kB, "
        f"shmem-rss:131072kB, UID:1000 pgtables:{kib // 500}kB oom_score_adj:0",
    )
    for number, line in enumerate(lines):
        stage.log_kernel(time + 0.001 * number, place.node, line)
    stage.oom_kills.append((time, place.node))


def segfault(stage: Stage, act: Act, place: Place, time: float) -> None:
    """A native crash."""
    pid = stage.pid(act, place.rank)
    text = f"python3[{pid}]: segfault at 28 ip 00007f3b2c41d2a0 sp 00007ffd1c0b7e90 error 4 in libtokenizers.so[7f3b2c200000+61a000]"
    stage.log_kernel(time, place.node, text)


def nfs_lost(stage: Stage, node: str, time: float, server: str = "fs03") -> None:
    """A file server stops answering."""
    stage.log_kernel(time, node, f"nfs: server {server} not responding, still trying")


def nfs_back(stage: Stage, node: str, time: float, server: str = "fs03") -> None:
    """It answers again."""
    stage.log_kernel(time, node, f"nfs: server {server} OK")


def blocked(stage: Stage, act: Act, place: Place, time: float, seconds: int = 122) -> None:
    """The kernel's hung-task watch."""
    pid = stage.pid(act, place.rank)
    lines = (
        f"INFO: task python3:{pid} blocked for more than {seconds} seconds.",
        "      Tainted: P           OE     5.15.0-105-generic #115-Ubuntu",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        f"task:python3         state:D stack:    0 pid:{pid} ppid: {pid - 7 * place.local - 30} flags:0x00000002",
    )
    stage.log_kernel(time, place.node, "\n".join(lines))
