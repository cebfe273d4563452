"""The site of the demonstration: a Slurm cluster, an agent on each node and a receiver; always stopped at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.cluster import Cluster
from lab.demo.accounts import Accounts
from lab.demo.agents import start_agents
from lab.demo.gpus import Gpus
from lab.demo.programs import Program, ReceiverProgram
from lab.stage import RunFailed, Stage, free_port, process_environ

PREFIXES = ("n", "demo", "na", "nb", "nc", "nd")
CONF = "FirstJobId=4201\nEpilogSlurmctld={epilog}\n"
EPILOG = Path(__file__).resolve().parents[2] / "packaging" / "slurm" / "epilog-verdict.sh"
NOTIFY = EPILOG.with_name("notify.sh")
EPILOG_SCRIPT = """\
#!/bin/sh
export TRACKSIDE_VERDICTS={verdicts} TRACKSIDE_EPILOG_CONF={conf}
exec {script}
"""
EPILOG_CONF = """\
TRACKSIDE_URL=http://127.0.0.1:{port}
TRACKSIDE_WAIT=10
TRACKSIDE_NOTIFY={notify}
SLURM_CONF={slurm_conf}
"""


@dataclass(frozen=True)
class DemoSite:
    """The parts of the running site."""

    folder: Path
    cluster: Cluster
    receiver: ReceiverProgram
    agents: Mapping[str, Program]
    gpus: Gpus
    accounts: Accounts
    template: Stage
    """The training folder that those of the jobs are copied from."""

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    @property
    def answers_folder(self) -> Path:
        """Folder of the verdicts that the demonstration requested."""
        return self.folder / "requested"

    @property
    def verdicts(self) -> Path:
        """Folder of the epilog's verdicts."""
        return self.folder / "verdicts"


def check(tools: Path, trackside: Path) -> None:
    """Check the requirements. Raises RunFailed with one line if something is missing."""
    if not (tools / "slurm-up").is_file():
        raise RunFailed(f"no Slurm test cluster: {tools}/slurm-up is not there; set SLURM_LAB_TOOLS (lab/README.md)")
    if os.geteuid() != 0:
        raise RunFailed("only root can start Slurm; run it as root")
    if not (trackside / "trackside").is_file():
        raise RunFailed(f"{trackside}/trackside is not there; run 'make cluster-demo', or give --trackside")
    install = tools / "slurm-install"
    if install.is_file():
        result = subprocess.run([str(install)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RunFailed(f"slurm-install failed: {(result.stderr or result.stdout).strip()[-400:]}")


@contextmanager
def site(tools: Path, trackside: Path, keep: Path | None, say: Callable[[str], None]) -> Iterator[DemoSite]:
    """Start everything; it is stopped when the block ends, also by an error."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ts-demo-", dir="/tmp"))
        folder.chmod(0o755)
        stack.callback(_clear, folder, keep)
        stack.callback(_end_epilogs, folder / "verdicts")
        for name in ("jobs", "board", "requested", "verdicts"):
            (folder / name).mkdir()
        with ThreadPoolExecutor(1) as pool:
            template_future = pool.submit(Stage, _new_folder(folder / "template"))
            port = free_port()
            cluster = Cluster(tools, free_prefix(), CONF.format(epilog=_epilog(folder)))
            stack.callback(cluster.down)
            conf = EPILOG_CONF.format(port=port, notify=NOTIFY, slurm_conf=cluster.env["SLURM_CONF"])
            (folder / "epilog.conf").write_text(conf)
            cluster.env["SLURM_TIME_FORMAT"] = "%s"
            env = {**os.environ, "SLURM_CONF": cluster.env["SLURM_CONF"]}
            receiver = ReceiverProgram(trackside, folder, folder / "jobs", port, env)
            stack.callback(receiver.program.end)
            template = template_future.result()
        receiver.wait_ready()
        say(f"Slurm with nodes {', '.join(cluster.nodes)}; a receiver at {receiver.url}")
        gpus = Gpus(folder / "board", folder / "gpus", cluster.nodes)
        stack.callback(gpus.stop)
        agents = start_agents(trackside, folder, cluster.nodes, receiver, gpus, env)
        for agent in agents.values():
            stack.callback(agent.end)
        say(f"{len(agents)} agents: one per node, and one on the controller's host")
        accounts = Accounts(cluster)
        stack.callback(accounts.stop)
        yield DemoSite(folder, cluster, receiver, agents, gpus, accounts, template)


def free_prefix() -> str:
    """A prefix of node names that no other cluster on this machine uses, because cgroups are named after nodes."""
    used_prefixes = set()
    for entry in Path("/proc").glob("[0-9]*"):
        if any(variable.startswith("SLURM_LAB_DIR=") for variable in process_environ(int(entry.name))):
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            used_prefixes |= {
                arguments[index + 1].rstrip("0123456789")
                for index, argument in enumerate(arguments[:-1])
                if argument == "-N"
            }
    free = [prefix for prefix in PREFIXES if prefix not in used_prefixes]
    if not free:
        raise RunFailed(
            f"other clusters on this machine use all known prefixes of node names: {', '.join(sorted(used_prefixes))}"
        )
    return free[0]


def _epilog(folder: Path) -> Path:
    """The script that slurm.conf names as EpilogSlurmctld: the packaged one with the demonstration's folder."""
    path = folder / "epilog-verdict"
    path.write_text(EPILOG_SCRIPT.format(verdicts=folder / "verdicts", conf=folder / "epilog.conf", script=EPILOG))
    path.chmod(0o755)
    return path


def _end_epilogs(verdicts: Path) -> None:
    """End the epilogs that still wait; their environment names the demonstration's folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        if f"TRACKSIDE_VERDICTS={verdicts}" in process_environ(int(entry.name)):
            with suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGTERM)


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _clear(folder: Path, keep: Path | None) -> None:
    if keep is not None:
        shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("template", "*.pt", "*.jsonl"))
    shutil.rmtree(folder, ignore_errors=True)
