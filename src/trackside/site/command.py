"""A command of the site, run to its end for its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.command import MAX_ERROR_BYTES, Command, CommandStopped
from trackside.http.unanswered import Unanswered, plain


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself. ``said``: one line, from stderr or, where that is empty, from its output."""

    status: int
    output: bytes
    said: str


def run(
    arguments: Sequence[str], *, timeout_s: float, most_bytes: int, env: Mapping[str, str] | None = None
) -> Finished:
    """Run it and take its output.

    Raises Unanswered: it isn't there, can't be run, takes longer than ``timeout_s`` or writes more than ``most_bytes``.
    """
    shown = arguments[0].rsplit("/", 1)[-1]
    command = Command(arguments, timeout_s=timeout_s, max_bytes=most_bytes, env=env)
    try:
        output = b"".join(command.output())
    except FileNotFoundError:
        raise Unanswered("unreachable", f"{shown} is not at {arguments[0]}") from None
    except OSError as error:
        raise Unanswered("refused", f"{arguments[0]} can't be run: {error.strerror or error}") from None
    except CommandStopped as stop:
        limit = (
            f"did not end within {timeout_s:g} s"
            if stop.reason == "timeout"
            else f"wrote more than {most_bytes:,} bytes"
        )
        raise Unanswered(stop.reason, f"{shown} {limit}, and was stopped") from None
    words = command.errors.strip() or output[:MAX_ERROR_BYTES]
    return Finished(command.status, output, plain(words.decode("utf-8", "replace")))
