"""A Slurm asked by its own commands: sacct, scontrol and squeue, of any version since 20.11.

Times come as POSIX seconds, so that no zone has to be guessed. sacct is asked for JSON from 23.11 on; before that its
JSON gives every failed job's exit code as 0, and the text is asked for.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence

from trackside.http.unanswered import Kind, Unanswered
from trackside.model import Input
from trackside.site.command import Finished, run
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import MOST_NODES, Replies, Reply, failed

_COLUMNS = """
    JobID JobIDRaw JobName User UID Cluster Partition Account QOS State ExitCode DerivedExitCode Reason Submit Eligible
    Start End ElapsedRaw Suspended TimelimitRaw NNodes NTasks AllocCPUS NodeList FailedNode Restarts AllocTRES ReqTRES
    ReqMem MaxRSS SubmitLine WorkDir StdOut StdErr
"""
"""Those that the readers know; an older sacct is asked for what it has of them."""
JSON_SINCE = (23, 11)
SEPARATOR = "\x1f"
NODES_AT_ONCE = 1000
"""Names in one command: the kernel takes 128 KiB of one argument."""
_UNSET = re.compile(r"(?:SACCT|SQUEUE|SCONTROL|SINFO)_|SLURM_(?:TIME_FORMAT|BITSTR_LEN|JSON|YAML)\Z")
"""Variables of the user's that change what the commands print."""
_UNKNOWN = re.compile(r"Invalid job id|Invalid job/step|[Jj]ob step \S+ not found", re.IGNORECASE)
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"accounting storage is disabled", "refused"),
    (r"denied|not permitted|[Aa]uth|credential|Invalid user", "unauthorized"),
    (r"Unable to contact|[Cc]onnection refused|onnect failure|Problem talking|not resolve|No route", "unreachable"),
    (r"[Tt]imed out|[Tt]imeout", "timeout"),
)
_REMEDY: Mapping[str, str] = {
    "refused": "this cluster keeps no accounting, and its controller forgets a job minutes after its end (MinJobAge)",
    "unauthorized": "ask as the job's owner or an operator",
    "unreachable": "is the daemon up, and does slurm.conf here name this cluster?",
}


