"""Options for querying a site's Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trackside.settings.bounds import check_at_least, check_positive

Mode = Literal["auto", "commands", "rest", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Options for querying Slurm.

    ``mode`` auto: slurmrestd if ``url`` is set, else the commands. ``bin``: the folder of the commands; empty:
    found on PATH. ``url``: of slurmrestd, ``http(s)://host:port`` or ``unix:/path/of/its/socket``. ``user``,
    ``token``: sent in each request (a token belongs to that user; get one with ``scontrol token``). ``clusters``:
    the clusters to query; empty: the commands' default. ``timeout_s``: limit of one command or request.
    ``max_answer_bytes``: limit of one answer.

    Secrets are already resolved. Raises ValueError for invalid values.
    """

    mode: Mode = "auto"
    bin: str = ""
    url: str = ""
    user: str = ""
    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True
    clusters: tuple[str, ...] = ()
    timeout_s: float = 20.0
    max_answer_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_positive(self, "timeout_s")
        check_at_least(1, self, "max_answer_bytes")

    @property
    def rest(self) -> bool:
        """Whether slurmrestd is queried instead of the commands."""
        return self.mode == "rest" or (self.mode == "auto" and bool(self.url))
