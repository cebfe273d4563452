"""Options of the table ``[collect.job_output]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trackside.settings.bounds import check_at_least, check_positive

TextPolicy = Literal["all", "errors", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputOptions:
    """``text``: which lines are sent. ``all``; ``errors``: meaningful lines with context, the first and last lines, and
    progress now and then; ``none``: no lines, only typed events.

    ``paths``: patterns of files to follow even if no process is seen to have them open, such as
    ``/var/log/jobs/*.out``; the job id is taken from the file name. ``shared``: folders that several nodes see, in
    addition to network file systems. ``head_lines``, ``context_lines`` and ``tail_lines`` apply to ``errors``;
    ``progress_s``: minimum interval of progress lines there; ``redraw_s``: minimum interval of redraws of a progress
    bar. ``max_files``: files followed at once. ``backlog_bytes``: bytes read from the end of a file that is older than
    the agent. ``job_bytes_per_s``: bytes per second that one job may send from this node, after ``job_burst_bytes``; of
    the rest only the last lines are sent.

    Raises ValueError for invalid values.
    """

    text: TextPolicy = "all"
    paths: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    head_lines: int = 200
    context_lines: int = 10
    tail_lines: int = 50
    progress_s: float = 5.0
    redraw_s: float = 5.0
    max_files: int = 1024
    backlog_bytes: int = 64 << 20
    job_bytes_per_s: int = 256 << 10
    job_burst_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.text not in get_args(TextPolicy):
            raise ValueError(f"text must be one of {', '.join(get_args(TextPolicy))}, not {self.text!r}")
        check_at_least(0, self, "head_lines", "context_lines", "tail_lines", "backlog_bytes")
        check_at_least(1, self, "max_files", "job_bytes_per_s", "job_burst_bytes")
        check_positive(self, "progress_s", "redraw_s")
