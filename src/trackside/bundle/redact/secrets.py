"""Redacts tokens, keys and passwords, recognized by the form of known issuers or by the text before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trackside.bundle.redact.literal import LiteralKind, PrefixedKind
from trackside.bundle.redact.prefilter import Detector, detector

_TOKEN_FORMS = (
    r"AKIA[A-Z0-9]{16}",  # AWS
    r"ASIA[A-Z0-9]{16}",
    r"gh[pousr]_[A-Za-z0-9]{20,255}",
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"glpat-[A-Za-z0-9_-]{20,64}",
    r"hf_[A-Za-z0-9]{20,64}",
    r"api_org_[A-Za-z0-9]{30,64}",  # Hugging Face's organizations
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
"""Patterns of known tokens."""
_TOKENS = re.compile("|".join(_TOKEN_FORMS))
_BARE = (
    r"(?<![A-Za-z0-9])(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-\w{1,20}) (AAAA[A-Za-z0-9+/=]{20,1000})",
    r"SHA256:([A-Za-z0-9+/]{43})(?![A-Za-z0-9+/])",
    r"(?:[Bb]earer|BEARER|[Bb]asic|BASIC|[Tt]oken)[ \t]+([A-Za-z0-9._~+/=-]{16,2000})",
    r"://([A-Za-z0-9_-]{20,200})@",
    r"(?i)[?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|signature|sig|access_token|token|key)="
    r"([^&\s\"'<>]{6,2000})",
    r"(?<![A-Za-z0-9_])sig=([A-Za-z0-9%/+_=-]{16,400})",
    r"wandb[^\n]{0,80}?\b([0-9a-f]{40})\b",
    r"world_info[= ]([A-Za-z0-9+/=]{20,4000})",  # of DeepSpeed: host names in base64
    r"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/]{20,100})",
    r"(?i)discord(?:app)?\.com/api/webhooks/([A-Za-z0-9/_-]{20,150})",
    r"A[KS]IA[A-Z0-9]{16}[^A-Za-z0-9/+=\n]{1,10}([A-Za-z0-9/+=]{40})(?![A-Za-z0-9/+=])",  # AWS, behind its id
    r"(?i)\b(?:api|access|auth|secret)[ _-]?(?:key|token)s? [\"'(]?(?=[A-Za-z._-]{0,80}\d)([A-Za-z0-9._/+=-]{20,200})",
)
"""Contexts of secrets that are replaced everywhere."""
_OF_TEXT = frozenset(
    """
