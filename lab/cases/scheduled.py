"""Runs on a real Slurm cluster, with its records."""

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


def run_job(script: str, *options: str, state: str) -> Play:
    """Submit a job and wait for its end."""

    def play(stage: Stage) -> None:
        job = on_cluster(stage).submit(stage, script, *options)
        job.wait_state(state)
        job.keep_records()

    return play


def freeze_rank(stage: Stage) -> None:
    script = f"{TORCHRUN} 2 pretrain.py --steps 9000 --lr 1e-3 --pause 0.05"
    job = on_cluster(stage).submit(stage, script, "--time=1")
    job.wait_for("step 100 ")
    os.kill(job.rank_pid(1), signal.SIGSTOP)
    job.wait_state("TIMEOUT")
    job.keep_records()


def cancel_job(stage: Stage) -> None:
    script = f"{TORCHRUN} 2 pretrain.py --steps 9000 --lr 1e-3 --pause 0.05"
    job = on_cluster(stage).submit(stage, script)
    job.wait_for("step 60 ")
    job.cluster.ask("scancel", job.number)
    job.wait_state("CANCELLED")
    job.keep_records()


def kill_node(stage: Stage) -> None:
    script = RANKS % "--steps 9000 --lr 1e-3 --pause 0.05"
    job = on_cluster(stage).submit(stage, script, "-N2", "--ntasks-per-node=1", "--no-requeue")
    job.wait_for("step 60 ")
    node = _last_node(job)
    job.cluster.script("slurm-node", "kill", node)
    try:
        job.wait_state("NODE_FAIL", "FAILED")
        job.keep_records()
    finally:
        job.cluster.script("slurm-node", "start", node)


def _last_node(job: SlurmJob) -> str:
    names = job.cluster.ask("squeue", "-h", "-j", job.number, "-o", "%N").strip()
    return job.cluster.ask("scontrol", "show", "hostnames", names).split()[-1]


def preempt_job(stage: Stage) -> None:
    """A job of the `low` partition is preempted by one that takes all nodes, and restarts."""
    slurm = on_cluster(stage)
    script = "python pretrain.py --steps 200 --lr 1e-3 --pause 0.1 --save-to last.pt --save-every 50 --resume last.pt"
    job = slurm.submit(stage, script, "-p", "low", "--open-mode=append", "--requeue")
    job.wait_for("step 80 ")
    urgent = slurm.submit(stage, "sleep 8", "-p", "high", "-N4", "--exclusive", name="urgent")
    urgent.wait_state("COMPLETED")
    job.wait_state("COMPLETED")
    job.keep_records()


def requeue_self(stage: Stage) -> None:
    slurm = on_cluster(stage)
    job = slurm.submit(stage, REQUEUE, "--requeue", "--open-mode=append")
    job.wait_for("step 60 ")
    slurm.ask("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_for("training finished")
    job.wait_state("COMPLETED")
    job.keep_records()


def silent_resume(stage: Stage) -> None:
    """A chain of two: the child's --resume names a folder that the parent did not write."""
    slurm = on_cluster(stage)
    train = "python pretrain.py --lr 1e-3 --every 5"
    parent = slurm.submit(stage, f"mkdir -p run1\n{train} --steps 80 --save-to run1/last.pt", name="part1")
    dependency = f"--dependency=afterok:{parent.number}"
    child = slurm.submit(stage, f"{train} --steps 160 --resume runs/run1/last.pt", dependency, name="part2")
    child.wait_state("COMPLETED")
    child.keep_records(parent)


def slurm_case(
    name: str, play: Play, expected: dict[str, Any], story: str, mark: str, *, progress: bool = True, **fields: Any
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
        **fields,
    )


ENDED = (
    slurm_case(
        "completed",
        run_job(RANKS % "--steps 200 --lr 1e-3", "-N2", "--ntasks-per-node=1", state="COMPLETED"),
        {"family": "G1", "culprit": "none", "disposition": "COMPLETED"},
        "Slurm, 2 nodes, one rank each under srun -l (labels `0: `, `1: `).\nNo fault.",
        "0: training finished",
    ),
    slurm_case(
        "srun-missing-column",
        run_job(RANKS % "--steps 200 --column content", "-N2", "--ntasks-per-node=2", state="FAILED"),
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
    slurm_case(
        "out-of-memory",
        run_job(
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
    slurm_case(
        "timeout-learning",
        run_job("python pretrain.py --steps 20000 --lr 3e-4 --pause 0.1", "--time=1", state="TIMEOUT"),
        {"family": "F3", "disposition": "TIMEOUT"},
        "Slurm, one process, time limit of a minute.\n"
        "Injected: nothing but too short a limit; it learned up to the end (healthy but slow).",
        "DUE TO TIME LIMIT",
    ),
    slurm_case(
        "timeout-hung",
        freeze_rank,
        {"family": "C2", "accept": ["C3"], "disposition": "TIMEOUT"},
        "Slurm, torchrun with 2 ranks, time limit of a minute.\n"
        "Injected: rank 1 is frozen (SIGSTOP) at step 100; rank 0 waits in a collective for ever.\n"
        "The log goes silent long before the limit; the timeout (F3) is the consequence.",
        "DUE TO TIME LIMIT",
    ),
    slurm_case(
        "timeout-rendezvous",
        run_job(
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
    slurm_case(
        "scancel",
        cancel_job,
        {"family": "H1", "culprit": "none", "disposition": "CANCELLED"},
        "Slurm, torchrun with 2 ranks.\nInjected: scancel after step 60. SignalException of the launcher is teardown.",
        "CANCELLED",
    ),
    slurm_case(
        "node-killed",
        kill_node,
        {"family": "F1", "culprit": "infrastructure", "disposition": "NODE_FAIL"},
        "Slurm, 2 nodes, one rank each under srun -l.\n"
        "Injected: the second node dies (its daemons and tasks at once) after step 60.\n"
        "The rank that is left says `Connection reset by peer`: a consequence.",
        "NODE_FAIL|NODE FAIL",
    ),
    slurm_case(
        "preempted",
        preempt_job,
        {"family": "F2", "culprit": "scheduler", "disposition": "COMPLETED"},
        "Slurm, one process in a preemptible partition, checkpoints each 50 steps.\n"
        "Injected: a job of higher priority takes all nodes after step 80; the job is requeued,\n"
        "resumes at step 50 and completes. Two accounting rows under one id, one log (append).",
        "PREEMPTED",
        progress_keys=("last",),
    ),
    slurm_case(
        "self-requeue",
        requeue_self,
        {"family": "F2", "disposition": "COMPLETED"},
        "Slurm, one process.\n"
        "Injected: SIGUSR1 (as --signal would send it before the limit); the training saves, the\n"
        "script requeues itself, resumes and completes: the application's own requeue worked.",
        "REQUEUED",
        progress_keys=("last",),
    ),
    slurm_case(
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
