"""Lines of the kernel log that faults cause."""

from __future__ import annotations

from trackside.sim.attempt import JobAttempt, Placement
from trackside.sim.simulation import Simulation

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
"""Xid -> the driver's text after it."""


def log_xid(sim: Simulation, attempt: JobAttempt, placement: Placement, time: float, code: int) -> None:
    """Add the driver's line, and set DCGM's last-Xid gauge."""
    pci = sim.pci(placement.gpu)[4:-2].lower()
    owner = f"pid={sim.pid(attempt, placement.rank)}, name=python3"
    if code in (79, 64):
        owner = "pid='<unknown>', name=<unknown>"
    sim.log_kernel(time, placement.node, f"NVRM: Xid (PCI:{pci}): {code}, {owner}, {XID_TEXT[code]}")
    sim.change(placement.node, placement.gpu, time + 0.5, "xid", to=float(code))


def log_oom_kill(
    sim: Simulation,
    attempt: JobAttempt,
    placement: Placement,
    time: float,
    gib: float,
    cgroup: bool,
    worker: bool = False,
) -> None:
    """The kernel kills a process because host memory is exhausted."""
    pid = sim.pid(attempt, placement.rank) + (3001 if worker else 0)
    task = f"/system.slice/slurmstepd.scope/job_{attempt.job}/step_0/user/task_0"
    if cgroup:
        constraint = f"CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_{attempt.job}"
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
        sim.log_kernel(time + 0.001 * number, placement.node, line)
    sim.oom_kills.append((time, placement.node))


def log_segfault(sim: Simulation, attempt: JobAttempt, placement: Placement, time: float) -> None:
    """A native crash."""
    pid = sim.pid(attempt, placement.rank)
    text = f"python3[{pid}]: segfault at 28 ip 00007f3b2c41d2a0 sp 00007ffd1c0b7e90 error 4 in libtokenizers.so[7f3b2c200000+61a000]"
    sim.log_kernel(time, placement.node, text)


def log_nfs_lost(sim: Simulation, node: str, time: float, server: str = "fs03") -> None:
    """A file server stops answering."""
    sim.log_kernel(time, node, f"nfs: server {server} not responding, still trying")


def log_nfs_restored(sim: Simulation, node: str, time: float, server: str = "fs03") -> None:
    """The file server answers again."""
    sim.log_kernel(time, node, f"nfs: server {server} OK")


def log_blocked_task(
    sim: Simulation, attempt: JobAttempt, placement: Placement, time: float, seconds: int = 122
) -> None:
    """The kernel's hung-task report."""
    pid = sim.pid(attempt, placement.rank)
    lines = (
        f"INFO: task python3:{pid} blocked for more than {seconds} seconds.",
        "      Tainted: P           OE     5.15.0-105-generic #115-Ubuntu",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        f"task:python3         state:D stack:    0 pid:{pid} ppid: {pid - 7 * placement.local_rank - 30} flags:0x00000002",
    )
    sim.log_kernel(time, placement.node, "\n".join(lines))