class Commands:
    """One cluster, by its commands. They are found in ``bin``, or on PATH."""

    def __init__(self, options: SlurmOptions, cluster: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self.cluster = cluster
        self._options, self._path = options, environ.get("PATH", os.defpath)
        kept = {name: value for name, value in environ.items() if not _UNSET.match(name)}
        self._env = {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "4096"}
        self._columns: tuple[str, ...] | None = None
        self._version: tuple[int, int] | None = None

    def accounting(self, ids: Sequence[str]) -> Replies:
        """See :class:`trackside.site.slurm_replies.Slurm`."""
        called = ["sacct", "-D", "-j", ",".join(ids)]
        try:
            if self._newest() >= JSON_SINCE:
                return self._asked([*called, "--json"], called)
            return self._asked([*called, *self._as_text()], called)
        except Unanswered as error:
            return [self._failed(called, error)]

    def controller(self, id_: str) -> Replies:
        """See :class:`trackside.site.slurm_replies.Slurm`. squeue is asked where scontrol may not or is not there."""
        called = ["scontrol", "show", "job", "-d", id_]
        try:
            return self._asked(called)
        except Unanswered as error:
            rows: Replies = [self._failed(called, error)]
            if error.kind in ("timeout", "unreachable") and self._program("scontrol"):
                return rows  # squeue asks the same daemon
        called = ["squeue", "--states=all", "-j", id_]
        try:
            return [*rows, *self._asked([*called, "-o", "%all"], called)]
        except Unanswered as error:
            return [*rows, self._failed(called, error)]

    def steps(self, id_: str) -> Replies:
        """See :class:`trackside.site.slurm_replies.Slurm`."""
        return self._each([["scontrol", "show", "step", id_]])

    def nodes(self, names: Sequence[str]) -> Replies:
        """See :class:`trackside.site.slurm_replies.Slurm`."""
        parts = [names[at : at + NODES_AT_ONCE] for at in range(0, min(len(names), MOST_NODES), NODES_AT_ONCE)]
        return self._each([["scontrol", "show", "node", ",".join(part)] for part in parts])

    def namesakes(self, name: str, user: str, since: float, until: float) -> Replies:
        """See :class:`trackside.site.slurm_replies.Slurm`."""
        if "," in name or name.startswith("-"):
            return []  # sacct would take it for several names, or an option
        called = ["sacct", "-X", f"--name={name}", f"--user={user}", f"-Suts{since:.0f}", f"-Euts{until:.0f}"]
        try:
            return self._asked([*called, *self._as_text()], called)
        except Unanswered as error:
            return [self._failed(called, error)]

    def script(self, id_: str) -> str:
        """See :class:`trackside.site.slurm_replies.Slurm`."""
        try:
            return self._run(["sacct", "-B", "-j", id_]).output.decode("utf-8", "replace")
        except Unanswered:
            return ""  # 21.08 and later keep it, where the site wants it kept

    # -- one command

    def _each(self, calls: Sequence[Sequence[str]]) -> Replies:
        found: Replies = []
        for called in calls:
            try:
                found += self._asked(called)
            except Unanswered as error:
                return [*found, self._failed(called, error)]  # the others would fail as it did, as slowly
        return found

    def _asked(self, arguments: Sequence[str], shown: Sequence[str] = ()) -> Replies:
        """The answer; none where there is no such job. Raises Unanswered."""
        done = self._run(arguments)
        if done.status and _UNKNOWN.search(done.said):
            return []
        if done.status:
            raise _refusal(arguments[0], done)
        return [Reply(self._label(shown or arguments), done.output)]

    def _run(self, arguments: Sequence[str]) -> Finished:
        program = self._program(arguments[0])
        if program is None:
            where = f"in {self._options.bin} (slurm.bin)" if self._options.bin else "on PATH"
            raise Unanswered(
                "unreachable",
                f"{arguments[0]} is not {where}; run it on a login node, or set slurm.bin or slurm.url",
            )
        there = ["-M", self.cluster] if self.cluster and arguments[1:2] not in (["--version"], ["--helpformat"]) else []
        return run(
            [program, *there, *arguments[1:]],
            timeout_s=self._options.timeout_s, most_bytes=self._options.most_bytes, env=self._env,
        )  # fmt: skip

    def _program(self, name: str) -> str | None:
        return shutil.which(name, path=self._options.bin or self._path)

    def _newest(self) -> tuple[int, int]:
        """Slurm's version, as sacct tells it: (22, 5). Raises Unanswered."""
        if self._version is None:
            told = re.search(rb"(\d{1,3})\.(\d{1,3})", self._run(["sacct", "--version"]).output)
            self._version = (int(told[1]), int(told[2])) if told else (0, 0)
        return self._version

    def _as_text(self) -> list[str]:
        """Options for a table of what this sacct has of the columns: an unknown one is an error. Raises Unanswered."""
        if self._columns is None:
            listed = self._run(["sacct", "--helpformat"])
            known = set(listed.output.decode("ascii", "replace").lower().split())
            self._columns = tuple(column for column in _COLUMNS.split() if column.lower() in known)
            if "JobID" not in self._columns:
                raise _refusal("sacct", listed)
        return ["-P", f"--delimiter={SEPARATOR}", f"--format={','.join(self._columns)}"]

    def _failed(self, called: Sequence[str], error: Unanswered) -> Input:
        return failed(self._label(called), error)

    def _label(self, called: Sequence[str]) -> str:
        """How a citation names it: long lists of nodes by their first."""
        words = [each if len(each) <= 80 else f"{each[:60]}...({each.count(',') + 1})" for each in called]
        return " ".join([words[0], *(["-M", self.cluster] if self.cluster else []), *words[1:]])


def _refusal(name: str, done: Finished) -> Unanswered:
    """Why a command ended with an error, in its own words and with what may help."""
    kind: Kind = next((kind for words, kind in _KINDS if re.search(words, done.said)), "broken")
    ending = f"exit {done.status}" if done.status >= 0 else f"signal {-done.status}"
    remedy = _REMEDY.get(kind, "")
    words = f"{name} failed ({ending}): {done.said or 'it says nothing'}"
    return Unanswered(kind, f"{words}; {remedy}" if remedy else words)
