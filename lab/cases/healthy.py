"""G1: runs without any fault, one of each framework and style, and rivals of other families."""

from __future__ import annotations

from collections.abc import Mapping

from lab.case import LabCase
from lab.plays import Preparation, run
from lab.points import (
    EPOCH_METER,
    HF_DICT,
    JSON_LINE,
    KEY_VALUE,
    LIGHTNING_BAR,
    NANOGPT,
    PLAIN,
    TQDM_LOSS,
    BarReader,
    KerasReader,
    Reader,
    StepReader,
)
from lab.stage import Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
MAKE = "python tiny_hf.py models/tiny > /dev/null 2>&1\n"
CLM = "run_clm.py --use_cpu --output_dir out --report_to none --per_device_train_batch_size 16"
HF = f"{CLM} --learning_rate 1e-2 --logging_steps 5"
SFT = "sft.py --use_cpu --bf16 false --output_dir out --report_to none --learning_rate 1e-2 "
SFT += "--gradient_checkpointing false --per_device_train_batch_size 8 --max_length 64"


def broken_side_data(stage: Stage) -> None:
    (stage.work / "data/extra.jsonl").write_text('{"text": "the cat se\n')


def healthy(
    name: str,
    script: str,
    story: str,
    reader: StepReader | None,
    *,
    keep: tuple[str, ...] = (),
    prepare: Preparation | None = None,
    needs: tuple[str, ...] = (),
    mark: str = "training finished",
    variant: str | None = None,
    env: Mapping[str, str] | None = None,
    keys: tuple[str, ...] = ("points", "first", "last"),
) -> LabCase:
    """A run that ends well; `echo` of its status is not in the log, as in a real job."""
    expected = {"family": "G1", "culprit": "none"}
    if variant:
        expected["variant"] = variant
    return LabCase(
        name=name,
        play=run(script, prepare=prepare, keep=keep, env=env),
        expected=expected,
        story=story,
        marks=(mark,),
        reader=reader,
        no_progress=reader is None,
        progress_keys=keys,
        needs=needs,
    )


CUSTOM = (
    healthy(
        "custom-plain-ddp",
        f"{TORCHRUN} 2 --log-dir logs --tee 3 pretrain.py --steps 200 --lr 1e-3",
        "A custom DDP loop under torchrun, 2 ranks, --tee 3 and a --log-dir tree.\n"
        "No fault. Each line is there twice: in the tee'd log and in the rank's own file.",
        Reader(PLAIN, files="train.log"),
        keep=("logs/**/*.log",),
    ),
    healthy(
        "custom-nanogpt",
        "python pretrain.py --steps 200 --lr 1e-3 --style nanogpt",
        "A custom loop under plain python with nanoGPT's lines (`iter N: loss X, time, mfu`).\nNo fault.",
        Reader(NANOGPT),
    ),
    healthy(
        "custom-epoch-meter",
        f"{TORCHRUN} 2 pretrain.py --steps 200 --lr 1e-3 --style epochs",
        "A custom DDP loop under torchrun, 2 ranks, with the meters of the ImageNet example\n"
        "(`Epoch: [0][ 10/50] Time .. Loss value (mean)`).\nNo fault.",
        BarReader(EPOCH_METER, batches=50),
    ),
    healthy(
        "custom-json-lines",
        "python pretrain.py --steps 200 --lr 1e-3 --style json",
        "A custom loop under plain python that prints JSON lines.\nNo fault.",
        Reader(JSON_LINE),
    ),
    healthy(
        "custom-key-value",
        f"{TORCHRUN} 2 pretrain.py --steps 200 --lr 1e-3 --style kv",
        "A custom DDP loop under torchrun, 2 ranks, with key=value lines.\nNo fault.",
        Reader(KEY_VALUE),
    ),
    healthy(
        "custom-unverifiable",
        "python pretrain.py --steps 200 --lr 1e-3 --style quiet",
        "A custom loop under plain python whose lines say nothing of loss or steps.\n"
        "No fault; that it learned cannot be verified from what it left.",
        None,
        variant="unverifiable",
    ),
    healthy(
        "custom-resume-ok",
        "python pretrain.py --steps 60 --lr 1e-3 --save-to last.pt > parent.txt\n"
        f"{TORCHRUN} 2 pretrain.py --steps 200 --lr 1e-3 --resume last.pt",
        "A custom DDP loop under torchrun, 2 ranks, that resumes at step 60 as it should.\n"
        "No fault; the rival of a silent resume: load marker, steps go on, loss starts low.",
        Reader(PLAIN),
    ),
    healthy(
        "custom-handled-traceback",
        f"{TORCHRUN} 2 pretrain.py --steps 200 --lr 1e-3 --side-data data/extra.jsonl",
        "A custom DDP loop under torchrun, 2 ranks; completes.\n"
        "A broken optional file is reported with its traceback by every rank and left out.\n"
        "The traceback is handled: progress follows it.",
        Reader(PLAIN),
        prepare=broken_side_data,
    ),
)

