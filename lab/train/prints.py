"""The ways in which custom loops print their progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

Print = Callable[[int, int, float, float, float], None]


def _say(text: str) -> None:
    print(text, flush=True)


def plain(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    _say(f"step {step} loss {loss:.4f} lr {lr:.2e} ({seconds * 1000:.1f} ms)")


def nanogpt(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    _say(f"iter {step}: loss {loss:.4f}, time {seconds * 1000:.2f}ms, mfu {0.02 / seconds:.2f}%")


def json_line(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    row = {"step": step, "loss": round(loss, 5), "lr": lr, "step_time": round(seconds, 5)}
    _say(json.dumps({"event": "train", "ts": round(time.time(), 3), **row}))


def key_value(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    _say(f"level=info msg=train step={step} total={total} loss={loss:.5f} lr={lr:.3g}")


def logger(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    _say(f"[{now}][INFO] train | iter {step}/{total} | loss {loss:.4f} | lr {lr:.2e}")


def epochs(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    epoch, batch = divmod(step - 1, 50)
    head = f"Epoch: [{epoch}][{batch + 1:>3}/50]"
    _say(f"{head}\tTime {seconds:6.3f} ({seconds:6.3f})\tLoss {loss:.4e} ({loss:.4e})")


def quiet(step: int, total: int, loss: float, lr: float, seconds: float) -> None:
    if step % 40 == 0:
        _say(f"[{time.strftime('%H:%M:%S')}] shard {step // 40} consumed, rotating buffers")


STYLES: dict[str, Print] = {
    "plain": plain,
    "nanogpt": nanogpt,
    "json": json_line,
    "kv": key_value,
    "logger": logger,
    "epochs": epochs,
    "quiet": quiet,
}
