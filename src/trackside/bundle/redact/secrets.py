"""Tokens, keys and passwords: by the looks that their issuers gave them, or by what stands before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trackside.bundle.redact.literal import Literal, Told
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
_TOKENS = re.compile("|".join(_LOOKS))
_BARE = (
    r"(?<![A-Za-z0-9])(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-\w{1,20}) (AAAA[A-Za-z0-9+/=]{20,1000})",
    r"SHA256:([A-Za-z0-9+/]{43})(?![A-Za-z0-9+/])",
    r"(?:[Bb]earer|BEARER|[Bb]asic|BASIC|[Tt]oken)[ \t]+([A-Za-z0-9._~+/=-]{16,2000})",
    r"://([A-Za-z0-9_-]{20,200})@",
    r"(?i)[?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|signature|sig|access_token|token|key)="
    r"([^&\s\"'<>]{6,2000})",
    r"(?<![A-Za-z0-9_])sig=([A-Za-z0-9%/+_=-]{16,400})",
    r"wandb[^\n]{0,80}?\b([0-9a-f]{40})\b",
    r"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/]{20,100})",
    r"(?i)discord(?:app)?\.com/api/webhooks/([A-Za-z0-9/_-]{20,150})",
)
"""What stands before a secret that is one wherever it stands."""
_OF_TEXT = frozenset(
    """
audio bos cls end eos first image last mask max new next pad per sep special start stop unk video
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Before ``token``: what a language model's text is made of."""
_TOKEN = "".join(f"(?<!{each}[_-])" for each in sorted(_OF_TEXT)) + "token"
_KEYS = (
    "access|account|api|auth|client|encryption|license|private|secret|shared[_-]?access|signing|ssh|storage"
    "|subscription"
)
_NAME = (
    rf"(?:secret|{_TOKEN}|(?:{_KEYS})[ _-]?key(?:[_-]?id)?|client[_-]?secret"
    r"|shared[_-]?access[_-]?signature|credentials?)"
)
_PASS = r"(?:pass(?:word|wd|phrase)|(?<=[_;&? -])pwd)"
_QUOTE = r"(?:\\?[\"'])?"
_SIGN = rf"{_QUOTE}[ \t]{{0,8}}(?:=>|[:=])[ \t]{{0,8}}"
_VALUE = r"[^\s\"',;&<>\\)\]}]"
_NAMED = (
    rf"(?i)((?=[aceplst]){_NAME}{_SIGN}{_QUOTE})(?![\"'<\[{{(])({_VALUE}{{3,512}})",
    r"(?i)(\bapi[ _-]?key is:? [\"']?)(?=[a-z._-]*\d)([\w.-]{6,512})",
)
_PASSED = (
    rf"(?i)(pass(?:word|wd|phrase){_QUOTE}[ \t]{{0,8}}[:=][ \t]{{0,8}}\\?\")([^\"\n\\]{{1,200}})",
    rf"(?i)(pass(?:word|wd|phrase){_QUOTE}[ \t]{{0,8}}[:=][ \t]{{0,8}}\\?')([^'\n\\]{{1,200}})",
    r"(?i)(pass(?:word|wd|phrase)[ \t]{0,8}:[ \t]{1,8})([^\s\"'<\[{(*](?:[^\n\"',;]|,(?! )){1,200})",
    r"(?i)(pass(?:word|wd|phrase)(?:=|[ \t]{1,8})\")([^\"\n]{1,200})(?=\")",
    r"(?i)(pass(?:word|wd|phrase)(?:=|[ \t]{1,8})')([^'\n]{1,200})(?=')",
    rf"(?i)({_PASS}=)(?![\"'<\[{{(])({_VALUE}{{2,512}})",
    r"(?i)(\b(?:set-)?cookie: ?)([^\s\"'][^\n\"']{5,2000})",
    r"(\bauth=\([\"'][^\"'\n]{1,80}[\"'], ?[\"'])([^\"'\n]{1,200})",
    r"(?i)(\blogin \S{1,80} password )(\S{1,200})",
    r"(\bsshpass -p ?[\"']?)([^\s\"']{1,200})",
    r"((?:curl\b[^\n]{0,200}? -u|--user)[ =][\"']?[A-Za-z][\w.-]{0,60}:)([^\s\"'/]{1,200})",
    r"(://[^/\s:@\"']{0,100}:)([^/\s\"'<>]{1,200})(?=@)",
)
_ENDS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|PASSPHRASE|CREDENTIALS?|AUTH|SAS|DSN"
_NO_TEXT = "".join(f"(?<!{each.upper()}_TOKEN)" for each in sorted(_OF_TEXT))
_SHOUTED = (
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}"
    rf"(?:{_SIGN}|[\"'],[ \t]?|[ \t]{{1,8}})(?![=:]){_QUOTE})(?![\"'<\[{{(=:])({_VALUE}{{3,512}})"
)
"""A variable of the environment, however it is written."""
_QUOTED = (
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}{_SIGN}\\?\")([^\"\n\\]{{3,512}})",
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}{_SIGN}\\?')([^'\n\\]{{3,512}})",
    rf"(\bsetenv \w{{1,60}}_(?:{_ENDS})[ \t]{{1,8}})(\S{{3,512}})",
)
"""The same with blanks in it."""
_FLAGGED = (
    rf"(?i)(?<!-)(--(?=[a-z])[a-z0-9_-]{{0,60}}?(?:{_NAME}|{_PASS}|password)(?:[ \t]{{1,8}}|=)[\"']?)"
    rf"(?![\"'\[<-])({_VALUE}{{3,512}})"
)
_BEGIN, _END = (re.compile(rf"-----{word} (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----") for word in ("BEGIN", "END"))
LONGEST_KEY = 32 << 10
"""Characters from the begin of a private key to its end."""
_CUT_OFF = re.compile(r"(?:[A-Za-z0-9+/=]|\\+[nr]|\r?\n(?=[A-Za-z0-9+/=]{16}))*")
"""What is there of a private key without an end."""
_PLAIN = frozenset(
    """
authentication default denied disabled empty enabled expired false found hidden incorrect invalid is missing n/a no
none not null optional prompt redacted rejected required set true undefined unset wrong yes
""".split()  # noqa: SIM905 - a list of words is read as one
)
_NOTHING = re.compile(
    r"[*.xX-]+|\$\{?\w+\}?|\$\(.*|%\(?\w+\)?s?|secret-\d+|<.*|[~.]{0,2}/[A-Za-z]{1,12}\d?(?:/.*)?|[A-Z]:\\.*|os\.\w+.*"
)
"""A place for a secret, or the file that it is in."""
_PROSE = re.compile(r"(?i)(?:token|credentials?)\b")
"""What is also said of other things than secrets, where nothing is before it."""
_NUMBER = re.compile(r"[\d.,eE+-]*")


