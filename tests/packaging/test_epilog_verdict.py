"""packaging/slurm/epilog-verdict.sh fetches a verdict in the background, so that Slurm does not wait, and logs errors."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.services import missing

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "slurm" / "epilog-verdict.sh"
PROGRAMS = {"curl": "curl", "flock": "util-linux", "setsid": "util-linux", "timeout": "coreutils"}


@pytest.fixture(autouse=True)
def programs() -> None:
    for name, package in PROGRAMS.items():
        if shutil.which(name) is None:
            missing(name, package)


class Receiver(ThreadingHTTPServer):
    """Answers 202 once and then with a verdict; records its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        self._answer(202 if len(self.server.requests) == 1 else 200, b'{"primary": {"family": "A2"}}')

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        self._answer(200, b"A rank was killed. Owner: the job.\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Trackside-Verdict", "17")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run_epilog(tmp_path: Path, port: int, **settings: str) -> Path:
    """Run the script as slurmctld does, with only Slurm's variables; returns the folder of verdicts."""
    folder = tmp_path / "verdicts"
    conf = tmp_path / "epilog.conf"
    defaults = {"TRACKSIDE_URL": f"http://127.0.0.1:{port}", "TRACKSIDE_VERDICTS": str(folder), "TRACKSIDE_WAIT": "1"}
    conf.write_text("".join(f"{name}='{value}'\n" for name, value in {**defaults, **settings}.items()))
    environ = {"SLURM_JOB_ID": "4242", "SLURM_SCRIPT_CONTEXT": "epilog_slurmctld", "TRACKSIDE_EPILOG_CONF": str(conf)}
    if settings.get("task"):
        environ |= {"SLURM_ARRAY_JOB_ID": "4240", "SLURM_ARRAY_TASK_ID": settings["task"]}
    begin = time.monotonic()
    result = subprocess.run(
        [str(SCRIPT)], env=environ, capture_output=True, start_new_session=True, timeout=20, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert time.monotonic() - begin < 4.0, "it must not wait"
    return folder


def wait_for_file(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path.name} was not written"
        time.sleep(0.05)
    return path.read_text()


def test_the_verdict_is_fetched_and_notified(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    notify = tmp_path / "notify"
    notify.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/notified\n')
    notify.chmod(0o755)
    port = receiver.server_address[1]
    folder = run_epilog(tmp_path, port, TRACKSIDE_TOKEN_FILE=str(tmp_path / "token"), TRACKSIDE_NOTIFY=str(notify))
    assert wait_for_file(folder / "4242.json") == '{"primary": {"family": "A2"}}'
    assert wait_for_file(tmp_path / "notified") == f"{folder}/4242.json\n"
    assert (folder / "4242.txt").read_text() == "A rank was killed. Owner: the job.\n"
    assert sorted(os.listdir(folder)) == [".lock", "4242.json", "4242.txt", "errors.log"]
    token = "Bearer 0123456789abcdef"
    assert receiver.requests == [
        ("POST", "/api/v1/runs/4242/diagnose", token),
        ("POST", "/api/v1/runs/4242/diagnose", token),
        ("GET", "/api/v1/verdicts/17?format=short", token),
    ]


def test_an_array_task_is_named_by_its_own_id(receiver: Receiver, tmp_path: Path) -> None:
    folder = run_epilog(tmp_path, receiver.server_address[1], task="3")
    wait_for_file(folder / "4240_3.json")


def test_an_unreachable_receiver_is_logged(tmp_path: Path) -> None:
    folder = run_epilog(tmp_path, 1)
    assert "job 4242: no verdict: HTTP 000" in wait_for_text(folder / "errors.log", "no verdict")
    assert not (folder / "4242.json").exists()


def wait_for_text(path: Path, text_part: str) -> str:
    deadline = time.monotonic() + 20
    while text_part not in (text := wait_for_file(path)):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


def test_the_script_gives_up_after_its_time_limit(tmp_path: Path) -> None:
    """The receiver accepts the connection but never answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # it listens but does not accept
        folder = run_epilog(tmp_path, silent.server_address[1], TRACKSIDE_LIMIT="6", TRACKSIDE_WAIT="0")
        end = time.monotonic() + 30
        while running := background_pids(folder):
            assert time.monotonic() < end, f"still running: {running}"
            time.sleep(0.1)
    assert not (folder / "4242.json").exists()
    assert "job 4242: no verdict: gave up after 6 s" in (folder / "errors.log").read_text()


def test_a_job_that_waits_too_long_for_others_leaves_a_line(receiver: Receiver, tmp_path: Path) -> None:
    folder = tmp_path / "verdicts"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_epilog(tmp_path, receiver.server_address[1], TRACKSIDE_LIMIT="2", TRACKSIDE_WAIT="0")
        assert "gave up after 2 s" in wait_for_text(folder / "errors.log", "no verdict")
    assert not (folder / "4242.json").exists()


def test_a_folder_that_cannot_be_made_goes_to_the_system_log(tmp_path: Path) -> None:
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/system.log\n')
    logger.chmod(0o755)
    (tmp_path / "verdicts").write_text("a file, not a folder")
    run_epilog(tmp_path, 1, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "cannot create" in wait_for_text(tmp_path / "system.log", "job 4242: no verdict")


def background_pids(folder: Path) -> list[int]:
    """Background processes of the script, found by their environment."""
    marker = f"TRACKSIDE_EPILOG_CONF={folder.parent}/epilog.conf".encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and marker in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids
