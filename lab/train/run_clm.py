"""Fine-tunes a causal language model with the Hugging Face Trainer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)
from transformers.utils.versions import require_version


@dataclass
class ScriptArguments:
    model_name_or_path: str = "models/tiny"
    train_file: str = "data/train.jsonl"
    lora_targets: list[str] = field(default_factory=list)
    requires: str = ""
    block: int = 32


class Rows(Dataset[dict[str, Any]]):
    def __init__(self, path: str, tokenizer: Any, block: int) -> None:
        with open(path) as lines:
            texts = [json.loads(line)["text"] for line in lines]
        self.rows = [tokenizer(text, truncation=True, max_length=block, padding="max_length") for text in texts]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.tensor(self.rows[index]["input_ids"])
        labels = ids.masked_fill(ids == 0, -100)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main() -> None:
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, training = parser.parse_args_into_dataclasses()
    if script.requires:
        require_version(script.requires)
    tokenizer = AutoTokenizer.from_pretrained(script.model_name_or_path)
    model: Any = AutoModelForCausalLM.from_pretrained(script.model_name_or_path)
    if script.lora_targets:
        config = LoraConfig(target_modules=script.lora_targets, task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
    rows = Rows(script.train_file, tokenizer, script.block)
    trainer = Trainer(model=model, args=training, train_dataset=rows)
    result = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_state()
    trainer.log_metrics("train", result.metrics)


if __name__ == "__main__":
    main()
