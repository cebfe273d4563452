"""A plain accelerate loop with a tqdm bar that shows the loss."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tinylm import TinyLM, Windows
from torch.nn import functional
from torch.utils.data import DataLoader
from tqdm.auto import tqdm


def epochs(loader: Iterable[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--data", default="data/train.jsonl")
    parser.add_argument("--column", default="text")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(Windows(args.data, args.column), batch_size=16, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.print(f"***** Running training *****\n  Total optimization steps = {args.steps}")
    bar = tqdm(total=args.steps, disable=not accelerator.is_local_main_process, mininterval=0)
    for tokens, target in islice(epochs(loader), args.steps):
        loss = functional.cross_entropy(model(tokens), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean().item()
        time.sleep(0.01)
        bar.set_postfix({"loss": f"{mean:.4f}"}, refresh=False)
        bar.update(1)
    bar.close()
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()
