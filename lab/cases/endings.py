"""Endings that are neither a crash of the code nor a good one: Ctrl-C, SIGTERM, full disks."""

from __future__ import annotations

import signal
import subprocess

from lab.case import LabCase, Play
from lab.plays import run, signal_group, signal_program
from lab.points import HF_DICT, KEY_VALUE, PLAIN, Reader
from lab.stage import RunFailed, Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
MAKE = "python tiny_hf.py models/tiny > /dev/null 2>&1\n"
CLM = "run_clm.py --use_cpu --output_dir out --report_to none --per_device_train_batch_size 16"


def on_small_disk(size: str) -> Play:
    return lambda stage: _on_small_disk(stage, size)


def _on_small_disk(stage: Stage, size: str) -> None:
    """HF Trainer whose output folder is a small file system of its own."""
    (stage.work / "out").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(stage.work / "out")]
    if subprocess.run(mount, check=False).returncode:
        raise RunFailed("a small tmpfs cannot be mounted here")
    options = "--max_steps 100 --logging_steps 5 --save_steps 25 --learning_rate 1e-2"
    running = stage.start(f"{MAKE}python {CLM} {options}\necho exit status $?")
    try:
        running.finish()
    finally:
        running.stop()
        subprocess.run(["umount", str(stage.work / "out")], check=True)


CASES = (
    LabCase(
        name="ctrl-c-torchrun",
        play=run(
            f"{TORCHRUN} 2 pretrain.py --steps 900 --lr 1e-3 --pause 0.05",
            inject=signal_group(signal.SIGINT, "step 30 "),
        ),
        expected={"family": "H1", "culprit": "none"},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: Ctrl-C (SIGINT to the whole foreground group) after step 30.\n"
        "KeyboardInterrupt tracebacks of the ranks and SignalException of the launcher are how\n"
        "the cancel looks, not an application error.",
        marks=("KeyboardInterrupt|signal: 2",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="ctrl-c-hf",
        play=run(
            f"{MAKE}python {CLM} --max_steps 6000 --logging_steps 50 --learning_rate 1e-3",
            inject=signal_group(signal.SIGINT, r"'epoch': '12'"),
        ),
        expected={"family": "H1", "culprit": "none"},
        story="HF Trainer under plain python.\nInjected: Ctrl-C in the middle; the bar is cut by the traceback.",
        marks=("KeyboardInterrupt",),
        reader=Reader(HF_DICT, every=50),
        needs=("transformers", "peft"),
    ),
    LabCase(
        name="sigterm-launcher",
        play=run(
            f"{TORCHRUN} 2 pretrain.py --steps 900 --lr 1e-3 --pause 0.05 --style kv",
            inject=signal_program("torchrun", signal.SIGTERM, "step=30 "),
        ),
        expected={"family": "H3", "accept": ["H1", "F2", "F3", "U0"], "signal": "SIGTERM"},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: SIGTERM to the launcher from outside after step 30, as a scheduler, a time\n"
        "limit or a person would send; nothing in the log tells which.\n"
        "SignalException is the launcher's way to say it: not an application error.",
        marks=("SignalException.*15",),
        reader=Reader(KEY_VALUE),
    ),
    LabCase(
        name="sigterm-python",
        play=run(
            "python pretrain.py --steps 900 --lr 1e-3 --pause 0.05 --style kv\necho exit status $?",
            inject=signal_program("pretrain.py", signal.SIGTERM, "step=30 "),
        ),
        expected={"family": "H3", "accept": ["A2", "H1", "F2", "F3", "U0"], "signal": "SIGTERM"},
        story="A custom loop under plain python in a bash script.\n"
        "Injected: SIGTERM from outside after step 30; bash prints `Terminated`, status 143.",
        marks=("Terminated", "exit status 143"),
        reader=Reader(KEY_VALUE),
    ),
    LabCase(
        name="disk-full-checkpoint",
        play=run(
            "mkdir ckpt && ln -s /dev/full ckpt/last.pt\n"
            "python pretrain.py --steps 200 --lr 1e-3 --save-to ckpt/last.pt\n"
            "echo exit status $?",
        ),
        expected={"family": "H4"},
        story="A custom loop under plain python.\n"
        "Injected: the checkpoint goes to a full device (ENOSPC), at step 50.\n"
        "ENOSPC is nowhere in the text: torch.save says `basic_ios::clear: iostream error` and\n"
        "`[enforce fail at inline_container.cc:...] . unexpected pos 1344 vs 1238`.",
        marks=("unexpected pos",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="disk-full-hf-optimizer",
        play=on_small_disk("300k"),
        expected={"family": "H4"},
        story="HF Trainer under plain python.\n"
        "Injected: the output folder is a file system of 300 KiB; the optimizer's part of the\n"
        "checkpoint fills it. Only `unexpected pos ...` of torch.save tells.",
        marks=("unexpected pos",),
        reader=Reader(HF_DICT, every=5),
        needs=("transformers", "peft"),
    ),
    LabCase(
        name="disk-full-hf-weights",
        play=on_small_disk("100k"),
        expected={"family": "H4"},
        story="HF Trainer under plain python.\n"
        "Injected: the output folder is a file system of 100 KiB; the weights fill it.\n"
        "safetensors names the error of the system.",
        marks=("No space left|os error 28|code: 28",),
        reader=Reader(HF_DICT, every=5),
        needs=("transformers", "peft"),
    ),
    LabCase(
        name="file-size-limit",
        play=run(
            "ulimit -f 64\npython pretrain.py --steps 200 --lr 1e-3 --save-to last.pt\necho exit status $?",
        ),
        expected={"family": "H4", "accept": ["H2"]},
        story="A custom loop under plain python.\n"
        "Injected: a limit on file size (ulimit -f) that the checkpoint exceeds, at step 50.\n"
        "The same words as for a full disk (`unexpected pos ...`): the text alone can't tell.",
        marks=("unexpected pos",),
        reader=Reader(PLAIN),
    ),
)
