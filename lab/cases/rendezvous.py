"""C1: the ranks never form their process group."""

from __future__ import annotations

from lab.case import LabCase
from lab.plays import run
from lab.stage import RunningJob, Stage

LATE = "--rdzv-backend c10d --rdzv-id 7301 --rdzv-conf join_timeout=15,timeout=15"


def world_of_three_started_twice(stage: Stage) -> None:
    """Three ranks are expected and only 0 and 1 are started, as by a wrong array size."""
    script = "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
    script += "python pretrain.py --steps 100 --timeout 15"
    jobs = [stage.start(f"export RANK={rank}\n{script}", log=f"logs/rank{rank}.log") for rank in (0, 1)]
    _finish(jobs)


def _finish(jobs: list[RunningJob]) -> None:
    try:
        for job in jobs:
            job.finish()
    finally:
        for job in jobs:
            job.stop()


CASES = (
    LabCase(
        name="master-name-unknown",
        play=run(
            f"torchrun --nnodes 2 --nproc-per-node 2 {LATE} "
            "--rdzv-endpoint gpu018.train.invalid:29500 pretrain.py --steps 100"
        ),
        expected={"family": "C1"},
        story="torchrun with a c10d rendezvous, one of two nodes.\n"
        "Injected: the rendezvous host's name does not resolve.\n"
        "No rank was ever started; the text names DNS, so infrastructure or job are both open.",
        marks=("gpu018.train.invalid", "RendezvousConnectionError|DistNetworkError"),
        no_progress=True,
    ),
    LabCase(
        name="master-port-refused",
        play=run(
            "export RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
            "python pretrain.py --steps 100 --timeout 12"
        ),
        expected={"family": "C1"},
        story="Rank 1 of 2 with the env:// rendezvous, no launcher.\n"
        "Injected: nobody listens on the master's port.\n"
        "The store client retries until its timeout.",
        marks=("DistNetworkError|timed out",),
        no_progress=True,
    ),
    LabCase(
        name="second-node-never-came",
        play=run(
            f"torchrun --nnodes 2 --nproc-per-node 2 {LATE} --rdzv-endpoint 127.0.0.1:$PORT pretrain.py --steps 100"
        ),
        expected={"family": "C1", "exception": "RendezvousTimeoutError"},
        story="torchrun with a c10d rendezvous, one of two nodes.\n"
        "Injected: the second node's launcher is never started.\n"
        "The launcher itself raises; there is no rank to have failed.",
        marks=("RendezvousTimeoutError",),
        no_progress=True,
    ),
    LabCase(
        name="world-size-too-large",
        play=world_of_three_started_twice,
        expected={"family": "C1", "exception": "DistStoreError"},
        story="Two ranks with the env:// rendezvous, one log a rank.\n"
        "Injected: WORLD_SIZE is 3, so both wait for a rank that does not exist.\n"
        "The store says how many of the clients joined.",
        marks=("DistStoreError", "2/3 clients joined"),
        no_progress=True,
    ),
    LabCase(
        name="gloo-interface-missing",
        play=run(
            "torchrun --standalone --nproc-per-node 2 pretrain.py --steps 100",
            env={"GLOO_SOCKET_IFNAME": "ib0"},
        ),
        expected={"family": "C1"},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: GLOO_SOCKET_IFNAME names an interface that the node lacks.\n"
        "Every rank raises at once inside init_process_group, so nothing ever hangs.",
        marks=("ib0",),
        no_progress=True,
    ),
)