audio bos cls end eos first image last mask max new next pad per sep special start stop unk video
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words before ``token`` that mean tokens of a language model."""
_TOKEN = "".join(f"(?<!{text}[_-])" for text in sorted(_OF_TEXT)) + "token"
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
_ASSIGNMENT = rf"{_QUOTE}[ \t]{{0,8}}(?:=>|[:=])[ \t]{{0,8}}"
_VALUE = r"[^\s\"',;&<>\\)\]}]"
_NAMED = (
    rf"(?i)((?=[aceplst]){_NAME}{_ASSIGNMENT}{_QUOTE})(?![\"'<\[{{(])({_VALUE}{{3,512}})",
    r"(?i)(\bapi[ _-]?key is:? [\"']?)(?=[a-z._-]*\d)([\w.-]{6,512})",
)
_FOREIGN_PASSWORD = (
    "密码|密碼|口令|パスワード|비밀번호|Пароль|пароль|Passwort|Kennwort|Contraseña|contraseña|Mot de passe|mot de passe"
    "|Senha|senha|Hasło|hasło"
)
"""Passwords in the languages of shells and programs."""
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
    r"(?i)(\b(?:password|passphrase|passwd|passcode) (?:is|was)(?: now)?:? {1,4}[\"']?)([^\s\"'<\[{(]{3,200})",
    f"((?:{_FOREIGN_PASSWORD})[ \\t]{{0,4}}(?::|=|\N{FULLWIDTH COLON})[ \\t]{{0,4}}[\"']?)"
    r"([^\s\"'<\[{(]{2,200})",
    r"(\b(?:docker|podman|nerdctl|skopeo|buildah|helm registry) login\b[^\n]{0,200}? (?:-p|--password)[ =]?[\"']?)"
    r"([^\s\"'-][^\s\"']{1,200})",
    r"(\b(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n]{0,200}? -p[\"']?)([^\s\"'-][^\s\"']{1,200})",
    r"(\bsshpass -p ?[\"']?)([^\s\"']{1,200})",
    r"((?:curl\b[^\n]{0,200}? -u|--user)[ =][\"']?[A-Za-z][\w.-]{0,60}:)([^\s\"'/]{1,200})",
    r"(://[^/\s:@\"']{0,100}:)([^/\s\"'<>]{1,200})(?=@)",
)
_ENDS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|PASSPHRASE|CREDENTIALS?|AUTH|SAS|DSN"
_NO_TEXT = "".join(f"(?<!{text.upper()}_TOKEN)" for text in sorted(_OF_TEXT))
_ENVIRONMENT = (
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}"
    rf"(?:{_ASSIGNMENT}|[\"'],[ \t]?|[ \t]{{1,8}})(?![=:]){_QUOTE})(?![\"'<\[{{(=:])({_VALUE}{{3,512}})"
)
"""An environment variable in any notation."""
_QUOTED = (
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}{_ASSIGNMENT}\\?\")([^\"\n\\]{{3,512}})",
    rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{0,60}}_(?:{_ENDS}){_NO_TEXT}{_ASSIGNMENT}\\?')([^'\n\\]{{3,512}})",
    rf"(\bsetenv \w{{1,60}}_(?:{_ENDS})[ \t]{{1,8}})(\S{{3,512}})",
)
"""An environment variable whose value contains blanks."""
_FLAGGED = (
    rf"(?i)(?<!-)(--(?=[a-z])[a-z0-9_-]{{0,60}}?(?:{_NAME}|{_PASS}|password)(?:[ \t]{{1,8}}|=)[\"']?)"
    rf"(?![\"'\[<-])({_VALUE}{{3,512}})"
)
_BEGIN, _END = (re.compile(rf"-----{word} (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----") for word in ("BEGIN", "END"))
MAX_KEY_CHARS = 32 << 10
"""Longest private key, characters."""
_TRUNCATED_KEY = re.compile(r"(?:[A-Za-z0-9+/=]|\\+[nr]|\r?\n(?=[A-Za-z0-9+/=]{16}))*")
"""The rest of a truncated private key."""
_NOT_SECRETS = frozenset(
    """
