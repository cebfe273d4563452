"""Attributes of a single line that say whose line it is, and so which stream it belongs to."""

from __future__ import annotations

from functools import lru_cache

from trackside.catalog.streams import ROLES, plain

_NAMES = frozenset(
    {name for role in ("job", "node", "rank") for name in ROLES[role]}
    | {"filename", "log_file_path", "log_file_name", "syslog_identifier", "identifier", "appname", "systemd_unit"}
)


@lru_cache(maxsize=1 << 12)
def is_place(name: str) -> bool:
    """Whether an attribute tells streams apart; the number of a trace, or of a line, does not."""
    return plain(name) in _NAMES
