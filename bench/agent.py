"""Cost of the agent on a node with eight GPUs, without tracing, compared with node_exporter on the same node and minutes.

    python bench/agent.py [--seconds 180] [--gpus 8] [--workers 128] [--profile]

The GPUs are simulated (lab/nvml). The agent runs with its defaults, sends samples and lines to a receiver that accepts all,
and is scraped every 15 s, as is node_exporter. ``--workers`` sleeping processes belong to a job of eight ranks that
prints a line of progress a second each. CPU seconds and peak
memory are those of the process. ``--profile`` shows which of the agent's threads took the CPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lab import nvml
from tests.services import free_port

SCRAPE_S = 15.0
WARM_S = 20.0
"""Warm-up seconds, which are not counted: the cost of starting is reported separately."""
JOB = "4242"
AGENT = "trackside agent"


@dataclass
class Usage:
    """Resources that a process used. ``cpu_s``: since its start; ``began_s``: its value when the
    measurement of ``seconds`` began."""

    pid: int
    began_s: float = 0.0
    cpu_s: float = 0.0
    seconds: float = 0.0
    peak_mib: float = 0.0
    mean_mib: list[float] = field(default_factory=list)

    @property
    def percent(self) -> float:
        """Percent of one core."""
        return 100 * (self.cpu_s - self.began_s) / self.seconds

    def update(self) -> None:
        """Read what the process has used so far."""
        self.cpu_s = time.clock_gettime(~self.pid << 3 | 2)  # the process's own clock: ticks would miss short work
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        self.peak_mib = int(status["VmHWM"].split()[0]) / 1024
        self.mean_mib.append(int(status["VmRSS"].split()[0]) / 1024)


@dataclass
class AcceptingReceiver:
    """A receiver that accepts everything."""

    port: int
    requests: int = 0
    bytes: int = 0


@contextmanager
def accepting_receiver() -> Iterator[AcceptingReceiver]:
    """A receiver in this process, so that its CPU time is not the agent's."""
    counter = AcceptingReceiver(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            counter.bytes += len(self.rfile.read(int(self.headers["Content-Length"])))
            counter.requests += 1
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    counter.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield counter
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def running_process(command: list[str], log: Path, environ: dict[str, str] | None = None) -> Iterator[int]:
    """Run a process during the block; its id."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        yield process.pid
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


_RANK = "import sys, time\nfor step in range(10**6):\n    print(f'step {step} loss {2 / (1 + step)}', flush=True)\n    time.sleep(1)"


@contextmanager
def job(folder: Path, workers: int) -> Iterator[None]:
    """Eight ranks that print to one file, as under Slurm, and sleeping processes."""
    with ExitStack() as stack:
        out = stack.enter_context((folder / f"slurm-{JOB}.out").open("wb"))
        processes = []
        for number in range(8 + workers):
            rank = number % 8
            environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "8",
                       "RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)}  # fmt: skip
            command = [sys.executable, "-S", "-c", _RANK] if number < 8 else ["sleep", "100000"]
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environ))
        try:
            yield
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def scrape(url: str) -> int:
    """Bytes of one response."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return len(answer.read())


def threads(pid: int) -> dict[str, float]:
    """CPU seconds by the name of a thread."""
    cpu_s: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            name = (task / "comm").read_text().strip()
            cpu_s[name] = cpu_s.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return cpu_s


def forks() -> int:
    """Number of processes and threads started since this machine booted."""
    return next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("processes ")
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--only", nargs="+", default=[], help="only these sources of the agent")
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run both and print what each used."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as name, ExitStack() as stack:
        folder = Path(name)
        script = nvml.Script(folder / "script", gpus=options.gpus)
        environ = nvml.environment(nvml.build(ROOT / ".cache/nvml"), script.path) | {
            "STATE_DIRECTORY": str(folder / "state")
        }
        receiver = stack.enter_context(accepting_receiver())
        stack.enter_context(job(folder, options.workers))
        agent_port, exporter_port = free_port(), free_port()
        command = [sys.executable, "-m", "trackside.agent", "run", "--listen", f"127.0.0.1:{agent_port}", "--node", "n1",
                   "--remote-write", f"http://127.0.0.1:{receiver.port}", "--loki", f"http://127.0.0.1:{receiver.port}"]  # fmt: skip
        command += ["--only", *options.only] if options.only else []
        usages = {AGENT: Usage(stack.enter_context(running_process(command, folder / "agent.log", environ)))}
        urls = {AGENT: f"http://127.0.0.1:{agent_port}/metrics"}
        node_exporter = shutil.which("prometheus-node-exporter")
        if node_exporter is not None:
            command = [node_exporter, f"--web.listen-address=127.0.0.1:{exporter_port}"]
            usages["node_exporter"] = Usage(stack.enter_context(running_process(command, folder / "peer.log")))
            urls["node_exporter"] = f"http://127.0.0.1:{exporter_port}/metrics"
        time.sleep(WARM_S)
        print(f"{options.gpus} simulated GPUs, {8 + options.workers} processes of a job")
        cpu_before = threads(usages[AGENT].pid)
        measure(usages, urls, receiver, options.seconds)
        if options.profile:
            profile(cpu_before, usages[AGENT])
            print((folder / "agent.log").read_text(), end="")
    return 0


def measure(usages: Mapping[str, Usage], urls: Mapping[str, str], receiver: AcceptingReceiver, seconds: float) -> None:
    """Scrape each program for this long, and print what it used."""
    begin, bytes_before, forks_before = time.monotonic(), receiver.bytes, forks()
    for usage in usages.values():
        usage.update()
        usage.began_s = usage.cpu_s
    while (elapsed_s := time.monotonic() - begin) < seconds:
        sizes = {program: scrape(url) for program, url in urls.items()}
        for usage in usages.values():
            usage.update()
        time.sleep(min(SCRAPE_S, seconds - elapsed_s))
    for usage in usages.values():
        usage.update()
        usage.seconds = time.monotonic() - begin
    agent, forks_before = usages[AGENT], forks() - forks_before
    with urllib.request.urlopen(urls[AGENT], timeout=10) as answer:
        samples = sum(not line.startswith(b"#") for line in answer)
    print(
        f"{agent.seconds:.0f} s, in which {forks_before / agent.seconds:.0f} new processes and threads per second on this "
        "machine, each of which the agent reads"
    )
    for program, usage in usages.items():
        mean = sum(usage.mean_mib) / len(usage.mean_mib)
        print(
            f"{program:16} {usage.percent:6.2f} % of one core   {mean:6.1f} MiB, at most {usage.peak_mib:.1f}   "
            f"{sizes[program]:,} bytes per scrape"
        )
    print(
        f"the agent: {samples:,} series; {(receiver.bytes - bytes_before) / agent.seconds:,.0f} bytes/s sent in {receiver.requests} "
        f"requests; {agent.began_s:.2f} CPU s to start"
    )


def profile(cpu_before: Mapping[str, float], usage: Usage) -> None:
    """Print the share of CPU of each thread of the agent."""
    cpu_s = {name: seconds - cpu_before.get(name, 0.0) for name, seconds in threads(usage.pid).items()}
    for name, seconds in sorted(cpu_s.items(), key=lambda pair: -pair[1]):
        print(f"  {name:24} {100 * seconds / usage.seconds:6.3f} %")


if __name__ == "__main__":
    raise SystemExit(main())
