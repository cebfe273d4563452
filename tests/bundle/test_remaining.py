"""Words that look random are listed for whoever sends a redacted bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from trackside.bundle.redact.remaining import MAX_WORDS, RemainingWords, looks_random
from trackside.cli import main

SECRET = "q7Zt2LmX" + "9vB4kR1pW8" + "dE6yH"


@pytest.mark.parametrize(
    "word",
    [SECRET, "aB3" * 8, "wJalrXUtnFEMI5K7MDENG4bPxRfiCY3", "x/" + "Zk3vQ9rT5mW1yB7n", "eyJsb2NhbGhvc3QiOiBbMSwg"],
)
def test_random_text_is_recognized(word: str) -> None:
    assert looks_random(word.encode())


@pytest.mark.parametrize(
    "word",
    [
        "DistributedDataParallelCommHookType2",
        "RF++-Qwen-7B-1M-xppl-curriculum-logic",
        "configs/RPN/mask_rcnn_R_50_C4_1x_ovd",
        "0123456789abcdef0123456789abcdef01234567",
        "OLMo-1B-tied_low_seq_len",
        "checkpoint-epoch-120-step-48000",
        "icdar2015_data_provider/ReaderReadV2",
    ],
)
def test_names_are_not(word: str) -> None:
    assert not looks_random(word.encode())


def test_hexadecimal_digits_count_only_behind_a_word_for_secrets() -> None:
    remaining = RemainingWords()
    remaining.take(b"commit 0123456789abcdef0123456789abcdef01234567\nmy_keyid -> 00112233445566778899aabbccddeeff\n")
    assert remaining.words == ["00112233445566778899aabbccddeeff"]


def test_a_list_has_an_end() -> None:
    remaining = RemainingWords()
    remaining.take("".join(f"{SECRET}{number:03d}x\n" for number in range(1_000)).encode())
    assert len(remaining.words) == MAX_WORDS


def test_the_command_lists_them(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"MAGIC={SECRET}\nepoch 1 loss 2.0\nepoch 2 loss 1.5\nepoch 3 loss 1.2\n")
    out = str(tmp_path / "run.tsb")
    result = CliRunner().invoke(main, ["bundle", str(log), "-o", out, "--redact"])
    assert result.exit_code == 0
    assert f"  {SECRET}\n" in result.stderr
    again = CliRunner().invoke(main, ["bundle", str(log), "-o", out, "--redact", "--redact-also", SECRET, "--force"])
    assert SECRET not in again.stderr
