"""Owners of processes and GPUs, on folders that look like /proc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.agent.readings import assert_conforms, exposition, open_source
from trackside.agent.jobs import processes
from trackside.agent.jobs.cgroup_path import NOTHING, Membership, membership
from trackside.agent.jobs.environment import NAMES, variables
from trackside.agent.jobs.processes import ProcessMap
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owner
from trackside.agent.source import AgentSourceUnavailable, Reading
from trackside.agent.sources.processes import SOURCE

POD = "0a6f2d3c-1b2e-4c5d-8e9f-001122334455"
BOX = "ab" * 32
V1 = """9:name=systemd:/
6:freezer:/slurm_n1/uid_1001/job_{job}/step_{step}
5:devices:/slurm_n1/uid_1001/job_{job}/step_{step}/task_1
2:cpuacct:/slurm_n1/uid_1001/job_{job}/step_{step}/task_{task}
0::/
"""
V2 = "0::/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_{task}\n"


class Host:
    """A fake /proc and its process map."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir(parents=True)
        (self.proc / "uptime").write_text("1000.00 900.00\n")
        (self.proc / "meminfo").write_text("")
        self.map = ProcessMap(LocalNode("n1", proc=self.proc))

    def start(
        self,
        pid: int,
        environ: Mapping[str, str] | bytes | None = None,
        cgroup: str = "0::/user.slice\n",
        comm: str = "python",
        start_ticks: int = 5000,
        parent: int = 1,
        flags: int = 0x400000,
        stack: int = 7,
    ) -> None:
        """Add a process. If ``environ`` is None, it may not be read."""
        folder = self.proc / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        stat = f"{pid} ({comm}) S {parent} {pid} {pid} 0 -1 {flags} 0 0 0 0 1 2 0 0 20 0 1 0 {start_ticks} 1 1 1 1 1 {stack} 0 0\n"
        (folder / "stat").write_text(stat)
        (folder / "cgroup").write_text(cgroup)
        if isinstance(environ, bytes):
            (folder / "environ").write_bytes(environ)
        elif environ is not None:
            (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in environ.items()))
        else:
            (folder / "environ").mkdir()  # reading a folder as a file fails for root too

    def set_user(self, pid: int, uid: int) -> None:
        text = f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t0\t0\t0\n"
        (self.proc / str(pid) / "status").write_text(text)

    def start_step_daemon(self, pid: int, title: str, uid: int = 0) -> None:
        """Slurm's daemon of a step, which starts its tasks."""
        self.start(pid, {}, comm="slurmstepd")
        self.set_user(pid, uid)
        (self.proc / str(pid) / "cmdline").write_bytes(f"slurmstepd: [{title}]".encode() + bytes(20))

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def owners(self) -> dict[int, Owner]:
        self.map.renew()
        return {process.pid: process.owner for process in self.map.processes()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def task(job: int = 42, step: str = "0", procid: int = 0, **overrides: str) -> dict[str, str]:
    """The environment that Slurm gives to a task."""
    environ = {
        "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": step, "SLURM_PROCID": str(procid), "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8", "SLURMD_NODENAME": "n1", "SLURM_JOB_USER": "alice",
    }  # fmt: skip
    return environ | overrides


def test_a_cgroup_path_names_job_step_task_and_container() -> None:
    cases = {
        V1.format(job=7, step=0, task=3): Membership("7", "0", 3, "n1"),
        V1.format(job=7, step="batch", task=0): Membership("7", "batch", 0, "n1"),
        V2.format(job=7, step="extern", task="special"): Membership("7", "extern"),
        V2.format(job=7, step=4294967291, task=0): Membership("7", "batch"),
        "0::/system.slice/gpu-07.example.org_slurmstepd.scope/job_9/step_0/user/task_2": Membership(
            "9", "0", None, "gpu-07.example.org"
        ),
        "3:cpuset:/slurm/uid_0/job_8\n2:freezer:/slurm/uid_0/job_8/step_1\n": Membership("8", "1"),
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{POD.replace('-', '_')}.slice/cri-containerd-{BOX}.scope\n": Membership(container=BOX, pod=POD),
        f"4:memory:/kubepods/burstable/pod{POD}/{BOX}\n0::/\n": Membership(container=BOX, pod=POD),
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{BOX}.scope/container\n": Membership(
            container=BOX, pod=POD
        ),
        f"0::/system.slice/docker-{BOX}.scope\n": Membership(container=BOX),
        f"4:memory:/docker/{BOX}\n": Membership(container=BOX),
        f"0::/machine.slice/libpod-{BOX}.scope/container": Membership(container=BOX),
        f"0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0/docker-{BOX}.scope": Membership(
            "5", "0", container=BOX
        ),
        "0::/user.slice/user-1000.slice/session-2.scope\n": NOTHING,
        "0::/system.slice/slurmd.service\n": NOTHING,
        "0::/slurm-web/job_5/step_0\n": NOTHING,
        "": NOTHING,
        "\0\xff garbage": NOTHING,
    }
    for text, expected in cases.items():
        assert membership(text.encode("latin-1")) == expected, text


