"""One small training on one device, in one of five ways; run by ``tools/gpu_check.py`` in its own process.

The model is a language model on a made-up language whose next word depends on the last, so its loss soon falls.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WORDS = 512


class Model(nn.Module):
    """A causal transformer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(
            width, max(width // 64, 1), 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.body(self.embed(tokens), mask=mask, is_causal=True))


def sentences(batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Each word but the first follows from the one before it, one in ten is chance."""
    tokens = torch.randint(WORDS, (batch, length), generator=generator)
    chance = torch.rand(batch, length, generator=generator) < 0.1
    for index in range(1, length):
        follows = (7 * tokens[:, index - 1] + 11) % WORDS
        tokens[:, index] = torch.where(chance[:, index], tokens[:, index], follows)
    return tokens


def decode(seconds: float) -> None:
    """What a slow input pipeline does: Python on one core while the GPU waits."""
    end = time.perf_counter() + seconds
    text = "the quick brown fox " * 200
    while time.perf_counter() < end:
        hash(tuple(text.split()))


def fill(device: torch.device) -> list[torch.Tensor]:
    """Ask for ever more memory, as a batch that is too large does."""
    tensors: list[torch.Tensor] = []
    while True:
        tensors.append(torch.empty(1 << 30, device=device))  # 4 GiB
        tensors[-1].normal_()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=("healthy", "starved", "blocking", "idle", "oom"), required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    width, layers, batch, length = (1024, 12, 32, 512) if on_gpu else (64, 2, 8, 32)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    say(f"torch {torch.__version__} device {torch.cuda.get_device_name() if on_gpu else 'cpu'}")
    if os.environ.get("CUDA_LAUNCH_BLOCKING"):
        say(f"CUDA_LAUNCH_BLOCKING={os.environ['CUDA_LAUNCH_BLOCKING']}")
    model = Model(width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4 if on_gpu else 1e-2)
    ready = [sentences(batch, length, generator).to(device) for _ in range(64)]

    def one_step(step: int) -> torch.Tensor:
        if args.how == "starved":
            decode(2.0 if on_gpu else 0.2)
        tokens = ready[step % len(ready)]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    started = time.perf_counter()
    first = [one_step(step).item() for step in range(6)]
    total = max(12, int(6 * args.seconds / (time.perf_counter() - started)))
    say(f"planned {total} steps; first loss {first[0]:.4f}")
    begin = time.perf_counter()
    for step in range(1, total + 1):
        started = time.perf_counter()
        fault = step > total // 3 or started > begin + args.seconds / 3
        if args.how == "idle" and fault:
            queue.Queue[torch.Tensor]().get()  # a loader's queue that nobody fills
        if args.how == "oom" and fault:
            fill(device)
        loss = one_step(step)
        if step % (1 if args.how == "starved" else 10) == 0 or step == total:
            value = loss.item()
            now, step_s = time.strftime("%Y-%m-%d %H:%M:%S"), time.perf_counter() - started
            say(f"[{now}][INFO] train | iter {step}/{total} | loss {value:.4f} | step_time {step_s:.4f}s")
    say(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}][INFO] training finished after {total} steps")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