FRAMEWORKS = (
    healthy(
        "hf-single",
        f"{MAKE}python {HF} --max_steps 100 --save_steps 50",
        "HF Trainer under plain python.\nNo fault. Checkpoint bars (`Writing model shards`) cut into the training bar.",
        Reader(HF_DICT, every=5),
        mark="train_runtime",
        needs=("transformers", "peft"),
    ),
    healthy(
        "hf-ddp",
        f"{MAKE}{TORCHRUN} 2 {HF} --max_steps 100 --save_strategy no",
        "HF Trainer under torchrun, 2 ranks, with trainer_state.json.\nNo fault.",
        Reader(HF_DICT, every=5),
        keep=("out/trainer_state.json",),
        mark="train_runtime",
        needs=("transformers", "peft"),
    ),
    healthy(
        "hf-block-buffered",
        f"{MAKE}{TORCHRUN} 2 {HF} --max_steps 100 --save_strategy no --disable_tqdm true",
        "HF Trainer under torchrun, 2 ranks, no bar, output buffered by blocks as in a pipe.\n"
        "No fault. The loss lines carry no step of their own: only epoch and order.",
        Reader(HF_DICT, every=5),
        mark="train_runtime",
        needs=("transformers", "peft"),
        env={"PYTHONUNBUFFERED": ""},
        keys=("points",),
    ),
    healthy(
        "hf-resume-ok",
        f"{MAKE}python {HF} --max_steps 40 --save_steps 20 > parent.txt 2>&1\n"
        f"python {HF} --max_steps 100 --save_steps 50 "
        "--resume_from_checkpoint out/checkpoint-40",
        "HF Trainer under plain python that resumes at step 40 as it should.\n"
        "No fault; transformers prints no load marker by default: the bar starts at 41 of 100.",
        Reader(HF_DICT, every=5, first_step=40),
        mark="train_runtime",
        needs=("transformers", "peft"),
    ),
    healthy(
        "trl-sft",
        f"{MAKE}{TORCHRUN} 2 {SFT} --max_steps 60 --logging_steps 3",
        "TRL SFT under torchrun, 2 ranks.\nNo fault. Bars of the data's preparation come first.",
        Reader(HF_DICT, every=3),
        mark="train_runtime",
        needs=("transformers", "trl"),
    ),
    healthy(
        "accelerate-tqdm",
        f"{TORCHRUN} 2 accelerate_loop.py --steps 80",
        "A plain accelerate loop under torchrun, 2 ranks; the loss is only in tqdm's postfix.\n"
        "No fault. One line of carriage returns.",
        Reader(TQDM_LOSS),
        mark="done",
        needs=("accelerate",),
    ),
    healthy(
        "lightning-tqdm",
        "python lightning_fit.py --epochs 3",
        "Lightning under plain python, tqdm bar.\n"
        "No fault. The bar first repeats the last loss at a new batch number, then shows the new.",
        BarReader(LIGHTNING_BAR, batches=25),
        mark="max_epochs=3",
        needs=("lightning",),
    ),
    healthy(
        "lightning-rich-ddp",
        "python lightning_fit.py --epochs 3 --bar rich --devices 2 --strategy ddp",
        "Lightning ddp, 2 processes, rich bar, with metrics.csv.\n"
        "No fault. The rich bar leaves little in a file; the csv has the points (steps from 0).",
        Reader(r"(?m)^\d+,(?P<step>\d+),(?P<loss>[\d.]+)$", files="metrics.csv"),
        keep=("lightning_logs/version_0/metrics.csv",),
        keys=("first",),
        mark="max_epochs=3",
        needs=("lightning",),
    ),
    healthy(
        "keras-verbose-1",
        "python keras_fit.py --epochs 4 --verbose 1",
        "Keras fit (torch backend), verbose=1.\n"
        "No fault. The bar's loss is a running mean of the epoch; batch 25/25 has its end.",
        KerasReader(batches=25),
        mark="Epoch 4/4",
        keys=("last",),
        needs=("keras",),
    ),
    healthy(
        "keras-verbose-2",
        "python keras_fit.py --epochs 6 --verbose 2",
        "Keras fit (torch backend), verbose=2: one line an epoch.\nNo fault.",
        KerasReader(batches=25),
        mark="Epoch 6/6",
        needs=("keras",),
    ),
)

CASES = (*CUSTOM, *FRAMEWORKS)
