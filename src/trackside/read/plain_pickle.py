"""Loads pickles of plain data (dicts, lists, tuples, strings, numbers) without running the pickle machine.

Any opcode that could name, import, call or set state on an object is refused, so a dump from an untrusted node can
contain wrong data but cannot execute anything. Dict keys must be strings or numbers: hashing a deep tuple of shared
parts takes exponential time.
"""

from __future__ import annotations

import pickletools
from typing import Any

MAX_BYTES = 64 << 20
MAX_OPCODES = 8_000_000
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = """
BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
INT LONG FLOAT UNICODE STRING
"""
_NUMBERS_AND_TEXTS = frozenset(_LITERALS.split())
_NAMES = ("GLOBAL", "INST")
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load(data: bytes) -> Any:
    """The value of a pickle. Raises ValueError for anything but plain data; the message names the refused global."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(data):
            count += 1
            if count > MAX_OPCODES:
                raise ValueError("a pickle with too many parts")
            if opcode.name == "STOP":
                return stack.pop()
            _apply(opcode.name, argument, stack, memo)
    except (IndexError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"a damaged pickle ({type(error).__name__})") from error
    raise ValueError("a truncated pickle")


def _apply(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _NUMBERS_AND_TEXTS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _SMALL_TUPLES:
        size = _SMALL_TUPLES[name]
        parts = [stack.pop() for _ in range(size)]
        stack.append(tuple(reversed(parts)))
    elif name in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[argument])
    elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name == "MARK":
        stack.append(_MARK)
    elif name in ("LIST", "TUPLE", "DICT"):
        parts = _pop_to_mark(stack)
        stack.append(_set_items({}, parts) if name == "DICT" else list(parts) if name == "LIST" else tuple(parts))
    elif name in ("APPENDS", "APPEND"):
        parts = _pop_to_mark(stack) if name == "APPENDS" else [stack.pop()]
        _checked_type(stack[-1], list).extend(parts)
    elif name in ("SETITEMS", "SETITEM"):
        parts = _pop_to_mark(stack) if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
        _set_items(_checked_type(stack[-1], dict), parts)
    elif name == "POP":
        stack.pop()
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(_refusal(name, argument, stack))


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    parts = []
    while (part := stack.pop()) is not _MARK:
        parts.append(part)
    return parts[::-1]


def _set_items(target: dict[Any, Any], parts: list[Any]) -> dict[Any, Any]:
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if not isinstance(key, (str, int, float, bytes)):
            raise ValueError("a pickle with a dict key that is neither text nor number")
        target[key] = value
    return target


def _checked_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value


def _refusal(name: str, argument: Any, stack: list[Any]) -> str:
    if name in _NAMES:
        global_name = str(argument).replace(" ", ".", 1)
    elif name == "STACK_GLOBAL" and len(stack) >= 2:
        global_name = ".".join(str(part) for part in stack[-2:] if isinstance(part, str))
    else:
        return f"a pickle with opcode {name}: refused, only plain data is read"
    return f"a pickle with the global {global_name[:200]}: refused, only plain data is read"
