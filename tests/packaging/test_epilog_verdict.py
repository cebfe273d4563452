"""packaging/slurm/epilog-verdict.sh: Slurm waits for nothing, the verdict comes by itself, what fails is written down."""

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
    """Answers 202 once, and then with a verdict; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        body = b'{"primary": {"family": "A2"}}'
        self.send_response(202 if len(self.server.asked) == 1 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def epilog(tmp_path: Path, port: int, **settings: str) -> Path:
    """Run it as slurmctld does, with nothing of its environment but Slurm's; the folder of verdicts."""
    folder = tmp_path / "verdicts"
    conf = tmp_path / "epilog.conf"
    given = {"TRACKSIDE_URL": f"http://127.0.0.1:{port}", "TRACKSIDE_VERDICTS": str(folder), "TRACKSIDE_WAIT": "1"}
    conf.write_text("".join(f"{name}='{value}'\n" for name, value in {**given, **settings}.items()))
    slurms = {"SLURM_JOB_ID": "4242", "SLURM_SCRIPT_CONTEXT": "epilog_slurmctld", "TRACKSIDE_EPILOG_CONF": str(conf)}
    if settings.get("task"):
        slurms |= {"SLURM_ARRAY_JOB_ID": "4240", "SLURM_ARRAY_TASK_ID": settings["task"]}
    began = time.monotonic()
    done = subprocess.run(
        [str(SCRIPT)], env=slurms, capture_output=True, start_new_session=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert time.monotonic() - began < 4.0, "it must not wait"
    return folder


def wait_for(path: Path) -> str:
    end = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.05)
    return path.read_text()


def test_a_verdict_comes_by_itself(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    notify = tmp_path / "notify"
    notify.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/told\n')
    notify.chmod(0o755)
    port = receiver.server_address[1]
    folder = epilog(tmp_path, port, TRACKSIDE_TOKEN_FILE=str(tmp_path / "token"), TRACKSIDE_NOTIFY=str(notify))
    assert wait_for(folder / "4242.json") == '{"primary": {"family": "A2"}}'
    assert receiver.asked == [("POST", "/api/v1/runs/4242/diagnose", "Bearer 0123456789abcdef")] * 2
    assert wait_for(tmp_path / "told") == f"{folder}/4242.json\n"


def test_a_task_of_an_array_goes_by_its_own_id(receiver: Receiver, tmp_path: Path) -> None:
    folder = epilog(tmp_path, receiver.server_address[1], task="3")
    wait_for(folder / "4240_3.json")


def test_a_receiver_that_is_down_is_written_down(tmp_path: Path) -> None:
    folder = epilog(tmp_path, 1)
    assert "job 4242: no verdict: HTTP 000" in wait_for_line(folder / "errors.log", "no verdict")
    assert not (folder / "4242.json").exists()


def wait_for_line(path: Path, words: str) -> str:
    end = time.monotonic() + 20
    while words not in (text := wait_for(path)):
        assert time.monotonic() < end, text
        time.sleep(0.05)
    return text


def test_it_gives_up_in_time(tmp_path: Path) -> None:
    """A receiver that takes the question and never answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # it listens, and nobody accepts
        folder = epilog(tmp_path, silent.server_address[1], TRACKSIDE_LIMIT="6", TRACKSIDE_WAIT="0")
        end = time.monotonic() + 30
        while running := of_ours(folder):
            assert time.monotonic() < end, f"still there: {running}"
            time.sleep(0.1)
    assert not (folder / "4242.json").exists()
    assert "job 4242: no verdict: gave up after 6 s" in (folder / "errors.log").read_text()


def test_a_job_that_waits_too_long_for_others_leaves_a_line(receiver: Receiver, tmp_path: Path) -> None:
    folder = tmp_path / "verdicts"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        epilog(tmp_path, receiver.server_address[1], TRACKSIDE_LIMIT="2", TRACKSIDE_WAIT="0")
        assert "gave up after 2 s" in wait_for_line(folder / "errors.log", "no verdict")
    assert not (folder / "4242.json").exists()


def test_a_folder_that_cannot_be_made_goes_to_the_system_log(tmp_path: Path) -> None:
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/system.log\n')
    logger.chmod(0o755)
    (tmp_path / "verdicts").write_text("a file, not a folder")
    epilog(tmp_path, 1, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "cannot create" in wait_for_line(tmp_path / "system.log", "job 4242: no verdict")


def of_ours(folder: Path) -> list[int]:
    """Processes that the script left, by their settings."""
    mark = f"TRACKSIDE_EPILOG_CONF={folder.parent}/epilog.conf".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
