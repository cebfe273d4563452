"""Access tokens, addresses to listen on, and limits of bodies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trackside.serve.limits import Bodies, RequestRefused, Tokens, load_tokens
from trackside.stores.receiver.options import ReceiverLimits, ServeOptions

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "tokens").write_text(f"# of the collectors\n{TOKEN}\n\n  {TOKEN}-second  \n")
    return str(tmp_path / "tokens")


def options(listen: str = "127.0.0.1:0", **settings: object) -> ServeOptions:
    return ServeOptions(store="x", listen=listen, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Bearer {TOKEN}-second"])
def test_a_valid_token_is_admitted(authorization: str, token_file: str) -> None:
    Tokens.read([token_file]).admit(authorization)


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
def test_an_invalid_authorization_is_refused(authorization: str, token_file: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        Tokens.read([token_file]).admit(authorization)
    assert refused.value.status == 401
    assert TOKEN not in str(refused.value)


def test_a_token_file_readable_by_everybody_gives_a_warning(token_file: str, caplog: pytest.LogCaptureFixture) -> None:
    os.chmod(token_file, 0o640)
    load_tokens(options(write_token_files=(token_file,)))
    assert not caplog.records
    os.chmod(token_file, 0o644)
    load_tokens(options(write_token_files=(token_file,)))
    assert f"{token_file}: every user of this machine can read these tokens" in caplog.text


def test_without_tokens_everybody_is_admitted() -> None:
    Tokens().admit("")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no token"),
        ("# none\n", "has no token"),
        ("short\n", "16 characters"),
        ("with a blank in it\n", "no blanks"),
    ],
)
def test_files_without_valid_tokens_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ValueError, match=reason):
        Tokens.read([str(tmp_path / "tokens")])
    with pytest.raises(ValueError, match="cannot read the tokens"):
        Tokens.read([str(tmp_path / "missing")])


@pytest.mark.parametrize("listen", ["0.0.0.0:9480", "[::]:9480", "10.0.0.1:9480", "login-1.site.org:9480"])
def test_listening_for_other_machines_needs_tokens(listen: str, token_file: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"either set write_token_files and read_token_files, or listen on 127[.]0[.]0[.]1, or pass --allow-open",
    ):
        load_tokens(options(listen))
    with pytest.raises(ValueError, match="set read_token_files, or listen on"):
        load_tokens(options(listen, write_token_files=(token_file,)))
    load_tokens(options(listen, write_token_files=(token_file,), read_token_files=(token_file,)))
    load_tokens(options(listen, allow_open=True))


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:9480", "localhost:9480", "127.1.2.3:80"])
def test_listening_on_loopback_needs_no_tokens(listen: str) -> None:
    load_tokens(options(listen))


@pytest.mark.parametrize("listen", ["9480", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        load_tokens(options(listen))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="certificate and key belong together"):
        load_tokens(options(certificate="site.pem"))


def test_open_bodies_share_the_limits() -> None:
    bodies = Bodies(ReceiverLimits(bodies_bytes=100))
    with bodies.reserve("a") as first, bodies.reserve("b") as second, bodies.reserve("c") as third:
        first.add(45)
        second.add(30)
        with pytest.raises(RequestRefused, match="75 bytes of requests are being processed") as refused:
            third.add(30)
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1.0)
        third.add(20)
    assert (bodies.count, bodies.bytes) == (0, 0)


def test_a_sender_may_fill_half_of_the_space() -> None:
    bodies = Bodies(ReceiverLimits(bodies_bytes=100))
    with bodies.reserve("a") as first, bodies.reserve("a") as second:
        first.add(30)
        with pytest.raises(RequestRefused, match="30 bytes of your requests"):
            second.add(30)
    with bodies.reserve("a") as third:
        third.add(50)
