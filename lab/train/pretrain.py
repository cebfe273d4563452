"""A custom training loop: plain PyTorch, DDP over gloo when a launcher sets RANK."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from collectives import dump_at_failure
from device import mark_step_done
from native import CRASHES
from prints import STYLES
from tinylm import TinyLM, Windows
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data/train.jsonl")
    parser.add_argument("--column", default="text")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--style", choices=sorted(STYLES), default="plain")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--save-to", default="")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--resume", default="")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--native-op", default="", help="NAME@STEP:RANK")
    parser.add_argument("--refresh-shard", default="", help="PATH@STEP:RANK, read again there")
    parser.add_argument("--trace-dir", default="", help="folder for the trace of a failing rank")
    parser.add_argument("--local-metrics-rank", type=int, default=-1)
    parser.add_argument("--checkpoint-on-usr1", action="store_true")
    parser.add_argument("--side-data", default="")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--bf16", action="store_true")
    precision.add_argument("--fp16", action="store_true")
    return parser.parse_args()


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


def start_process_group(timeout: float) -> None:
    if "RANK" not in os.environ:
        return
    print(f"[rank {RANK}] init_process_group backend=gloo world_size={WORLD}", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    say("process group ready")


def batches(args: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    windows = Windows(args.data, args.column)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] | None
    sampler = DistributedSampler(windows, WORLD, RANK, shuffle=False) if WORLD > 1 else None
    say(f"loaded {len(windows)} rows from {args.data}")
    return DataLoader(windows, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)


def side_data(path: str) -> None:
    """An optional second corpus: a broken one is reported and left out."""
    try:
        Windows(path)
    except (OSError, ValueError):
        print(f"WARNING: could not read {path}, going on without it", file=sys.stderr)
        traceback.print_exc()


class Run:
    """The model, its optimizer and the step reached."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args = args
        self.step = 0
        self.model: torch.nn.Module = TinyLM(args.width)
        if args.resume:
            self.load(Path(args.resume))
        if WORLD > 1:
            self.model = DistributedDataParallel(self.model)
        kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        self.optimizer = kinds[args.optimizer](self.model.parameters(), lr=args.lr)
        self.stop_requested = False

    def load(self, path: Path) -> None:
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.step = int(state["step"])
        say(f"resumed from {path} at step {self.step}")

    def save(self) -> None:
        if RANK != 0 or not self.args.save_to:
            return
        inner = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        torch.save({"model": inner.state_dict(), "step": self.step}, self.args.save_to)
        say(f"saved checkpoint {self.args.save_to} at step {self.step}")

    def on_usr1(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True

    def train_one(self, tokens: torch.Tensor, target: torch.Tensor) -> float:
        loss = functional.cross_entropy(self.model(tokens), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def due(spec: str, step: int) -> str:
    """The WHAT of a WHAT@STEP:RANK option if it applies to this rank at this step."""
    what, _, location = spec.partition("@")
    at_step, _, rank = location.partition(":")
    return what if spec and step == int(at_step) and int(rank) == RANK else ""


def extras(args: argparse.Namespace, step: int) -> None:
    if operation := due(args.native_op, step):
        CRASHES[operation]()
    if shard := due(args.refresh_shard, step):
        Windows(shard)


def report(run: Run, loss: float, began: float) -> None:
    args = run.args
    if run.step % args.every and run.step != 1:
        return
    if WORLD > 1 and run.step > 1 and args.local_metrics_rank != RANK:
        mean = torch.tensor(loss)
        dist.all_reduce(mean)
        loss = mean.item() / WORLD
    if RANK == 0:
        lr = run.optimizer.param_groups[0]["lr"]
        STYLES[args.style](run.step, args.steps, loss, lr, time.perf_counter() - began)


def loop(run: Run) -> None:
    args = run.args
    loader = batches(args)
    if args.side_data:
        side_data(args.side_data)
    say(f"starting training: {args.steps} steps, batch {args.batch_size} x {WORLD}")
    extras(args, 0)
    while run.step < args.steps and not run.stop_requested:
        for tokens, target in loader:
            began = time.perf_counter()
            loss = run.train_one(tokens, target)
            run.step += 1
            mark_step_done()
            time.sleep(args.pause)
            report(run, loss, began)
            extras(args, run.step)
            if run.step % args.save_every == 0:
                run.save()
            if run.step >= args.steps or run.stop_requested:
                break


def main() -> None:
    args = arguments()
    start_process_group(args.timeout)
    if args.trace_dir:
        dump_at_failure(args.trace_dir, RANK)
    run = Run(args)
    if args.checkpoint_on_usr1:
        signal.signal(signal.SIGUSR1, run.on_usr1)
    loop(run)
    if run.stop_requested:
        run.save()
        say("caught SIGUSR1: checkpoint written, asking to be requeued")
        sys.exit(75)
    run.save()
    say("training finished")
    if dist.is_initialized():
        dist.barrier()  # no rank may leave while another still communicates with it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
