"""Names of one run for the commands that a verdict suggests: its job and script, nodes, GPUs and processes.

The names come from logs and records, which may be hostile: each is quoted for a shell, and none is an option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trackside.catalog.job_states import ACTIVE_STATES
from trackside.evidence import Evidence, Value
from trackside.facts.fact import fact
from trackside.facts.gpus import grid_of_gpu, nodes_of_ranks
from trackside.facts.logs.ending import Ending
from trackside.facts.ranks import rank_of
from trackside.finding import Finding
from trackside.model import Event, Run
from trackside.query import events, metric

MAX_NAME_CHARS = 150
"""A longer name or list of nodes would be cut in the text of a command."""
MAX_PIDS = 4
_PCI_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")
"""A GPU's PCI address, as the kernel prints it: domain, bus, device and function; the first and last may be missing."""
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_SUBMISSION_CHARS = 1000
"""A longer line that submitted a job is not repeated."""
_OPTION_VALUE = r"[\w,.:@%/+*-]{1,200}"
_SHORT_OPTION, _LONG_OPTION = (
    "-[NncptAqGCJoeD]",
    (
        "--(?:account|chdir|constraint|cores-per-socket|cpus-per-gpu|cpus-per-task|error|gpus|gpus-per-node|gpus-per-task"
        "|gres|job-name|mem|mem-per-cpu|mem-per-gpu|nodes|ntasks|ntasks-per-node|open-mode|output|partition|qos|reservation"
        "|signal|time|tres-per-node|wait-all-nodes)"
    ),
)
_HARMLESS_OPTIONS = re.compile(
    rf"(?:(?:{_SHORT_OPTION}\x00?|{_LONG_OPTION}[=\x00])(?!-){_OPTION_VALUE}\x00"
    rf"|--(?:requeue|no-requeue|exclusive(?:={_OPTION_VALUE})?)\x00)*"
)
"""Options of sbatch, each word followed by a NUL character; others, such as --export, may hold secrets."""
_BATCH_SCRIPT = re.compile(r"[^-].*\.(?:sh|bash|sbatch|slurm|batch|job)")