class Secrets(Told):
    """Whatever opens a door."""

    name, word, whole = "tokens, keys and passwords", "secret", False

    @property
    def looks(self) -> Sequence[Look]:
        return (
            *(_look(rf"(?<![A-Za-z0-9])({one})", self.add) for one in _LOOKS),
            *(_look(one, self.add) for one in _BARE),
            *(_look(one, self._named) for one in _NAMED),
            *(_look(one, self.tell) for one in (*_PASSED, *_QUOTED)),
            _look(_SHOUTED, self._shouted, rf"_(?:{_ENDS})[\"'\\=: \t]".encode()),
            _look(_FLAGGED, self._named),
        )

    def _named(self, found: tuple[str, str]) -> None:
        """Of ``token: unexpected`` the word is no secret, nor is a number of tokens."""
        before, text = found
        is_prose = _PROSE.match(before) is not None and text.isalpha() and len(text) < 20
        if not _NUMBER.fullmatch(text) and not is_prose:
            self.tell(found)

    def _shouted(self, found: tuple[str, str]) -> None:
        """``WANDB_API_KEY is not set`` says none."""
        before, text = found
        is_told = not before[-1].isspace() or before[-2:].isspace() or ":" in before or "=" in before
        if (is_told or self.is_rare(text)) and not (_NUMBER.fullmatch(text) and len(text) < 6):
            self.tell(found)

    def key(self, text: str) -> str | None:
        """One that is no word that says that there is none, no name of a variable and no path."""
        text = text.rstrip(".: \t\r")
        return None if text.lower() in _PLAIN or len(text) < 2 or _NOTHING.fullmatch(text) else text

    def is_rare(self, key: str) -> bool:
        """What opens doors has digits, or is long."""
        mixed = any(each.isdigit() for each in key) and any(each.isalpha() for each in key)
        return (len(key) >= 8 and mixed) or (len(key) >= 20 and " " not in key)

    def replaced(self, text: str) -> str:
        """Private keys go as whole blocks, whose lines stay."""
        if "PRIVATE KEY" in text:
            text = "".join(_without_keys(text))
        return self.replaced_elsewhere(super().replaced(text))


def _look(pattern: str, add: Callable[[Any], object], sign: bytes = b"") -> Look:
    return look(re.compile(pattern, re.ASCII), add, sign)


def _without_keys(text: str) -> Iterator[str]:
    """A text without its private keys, whose lines stay; of one that is cut off what is there."""
    position = 0
    while (begin := _BEGIN.search(text, position)) is not None:
        yield text[position : begin.start()]
        end = _END.search(text, begin.end(), begin.end() + LONGEST_KEY)
        position = _CUT_OFF.match(text, begin.end()).end() if end is None else end.end()  # type: ignore[union-attr]
        yield "[private key]" + "\n" * text.count("\n", begin.start(), position)
    yield text[position:]


class Emails(Literal):
    """Addresses of mail."""

    name, word = "e-mail addresses", "mail"
    pattern = re.compile(
        # Before the host of a URL there are a user and a password.
        r"://[^\s/\"'@]{0,200}@[\w.-]+|(?<![A-Za-z0-9._%+-])([A-Za-z0-9][A-Za-z0-9._%+-]{0,63}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,12})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """Not the accounts that code is fetched by, nor what is an example already."""
        if text.startswith(("git@", "noreply@")) or text.endswith("@example.org") or _TOKENS.match(text):
            return None
        return text

    @property
    def looks(self) -> Sequence[Look]:
        return (look(self.pattern, self.add, rb"[A-Za-z0-9._%+-](?:@|%40)[A-Za-z0-9-]"),)

    def settle(self) -> None:
        super().settle()
        self.names = {key: f"{name}@example.org" for key, name in self.names.items()}
