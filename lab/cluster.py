"""A real Slurm cluster on this machine, started by scripts that the user names.

The folder of scripts (SLURM_LAB_TOOLS) holds `slurm-up DIR`, `slurm-down DIR --purge`
and `slurm-node DIR kill|start NODE`; `slurm-up` leaves DIR/env.sh, which sets SLURM_CONF.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from lab.stage import RunFailed, Stage, process_environ

COLUMNS = (
    "JobID,JobIDRaw,JobName,User,Account,Partition,State,ExitCode,DerivedExitCode,Submit,Eligible,Start,End,"
    "Elapsed,Timelimit,NNodes,NodeList,NTasks,AllocTRES,MaxRSS,ReqMem,Reason,SubmitLine,WorkDir"
)
PREFIX = "gpu0"
POLL = 0.3


class Cluster:
    """Four nodes, gpu01 to gpu04 unless another prefix is given, with accounting. `conf`: more lines for slurm.conf."""

    def __init__(self, tools: Path, prefix: str = PREFIX, conf: str = "") -> None:
        self.tools = tools
        self.nodes = tuple(f"{prefix}{number}" for number in range(1, 5))
        self.folder = Path(tempfile.mkdtemp(prefix="labslurm-"))
        self.folder.chmod(0o755)
        self.env = {**os.environ, "SLURM_LAB_PREFIX": prefix, "SLURM_CONF": f"{self.folder}/etc/slurm.conf"}
        if conf:
            conf_file = self.folder / "more.conf"
            conf_file.write_text(conf)
            self.env["SLURM_LAB_CONF"] = str(conf_file)
        try:
            self.script("slurm-up")
        except BaseException:
            self.down()
            raise

    def script(self, name: str, *arguments: str) -> None:
        command = [str(self.tools / name), str(self.folder), *arguments]
        result = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RunFailed(f"{name}: {result.stderr or result.stdout}")

    def down(self) -> None:
        self.script("slurm-down", "--purge")
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command: str) -> str:
        result = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RunFailed(f"{' '.join(command)}: {result.stderr}")
        return result.stdout

    def submit(self, stage: Stage, script: str, *options: str, name: str = "train") -> SlurmJob:
        """Submit a job script from the stage's folder; its output is slurm-ID.out there."""
        path = stage.work / f"{name}.sh"
        path.write_text("#!/bin/bash\n" + script.strip() + "\n")
        fixed = ["--parsable", "--mem=6000", "--gpus-per-node=1", f"--job-name={name}", "--time=30"]
        conf = {"SLURM_CONF": self.env["SLURM_CONF"]}
        result = subprocess.run(
            ["sbatch", *fixed, *options, path.name],
            cwd=stage.work,
            env={**stage.environment(), **conf},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RunFailed(f"sbatch: {result.stderr}")
        return SlurmJob(self, stage, result.stdout.strip())


@functools.cache
def cluster(tools: Path) -> Cluster:
    """The one cluster of this process, ended with it."""
    started_cluster = Cluster(tools)
    atexit.register(started_cluster.down)
    return started_cluster


class SlurmJob:
    """A submitted job."""

    def __init__(self, cluster: Cluster, stage: Stage, number: str) -> None:
        self.cluster = cluster
        self.stage = stage
        self.number = number
        self.log = stage.work / f"slurm-{number}.out"

    def wait_for(self, pattern: str, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while not (self.log.exists() and re.search(pattern, self.log.read_text(errors="replace"))):
            if time.monotonic() > end:
                raise RunFailed(f"{pattern!r} never appeared in {self.log.name}")
            time.sleep(POLL)

    def states(self) -> list[str]:
        """The states of its accounting rows, oldest first."""
        rows = self.cluster.ask("sacct", "-D", "-X", "-n", "-P", "-j", self.number, "-o", "State")
        return rows.split("\n")[:-1]

    def wait_state(self, *states: str, timeout: float = 240) -> None:
        end = time.monotonic() + timeout
        while not any(state.split(" ")[0] in states for state in self.states()[-1:]):
            if time.monotonic() > end:
                raise RunFailed(f"job {self.number} is {self.states()}, not {states}")
            time.sleep(POLL)

    def rank_pid(self, rank: int) -> int:
        """The process of this job that has this rank, the launcher's children first."""
        variables = {f"RANK={rank}", f"SLURM_JOB_ID={self.number}"}
        for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            if variables <= set(process_environ(int(entry.name))):
                return int(entry.name)
        raise RunFailed(f"no process of rank {rank} in job {self.number}")

    def keep_records(self, *other_jobs: SlurmJob) -> None:
        """Ship the logs, and the scheduler's records of this job and the other jobs."""
        jobs = [*other_jobs, self]
        numbers = ",".join(job.number for job in jobs)
        shown = [self.cluster.ask("scontrol", "show", "job", "-d", job.number) for job in jobs]
        records = {
            "sacct.txt": self.cluster.ask("sacct", "-D", "-P", "-j", numbers, "-o", COLUMNS),
            "sacct.json": self.cluster.ask("sacct", "-D", "-j", numbers, "--json"),
            "scontrol-job.txt": "".join(shown),
            "sinfo-R.txt": self.cluster.ask("sinfo", "-R"),
        }
        for name, text in records.items():
            path = self.stage.work / name
            path.write_text(re.sub(r"\broot\b", "user", text))
            self.stage.keep(path)
        self.stage.keep(*[job.log for job in jobs if job.log.exists()])
        self.stage.names.append((f"{self.cluster.folder}/spool", "/var/spool/slurmd"))
        self.stage.node = f"{PREFIX}1"
        self.stage.results["job"] = self.number
