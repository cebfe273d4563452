"""Makes a tiny Llama and its character tokenizer in a folder: `python tiny_hf.py FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tinylm import ALPHABET
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {token: index for index, token in enumerate([*special, *ALPHABET])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def model(hidden: int = 48) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(ALPHABET) + 4,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--no-tokenizer", action="store_true")
    args = parser.parse_args()
    model(args.hidden).save_pretrained(args.folder)
    if not args.no_tokenizer:
        tokenizer().save_pretrained(args.folder)


if __name__ == "__main__":
    main()
