"""Hides secrets: which names mean secrets, and a URL without its secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "(hidden)"
"""Replaces a secret."""
_SECRET = re.compile(r"auth|token|key|secret|cookie|pass|pwd|credential|signature|^sig$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a header or parameter of this name is a secret."""
    return _SECRET.search(name) is not None


def url_without_secrets(url: str) -> str:
    """A URL without secrets: the password, a user without password (possibly a token), parameters with secret names."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    authority, slash, path = rest.partition("/")
    port = authority.rpartition(":")[2] if ":" in authority else ""
    if "@" not in authority and "@" in path and port and not (port.isdecimal() or port.endswith("]")):
        authority, slash, path = rest, "", ""  # a password that contains a slash
    user_info, at, host = authority.rpartition("@")
    if at:
        user, colon, _ = user_info.partition(":")
        authority = f"{user}:{HIDDEN}@{host}" if user and colon else f"{HIDDEN}@{host}"
    return scheme + slashes + re.sub(r"([?&]([^=&]*)=)[^&]+", _mask, authority + slash + path)


def _mask(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}{HIDDEN}" if is_secret(unquote_plus(parameter[2])) else parameter[0]
