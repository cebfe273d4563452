"""Words that lines about an error contain, in English and in the languages of shells, C libraries and programs.

One table gives both regexes: a prefilter over bytes, and the check of a line's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.signals import TRANSLATED_DESCRIPTIONS

WORDS: Mapping[str, tuple[str, ...]] = {
    "English": (
        *("error", "errors", "errno", "fail", "failed", "failure", "fails", "failing", "fatal", "abort", "aborted"),
        *("aborting", "exceeded", "killed", "panic", "panicked", "denied", "crash", "crashed", "corrupt", "corrupted"),
        *("segfault", "segmentation fault", "core dumped", "timed out", "out of memory", "no space left", "unable to"),
        *("could not", "cannot", "can't", "couldn't", "not found", "no such", "invalid", "unrecognized argument"),
        *("unrecognized arguments", "terminated", "interrupted", "unexpected", "disk quota", "read-only file system"),
        *("failures", "exception", "giving up", "critical", "temporarily unavailable", "hangup", "pure virtual method"),
        *("stale file handle", "stale NFS file handle", "input/output error", "no device found", "bus error"),
        *("went wrong", "memory exhausted", "oomkilled", "out of bounds", "out of range"),
    ),
    "German": ("fehler", "fehlgeschlagen", "abgebrochen", "getötet", "nicht gefunden", "keine Berechtigung"),
    "French": ("erreur", "échec", "échoué", "tué", "introuvable", "permission non accordée", "aucun fichier"),
    "Italian": ("errore", "interrotto", "ucciso", "fallito", "non trovato", "permesso negato"),
    "Spanish": ("falló", "fallo", "abortado", "interrumpido", "no se encontró", "permiso denegado", "no existe"),
    "Portuguese": ("erro", "falha", "falhou", "abortado", "morto", "não encontrado", "permissão negada"),
    "Polish": ("błąd", "przerwane", "unicestwiony", "nie znaleziono", "odmowa dostępu"),
    "Russian": ("ошибка", "прервано", "убито", "не найден", "не найдена", "отказано в доступе", "аварийный останов"),
    "Turkish": ("hata", "hatası", "hatasi", "iptal edildi"),  # the capital of the dotless letter is I
    "Chinese": ("错误", "失败", "已杀死", "已终止", "已放弃", "段错误", "中止", "未找到", "权限不够", "錯誤", "失敗", "已砍掉"),
    "Japanese": ("エラー", "失敗", "強制終了", "中止", "見つかりません", "セグメンテーション違反"),
    "Korean": ("오류", "실패", "죽었음", "중지됨", "찾을 수 없", "세그멘테이션"),
    "shells": tuple(TRANSLATED_DESCRIPTIONS),
}  # fmt: skip
AFTER_PID = ("terminado", "terminato", "beendet", "завершено", "complété", "zakończony", "終了しました", "종료됨")
"""Words that shells print for SIGTERM, but programs for a good end: an error only behind a process id."""
_COMPOUNDS = frozenset({"fehler"})
"""Words that also count at the end of a longer word."""


def _is_spaced(word: str) -> bool:
    """Whether the word's language separates words by spaces."""
    return ord(word[0]) < 0x2000


def _text_regex(word: str) -> str:
    """A regex for a word in decoded text in lower case, where a letter of another encoding became U+FFFD."""
    if not _is_spaced(word):
        return re.escape(word)
    return "".join(re.escape(letter) if letter.isascii() else rf"[{letter}\ufffd]" for letter in word.lower())


def byte_regexes(word: str) -> list[bytes]:
    """Regexes for a word in bytes: letters outside ASCII in either case, and in the encodings of its language."""
    spellings = [word] if word.isascii() else list(dict.fromkeys((word, word.capitalize(), word.upper())))
    spellings = [spelling.replace("(", r"\(").replace(")", r"\)") for spelling in spellings]
    encoded = [spelling.encode() for spelling in spellings]
    return encoded + [
        latin
        for spelling in spellings
        if (latin := spelling.encode("latin-1", "ignore")) not in encoded and len(latin) == len(spelling)
    ]


_ALL_WORDS = tuple(dict.fromkeys(word for words in WORDS.values() for word in words))
_WORD = re.compile(
    rf"(?<!\w)(?:{'|'.join(_text_regex(word) for word in _ALL_WORDS if _is_spaced(word))})(?!\w)"
    rf"|(?:{'|'.join(_COMPOUNDS)})(?!\w)|{'|'.join(_text_regex(word) for word in _ALL_WORDS if not _is_spaced(word))}"
    rf"|(?<!\d)\d{{2,10}} {{1,20}}(?:{'|'.join(map(_text_regex, AFTER_PID))})(?!\w)"
)
_TYPE = re.compile(r"(?:\w{1,60}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception|Interrupt)\b")
"""The beginning of a line that begins with an exception's type."""


def has_error_word(text: str) -> bool:
    """Whether a line contains a word of an error, or begins with the type of one."""
    return _WORD.search(text.lower()) is not None or _TYPE.match(text) is not None


def prefilter() -> bytes:
    """The regex of a pattern that selects the lines in which :func:`has_error_word` may hold; without case."""
    words = sorted(
        {spelling for word in (*_ALL_WORDS, *AFTER_PID, "keyboardinterrupt") for spelling in byte_regexes(word)}
    )
    needed = [word for word in words if not any(other != word and other in word for other in words if other.isascii())]
    return b"(?:" + b"|".join(needed) + b")"
