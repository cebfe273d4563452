"""Replaces names of this machine in the files of a run, consistently in all files."""

from __future__ import annotations

import pickle
import re
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Sanitizer:
    """Replaces paths and host names; everything else stays as it was."""

    def __init__(self, work: Path, node: str, names: Sequence[tuple[str, str]] = ()) -> None:
        self.node = node
        stdlib = sysconfig.get_paths()["stdlib"]
        host = socket.gethostname()
        pairs = [
            *names,
            (str(work.resolve()), "/home/user/train"),
            (str(work), "/home/user/train"),
            (sys.prefix, "/home/user/venv"),
            (stdlib, "/usr/lib/python3.11"),
            (sys.base_prefix, "/usr"),
            (str(Path.home()), "/home/user"),
            ("/tmp/", "/scratch/"),
        ]
        plain = [(old, new) for old, new in pairs if len(old) > 1]
        escaped = [(old.replace("/", "\\/"), new.replace("/", "\\/")) for old, new in plain]
        self.texts = plain + escaped  # Slurm's JSON escapes its slashes
        self.host = re.compile(rf"(?<![\w./-]){re.escape(host)}(?:\.[\w.-]+)?(?![\w/-])")
        self.local = re.compile(r"(host\s+: )(localhost\S*|[\w.-]+)")

    def text(self, text: str) -> str:
        for old, new in self.texts:
            text = text.replace(old, new)
        text = self.host.sub(self.node, text)
        return self.local.sub(rf"\g<1>{self.node}", text)

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        return value

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file; text keeps its bytes but for the names, pickles are rebuilt."""
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = source.read_bytes()
        if raw[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05"):
            rebuilt = pickle.dumps(self.value(pickle.loads(raw)), protocol=raw[1])
            target.write_bytes(rebuilt)
            return
        text = raw.decode("utf-8", "surrogateescape")
        target.write_bytes(self.text(text).encode("utf-8", "surrogateescape"))