authentication default denied disabled empty enabled expired false found hidden incorrect invalid is missing n/a no
none not null optional prompt redacted rejected required set true undefined unset wrong yes
""".split()  # noqa: SIM905 - a list of words is read as one
)
_PLACEHOLDER = re.compile(
    r"[*.xX-]+|\$\{?\w+\}?|\$\(.*|%\(?\w+\)?s?|secret-\d+|<.*|[~.]{0,2}/[A-Za-z]{1,12}\d?(?:/.*)?|[A-Z]:\\.*|os\.\w+.*"
)
"""A placeholder for a secret, or the path of a file with the secret."""
_PROSE = re.compile(r"(?i)(?:token|credentials?)\b")
"""Words that are often not about secrets, if nothing precedes them."""
_NUMBER = re.compile(r"[\d.,eE+-]*")


class Secrets(PrefixedKind):
    """Tokens, keys and passwords."""

    plural, word, whole_words = "tokens, keys and passwords", "secret", False

    @property
    def detectors(self) -> Sequence[Detector]:
        return (
            *(_detector(rf"(?<![A-Za-z0-9])({pattern})", self.add) for pattern in _TOKEN_FORMS),
            *(_detector(pattern, self.add) for pattern in _BARE),
            *(_detector(pattern, self._add_named) for pattern in _NAMED),
            *(_detector(pattern, self.add_prefixed) for pattern in (*_PASSED, *_QUOTED)),
            _detector(_ENVIRONMENT, self._add_environment, rf"_(?:{_ENDS})[\"'\\=: \t]".encode()),
            _detector(_FLAGGED, self._add_named),
        )

    def _add_named(self, match: tuple[str, str]) -> None:
        """Learn a secret, except the word in ``token: unexpected`` and a number of tokens."""
        before, text = match
        is_prose = _PROSE.match(before) is not None and text.isalpha() and len(text) < 20
        if not _NUMBER.fullmatch(text) and not is_prose:
            self.add_prefixed(match)

    def _add_environment(self, match: tuple[str, str]) -> None:
        """Learn the value of an environment variable, except in prose such as ``WANDB_API_KEY is not set``."""
        before, text = match
        is_assigned = not before[-1].isspace() or before[-2:].isspace() or ":" in before or "=" in before
        if (is_assigned or self.is_rare(text)) and not (_NUMBER.fullmatch(text) and len(text) < 6):
            self.add_prefixed(match)

    def key(self, text: str) -> str | None:
        """The secret; None for words that mean no secret, variable names and paths."""
        text = text.rstrip(".: \t\r")
        return None if text.lower() in _NOT_SECRETS or len(text) < 2 or _PLACEHOLDER.fullmatch(text) else text

    def is_rare(self, key: str) -> bool:
        """Whether the text is long, or mixes letters and digits."""
        mixed = any(character.isdigit() for character in key) and any(character.isalpha() for character in key)
        return (len(key) >= 8 and mixed) or (len(key) >= 20 and " " not in key)

    def redact(self, text: str) -> str:
        """Replace secrets; private keys are replaced as whole blocks, keeping the line breaks."""
        if "PRIVATE KEY" in text:
            text = "".join(_without_keys(text))
        return self.redact_elsewhere(super().redact(text))


def _detector(pattern: str, add: Callable[[Any], object], line_pattern: bytes = b"") -> Detector:
    return detector(re.compile(pattern, re.ASCII), add, line_pattern)


def _without_keys(text: str) -> Iterator[str]:
    """Yield the text without private keys, also truncated ones, keeping line breaks."""
    position = 0
    while (start := _BEGIN.search(text, position)) is not None:
        yield text[position : start.start()]
        end = _END.search(text, start.end(), start.end() + MAX_KEY_CHARS)
        position = _TRUNCATED_KEY.match(text, start.end()).end() if end is None else end.end()  # type: ignore[union-attr]
        yield "[private key]" + "\n" * text.count("\n", start.start(), position)
    yield text[position:]


class Emails(LiteralKind):
    """E-mail addresses."""

    plural, word = "e-mail addresses", "mail"
    pattern = re.compile(
        # The host of a URL may follow user and password.
        r"://[^\s/\"'@]{0,200}@[\w.-]+|(?<![A-Za-z0-9._%+-])([A-Za-z0-9][A-Za-z0-9._%+-]{0,63}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,12})(?![A-Za-z0-9-])"
    )

    def key(self, text: str) -> str | None:
        """The address; None for accounts such as git@ and for example addresses."""
        if text.startswith(("git@", "noreply@")) or text.endswith("@example.org") or _TOKENS.match(text):
            return None
        return text

    @property
    def detectors(self) -> Sequence[Detector]:
        return (detector(self.pattern, self.add, rb"[A-Za-z0-9._%+-](?:@|%40)[A-Za-z0-9-]"),)

    def assign_pseudonyms(self) -> None:
        super().assign_pseudonyms()
        self.pseudonyms = {key: f"{pseudonym}@example.org" for key, pseudonym in self.pseudonyms.items()}
