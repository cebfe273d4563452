"""Runs on a real Slurm cluster, with what its records say of them."""

from __future__ import annotations

import os
import signal
from typing import Any

from lab.case import LabCase, Play
from lab.cluster import Cluster, SlurmJob, cluster
from lab.points import PLAIN, Reader
from lab.stage import RunFailed, Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
LOG = "slurm-*.out"
RANKS = (
    "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
    "srun -l bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec python pretrain.py %s'\n"
)
REQUEUE = """\
trap 'echo "[$(date +%T)] USR1: asking the training to save"; kill -USR1 $PID' USR1
python pretrain.py --steps 150 --lr 1e-3 --pause 0.1 --save-to last.pt --resume last.pt --checkpoint-on-usr1 &
PID=$!
wait $PID; STATUS=$?
[ $STATUS -gt 128 ] && { wait $PID; STATUS=$?; }
if [ $STATUS = 75 ]; then scontrol requeue $SLURM_JOB_ID; sleep 20; fi
exit $STATUS
"""


def on_cluster(stage: Stage) -> Cluster:
    if stage.slurm_tools is None:
        raise RunFailed("no Slurm tools")
    return cluster(stage.slurm_tools)


def job(script: str, *options: str, state: str) -> Play:
    """Submit a job and let it come to its end."""

    def play(stage: Stage) -> None:
        submitted = on_cluster(stage).submit(stage, script, *options)
        submitted.wait_state(state)
        submitted.keep_records()

    return play


def stopped_rank(stage: Stage) -> None:
    script = f"{TORCHRUN} 2 pretrain.py --steps 9000 --lr 1e-3 --pause 0.05"
    submitted = on_cluster(stage).submit(stage, script, "--time=1")
    submitted.wait_for("step 100 ")
    os.kill(submitted.rank_pid(1), signal.SIGSTOP)
    submitted.wait_state("TIMEOUT")
    submitted.keep_records()


def cancelled(stage: Stage) -> None:
    script = f"{TORCHRUN} 2 pretrain.py --steps 9000 --lr 1e-3 --pause 0.05"
    submitted = on_cluster(stage).submit(stage, script)
    submitted.wait_for("step 60 ")
    submitted.cluster.ask("scancel", submitted.number)
    submitted.wait_state("CANCELLED")
    submitted.keep_records()


def node_killed(stage: Stage) -> None:
    script = RANKS % "--steps 9000 --lr 1e-3 --pause 0.05"
    submitted = on_cluster(stage).submit(stage, script, "-N2", "--ntasks-per-node=1", "--no-requeue")
    submitted.wait_for("step 60 ")
    node = _last_node(submitted)
    submitted.cluster.script("slurm-node", "kill", node)
    try:
        submitted.wait_state("NODE_FAIL", "FAILED")
        submitted.keep_records()
    finally:
        submitted.cluster.script("slurm-node", "start", node)


def _last_node(submitted: SlurmJob) -> str:
    names = submitted.cluster.ask("squeue", "-h", "-j", submitted.number, "-o", "%N").strip()
    return submitted.cluster.ask("scontrol", "show", "hostnames", names).split()[-1]


def preempted(stage: Stage) -> None:
    """A job of the `low` partition gives way to one that takes all nodes, and comes back."""
    made = on_cluster(stage)
    script = "python pretrain.py --steps 200 --lr 1e-3 --pause 0.1 --save-to last.pt --save-every 50 --resume last.pt"
    submitted = made.submit(stage, script, "-p", "low", "--open-mode=append", "--requeue")
    submitted.wait_for("step 80 ")
    urgent = made.submit(stage, "sleep 8", "-p", "high", "-N4", "--exclusive", name="urgent")
    urgent.wait_state("COMPLETED")
    submitted.wait_state("COMPLETED")
    submitted.keep_records()


def self_requeued(stage: Stage) -> None:
    made = on_cluster(stage)
    submitted = made.submit(stage, REQUEUE, "--requeue", "--open-mode=append")
    submitted.wait_for("step 60 ")
    made.ask("scancel", "--batch", "--signal=USR1", submitted.number)
    submitted.wait_for("training finished")
    submitted.wait_state("COMPLETED")
    submitted.keep_records()


def silent_resume(stage: Stage) -> None:
    """A chain of two: the child's --resume names a folder that the parent did not write."""
    made = on_cluster(stage)
    train = "python pretrain.py --lr 1e-3 --every 5"
    parent = made.submit(stage, f"mkdir -p run1\n{train} --steps 80 --save-to run1/last.pt", name="part1")
    after = f"--dependency=afterok:{parent.number}"
    child = made.submit(stage, f"{train} --steps 160 --resume runs/run1/last.pt", after, name="part2")
    child.wait_state("COMPLETED")
    child.keep_records(parent)


def scheduled(
    name: str, play: Play, expected: dict[str, Any], story: str, mark: str, *, progress: bool = True, **other: Any
) -> LabCase:
    return LabCase(
        name=f"slurm-{name}",
        play=play,
        expected=expected,
        story=story,
        marks=(mark,),
        reader=Reader(PLAIN, files=LOG) if progress else None,
        no_progress=not progress,
        needs=("slurm",),
        **other,
    )


