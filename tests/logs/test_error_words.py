"""Every word of an error is found in a line, in both matchers and whatever its case and encoding."""

from __future__ import annotations

import pytest

from trackside.logs.error_words import AFTER_PID, WORDS
from trackside.logs.scan import scan_text

PAIRS = [(language, word) for language, words in WORDS.items() for word in words]


def is_read(data: bytes) -> bool:
    """Whether any parser made something of a line."""
    return any(event.kind != "log_activity" for event in scan_text(data))


@pytest.mark.parametrize(("language", "word"), PAIRS)
def test_each_word_is_found(language: str, word: str) -> None:
    for spelling in (word, word.capitalize(), word.upper()):
        assert is_read(f"worker 3: {spelling}, at the third shard\n".encode())
    if language in ("German", "French", "Italian", "Spanish", "Portuguese"):
        assert is_read(f"worker 3: {word}, at the third shard\n".encode("latin-1"))


@pytest.mark.parametrize("word", AFTER_PID)
def test_the_end_of_a_process_is_found_behind_its_id(word: str) -> None:
    assert is_read(f"run.sh: 3:  4711 {word}                python train.py\n".encode())
    assert not is_read(f"entrenamiento {word} - época siguiente\n".encode())


@pytest.mark.parametrize("text", ["situé au centre", "the terror of it", "failsafe mode on", "le morton code"])
def test_parts_of_other_words_are_not(text: str) -> None:
    assert not is_read(f"{text}\n".encode())
