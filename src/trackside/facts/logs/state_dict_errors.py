"""What decides in the message of PyTorch's ``load_state_dict``, which lists every parameter that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.events import MAX_MESSAGE_CHARS, MAX_MESSAGE_LINE_CHARS

SIZE_MISMATCH = re.compile(
    r"size mismatch for ([\w.]{1,200}): copying a param with shape torch\.Size\(\[([\d, ]{0,60})\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([\d, ]{0,60})\]\)"
)
_HEAD = re.compile(r"Error\(s\) in loading state_dict for ([\w.]{1,120}):")
_KEYS = re.compile(r"(Missing|Unexpected) key\(s\) in state_dict: ([^\n]+)")
_KEY = re.compile(r'"([^"\n]{1,200})"')
_IN_WORDS = {"Missing": "only the model has", "Unexpected": "only the checkpoint has"}
WEIGHT_ENTRIES = (
    "model_state_dict",
    "state_dict",
    "model",
    "net",
    "network",
    "weights",
    "params",
    "module",
    "model_state",
)
"""Names under which programs save the weights, next to an optimizer, an epoch and so on."""
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and modules that hold a model put before each name."""
MAX_CHARS = 160
"""Characters of a sentence's value."""


def in_brief(message: str, lines: int | None = None, max_chars: int = MAX_CHARS) -> str | None:
    """The first parameter whose size differs, with both sizes, the first missing and unexpected names, and how many
    there are, as far as they fit; None if it is another message. ``lines``: of the whole message, if known. These words
    are not the message's: see :func:`with_heading`."""
    head = _HEAD.match(message)
    if head is None:
        return None
    whole = len(message) < MAX_MESSAGE_CHARS and (lines is None or lines == message.count("\n") + 1)
    parts = [*_sizes(message, whole, lines), *_names(message, whole)]
    while len(parts) > 1 and len("; ".join(parts)) > max_chars:
        parts.pop()
    return "; ".join(parts) or None


def with_heading(message: str, parameters: str) -> str:
    """The message's own first line, without its colon, and the parameters in parentheses."""
    return f"{message.partition(':')[0]} ({parameters})"


def wrapped_entry(message: str) -> str | None:
    """The entry of a checkpoint that holds the weights, if the program loaded the whole checkpoint."""
    missing, unexpected = _listed(message)
    entries = [name for name in unexpected if name in WEIGHT_ENTRIES]
    return entries[0] if missing and entries and not any("." in name for name in unexpected) else None


def prefix(message: str) -> tuple[str, bool] | None:
    """The prefix of a wrapper that only the names of one side have, and whether that is the checkpoint's."""
    missing, unexpected = _listed(message)
    for text in WRAPPER_PREFIXES:
        for names, others, in_checkpoint in ((unexpected, missing, True), (missing, unexpected, False)):
            if any(name.startswith(text) and name.removeprefix(text) in others for name in names):
                return text, in_checkpoint
    return None


def _listed(message: str) -> tuple[list[str], list[str]]:
    """The names that only the model has, and those that only the checkpoint has."""
    listed = dict(_KEYS.findall(message)) if _HEAD.match(message) else {}
    return _KEY.findall(listed.get("Missing", "")), _KEY.findall(listed.get("Unexpected", ""))


def shape(sizes: str) -> str:
    """``32000, 4096`` as ``32000 x 4096``."""
    return " x ".join(size.strip() for size in sizes.split(",")) if sizes.strip() else "a single number"


def _sizes(message: str, whole: bool, lines: int | None) -> Iterator[str]:
    mismatches = SIZE_MISMATCH.findall(" ".join(message.split()))
    if mismatches:
        name, saved, expected = mismatches[0]
        before = message.partition("size mismatch for")[0].count("\n")  # these lines end the message
        count, is_count = (
            (len(mismatches), True) if whole else (lines - before, True) if lines else (len(mismatches), False)
        )
        others = _more(count - 1, is_count)
        yield f"{name} is {shape(saved)} in the checkpoint, {shape(expected)} in the model" + (
            f" (and {others})" if others else ""
        )


def _names(message: str, whole: bool) -> Iterator[str]:
    for kind, listed in _KEYS.findall(message):
        names = _KEY.findall(listed)
        if names:
            others = _more(len(names) - 1, whole and len(listed) < MAX_MESSAGE_LINE_CHARS - 50)
            yield f'{_IN_WORDS[kind]} "{names[0]}"' + (f" and {others}" if others else "")


def _more(count: int, whole: bool) -> str:
    """How many more there are; at least, if the log's message was cut."""
    if whole:
        return f"{count} more" if count else ""
    return f"at least {count} more" if count else "perhaps more"
