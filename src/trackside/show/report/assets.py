"""What a page brings along: its own style and script, and Vega, which ships inside vl-convert-python."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from trackside.logs.matcher import cache_file, keep

HERE = Path(__file__).parent
SNIPPET = "window.vegaEmbed=vegaEmbed;"
"""Vega itself has no name in a bundle of vl-convert-python 1.9; Vega-Embed has, and brings the interpreter that works
out expressions without ``eval``."""


@cache
def vega() -> str:
    """Vega's script. To bundle it takes a second, so it is kept in the user's cache folder."""
    kept = cache_file(f"{version('vl-convert-python')} {SNIPPET}").with_suffix(".js")
    try:
        digest, _, script = kept.read_bytes().partition(b"\n")
    except OSError:
        digest = script = b""
    if hashlib.sha256(script).hexdigest().encode() == digest:
        return script.decode()
    import vl_convert

    bundle = vl_convert.javascript_bundle(SNIPPET)
    whole = f"(()=>{{{bundle}}})();"  # else each of its thousands of short names is one of the page's
    script = whole.replace("</script", "<\\/script").replace("<!--", "<\\!--").encode()
    keep(kept, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    return script.decode()


def policy(scripts: Sequence[str], style: str) -> str:
    """The content security policy of a page with these scripts and this style in it: nothing else runs or loads."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hashed, scripts)),
        "style-src": _hashed(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {allowed}" for name, allowed in rules.items())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
