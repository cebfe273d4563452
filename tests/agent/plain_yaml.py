"""The subset of YAML that the manifests use: indented mappings and lists, one-line scalars, text blocks."""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(r"([A-Za-z0-9_./-]+):(?: +(.*))?\Z")


def documents(text: str) -> list[Any]:
    """The documents of a file. Raises ValueError for anything beyond the subset."""
    documents_lines: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == "---":
            documents_lines.append([])
        else:
            documents_lines[-1].append(line)
    return [_Reader(lines).read() for lines in documents_lines if any(line.strip() for line in lines)]


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self.lines, self.index = lines, 0

    def read(self) -> Any:
        value = self.node(0)
        if self.peek() is not None:
            raise ValueError(f"line {self.index + 1}: {self.lines[self.index]!r} has an unexpected indentation")
        return value

    def peek(self) -> tuple[int, str] | None:
        while self.index < len(self.lines):
            line = self.lines[self.index]
            if line.strip() and not line.lstrip().startswith("#"):
                return len(line) - len(line.lstrip()), line.strip()
            self.index += 1
        return None

    def node(self, indent: int) -> Any:
        head = self.peek()
        if head is None or head[0] < indent:
            return None
        return self.sequence(head[0]) if head[1].startswith("- ") else self.mapping(head[0])

    def sequence(self, indent: int) -> list[Any]:
        items = []
        while (head := self.peek()) is not None and head[0] == indent and head[1].startswith("- "):
            item = head[1][2:]
            if _KEY.match(item):
                self.lines[self.index] = " " * (indent + 2) + item
                items.append(self.mapping(indent + 2))
            else:
                self.index += 1
                items.append(scalar(item))
        return items

    def mapping(self, indent: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while (head := self.peek()) is not None and head[0] == indent:
            key = _KEY.match(head[1])
            if key is None or key[1] in result:
                raise ValueError(f"line {self.index + 1}: {head[1]!r} is not a new key")
            self.index += 1
            if key[2] == "|":
                result[key[1]] = self.block(indent)
            else:
                result[key[1]] = scalar(key[2]) if key[2] else self.node(indent + 1)
        return result

    def block(self, indent: int) -> str:
        lines = []
        while self.index < len(self.lines) and (
            not self.lines[self.index].strip() or self.lines[self.index].startswith(" " * (indent + 2))
        ):
            lines.append(self.lines[self.index][indent + 2 :])
            self.index += 1
        return "\n".join(lines) + "\n"


def scalar(text: str) -> Any:
    """The value of a one-line scalar."""
    if text[0] in "\"[{'&*!>%@`":
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text
