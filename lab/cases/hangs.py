"""C2, and its look-alike H2: the run stops in the middle of its training."""

from __future__ import annotations

import json
import signal

from lab.case import LabCase
from lab.plays import run, signal_rank
from lab.points import LOGGER, PLAIN, Reader
from lab.stage import Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"


def strange_character(stage: Stage) -> None:
    """One row, read by rank 1 of 2 at step 10 of an epoch, holds a character out of range."""
    path = stage.work / "data/train.jsonl"
    lines = path.read_text().splitlines()
    lines[2 * (16 * 9 + 4) + 1] = json.dumps({"text": "the caf\u00e9 sees the ball and a red box."})
    path.write_text("\n".join(lines) + "\n")


CASES = (
    LabCase(
        name="rank-stopped-gloo-timeout",
        play=run(
            f"{TORCHRUN} 2 --log-dir logs --tee 3 pretrain.py --steps 900 --lr 1e-3 "
            "--pause 0.05 --timeout 10 --style logger",
            inject=signal_rank(1, signal.SIGSTOP, "iter 40/"),
            keep=("logs/**/*.log",),
        ),
        expected={"family": "C2"},
        story="A custom DDP loop under torchrun, 2 ranks, --tee 3 and a --log-dir tree.\n"
        "Injected: rank 1 is frozen (SIGSTOP) after step 40.\n"
        "Rank 0 complains with a gloo timeout after 10 s; the silent rank 1 is at fault.\n"
        "The launcher's SIGTERM cannot end a stopped process, so it shows SIGKILL for rank 1.",
        marks=("Timed out waiting|timed out",),
        reader=Reader(LOGGER, files="train.log"),
    ),
    LabCase(
        name="rank-skips-collective",
        play=run(
            f"{TORCHRUN} 2 pretrain.py --steps 60 --lr 1e-3 --timeout 10 --local-metrics-rank 1 --every 25",
        ),
        expected={"family": "C2", "accept": ["A2", "H2"], "culprit": "job"},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: rank 1 skips the all_reduce of the metrics that rank 0 enters.\n"
        "gloo finds that the sizes differ (`collective mismatch`) and ends rank 0 by SIGABRT;\n"
        "rank 1, which skipped, only says that it lost its peer.",
        marks=("gloo",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="rank-blocked-flight-recorder",
        play=run(
            f"mkfifo data/fresh.jsonl\n{TORCHRUN} 2 pretrain.py --steps 900 --lr 1e-3 "
            "--timeout 12 --refresh-shard data/fresh.jsonl@30:1 --trace-dir traces",
            keep=("traces/*",),
            env={"TORCH_FR_BUFFER_SIZE": "2000"},
        ),
        expected={"family": "C2"},
        story="A custom DDP loop under torchrun, 2 ranks, with Flight Recorder dumps of gloo.\n"
        "Injected: after step 30 rank 1 opens a pipe that nobody writes to, and waits.\n"
        "Rank 0 times out in its all_reduce; in the dumps rank 1 never entered that collective.\n"
        "The culprit printed no error of its own.",
        marks=("Timed out waiting|timed out",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="rank-raises-midrun",
        play=run(
            f"{TORCHRUN} 2 pretrain.py --steps 200 --lr 1e-3 --every 2",
            prepare=strange_character,
        ),
        expected={
            "family": "H2",
            "accept": ["A1"],
            "fault_class": "data",
            "culprit": "job",
            "exception": "ValueError",
            "ranks": [1],
        },
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: a row that only rank 1 reads (step 10) holds a character out of range.\n"
        "Rank 1 raises after 9 steps; rank 0 then loses its peer (gloo), a consequence.",
        marks=(r"\[rank1\]: ValueError: substring not found",),
        reader=Reader(PLAIN),
    ),
)
