"""A tiny character language model and its corpus, both made in code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."
CONTEXT = 12
SUBJECTS = ("the cat", "a dog", "one bird", "my friend", "the old man", "a small child")
VERBS = ("sees", "likes", "finds", "carries", "follows")
OBJECTS = ("the ball", "a red box", "some water", "the open door", "two keys")


def sentences(rows: int, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(rows):
        yield f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}."


def write_corpus(path: Path, rows: int = 400, seed: int = 0, column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({column: text}) for text in sentences(rows, seed)]
    path.write_text("\n".join(lines) + "\n")


def encode(text: str) -> list[int]:
    return [ALPHABET.index(char) for char in text]


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Fixed windows over a jsonl corpus: CONTEXT characters and the one that follows."""

    def __init__(self, path: str, column: str = "text") -> None:
        with open(path) as lines:
            rows = [json.loads(line) for line in lines]
        self.texts = [row[column] for row in rows]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = encode(self.texts[index % len(self.texts)])
        start = (index * 7) % max(1, len(ids) - CONTEXT - 1)
        window = ids[start : start + CONTEXT + 1]
        return torch.tensor(window[:-1]), torch.tensor(window[-1])


class TinyLM(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 24)
        self.body = nn.Sequential(nn.Linear(CONTEXT * 24, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(self.embed(tokens).flatten(1)))
        return logits
