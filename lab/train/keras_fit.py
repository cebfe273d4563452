"""Keras' fit loop over a small dense language model."""

from __future__ import annotations

import argparse

import keras
import numpy
from tinylm import ALPHABET, CONTEXT, Windows


def arrays(path: str) -> tuple[numpy.ndarray, numpy.ndarray]:
    windows = Windows(path)
    pairs = [windows[index] for index in range(len(windows))]
    tokens = numpy.stack([pair[0].numpy() for pair in pairs])
    return tokens, numpy.array([int(pair[1]) for pair in pairs])


def network(context: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((context,), dtype="int32"),
            keras.layers.Embedding(len(ALPHABET), 24),
            keras.layers.Flatten(),
            keras.layers.Dense(96, activation="gelu"),
            keras.layers.Dense(len(ALPHABET)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--verbose", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--context", type=int, default=CONTEXT)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    tokens, target = arrays("data/train.jsonl")
    model = network(args.context)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(args.lr), loss=loss, metrics=["accuracy"])
    model.summary()
    model.fit(tokens, target, batch_size=16, epochs=args.epochs, verbose=args.verbose)


if __name__ == "__main__":
    main()