def test_without_a_launcher_the_task_number_is_the_rank(host: Host) -> None:
    host.start(10, task(procid=3), V1.format(job=42, step=0, task=3))
    assert host.owners() == {10: Owner("42", "0", 3, 3, 0, 4, "alice")}
    [process] = host.map.processes()
    assert (process.pid, process.started, process.parent, process.comm) == (10, 5000, 1, "python")
    assert process.environ is not None
    assert process.environ["SLURM_PROCID"] == "3"


def test_under_torchrun_the_children_are_the_ranks(host: Host) -> None:
    cgroup = V2.format(job=42, step=0, task=1)
    host.start(10, task(procid=1, SLURM_LOCALID="0"), cgroup, "torchrun")
    assert host.owners()[10].rank == 1  # it has no children yet
    for local in range(2):
        rank_variables = {"RANK": str(2 + local), "LOCAL_RANK": str(local), "WORLD_SIZE": "4"}
        host.start(11 + local, task(procid=1) | rank_variables, cgroup, parent=10)
        host.start(21 + local, task(procid=1) | rank_variables, cgroup, "pt_data_worker", parent=11 + local)
    owners = host.owners()
    assert (owners[10].rank, owners[10].task, owners[10].world_size) == (None, 1, None)
    assert [owners[pid].rank for pid in (11, 12, 21, 22)] == [2, 3, 2, 3]
    assert (owners[12].local_rank, owners[12].world_size, owners[12].task) == (1, 4, 1)


def test_a_batch_script_has_no_rank(host: Host) -> None:
    batch = {key: value for key, value in task().items() if "STEP" not in key}
    host.start(10, batch, V2.format(job=42, step="batch", task=0), "bash")
    host.start_step_daemon(5, "42.batch")
    host.start(11, batch, parent=5)  # the same without a cgroup that names the step
    host.set_user(11, 1000)
    host.start(
        12, batch | {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, V2.format(job=42, step="batch", task=0)
    )
    owners = host.owners()
    assert owners[10] == Owner("42", "batch", user="alice")
    assert owners[11] == Owner("42", user="alice")
    assert (owners[12].rank, owners[12].world_size) == (5, 8)


def test_array_and_heterogeneous_job_ids_are_written_as_users_write_them(host: Host) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "60", "SLURM_ARRAY_TASK_ID": "0"}
    het_group = {"SLURM_JOB_ID_HET_GROUP_0": "73", "SLURM_JOB_ID_HET_GROUP_1": "74"}
    host.start(9, None, V2.format(job=64, step=0, task=0))  # another user's: read before its job's id is known
    host.start(10, task(64) | array, V2.format(job=64, step=0, task=0))
    host.start(11, task(73, procid=1) | het_group, V2.format(job=74, step=0, task=0))
    host.start(12, task(73) | het_group, V2.format(job=73, step=0, task=0))
    assert {pid: owner.job for pid, owner in host.owners().items()} == {9: "60_0", 10: "60_0", 11: "73+1", 12: "73+0"}
    assert host.map.unread == 1
    assert host.owners()[11].rank == 1


