"""Why the archive cannot be used, in one line that a user can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trackside.errors import UsageError
from trackside.settings.secrets import HIDDEN, is_secret, url_without_secrets

if TYPE_CHECKING:  # callers that only catch ArchiveError may not have the extra
    import sqlalchemy as sa
    from sqlalchemy import exc

ArchiveErrorKind = Literal["unreachable", "busy", "newer", "refused", "ambiguous"]


class ArchiveError(UsageError):
    """The archive cannot be used as requested. ``str`` is one line: what, where, and what may help.

    ``kind``: unreachable (down, or no such database), busy (locked or too slow: try again), newer (made by a later
    version), refused (the request cannot be fulfilled), ambiguous (several runs have that id).
    """

    def __init__(self, kind: ArchiveErrorKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: ArchiveErrorKind = kind


_SQLITE: tuple[tuple[str, ArchiveErrorKind, str], ...] = (
    ("locked", "busy", "another process writes to it: try again"),
    ("busy", "busy", "another process writes to it: try again"),
    ("unable to open", "unreachable", "does its folder exist, and may this user write there?"),
    ("readonly", "refused", "this user may not write to the file or its folder"),
    ("disk is full", "refused", "make room on that disk"),
    ("disk i/o", "refused", "is the disk full or failing?"),
    ("not a database", "refused", "it is another kind of file: give a new path"),
    ("malformed", "refused", "the file is damaged: restore it from a copy, or move it away to start a new one"),
)
_POSTGRES: tuple[tuple[str, ArchiveErrorKind, str], ...] = (
    ("57014", "busy", "the server is overloaded or a lock is held long: try again"),  # statement_timeout
    ("55P03", "busy", "another instance holds the lock: try again"),  # lock_timeout
    ("40", "busy", "another instance changed the same rows: try again"),  # serialization, deadlock
    ("53", "busy", "the server is out of connections, memory or disk"),
    ("28", "refused", "check the user and the password"),
    ("3D", "refused", "create that database first"),
    ("42501", "refused", "the user needs CREATE on the schema, and to read and write its tables"),
    ("25006", "refused", "that server is a read-only replica: give the primary"),
)


def redacted_url(url: sa.URL) -> str:
    """A database's URL without its secrets."""
    return url_without_secrets(url.render_as_string(hide_password=False))


def archive_error(url: sa.URL, error: exc.SQLAlchemyError) -> ArchiveError:
    """The ArchiveError for a failure of the driver, without the URL's secrets."""
    from sqlalchemy import exc

    where = redacted_url(url)
    if isinstance(error, exc.TimeoutError):
        return ArchiveError("busy", f"{where}: all connections are in use; try again")
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    words = _without_secrets(url, (str(cause).strip().splitlines() or [type(error).__name__])[0])[:300]
    if url.get_backend_name() == "sqlite":
        for text, kind, remedy in _SQLITE:
            if text in words.lower():
                return ArchiveError(kind, f"{where}: {words}; {remedy}")
        return ArchiveError("refused", f"{where}: {words}")
    state = str(getattr(cause, "sqlstate", None) or "")
    if not state and "password authentication failed" in str(cause):
        state = "28"
    if not state and "does not exist" in str(cause):
        state = "3D"
    for begin, kind, remedy in _POSTGRES:
        if state.startswith(begin):
            return ArchiveError(kind, f"{where}: {words}; {remedy}")
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.DisconnectionError):
        return ArchiveError("unreachable", f"{where}: {words}; is the server up, and its address right?")
    return ArchiveError("refused", f"{where}: {words}")


def _without_secrets(url: sa.URL, words: str) -> str:
    """A message without secrets: a driver may quote the connection's parameters."""
    secrets = [url.password, *(value for name, value in url.query.items() if is_secret(name))]
    for secret in secrets:
        for text in (secret,) if isinstance(secret, str) else secret or ():
            words = words.replace(text, HIDDEN) if text else words
    return words
