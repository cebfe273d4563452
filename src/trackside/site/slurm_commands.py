"""A Slurm asked by its own commands: sacct, scontrol and squeue, of any version since 20.11.

Times come as POSIX seconds, so that no zone has to be guessed. sacct is asked for JSON from 23.11 on; before that its
JSON gives every failed job's exit code as 0, and the text is asked for.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.slurm.commands import accounting_columns, accounting_table, environment
from trackside.command import MAX_ERROR_BYTES, Command, CommandStopped
from trackside.http.unavailable import Kind, SourceUnavailable, plain
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import MOST_NODES, Replies, Reply, Slurm, failed, until_failure

JSON_SINCE = (23, 11)
NODES_AT_ONCE = 1000
"""Names in one command: the kernel takes 128 KiB of one argument."""
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


class Commands(Slurm):
    """One cluster, by its commands. They are found in ``bin``, or on PATH."""

    def __init__(self, options: SlurmOptions, cluster: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self.cluster = cluster
        self._options, self._path = options, environ.get("PATH", os.defpath)
        self._env = environment(environ)
        self._columns: list[str] | None = None
        self._version: tuple[int, int] | None = None

    def accounting(self, ids: Sequence[str]) -> Replies:
        return self._attempt(["sacct", "-D", "-j", ",".join(ids)], self._accounting_options)

    def controller(self, id_: str) -> Replies:
        """squeue is asked where scontrol may not or is not there."""
        called = ["scontrol", "show", "job", "-d", id_]
        try:
            return self._asked(called)
        except SourceUnavailable as error:
            rows: Replies = [failed(self._label(called), error)]
            if error.kind in ("timeout", "unreachable") and self._program("scontrol"):
                return rows  # squeue asks the same daemon
        return [*rows, *self._attempt(["squeue", "--states=all", "-j", id_], lambda: ["-o", "%all"])]

    def steps(self, id_: str) -> Replies:
        return self._attempt(["scontrol", "show", "step", id_])

    def nodes(self, names: Sequence[str]) -> Replies:
        parts = [names[at : at + NODES_AT_ONCE] for at in range(0, min(len(names), MOST_NODES), NODES_AT_ONCE)]
        return until_failure(self._attempt(["scontrol", "show", "node", ",".join(part)]) for part in parts)

    def namesakes(self, name: str, user: str, since: float, until: float) -> Replies:
        if "," in name or name.startswith("-"):
            return []  # sacct would take it for several names, or an option
        called = ["sacct", "-X", f"--name={name}", f"--user={user}", f"-Suts{since:.0f}", f"-Euts{until:.0f}"]
        return self._attempt(called, self._as_text)

    def script(self, id_: str) -> str:
        try:
            return self._run(["sacct", "-B", "-j", id_]).output.decode("utf-8", "replace")
        except SourceUnavailable:
            return ""  # 21.08 and later keep it, where the site wants it kept

    # -- one command

    def _attempt(self, called: Sequence[str], options: Callable[[], Sequence[str]] = tuple) -> Replies:
        """The answer, or a row that says why there is none. The label doesn't show ``options``."""
        try:
            return self._asked([*called, *options()], called)
        except SourceUnavailable as error:
            return [failed(self._label(called), error)]

    def _asked(self, arguments: Sequence[str], shown: Sequence[str] = ()) -> Replies:
        """The answer; none where there is no such job. Raises SourceUnavailable."""
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
            raise SourceUnavailable(
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
        """Slurm's version, as sacct tells it: (22, 5). Raises SourceUnavailable."""
        if self._version is None:
            told = re.search(rb"(\d{1,3})\.(\d{1,3})", self._run(["sacct", "--version"]).output)
            self._version = (int(told[1]), int(told[2])) if told else (0, 0)
        return self._version

    def _accounting_options(self) -> list[str]:
        return ["--json"] if self._newest() >= JSON_SINCE else self._as_text()

    def _as_text(self) -> list[str]:
        """Options for a table of the columns that this sacct knows, as it rejects others. Raises SourceUnavailable."""
        if self._columns is None:
            listed = self._run(["sacct", "--helpformat"])
            self._columns = accounting_columns(listed.output.decode("ascii", "replace"))
            if "JobID" not in self._columns:
                raise _refusal("sacct", listed)
        return accounting_table(self._columns)

    def _label(self, called: Sequence[str]) -> str:
        """How a citation names it: long lists of nodes by their first."""
        words = [each if len(each) <= 80 else f"{each[:60]}...({each.count(',') + 1})" for each in called]
        return " ".join([words[0], *(["-M", self.cluster] if self.cluster else []), *words[1:]])


def _refusal(name: str, done: Finished) -> SourceUnavailable:
    """Why a command ended with an error, in its own words and with what may help."""
    kind: Kind = next((kind for words, kind in _KINDS if re.search(words, done.said)), "broken")
    ending = f"exit {done.status}" if done.status >= 0 else f"signal {-done.status}"
    remedy = _REMEDY.get(kind, "")
    words = f"{name} failed ({ending}): {done.said or 'it says nothing'}"
    return SourceUnavailable(kind, f"{words}; {remedy}" if remedy else words)


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself. ``said``: one line, from stderr or, where that is empty, from its output."""

    status: int
    output: bytes
    said: str


def run(
    arguments: Sequence[str], *, timeout_s: float, most_bytes: int, env: Mapping[str, str] | None = None
) -> Finished:
    """Run it and take its output.

    Raises SourceUnavailable if it isn't there, can't be run, takes longer than ``timeout_s`` or writes more than
    ``most_bytes``.
    """
    shown = arguments[0].rsplit("/", 1)[-1]
    command = Command(arguments, timeout_s=timeout_s, max_bytes=most_bytes, env=env)
    try:
        output = b"".join(command.output())
    except FileNotFoundError:
        raise SourceUnavailable("unreachable", f"{shown} is not at {arguments[0]}") from None
    except OSError as error:
        raise SourceUnavailable("refused", f"{arguments[0]} can't be run: {error.strerror or error}") from None
    except CommandStopped as stop:
        limit = (
            f"did not end within {timeout_s:g} s"
            if stop.reason == "timeout"
            else f"wrote more than {most_bytes:,} bytes"
        )
        raise SourceUnavailable(stop.reason, f"{shown} {limit}, and was stopped") from None
    words = command.errors.strip() or output[:MAX_ERROR_BYTES]
    return Finished(command.status, output, plain(words.decode("utf-8", "replace")))