def test_the_cgroup_counts_if_the_environment_is_of_another_job(host: Host) -> None:
    host.start(10, task(41, procid=7), V2.format(job=42, step=0, task=0))
    host.start(11, task(41) | {"SLURMD_NODENAME": "n2"})  # another node's, on the same machine
    host.start(12, task(41), V1.format(job=41, step=0, task=0).replace("slurm_n1", "slurm_n2"))
    login_environ = task(41)
    del login_environ["SLURMD_NODENAME"]
    host.start(13, login_environ)  # a shell of salloc
    host.start(14, login_environ, f"0::/system.slice/docker-{BOX}.scope\n")
    host.set_user(14, 0)
    host.start(15, {"SLURM_JOB_ID": "x" * 300, "SLURMD_NODENAME": "n1"})
    assert host.owners() == {
        10: Owner("42", "0"),
        14: Owner("41", "0", 0, 0, 0, 4, "alice", BOX),
    }


def test_each_listed_variable_is_read() -> None:
    values = {name: str(number) for number, name in enumerate(NAMES.values())}
    assert variables("\0".join(f"{name}={value}" for name, value in values.items()).encode()) == values
    assert variables("\0".join(f"{name}S={value}" for name, value in values.items()).encode()) == {}


def test_invalid_environments_are_read_in_bounds(host: Host) -> None:
    invalid = (
        b"\xff\xfe\0=\0RANK=\xff\0SLURM_JOB_ID=42\0RANK=3\0LOCAL_RANK=99999999999\0=x=\0NCCL_DEBUG=INFO\0"
        + b"A" * 900_000
    )
    host.start(10, invalid, V2.format(job=42, step=0, task=0))
    owner = host.owners()[10]
    assert (owner.job, owner.rank, owner.local_rank) == ("42", None, None)
    [process] = host.map.processes()
    assert process.environ == {"RANK": "�", "SLURM_JOB_ID": "42", "LOCAL_RANK": "99999999999", "NCCL_DEBUG": "INFO"}
    bounded = variables(b"\0".join(b"NCCL_%d=%s" % (number, b"v" * 5000) for number in range(1000)))
    assert [len(value) for value in bounded.values()] == [4096]
    numbered = b"\0".join(b"NCCL_%d=1" % number for number in range(1000))
    assert len(variables(numbered)) == 128
    assert variables(numbered.replace(b"NCCL_", b"CUDA_X") + b"\0NCCL_DEBUG=INFO") == {"NCCL_DEBUG": "INFO"}
    host.start(11, b"", V2.format(job=42, step=0, task=0))
    assert host.owners()[11] == Owner("42", "0")


def test_kernel_threads_and_daemons_have_no_owner(host: Host) -> None:
    host.start(2, b"", comm="kthreadd", flags=0x208040)
    host.start(3, {"PATH": "/bin"}, comm="odd) name (")
    (host.proc / "4").mkdir()  # ended while it was read
    host.start(5, task())
    (host.proc / "5" / "stat").write_text("5 (cut")
    assert host.owners() == {}
    assert host.map.of_pid(2) is None
    assert host.map.of_pid(4) is None
    assert host.map.of_pid(99) is None


