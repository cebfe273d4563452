"""A1 with the frameworks: Hugging Face, PEFT, TRL, Lightning, Keras."""

from __future__ import annotations

from typing import Any

from lab.case import LabCase
from lab.plays import run
from lab.stage import Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
CLM = "run_clm.py --use_cpu --output_dir out --report_to none --max_steps 40 --logging_steps 5"
MAKE = "python tiny_hf.py models/tiny > /dev/null 2>&1\n"


def unequal_rows(stage: Stage) -> None:
    path = stage.work / "data/train.jsonl"
    lines = path.read_text().splitlines()
    lines[101] = '{"text": "one bird sees two keys."'
    path.write_text("\n".join(lines) + "\n")


def crash(
    name: str, script: str, fault_class: str, exception: str, story: str, mark: str, **expected_fields: Any
) -> LabCase:
    """An A1 case: one exception before the first step."""
    return LabCase(
        name=name,
        play=run(script, prepare=expected_fields.pop("prepare", None)),
        expected={
            "family": "A1",
            "fault_class": fault_class,
            "culprit": "job",
            "exception": exception,
            **expected_fields,
        },
        story=story,
        marks=(mark,),
        no_progress=True,
        needs=("transformers", "peft", "trl", "lightning", "keras", "accelerate"),
    )


CASES = (
    crash(
        "hf-unknown-flag",
        f"{MAKE}{TORCHRUN} 2 {CLM} --learning_rte 3e-4",
        "config",
        "ValueError",
        "HF Trainer under torchrun, 2 ranks.\n"
        "Injected: a misspelled flag (--learning_rte); HfArgumentParser refuses it on every rank.",
        "are not used by the HfArgumentParser",
    ),
    crash(
        "peft-target-modules",
        f"{MAKE}accelerate launch --cpu --num_processes 1 {CLM} --lora_targets query_key_value",
        "config",
        "NoMatchingPeftModuleError",
        "HF Trainer with LoRA under accelerate launch, one process.\n"
        "Injected: LoRA target modules of another model family.\n"
        "New PEFT has an exception class of its own for it (a ValueError before); accelerate adds\n"
        "a CalledProcessError, which is a wrapper.",
        "Target modules .*query_key_value.* not found",
    ),
    crash(
        "hf-strategy-mismatch",
        f"{MAKE}python {CLM} --load_best_model_at_end --eval_strategy no --save_strategy steps",
        "config",
        "ValueError",
        "HF Trainer under plain python.\nInjected: load_best_model_at_end with save and eval strategies that differ.",
        "load_best_model_at_end requires",
    ),
    crash(
        "hf-requires-newer-package",
        f"{MAKE}{TORCHRUN} 2 {CLM} --requires 'tokenizers>=99.0'",
        "env",
        "ImportError",
        "HF Trainer under torchrun, 2 ranks.\n"
        "Injected: the script requires a version of tokenizers that is not installed.",
        "tokenizers>=99.0 is required",
    ),
    crash(
        "hf-unknown-architecture",
        f'{MAKE}sed -i \'s/"llama"/"qwen9_moe"/\' models/tiny/config.json\n{TORCHRUN} 2 {CLM}',
        "env",
        "ValueError",
        "HF Trainer under torchrun, 2 ranks.\n"
        "Injected: the model's type is newer than the installed transformers knows.\n"
        "A KeyError comes first (`During handling ...`); the ValueError names the cause.",
        "ValueError: .*qwen9_moe",
    ),
    crash(
        "hf-model-path-missing",
        f"{TORCHRUN} 4 {CLM} --model_name_or_path /models/llama-3-8b-hf",
        "asset",
        "OSError",
        "HF Trainer under torchrun, 4 ranks.\n"
        "Injected: the model's folder does not exist; each rank's chain of exceptions is long\n"
        "and those of four ranks interleave in one log.",
        "llama-3-8b-hf",
    ),
    crash(
        "hf-tokenizer-missing",
        f"python tiny_hf.py models/tiny --no-tokenizer > /dev/null 2>&1\npython {CLM}",
        "asset",
        "ValueError",
        "HF Trainer under plain python.\nInjected: the model's folder holds weights and config, and no tokenizer.",
        "tokenizer",
    ),
    crash(
        "hf-hub-offline",
        f"python {CLM} --model_name_or_path acme/llm-7b-v3",
        "asset",
        "OSError",
        "HF Trainer under plain python on a node without network (HF_HUB_OFFLINE=1).\n"
        "Injected: the model is a hub name that is not in the cache.",
        "acme/llm-7b-v3|offline",
    ),
    crash(
        "trl-malformed-jsonl",
        f"{MAKE}{TORCHRUN} 2 sft.py --use_cpu --bf16 false --output_dir out --max_steps 20 "
        "--report_to none --gradient_checkpointing false",
        "data",
        "DatasetGenerationError",
        "TRL SFT under torchrun, 2 ranks.\n"
        "Injected: row 102 of the jsonl lacks its closing brace.\n"
        "datasets wraps pyarrow's error; both are about the same row.",
        "DatasetGenerationError",
        prepare=unequal_rows,
    ),
    crash(
        "lightning-bad-precision",
        "python lightning_fit.py --precision bf17-mixed",
        "config",
        "ValueError",
        "Lightning under plain python.\nInjected: a precision that does not exist.",
        "bf17-mixed",
    ),
    crash(
        "keras-input-shape",
        "python keras_fit.py --context 16 --verbose 2",
        "code",
        "ValueError",
        "Keras fit under plain python (torch backend).\n"
        "Injected: the network expects 16 tokens and the data hold 12.\n"
        "`Epoch 1/6` is printed before the crash: an epoch that began is not a step.",
        "ValueError",
    ),
)
