"""YAML as manifests are written plainly: mappings and lists by indentation, one-line scalars, text blocks. No more."""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(r"([A-Za-z0-9_./-]+):(?: +(.*))?\Z")


def documents(text: str) -> list[Any]:
    """What a file says. ValueError for what goes beyond."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == "---":
            found.append([])
        else:
            found[-1].append(line)
    return [_Reader(lines).read() for lines in found if any(line.strip() for line in lines)]


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self.lines, self.at = lines, 0

    def read(self) -> Any:
        value = self.node(0)
        if self.peek() is not None:
            raise ValueError(f"line {self.at + 1}: {self.lines[self.at]!r} is indented by chance")
        return value

    def peek(self) -> tuple[int, str] | None:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip() and not line.lstrip().startswith("#"):
                return len(line) - len(line.lstrip()), line.strip()
            self.at += 1
        return None

    def node(self, indent: int) -> Any:
        head = self.peek()
        if head is None or head[0] < indent:
            return None
        return self.several(head[0]) if head[1].startswith("- ") else self.mapping(head[0])

    def several(self, indent: int) -> list[Any]:
        found = []
        while (head := self.peek()) is not None and head[0] == indent and head[1].startswith("- "):
            rest = head[1][2:]
            if _KEY.match(rest):
                self.lines[self.at] = " " * (indent + 2) + rest
                found.append(self.mapping(indent + 2))
            else:
                self.at += 1
                found.append(scalar(rest))
        return found

    def mapping(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (head := self.peek()) is not None and head[0] == indent:
            key = _KEY.match(head[1])
            if key is None or key[1] in found:
                raise ValueError(f"line {self.at + 1}: {head[1]!r} is no new key")
            self.at += 1
            if key[2] == "|":
                found[key[1]] = self.block(indent)
            else:
                found[key[1]] = scalar(key[2]) if key[2] else self.node(indent + 1)
        return found

    def block(self, indent: int) -> str:
        taken = []
        while self.at < len(self.lines) and (
            not self.lines[self.at].strip() or self.lines[self.at].startswith(" " * (indent + 2))
        ):
            taken.append(self.lines[self.at][indent + 2 :])
            self.at += 1
        return "\n".join(taken) + "\n"


def scalar(text: str) -> Any:
    """A value on its key's line."""
    if text[0] in "\"[{'&*!>%@`":
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text