def test_many_new_processes_are_read_over_several_renewals(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_NEW", 3)
    for pid in range(5):
        host.start(pid, task(procid=pid), V2.format(job=41, step=0, task=0))
    assert len(host.owners()) == 5  # the first scan reads everything
    for pid in range(10, 18):
        host.start(pid, task(procid=pid), V2.format(job=42, step=0, task=0))
    assert [len(host.owners()) - 5 for _ in range(4)] == [3, 6, 8, 8]
    host.start(30, task(procid=5), V2.format(job=42, step=0, task=0))
    owner = host.map.of_pid(30)
    assert owner is not None
    assert owner.rank == 5


def test_a_reused_pid_has_a_new_owner(host: Host) -> None:
    host.start(10, task(42), V2.format(job=42, step=0, task=0))
    assert host.owners()[10].job == "42"
    (host.proc / "old").mkdir()  # so that the folder's inode is not reused
    os.rename(host.proc / "10", host.proc / "old" / "10")
    host.start(10, task(43), V2.format(job=43, step=0, task=0), start_ticks=6000)
    assert host.map.of_pid(10) == Owner("43", "0", 0, 0, 0, 4, "alice")  # before the map is renewed
    assert host.owners()[10].job == "43"
    host.end(10)
    assert host.owners() == {}


def test_a_new_process_is_read_again(host: Host) -> None:
    host.start(10, {"PATH": "/bin"}, start_ticks=99_950, comm="slurmstepd")  # forked, and not yet in its cgroup
    assert host.owners() == {}
    folder = host.proc / "10"
    (folder / "cgroup").write_text(V2.format(job=42, step=0, task=0))
    (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in task().items()))
    (folder / "stat").write_text((folder / "stat").read_text().replace("slurmstepd", "python"))
    assert host.map.of_pid(10) is not None
    assert host.owners()[10].job == "42"


def test_a_shell_that_executes_the_trainer_is_read_again(host: Host) -> None:
    cgroup = V2.format(job=42, step=0, task=0)
    host.start(10, task(), cgroup, "bash")
    host.owners()
    folder = host.proc / "10"
    (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in (task() | {"RANK": "6"}).items()))
    (folder / "stat").write_text((folder / "stat").read_text().replace(" 7 0 0\n", " 9 0 0\n"))
    ranks = [host.owners()[10].rank for _ in range(12)]
    assert ranks[-1] == 6


def test_the_owner_of_a_gpu_from_the_drivers_processes(host: Host) -> None:
    for rank in (0, 1):
        host.start(10 + rank, task(procid=rank), V2.format(job=42, step=0, task=rank))
    host.start(12, task(43), V2.format(job=43, step=0, task=0))
    host.owners()
    host.map.set_gpu_pids("0", [10])
    host.map.set_gpu_pids("GPU-1", [10, 11])
    host.map.set_gpu_pids("2", [11, 12])
    host.map.set_gpu_pids("3", [99])
    assert host.map.of_gpu("0") == Owner("42", "0", 0, 0, 0, 4, "alice")
    shared = host.map.of_gpu("GPU-1")
    assert shared is not None
    assert (shared.job, shared.rank) == ("42", None)
    assert host.map.of_gpu("2") == Owner(user="alice")  # shared by two jobs: no job
    assert host.map.of_gpu("3") is None
    host.end(10)
    host.map.renew()
    assert host.map.of_gpu("0") is None


GPU_ENVIRONMENTS: list[tuple[str, str, dict[str, int | None]]] = [
    ("4,5,6,7", "5", {"5": 0, "4": None, "7": None}),  # indices of the node
    ("4,5,6,7", "0,1", {"4": 0, "5": 0, "6": None}),  # indices within the device cgroup, which hides the other GPUs
    ("0,1,2,3", "2", {"2": 0, "0": None}),  # the same in both numberings
    ("1,2,3", "1", {"1": None, "2": None, "3": None}),  # ambiguous
    ("", "GPU-aa,GPU-bb", {"GPU-aa": 0, "GPU-bb": 0}),
    ("", "3", {"3": 0}),
]


@pytest.mark.parametrize(("step_gpus", "visible", "expected"), GPU_ENVIRONMENTS)
def test_the_owner_of_a_gpu_from_the_environment(
    host: Host, step_gpus: str, visible: str, expected: dict[str, int | None]
) -> None:
    environ = task(CUDA_VISIBLE_DEVICES=visible) | ({"SLURM_STEP_GPUS": step_gpus} if step_gpus else {})
    host.start(10, environ, V2.format(job=42, step=0, task=0))
    host.owners()
    for gpu, rank in expected.items():
        owner = host.map.of_gpu(gpu)
        assert owner is not None, gpu
        assert (owner.job, owner.rank) == ("42", rank), gpu
    assert host.map.of_gpu("9") is None


