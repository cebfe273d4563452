"""A synthetic job log like a big run's: 64 interleaved ranks, tqdm redraws, few lines that matter."""

from __future__ import annotations

import random
from pathlib import Path

LITERALS = (
    "Traceback (most recent call last)", "CUDA out of memory", "NCCL WARN", "Watchdog caught collective operation",
    "oom-kill", "oom_kill event", "NVRM: Xid", "Segmentation fault", "DUE TO TIME LIMIT", "DUE TO PREEMPTION",
    "DUE TO NODE FAILURE", "srun: error", "slurmstepd: error", "ChildFailedError", "Signal 9 (SIGKILL)",
    "Connection closed by peer", "Timed out waiting", "No space left on device", "Read-only file system",
    "Stale file handle", "Disk quota exceeded", "DataLoader worker", "Bus error", "double free or corruption",
    "CUBLAS_STATUS", "CUDNN_STATUS", "CUDA error", "ncclSystemError", "ncclRemoteError", "ncclUnhandledCudaError",
    "RESOURCE_EXHAUSTED", "ResourceExhaustedError", "uncorrectable ECC", "fallen off the bus", "Heartbeat monitor",
    "monitoredBarrier", "Address already in use", "Connection refused", "Name or service not known",
    "RendezvousTimeoutError", "exitcode", "failed (exitcode", "Sending process", "Killing subprocess",
    "exits with return code", "exited on signal", "Fatal Python error", "KeyboardInterrupt", "ModuleNotFoundError",
    "ImportError", "FileNotFoundError", "size mismatch for", "Error(s) in loading state_dict", "lm loss", "grad norm",
    "grad_norm", "learning_rate", "'loss':", "loss_scale", "iteration ", "successfully loaded checkpoint",
    "saving checkpoint at iteration", "Saving model checkpoint", "Resuming from checkpoint", "checkpoint saved",
    "could not find the metadata file", "***** Running training", "train_runtime", "max_steps", ":::MLLOG",
    "NCCL INFO NET/", "Init COMPLETE", "store_based_barrier", "Out of memory: Killed process", "hung_task",
    "Requeue", "SIGUSR1", "SIGTERM", "Duplicate GPU detected", "terminate called after",
)  # fmt: skip
"""80 literals of the kind that our patterns look for; what the peer counts."""

WORDS = "tokens packed shard sample cache worker batch prefetch device stream bucket reduce layer attention".split()
SHARE_THAT_MATTERS = 0.005


def block(ranks: int, size: int, seed: int) -> bytes:
    """About ``size`` bytes of log."""
    random.seed(seed)
    lines: list[str] = []
    done = step = 0
    while done < size:
        rank = random.randrange(ranks)
        dice = random.random()
        if dice < SHARE_THAT_MATTERS:
            step += 10
            text = _matters(step, rank)
        elif dice < 0.08:
            text = "\r".join(_bar(step + k) for k in range(4)) + "\n"
        else:
            text = _chatter(rank)
        lines.append(text)
        done += len(text)
    return "".join(lines).encode()


def _matters(step: int, rank: int) -> str:
    kind = random.random()
    if kind < 0.9:
        loss = 2 + 8 / (1 + step / 500) + random.random() * 0.05
        return (
            f" [2026-11-21 08:{step // 60 % 60:02}:{step % 60:02}] iteration {step:8}/ 5000000 | consumed samples: {step * 512:12} | "
            f"elapsed time per iteration (ms): 1203.4 | learning rate: 1.5E-04 | global batch size: 512 | lm loss: {loss:.6E} | "
            "loss scale: 1.0 | grad norm: 0.912 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        )
    if kind < 0.97:
        return f"gpu{rank:03}:8812:9120 [{rank % 8}] NCCL WARN socket retry {step}\n"
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/user/train/data.py", line 61, in __getitem__\n'
        f"[rank{rank}]:     return self.read(index)\n"
        f"[rank{rank}]: ValueError: shard {step} is not ready, trying the next one\n"
    )


def _bar(count: int) -> str:
    share = count % 100
    return f"{share:3}%|{'#' * (share // 10):<10}| {count}/5000000 [12:31<1402:10:07,  1.01s/it]"


def _chatter(rank: int) -> str:
    words = " ".join(random.choices(WORDS, k=9))
    return f"[default{rank % 8}]:2026-11-21 08:31:{rank % 60:02},123 INFO worker {rank} {words} took {random.random():.3f}s\n"


def write(path: Path, size: int, ranks: int = 64) -> None:
    """A log of about ``size`` bytes, made of differing blocks."""
    blocks = [block(ranks, min(size, 16 << 20), seed) for seed in range(4)]
    with path.open("wb") as file:
        turn = 0
        while file.tell() < size:
            file.write(blocks[turn % len(blocks)])
            turn += 1
        file.truncate(size)
