"""The programs of the demonstration other than Slurm's: the receiver and the agents, each stopped by its process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.stage import RunFailed

STOP_TIMEOUT_S = 20.0


class Program:
    """A process that runs until it is ended; its output goes to a file."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        self.name, self.log_path = name, log_path
        with log_path.open("ab") as out:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-1500:]

    def kill(self) -> None:
        """Kill it at once, as when a node dies."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Send SIGTERM, and after STOP_TIMEOUT_S SIGKILL to the process and its children."""
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()


class ReceiverProgram:
    """`trackside serve` with an embedded store.

    It runs in a mount namespace without the jobs' folders, as if on another machine: it has only the output that the
    agents sent, and queries Slurm itself.
    """

    def __init__(self, trackside: Path, folder: Path, hidden: Path, port: int, env: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.store = folder / "store"
        archive = f"sqlite:///{folder / 'verdicts.db'}"
        serve = [str(trackside / "trackside"), "serve", "--store", str(self.store), "--archive", archive]
        serve += ["--listen", f"127.0.0.1:{port}", "--slurm", "auto"]
        without_jobs = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)]
        self.program = Program("receiver", [*without_jobs, *serve], env, folder / "receiver.log")

    def wait_ready(self, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return
            if time.monotonic() > end or not self.program.is_running:
                raise RunFailed(f"the receiver did not start: {self.program.log_tail()}")
            time.sleep(0.2)

    def diagnose(self, job: str, within_s: float = 120) -> dict[str, Any]:
        """The verdict on a job, requested over HTTP."""
        end = time.monotonic() + within_s
        while True:
            request = urllib.request.Request(f"{self.url}/api/v1/runs/{job}/diagnose", method="POST")
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    if answer.status == 200:
                        document: dict[str, Any] = json.load(answer)
                        return document
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503) or time.monotonic() > end:
                    raise RunFailed(f"verdict on job {job}: {error.code} {error.read(2000).decode()}") from error
            except OSError as error:
                if time.monotonic() > end:
                    raise RunFailed(f"verdict on job {job}: {error}") from error
            if time.monotonic() > end:
                raise RunFailed(f"no verdict on job {job} within {within_s:.0f} s")
            time.sleep(1)