def test_ranks_of_a_launcher_share_its_gpus(host: Host) -> None:
    cgroup = V2.format(job=42, step=0, task=0)
    gpus = {"SLURM_STEP_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}
    host.start(10, task() | gpus, cgroup, "torchrun")
    for rank in (0, 1):
        host.start(11 + rank, task() | gpus | {"RANK": str(rank)}, cgroup)
    host.owners()
    owner = host.map.of_gpu("1")
    assert owner is not None
    assert (owner.job, owner.rank) == ("42", None)


def test_the_source_counts_processes_of_jobs_ranks_and_containers(host: Host) -> None:
    for rank in (0, 1):
        host.start(10 + rank, task(procid=rank), V2.format(job=42, step=0, task=rank))
        host.start(20 + rank, task(procid=rank), V2.format(job=42, step=0, task=rank), parent=10 + rank)
    host.start(30, task(), V2.format(job=42, step="extern", task=0), "sleep")
    host.start(31, None, V2.format(job=43, step=0, task=0))
    host.start(40, {}, f"4:memory:/kubepods/burstable/pod{POD}/{BOX}\n")
    reading = Reading()
    open_source(SOURCE, LocalNode("n1", proc=host.proc), host.map).collect(reading)
    assert_conforms(reading, SOURCE)
    assert exposition(reading).splitlines() == [
        'trackside_job_processes{job="42"} 4',
        'trackside_job_processes{job="43"} 1',
        'trackside_job_ranks{job="42"} 2',
        f'trackside_owner_processes{{container="{BOX[:12]}",pod="{POD}"}} 1',
        'trackside_owner_processes{job="42",local_rank="0",rank="0",step="0",task="0",user="alice"} 2',
        'trackside_owner_processes{job="42",local_rank="0",rank="1",step="0",task="1",user="alice"} 2',
        "trackside_unread_processes 1",
    ]


def test_the_source_needs_the_list_of_processes(host: Host) -> None:
    collector = open_source(SOURCE, LocalNode("n1"), ProcessMap(LocalNode("n1", proc=host.proc / "nowhere")))
    with pytest.raises(AgentSourceUnavailable, match="cannot be listed"):
        collector.collect(Reading())


STEP_DAEMON = """
import os, sys
with open("/proc/self/comm", "w") as file:
    file.write("slurmstepd")
environ = {"SLURM_JOB_ID": "4242", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "0", "RANK": "5"}
print(os.posix_spawn("/bin/sleep", ["sleep", "30"], environ), flush=True)
sys.stdin.read()
"""
"""What Slurm's daemon does that matters here: as root, under its name, it starts a task."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root's daemon counts")
@pytest.mark.parametrize(("title", "job"), [("slurmstepd: [4242.0]", "4242"), ("slurmstepd: [4243.0]", None)])
def test_a_new_process_of_this_machine_is_found(title: str, job: str | None) -> None:
    """The real /proc is read without an error, and a new process is found at once."""
    process_map = ProcessMap(LocalNode("n1"))
    process_map.renew()
    arguments = [title, "-c", STEP_DAEMON]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, executable=sys.executable, stdin=pipe, stdout=pipe, text=True) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        owner = None
        for _ in range(200):
            if (owner := process_map.of_pid(pid)) is not None and owner.rank == 5:
                break
        assert (owner and owner.job) == job
        process_map.renew()
        ranks = [process.owner.rank for process in process_map.processes() if process.pid == pid]
        assert ranks == ([] if job is None else [5])
        os.kill(pid, 9)
    process_map.renew()
    assert not [process for process in process_map.processes() if process.pid == pid]
