"""What the table ``[collect.job_output]`` may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Text = Literal["all", "errors", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputOptions:
    """``text``: which lines leave the node. ``all``; ``errors``: those that say something with lines around them, the
    first, the last, and progress now and then; ``none``: no line, only typed events.

    ``paths``: files followed though no process is seen to hold them, as ``/var/log/jobs/*.out``; the job's id is taken
    from their names. ``shared``: folders that several nodes see, beside those of network file systems. ``head_lines``,
    ``context_lines`` and ``tail_lines`` are of ``errors``; ``progress_s``: a line of progress is sent at least so often
    there, and ``redraw_s`` a redraw of a progress bar everywhere. ``backlog_bytes``: of a file that is older than the
    agent, what is read of its end.

    Raises ValueError for what can't be meant.
    """

    text: Text = "all"
    paths: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    head_lines: int = 200
    context_lines: int = 10
    tail_lines: int = 50
    progress_s: float = 5.0
    redraw_s: float = 5.0
    most_files: int = 1024
    backlog_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.text not in get_args(Text):
            raise ValueError(f"text is one of {', '.join(get_args(Text))}, not {self.text!r}")
        if min(self.head_lines, self.context_lines, self.tail_lines, self.backlog_bytes) < 0 or self.most_files < 1:
            raise ValueError(
                "head_lines, context_lines, tail_lines and backlog_bytes are 0 or more, most_files 1 or more"
            )
        if min(self.progress_s, self.redraw_s) <= 0:
            raise ValueError("progress_s and redraw_s are above 0")
