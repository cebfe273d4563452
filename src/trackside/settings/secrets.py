"""What is better not shown: which names are of secrets, and a URL without its own."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "(hidden)"
"""In the place of a secret."""
_SECRET = re.compile(r"auth|token|key|secret|cookie|pass|pwd|credential|signature|^sig$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether what goes by this name, a header or a parameter, is better not shown."""
    return _SECRET.search(name) is not None


def shown_url(url: str) -> str:
    """A URL without its secrets: its password, a user without one (a token, as likely as not), parameters named so."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    authority, slash, path = rest.partition("/")
    port = authority.rpartition(":")[2] if ":" in authority else ""
    if "@" not in authority and "@" in path and port and not (port.isdecimal() or port.endswith("]")):
        authority, slash, path = rest, "", ""  # a password with a slash
    user_info, at, host = authority.rpartition("@")
    if at:
        user, colon, _ = user_info.partition(":")
        authority = f"{user}:{HIDDEN}@{host}" if user and colon else f"{HIDDEN}@{host}"
    return scheme + slashes + re.sub(r"([?&]([^=&]*)=)[^&]+", _masked, authority + slash + path)


def _masked(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}{HIDDEN}" if is_secret(unquote_plus(parameter[2])) else parameter[0]
