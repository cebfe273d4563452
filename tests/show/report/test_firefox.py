"""Pages in Firefox, which is driven over Marionette, its own protocol: no driver is needed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services import HOST, program
from tests.show.report.pages import hostile_log, verdict_page
from trackside.show.document import VerdictDoc

pytestmark = pytest.mark.service

START_S, READY_S = 60.0, 30.0
PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}
STATE = """return {
    ready: document.documentElement.dataset.ready,
    drawn: [...document.querySelectorAll('.chart')].map((box) => box.querySelector('svg, canvas')?.getBoundingClientRect().height ?? 0),
    failed: [...document.querySelectorAll('.failed')].map((note) => note.textContent),
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    hacked: typeof hacked,
}"""


class Firefox:
    """A session: each command is a JSON array behind its length."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._reader, self._count = connection, connection.makefile("rb"), 0
        self._message()  # the greeting
        self.command("WebDriver:NewSession")

    def _message(self) -> Any:
        digits = b""
        while (byte := self._reader.read(1)) != b":":
            assert byte, "firefox closed the connection"
            digits += byte
        return json.loads(self._reader.read(int(digits)))

    def command(self, name: str, **parameters: object) -> Any:
        """The result of a command; AssertionError with the browser's message if it fails."""
        self._count += 1
        text = json.dumps([0, self._count, name, parameters])
        self._connection.sendall(f"{len(text)}:{text}".encode())
        _, number, error, result = self._message()
        assert number == self._count
        assert error is None, error
        return result

    def open(self, path: Path, width: int) -> dict[str, Any]:
        """Open a page in a window of a width; its state once its charts are drawn."""
        self.command("WebDriver:SetWindowRect", width=width, height=900)
        self.command("WebDriver:Navigate", url=path.as_uri())
        until = time.monotonic() + READY_S
        while True:
            state: dict[str, Any] = self.command("WebDriver:ExecuteScript", script=STATE, args=[])["value"]
            if state["ready"] or time.monotonic() > until:
                return state
            time.sleep(0.1)


@contextmanager
def running(folder: Path) -> Iterator[Firefox]:
    """Firefox without a window, with a profile of its own."""
    path = program("firefox-esr", "firefox-esr")
    with closing(socket.create_server((HOST, 0))) as free:
        port = free.getsockname()[1]
    lines = [
        f'user_pref("{name}", {json.dumps(value)});' for name, value in {**PREFERENCES, "marionette.port": port}.items()
    ]
    (folder / "user.js").write_text("\n".join(lines))
    process = subprocess.Popen(
        [path, "--headless", "--marionette", "--no-remote", "--profile", os.fspath(folder)],
        env={**os.environ, "HOME": os.fspath(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                connection = socket.create_connection((HOST, port), timeout=READY_S)
                break
            except OSError:
                assert process.poll() is None, "firefox ended"
                assert time.monotonic() < until, "firefox does not listen"
                time.sleep(0.2)
        with closing(connection):
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with running(tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest.mark.parametrize("width", [460, 1280])  # 450 px is the least that it takes
def test_firefox_draws_every_chart(firefox: Firefox, hang: tuple[VerdictDoc, str], tmp_path: Path, width: int) -> None:
    (tmp_path / "hang.html").write_text(hang[1], "utf-8")
    state = firefox.open(tmp_path / "hang.html", width)
    assert state["ready"] == "true"
    assert state["failed"] == []
    assert len(state["drawn"]) >= 4
    assert min(state["drawn"]) > 60
    assert state["wider"] == 0


def test_hostile_text_is_inert_in_firefox(firefox: Firefox, tmp_path: Path) -> None:
    (tmp_path / "hostile.html").write_bytes(verdict_page(hostile_log(tmp_path))[1])
    state = firefox.open(tmp_path / "hostile.html", 1280)
    assert state["hacked"] == "undefined"
    assert state["wider"] == 0
