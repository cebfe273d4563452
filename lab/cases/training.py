"""E1, E2 and E3: the run goes on, or should have, and learns nothing."""

from __future__ import annotations

from lab.case import LabCase
from lab.plays import run
from lab.points import HF_DICT, NANOGPT, PLAIN, Reader
from lab.stage import Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
MAKE = "python tiny_hf.py models/tiny > /dev/null 2>&1\n"
CLM = "run_clm.py --use_cpu --output_dir out --report_to none --per_device_train_batch_size 16"
HF_NEEDS = ("transformers", "peft")


def parent_run(options: str) -> str:
    """A first run whose log is not shipped, only its checkpoint used."""
    return f"python pretrain.py --steps 60 --lr 1e-3 --save-to last.pt {options} > parent.txt\n"


def hf_empty_output(stage: Stage) -> None:
    (stage.work / "out").mkdir()


DIVERGENCE = (
    LabCase(
        name="custom-nan",
        play=run("python pretrain.py --steps 200 --optimizer sgd --lr 3e3 --every 5"),
        expected={"family": "E1", "variant": "non-finite", "culprit": "job"},
        story="A custom loop under plain python; it completes with status 0.\n"
        "Injected: a learning rate far too high; the loss becomes nan within a few steps.",
        marks=("loss nan", "training finished"),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="custom-flat-lr-zero",
        play=run(
            f"{TORCHRUN} 2 pretrain.py --steps 300 --lr 0 --style nanogpt",
        ),
        expected={"family": "E1", "variant": "flat", "culprit": "job"},
        story="A custom DDP loop under torchrun, 2 ranks, nanoGPT-like lines; completes.\n"
        "Injected: learning rate 0, so the loss stays at its start but for the batches' noise.\n"
        "The learning rate itself is not printed.",
        marks=("training finished",),
        reader=Reader(NANOGPT),
    ),
    LabCase(
        name="custom-diverging",
        play=run("python pretrain.py --steps 200 --lr 3 --every 5"),
        expected={"family": "E1", "culprit": "job"},
        story="A custom loop under plain python; it completes with status 0.\n"
        "Injected: learning rate 3 with AdamW: the loss jumps far above its start, stays finite\n"
        "and never comes back to it.",
        marks=("training finished",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="hf-nan",
        play=run(
            f"{MAKE}{TORCHRUN} 2 {CLM} --max_steps 60 --logging_steps 3 --learning_rate 1e6 "
            "--optim sgd --lr_scheduler_type constant --max_grad_norm 0",
            keep=("out/trainer_state.json",),
        ),
        expected={"family": "E1", "culprit": "job"},
        story="HF Trainer under torchrun, 2 ranks, with trainer_state.json; completes.\n"
        "Injected: learning rate 1e6 without gradient clipping. The Trainer prints\n"
        "`'grad_norm': 'nan'` and, by logging_nan_inf_filter, a loss that hides the nan.",
        marks=("nan",),
        reader=Reader(HF_DICT, every=3),
        needs=HF_NEEDS,
    ),
    LabCase(
        name="hf-diverge-plateau",
        play=run(
            f"{MAKE}python {CLM} --max_steps 120 --logging_steps 5 --learning_rate 1.0 "
            "--lr_scheduler_type constant --save_strategy no",
        ),
        expected={"family": "E1", "culprit": "job"},
        story="HF Trainer under plain python; completes.\n"
        "Injected: learning rate 1.0 with AdamW: the loss jumps and then stays on a plateau\n"
        "above its start.",
        marks=("train_runtime",),
        reader=Reader(HF_DICT, every=5),
        needs=HF_NEEDS,
    ),
)

RESUME = (
    LabCase(
        name="custom-silent-resume",
        play=run(
            parent_run("")
            + "set -x\nls last.pt\n"
            + "python pretrain.py --steps 120 --lr 1e-3 --resume checkpoints/last.pt",
        ),
        expected={"family": "E2", "variant": "silent", "culprit": "job"},
        story="A custom loop under plain python, bash -x shows its arguments; completes.\n"
        "Injected: --resume names a path that does not exist and the loop says nothing.\n"
        "No load marker, steps restart at 1 with the loss of a fresh start.",
        marks=("training finished", "--resume checkpoints/last.pt"),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="custom-size-mismatch",
        play=run(
            parent_run("--width 64") + f"{TORCHRUN} 2 pretrain.py --steps 120 --lr 1e-3 --resume last.pt",
        ),
        expected={"family": "E2", "variant": "crash", "exception": "RuntimeError"},
        story="A custom DDP loop under torchrun, 2 ranks, resuming.\n"
        "Injected: the checkpoint is of a narrower model (size mismatch in load_state_dict).\n"
        "It dies before the first step like A1, but at the load of its own checkpoint.",
        marks=("size mismatch",),
        no_progress=True,
    ),
    LabCase(
        name="custom-corrupt-checkpoint",
        play=run(
            parent_run("") + "truncate -s 40000 last.pt\npython pretrain.py --steps 120 --lr 1e-3 --resume last.pt",
        ),
        expected={"family": "E2", "variant": "crash"},
        story="A custom loop under plain python, resuming.\n"
        "Injected: the checkpoint was cut short (a zip archive without its directory).\n"
        "torch.load gives no better word for it than `OSError: [Errno 22] Invalid argument`.",
        marks=("Invalid argument|PytorchStreamReader",),
        no_progress=True,
    ),
    LabCase(
        name="hf-no-valid-checkpoint",
        play=run(
            f"{MAKE}{TORCHRUN} 2 {CLM} --max_steps 40 --resume_from_checkpoint out/checkpoint-20",
            prepare=hf_empty_output,
        ),
        expected={"family": "E2", "accept": ["A1"], "variant": "crash"},
        story="HF Trainer under torchrun, 2 ranks, resuming.\nInjected: the checkpoint's folder is not there.",
        marks=("checkpoint-20",),
        no_progress=True,
        needs=HF_NEEDS,
    ),
    LabCase(
        name="lightning-shape-mismatch",
        play=run(
            "python lightning_fit.py --epochs 1 --width 64 > parent.txt 2>&1\n"
            "cp lightning_logs/version_0/checkpoints/*.ckpt last.ckpt\n"
            "python lightning_fit.py --epochs 3 --resume last.ckpt",
        ),
        expected={"family": "E2", "variant": "crash", "exception": "RuntimeError"},
        story="Lightning under plain python, resuming with ckpt_path.\n"
        "Injected: the checkpoint is of a narrower model.",
        marks=("size mismatch",),
        no_progress=True,
        needs=("lightning",),
    ),
)

BUDGET = (
    LabCase(
        name="hf-max-steps-2",
        play=run(
            f"{MAKE}{TORCHRUN} 2 {CLM} --max_steps 2 --logging_steps 1 --learning_rate 1e-2",
            keep=("out/trainer_state.json",),
        ),
        expected={"family": "E3", "culprit": "job"},
        story="HF Trainer under torchrun, 2 ranks, with trainer_state.json; completes.\nInjected: max_steps 2.",
        marks=("train_runtime",),
        reader=Reader(HF_DICT, every=1),
        needs=HF_NEEDS,
    ),
    LabCase(
        name="custom-3-steps",
        play=run("python pretrain.py --steps 3 --every 1 --lr 1e-3"),
        expected={"family": "E3", "culprit": "job"},
        story="A custom loop under plain python; completes.\nInjected: --steps 3.",
        marks=("training finished",),
        reader=Reader(PLAIN),
    ),
)

CASES = (*DIVERGENCE, *RESUME, *BUDGET)
