"""A VictoriaMetrics for one measurement: on loopback, in a temporary folder unless it is to be kept."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

PROGRAM = "victoria-metrics"
START_S = 20.0


class Victoria:
    """A server, from entering to leaving. Afterwards ``cpu_s``, ``peak_mib`` and ``disk`` are its resources."""

    def __init__(self, folder: Path, keep: bool = False) -> None:
        self.folder, self._keep = folder, keep
        self.cpu_s = self.peak_mib = 0.0
        self.disk = 0

    def __enter__(self) -> Victoria:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        command = [
            PROGRAM, f"-storageDataPath={self.folder}", f"-httpListenAddr=127.0.0.1:{self._port}", "-retentionPeriod=100y",
            "-loggerLevel=ERROR",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._alive():
            if time.monotonic() > end or self._process.poll() is not None:
                self._process.terminate()
                raise RuntimeError(f"{PROGRAM} didn't start within {START_S:g} s")
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGINT)
        _, _, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = 0
        self.cpu_s, self.peak_mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        self.disk = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def cpu_so_far_s(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _alive(self) -> bool:
        try:
            return self._request("GET", "/health") == b"OK"
        except OSError:
            return False

    def _request(self, method: str, path: str, body: Iterable[bytes] | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=280)
        try:
            connection.request(method, path, body=body, encode_chunked=body is not None,
                               headers={"Transfer-Encoding": "chunked"} if body is not None else {})  # fmt: skip
            answer = connection.getresponse()
            data = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{PROGRAM} answered {answer.status} to {path}: {data[:300]!r}")
            return data
        finally:
            connection.close()

    def import_files(self, path: str, files: Iterable[Path]) -> float:
        """Seconds to import some files, one after the other, until they can be queried."""
        begin = time.perf_counter()
        for file in files:
            with file.open("rb") as stream:
                self.send(path, iter(lambda: stream.read(1 << 20), b""))
        self.flush()
        return time.perf_counter() - begin

    def send(self, path: str, body: Iterable[bytes]) -> None:
        """Post a body of any length."""
        self._request("POST", path, body)

    def flush(self) -> None:
        """Wait until all data sent can be queried."""
        self._request("GET", "/internal/force_flush")

    def rows(self) -> int:
        """Samples that it accepted, by its own count."""
        n_rows = 0
        for line in self._request("GET", "/metrics").decode().splitlines():
            if line.startswith("vm_rows_inserted_total{"):
                n_rows += int(float(line.rpartition(" ")[2]))
        return n_rows

    def dump(self, file: Path) -> None:
        """Write all samples in its own format."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=280)
        connection.request("GET", "/api/v1/export/native?match[]=%7B__name__%21%3D%22%22%7D")
        with file.open("wb") as out:
            shutil.copyfileobj(connection.getresponse(), out, 1 << 20)
        connection.close()
