"""Supervised fine-tuning with TRL."""

from __future__ import annotations

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer, TrlParser


def main() -> None:
    (config,) = TrlParser((SFTConfig,)).parse_args_and_config()
    data = load_dataset("json", data_files="data/train.jsonl", split="train")
    trainer = SFTTrainer(model="models/tiny", args=config, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()
