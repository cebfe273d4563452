"""How to ask a site's Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["auto", "commands", "rest", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """How to ask Slurm.

    ``mode`` auto: slurmrestd where there is a ``url``, else the commands. ``bin``: the folder of the commands; empty:
    as PATH has them. ``url``: of slurmrestd, ``http(s)://host:port`` or ``unix:/path/of/its/socket``. ``user``,
    ``token``: sent with each request (a token is that user's, as ``scontrol token`` gives it). ``clusters``: asked in
    place of the commands' own. ``timeout_s``: one command or request. ``most_bytes``: one answer.

    Secrets come resolved.
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
    most_bytes: int = 64 << 20

    @property
    def rest(self) -> bool:
        """Whether slurmrestd is asked, not the commands."""
        return self.mode == "rest" or (self.mode == "auto" and bool(self.url))
