"""Tokens, keys and passwords: by the looks that their issuers gave them, or by what stands before them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trackside.bundle.redact.literal import Literal
from trackside.bundle.redact.sieve import Look, look

_LOOKS = (
    r"AKIA[A-Z0-9]{16}",  # AWS
    r"ASIA[A-Z0-9]{16}",
    r"gh[pousr]_[A-Za-z0-9]{20,255}",
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"glpat-[A-Za-z0-9_-]{20,64}",
    r"hf_[A-Za-z0-9]{20,64}",
    r"api_org_[A-Za-z0-9]{30,64}",  # Hugging Face's organisations
    r"wandb_v1_[A-Za-z0-9_]{20,128}",
    r"sk-[A-Za-z0-9_-]{20,200}",
    r"xox[abeprs]-[A-Za-z0-9-]{10,200}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"ya29\.[A-Za-z0-9_-]{20,300}",
    r"dckr_pat_[A-Za-z0-9_-]{20,64}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,300}",
    r"nvapi-[A-Za-z0-9_-]{20,100}",
    r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",  # JSON Web Tokens
)
"""What tokens look like."""
_OF_TEXT = frozenset(
    """
audio bos cls end eos first image last mask max new next pad per sep special start stop unk video
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Before ``token``: what a language model's text is made of."""
_TOKEN = "".join(f"(?<!{each}[_-])" for each in _OF_TEXT) + "token"
_NAME = (
    rf"(?:password|passwd|pwd|secret|{_TOKEN}|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|credentials?"
    r"|auth[_-]?key)"
)
_VALUE = r"[^\s\"',;&<>\\)\]}]"
_TOLD = (
    rf"(?i)(?=[acpst]){_NAME}[\"']?[ \t]?[:=][ \t]?[\"']?(?![\"'<\[{{(])({_VALUE}{{8,512}})",
    rf"(?i)(?<!-)--(?=[a-z])[a-z0-9_-]{{0,60}}?{_NAME}(?:[ \t]+|=)[\"']?(?![-<\[])({_VALUE}{{6,512}})",
    r"(?:[Bb]earer|BEARER|[Bb]asic|BASIC|[Tt]oken)[ \t]+([A-Za-z0-9._~+/=-]{16,2000})",
    r"://[^/\s:@\"']{0,100}:([^/\s@\"']{3,200})@",
    r"(?i)[?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|signature|sig|access_token|token|key)="
    r"([^&\s\"'<>]{6,2000})",
    r"wandb[^\n]{0,80}?\b([0-9a-f]{40})\b",
    r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,100})",
)
"""What stands before a secret, and the secret."""
_BEGIN, _END = (re.compile(rf"-----{word} (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----") for word in ("BEGIN", "END"))
LONGEST_KEY = 32 << 10
"""Characters from the begin of a private key to its end."""
_PLAIN = frozenset(
    {"none", "null", "true", "false", "undefined", "redacted", "required", "optional", "invalid", "missing"}
)


class Secrets(Literal):
    """Whatever opens a door."""

    name, word = "tokens, keys and passwords", "secret"
    _patterns = tuple(re.compile(each, re.ASCII) for each in (*(rf"(?<![A-Za-z0-9])({one})" for one in _LOOKS), *_TOLD))

    @property
    def looks(self) -> Sequence[Look]:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        return [look(each, self.add) for each in self._patterns]

    def key(self, text: str) -> str | None:
        """One that is no number, no word that says that there is none, and no name of a variable."""
        text = text.rstrip(".:")
        if (
            len(text) < 6
            or text.lower() in _PLAIN
            or re.fullmatch(r"[\d.,eE+-]*|[*.xX-]+|\$\{?\w+\}?|secret-\d+", text)
        ):
            return None
        # A word in a sentence (``token: unexpected``) is none; what opens doors has digits, or is long.
        return None if text.isalpha() and len(text) < 20 and text.islower() else text

    def replaced(self, text: str) -> str:
        """Private keys go as whole blocks, whose lines stay."""
        if "PRIVATE KEY" in text:
            text = "".join(_without_keys(text))
        return super().replaced(text)


def _without_keys(text: str) -> Iterator[str]:
    """A text without its private keys, whose lines stay; one that is cut off ends with the text."""
    position = 0
    while (begin := _BEGIN.search(text, position)) is not None:
        yield text[position : begin.start()]
        end = _END.search(text, begin.end(), begin.end() + LONGEST_KEY)
        stop = len(text) if len(text) - begin.end() < LONGEST_KEY else begin.end()
        position = stop if end is None else end.end()
        yield "[private key]" + "\n" * text.count("\n", begin.start(), position)
    yield text[position:]


class Emails(Literal):
    """Addresses of mail."""

    name, word = "e-mail addresses", "mail"
    pattern = re.compile(
        r"(?<![A-Za-z0-9._%+-])([A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,12})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """Not the accounts that code is fetched by, nor what is an example already."""
        return None if text.startswith(("git@", "noreply@")) or text.endswith("@example.org") else text

    @property
    def looks(self) -> Sequence[Look]:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        return (look(self.pattern, self.add, rb"[A-Za-z0-9._%+-]@[A-Za-z0-9-]"),)

    def settle(self) -> None:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        super().settle()
        self._names = {key: f"{name}@example.org" for key, name in self._names.items()}