@dataclass(frozen=True, eq=False)
class RunNames:
    """The evidence that names the job, its GPUs and its processes."""

    run: Run
    ending: Ending
    evidence: Evidence

    def of(self, finding: Finding) -> Mapping[str, Value]:
        """The names that commands about this finding may use; one that is not known is left out.

        ``job`` and ``script``: of a Slurm job; ``submitted_script``: the script, for a task of an array with its
        ``--array``; ``array_task``: its number; ``jobs``: comma-separated, with the other jobs that its log names.
        ``submission`` and ``work_dir``: the options and the script that submitted it, and in which folder. ``node``:
        the first of the finding. ``slurm_nodes``, ``slurm_node``: its nodes, comma-separated, and the first, if Slurm
        manages them. ``on_node``: the prefix that runs a command on ``node``; empty if no node is known.
        ``node_shell``: the same for a quoted shell script. ``gpu``, ``gpu_index``, ``gpu_uuid``, ``gpu_pci``: the
        finding's only GPU; ``gpu_id``: its index, else its PCI address, as ``nvidia-smi -i`` takes both
        (docs.nvidia.com/deploy/nvidia-smi). ``pids``, ``pid``: processes of its ranks, or those stuck in the kernel;
        ``pid`` if it is only one.
        """
        source = next((cite for claim in finding.shows for cite in claim.cites), None)
        if source is None:
            return {}
        names = {**self._job(), **self._places(finding), **self._gpu(finding), **self._processes(finding)}
        return {name: Value(text, (source,)) for name, text in names.items()}

    @property
    def is_slurm(self) -> bool:
        """Whether Slurm ran the job."""
        return self.ending.by_slurm

    def _job(self) -> Mapping[str, str]:
        if not self.is_slurm:
            return {}
        submission, work_dir = self._submission()
        jobs = ",".join(filter(None, (self.run.id, *self.run.other_jobs)))
        script, task = self._script(), re.search(r"_(\d{1,9})\Z", self.run.id or "")
        names = {"job": self.run.id, "jobs": jobs, "script": script, "array_task": None if task is None else task[1]}
        if submission and work_dir and len(submission) <= MAX_SUBMISSION_CHARS and len(work_dir) <= MAX_NAME_CHARS:
            return {**_quote_names(names), "submission": submission, "work_dir": work_dir}
        quoted = dict(_quote_names(names))
        if "script" in quoted:
            option = f"--array={quoted['array_task']} " if "array_task" in quoted else ""
            quoted["submitted_script"] = f"{option}{quoted['script']}"
        return quoted

    def _submission(self) -> tuple[str, str]:
        """The options and the script of the line that submitted the job, and its folder, both quoted; empty if one of
        them is not known or the line has a word that may hold a secret or that a new submission must not repeat."""
        records = self.ending.jobs.records[::-1]
        words = next((words for row in records if (words := _words(str(row.get("submit_line") or "")))), [])
        folder = next((str(row.get("work_dir")) for row in records if row.get("work_dir")), "")
        *options, script = words[1:] or [""]
        is_batch = words[:1] == ["sbatch"] and _BATCH_SCRIPT.fullmatch(script)
        harmless = _HARMLESS_OPTIONS.fullmatch("".join(f"{word}\0" for word in options))
        if not (folder and is_batch and harmless):
            return "", ""
        return shlex.join([*options, script]), shlex.quote(folder)

    def _script(self) -> str | None:
        """The batch script, from the newest record."""
        records = self.ending.jobs.records[::-1]
        # scontrol prints the script's path, unquoted, before its arguments; sacct the line that submitted it.
        commands = (word for record in records for word in str(record.get("command") or "").split()[:1])
        words = (word for record in records for word in _words(str(record.get("submit_line") or "")))
        return next(filter(_BATCH_SCRIPT.fullmatch, (*commands, *words)), None)

    def _places(self, finding: Finding) -> Mapping[str, str]:
        nodes = finding.nodes or nodes_of_ranks(self.run, finding.ranks)
        nodes = nodes or (self.run.nodes if len(self.run.nodes) == 1 else ())
        if not nodes and not self.run.nodes:
            return {"on_node": "", "node_shell": "bash -c"}
        if not nodes or not all(map(_HOST_NAME.fullmatch, nodes)):
            return {}
        node, joined = nodes[0], ",".join(nodes)
        if self.is_slurm and self.run.id and self.run.disposition in ACTIVE_STATES:
            prefix = f"srun --jobid={shlex.quote(self.run.id)} --overlap --nodelist={node} --ntasks=1"
            names = {"node": node, "on_node": prefix, "node_shell": f"{prefix} bash -c"}
        else:  # ssh passes its words to a shell
            names = {"node": node, "on_node": f"ssh {node}", "node_shell": f"ssh {node}"}
        if len(joined) > MAX_NAME_CHARS or not self.is_slurm:
            return names
        return {**names, "slurm_nodes": joined, "slurm_node": node}

    def _gpu(self, finding: Finding) -> Mapping[str, str]:
        if len(finding.gpus) != 1:
            return {}
        (gpu,) = finding.gpus
        if gpu not in self.run.gpus and _PCI_ADDRESS.fullmatch(gpu):  # its last part is no index
            return {"gpu": gpu, "gpu_id": gpu if "." in gpu else f"{gpu}.0"}
        index = gpu.rpartition(":")[2]
        names = {"gpu": gpu, "gpu_index": index, "gpu_id": index} if re.search(r":\d{1,3}\Z", gpu) else {"gpu": gpu}
        grid = self.evidence.grid("gpus")
        if "gpu_index" not in names or grid is None:
            return names
        for series in grid_of_gpu(grid, gpu).series:
            if uuid := series.get("gpu_uuid"):
                names["gpu_uuid"] = shlex.quote(uuid)
            if pci := series.get("pci"):
                names["gpu_pci"] = shlex.quote(pci if "." in pci else f"{pci}.0")
        return names

    def _processes(self, finding: Finding) -> Mapping[str, str]:
        pids = sorted(set(self._pids(finding.ranks)))
        if not pids or len(pids) > MAX_PIDS:
            return {}
        joined = " ".join(map(str, pids))
        return {"pids": joined, "pid": joined} if len(pids) == 1 else {"pids": joined}

    def _pids(self, ranks: Iterable[int]) -> Iterator[int]:
        chosen = frozenset(ranks)
        stacks: list[Event] = [row for row in self.evidence["stacks"].events if rank_of(row) in chosen]
        stuck = [row for row in self.evidence["processes"].events if row.get("state") == "D"]
        for row in stacks or stuck:
            if isinstance(pid := row.get("pid"), int):
                yield pid


@fact({
    "stacks": events("stack"),
    "processes": events("process_state"),
    "gpus": metric("gpu_memory_used_bytes").over("around", "count"),
}, lazy=True)  # fmt: skip
def run_names(run: Run, evidence: Evidence, ending: Ending) -> RunNames:
    """Needs no particular input; empty where no input names anything."""
    return RunNames(run, ending, evidence)


def _quote_names(names: Mapping[str, str | None]) -> Mapping[str, str]:
    """The names that are known and short, quoted for a shell."""
    return {name: shlex.quote(text) for name, text in names.items() if text and len(text) <= MAX_NAME_CHARS}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # unbalanced quotes
        return []
