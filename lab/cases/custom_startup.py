"""A1 with custom loops: the run dies before its first step."""

from __future__ import annotations

from lab.case import LabCase
from lab.plays import run
from lab.stage import RunningJob, Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"


def cut_row(stage: Stage) -> None:
    path = stage.work / "data/train.jsonl"
    lines = path.read_text().splitlines()
    lines[211] = lines[211][:19]
    path.write_text("\n".join(lines) + "\n")


def other_column(stage: Stage) -> None:
    stage.write_corpus(column="prompt")


def without_package_on_node_1(stage: Stage) -> None:
    """Two launchers as on two nodes; the second one finds a broken package first."""
    broken = stage.work / "site/tinylm.py"
    broken.parent.mkdir()
    broken.write_text("from causal_conv_kernels import fused_window\n")
    options = "--nnodes 2 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port $PORT"
    train = "pretrain.py --steps 50 --timeout 25"
    (stage.work / "node1.sh").write_text(
        "mkdir -p n1 && cp *.py n1 && cp site/tinylm.py n1 && ln -s ../data n1/data && cd n1\n"
        f"torchrun --node-rank 1 {options} {train}\n"
    )
    first = stage.start(f"torchrun --node-rank 0 {options} {train}", log="node0.log")
    second = stage.start("bash node1.sh", log="node1.log")
    _finish(first, second)


def _finish(*jobs: RunningJob) -> None:
    try:
        for job in jobs:
            job.finish()
    finally:
        for job in jobs:
            job.stop()


CASES = (
    LabCase(
        name="custom-malformed-jsonl",
        play=run(f"{TORCHRUN} 2 pretrain.py --steps 100", prepare=cut_row),
        expected={
            "family": "A1",
            "fault_class": "data",
            "culprit": "job",
            "exception": "JSONDecodeError",
            "ranks": [0, 1],
        },
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: row 212 of the training jsonl is cut in the middle of a string.\n"
        "Both ranks raise while reading the data, no step was made.",
        marks=(r"\[rank0\]: json.*JSONDecodeError", r"\[rank1\]: json.*JSONDecodeError"),
        no_progress=True,
    ),
    LabCase(
        name="custom-missing-column",
        play=run(
            f"{TORCHRUN} 4 --log-dir logs --tee 3 pretrain.py --steps 100",
            prepare=other_column,
            keep=("logs/**/*.log",),
        ),
        expected={
            "family": "A1",
            "fault_class": "data",
            "culprit": "job",
            "exception": "KeyError",
        },
        story="A custom DDP loop under torchrun, 4 ranks, --tee 3 and a --log-dir tree.\n"
        "Injected: the jsonl names its column 'prompt', the loop reads 'text'.\n"
        "Which ranks get to print their traceback before the launcher ends them varies.",
        marks=(r"KeyError: 'text'",),
        no_progress=True,
    ),
    LabCase(
        name="custom-exclusive-flags",
        play=run("python pretrain.py --steps 100 --bf16 --fp16"),
        expected={"family": "A1", "fault_class": "config", "culprit": "job"},
        story="A custom loop under plain python.\n"
        "Injected: two flags that exclude each other; argparse prints usage and exits with 2.\n"
        "There is no traceback at all, only `error: argument --fp16: not allowed ...`.",
        marks=("not allowed with argument",),
        no_progress=True,
    ),
    LabCase(
        name="custom-missing-package",
        play=run(
            f"sed -i 's/^import json/import apex\\nimport json/' prints.py\n{TORCHRUN} 2 pretrain.py --steps 100",
        ),
        expected={
            "family": "A1",
            "fault_class": "env",
            "culprit": "job",
            "exception": "ModuleNotFoundError",
        },
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: a module of the loop imports apex, which is not installed.\n"
        "Each rank dies at import, before any process group.",
        marks=("No module named 'apex'",),
        no_progress=True,
    ),
    LabCase(
        name="one-node-lacks-package",
        play=without_package_on_node_1,
        expected={
            "family": "A1",
            "fault_class": "env",
            "culprit": "job",
            "exception": "ModuleNotFoundError",
        },
        story="Two torchrun launchers as on two nodes, 2 ranks each, one log a node.\n"
        "Injected: on node 1 a module imports a package that only node 0 would have.\n"
        "Ranks 0 and 1 wait for peers that never come, which looks like a rendezvous hang\n"
        "(C1); the ranks that died at import (2 and 3) are the cause.",
        marks=("No module named 'causal_conv_kernels'", "init_process_group"),
        no_progress=True,
    ),
    LabCase(
        name="custom-lost-data-file",
        play=run("accelerate launch --cpu --num_processes 1 pretrain.py --data data/val.jsonl"),
        expected={
            "family": "A1",
            "culprit": "job",
            "exception": "FileNotFoundError",
        },
        story="A custom loop under accelerate launch, one process.\n"
        "Injected: the data path names a file that is not there.\n"
        "accelerate adds a CalledProcessError of its own: a wrapper, not the cause.",
        marks=("FileNotFoundError", "CalledProcessError"),
        no_progress=True,
        needs=("accelerate",),
    ),
)