ENDED = (
    scheduled(
        "completed",
        job(RANKS % "--steps 200 --lr 1e-3", "-N2", "--ntasks-per-node=1", state="COMPLETED"),
        {"family": "G1", "culprit": "none", "disposition": "COMPLETED"},
        "Slurm, 2 nodes, one rank each under srun -l (labels `0: `, `1: `).\nNo fault.",
        "0: training finished",
    ),
    scheduled(
        "srun-missing-column",
        job(RANKS % "--steps 200 --column content", "-N2", "--ntasks-per-node=2", state="FAILED"),
        {
            "family": "A1",
            "culprit": "job",
            "exception": "KeyError",
            "disposition": "FAILED",
        },
        "Slurm, 2 nodes, 4 ranks under srun -l.\n"
        "Injected: the loop is asked for a column that the jsonl lacks (data or config, both fit).\n"
        "Tracebacks of the ranks interleave line by line, each line with srun's label.",
        r"\d: .*KeyError: 'content'",
        progress=False,
    ),
    scheduled(
        "out-of-memory",
        job(
            "sed -i 's/^from native/CACHE = [bytearray(1 << 20) for _ in range(3000)]\\nfrom native/' pretrain.py\n"
            "python pretrain.py --steps 200",
            "--mem=400",
            state="OUT_OF_MEMORY",
        ),
        {"family": "A2", "culprit": "job", "signal": "SIGKILL", "disposition": "OUT_OF_MEMORY"},
        "Slurm, one process, --mem=400.\n"
        "Injected: the loop fills host memory beyond its limit; the cgroup's oom-kill ends it.\n"
        "ExitCode is 0:125, the signal is in bash's and slurmstepd's lines.",
        "oom-kill|oom_kill",
        progress=False,
    ),
    scheduled(
        "timeout-learning",
        job("python pretrain.py --steps 20000 --lr 3e-4 --pause 0.1", "--time=1", state="TIMEOUT"),
        {"family": "F3", "disposition": "TIMEOUT"},
        "Slurm, one process, time limit of a minute.\n"
        "Injected: nothing but too short a limit; it learned up to the end (healthy but slow).",
        "DUE TO TIME LIMIT",
    ),
    scheduled(
        "timeout-hung",
        stopped_rank,
        {"family": "C2", "accept": ["C3"], "disposition": "TIMEOUT"},
        "Slurm, torchrun with 2 ranks, time limit of a minute.\n"
        "Injected: rank 1 is frozen (SIGSTOP) at step 100; rank 0 waits in a collective for ever.\n"
        "The log goes silent long before the limit; the timeout (F3) is the consequence.",
        "DUE TO TIME LIMIT",
    ),
    scheduled(
        "timeout-rendezvous",
        job(
            "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
            "srun -l -n2 bash -c 'RANK=$SLURM_PROCID exec python pretrain.py --steps 100'",
            "--time=1",
            "-n2",
            state="TIMEOUT",
        ),
        {"family": "C1", "disposition": "TIMEOUT"},
        "Slurm, 2 ranks under srun -l, time limit of a minute.\n"
        "Injected: WORLD_SIZE is 3; both ranks wait in init_process_group until the limit.\n"
        "No error at all: one line a rank, then silence; the timeout (F3) is the consequence.",
        "DUE TO TIME LIMIT",
        progress=False,
    ),
)

SCHEDULER = (
    scheduled(
        "scancel",
        cancelled,
        {"family": "H1", "culprit": "none", "disposition": "CANCELLED"},
        "Slurm, torchrun with 2 ranks.\nInjected: scancel after step 60. SignalException of the launcher is teardown.",
        "CANCELLED",
    ),
    scheduled(
        "node-killed",
        node_killed,
        {"family": "F1", "culprit": "infrastructure", "disposition": "NODE_FAIL"},
        "Slurm, 2 nodes, one rank each under srun -l.\n"
        "Injected: the second node dies (its daemons and tasks at once) after step 60.\n"
        "The rank that is left says `Connection reset by peer`: a consequence.",
        "NODE_FAIL|NODE FAIL",
    ),
    scheduled(
        "preempted",
        preempted,
        {"family": "F2", "culprit": "scheduler", "disposition": "COMPLETED"},
        "Slurm, one process in a preemptible partition, checkpoints each 50 steps.\n"
        "Injected: a job of higher priority takes all nodes after step 80; the job is requeued,\n"
        "resumes at step 50 and completes. Two accounting rows under one id, one log (append).",
        "PREEMPTED",
        progress_keys=("last",),
    ),
    scheduled(
        "self-requeue",
        self_requeued,
        {"family": "F2", "disposition": "COMPLETED"},
        "Slurm, one process.\n"
        "Injected: SIGUSR1 (as --signal would send it before the limit); the training saves, the\n"
        "script requeues itself, resumes and completes: the application's own requeue worked.",
        "REQUEUED",
        progress_keys=("last",),
    ),
    scheduled(
        "silent-resume",
        silent_resume,
        {"family": "E2", "variant": "silent", "culprit": "job", "disposition": "COMPLETED"},
        "Slurm, a chain of two jobs (--dependency=afterok), both logs; the subject is the child.\n"
        "Injected: the child's --resume names a path that the parent did not write.\n"
        "No load marker, steps restart at 1, the first loss equals the parent's first.",
        "afterok",
    ),
)

CASES = (*ENDED, *SCHEDULER)
