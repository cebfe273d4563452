"""Slurm queried by its own commands: sacct, scontrol and squeue, of any version since 20.11.

Times are requested as POSIX seconds, so that no time zone has to be guessed. sacct is asked for JSON from 23.11 on;
before, its JSON gives 0 as every failed job's exit code, so text is requested.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.slurm.commands import accounting_columns, accounting_table, environment
from trackside.command import MAX_ERROR_BYTES, Command, CommandStopped
from trackside.http.unavailable import FailureKind, SourceUnavailable, plain
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import MAX_NODES, Replies, Reply, Slurm, failed_row, until_failure

JSON_SINCE = (23, 11)
MAX_NODES_PER_COMMAND = 1000
"""Maximum number of node names in one command: the kernel limits one argument to 128 KiB."""
_UNKNOWN = re.compile(r"Invalid job id|Invalid job/step|[Jj]ob step \S+ not found", re.IGNORECASE)
_KINDS: tuple[tuple[str, FailureKind], ...] = (
    (r"accounting storage is disabled", "refused"),
    (r"denied|not permitted|[Aa]uth|credential|Invalid user", "unauthorized"),
    (r"Unable to contact|[Cc]onnection refused|onnect failure|Problem talking|not resolve|No route", "unreachable"),
    (r"[Tt]imed out|[Tt]imeout", "timeout"),
)
_REMEDY: Mapping[str, str] = {
    "refused": "this cluster has no accounting, and its controller forgets a job minutes after its end (MinJobAge)",
    "unauthorized": "query as the job's owner or an operator",
    "unreachable": "is the daemon up, and does slurm.conf here name this cluster?",
}


class SlurmCommands(Slurm):
    """One cluster, queried by commands from ``bin``, or on PATH."""

    def __init__(self, options: SlurmOptions, cluster: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self.cluster = cluster
        self._options, self._path = options, environ.get("PATH", os.defpath)
        self._env = environment(environ)
        self._columns: list[str] | None = None
        self._version: tuple[int, int] | None = None

    def accounting(self, ids: Sequence[str]) -> Replies:
        return self._attempt(["sacct", "-D", "-j", ",".join(ids)], self._accounting_options)

    def controller(self, id_: str) -> Replies:
        """From scontrol; from squeue if scontrol is missing or not permitted."""
        arguments = ["scontrol", "show", "job", "-d", id_]
        try:
            return self._query(arguments)
        except SourceUnavailable as error:
            rows: Replies = [failed_row(self._label(arguments), error)]
            if error.kind in ("timeout", "unreachable") and self._program("scontrol"):
                return rows  # squeue would query the same daemon
        return [*rows, *self._attempt(["squeue", "--states=all", "-j", id_], lambda: ["-o", "%all"])]

    def steps(self, id_: str) -> Replies:
        return self._attempt(["scontrol", "show", "step", id_])

    def nodes(self, names: Sequence[str]) -> Replies:
        parts = [
            names[start : start + MAX_NODES_PER_COMMAND]
            for start in range(0, min(len(names), MAX_NODES), MAX_NODES_PER_COMMAND)
        ]
        return until_failure(self._attempt(["scontrol", "show", "node", ",".join(part)]) for part in parts)

    def jobs_named(self, name: str, user: str, since: float, until: float) -> Replies:
        if "," in name or name.startswith("-"):
            return []  # sacct would read it as several names, or as an option
        arguments = ["sacct", "-X", f"--name={name}", f"--user={user}", f"-Suts{since:.0f}", f"-Euts{until:.0f}"]
        return self._attempt(arguments, self._as_text)

    def script(self, id_: str) -> str:
        try:
            return self._run(["sacct", "-B", "-j", id_]).output.decode("utf-8", "replace")
        except SourceUnavailable:
            return ""  # 21.08 and later store it, if the site wants it

    # -- one command

    def _attempt(self, arguments: Sequence[str], options: Callable[[], Sequence[str]] = tuple) -> Replies:
        """The answer, or a row with the reason why there is none. The label omits ``options``."""
        try:
            return self._query([*arguments, *options()], arguments)
        except SourceUnavailable as error:
            return [failed_row(self._label(arguments), error)]

    def _query(self, arguments: Sequence[str], shown: Sequence[str] = ()) -> Replies:
        """The answer; empty if there is no such job. Raises SourceUnavailable."""
        result = self._run(arguments)
        if result.status and _UNKNOWN.search(result.message):
            return []
        if result.status:
            raise _refusal(arguments[0], result)
        return [Reply(self._label(shown or arguments), result.output)]

    def _run(self, arguments: Sequence[str]) -> CommandResult:
        program = self._program(arguments[0])
        if program is None:
            where = f"in {self._options.bin}" if self._options.bin else "on PATH"
            raise SourceUnavailable(
                "unreachable",
                f"not {where} (set slurm.bin or slurm.url)",
            )
        cluster_option = (
            ["-M", self.cluster] if self.cluster and arguments[1:2] not in (["--version"], ["--helpformat"]) else []
        )
        return run(
            [program, *cluster_option, *arguments[1:]],
            timeout_s=self._options.timeout_s, max_bytes=self._options.max_answer_bytes, env=self._env,
        )  # fmt: skip

    def _program(self, name: str) -> str | None:
        return shutil.which(name, path=self._options.bin or self._path)

    def _slurm_version(self) -> tuple[int, int]:
        """Slurm's version according to sacct: (22, 5). Raises SourceUnavailable."""
        if self._version is None:
            match = re.search(rb"(\d{1,3})\.(\d{1,3})", self._run(["sacct", "--version"]).output)
            self._version = (int(match[1]), int(match[2])) if match else (0, 0)
        return self._version

    def _accounting_options(self) -> list[str]:
        return ["--json"] if self._slurm_version() >= JSON_SINCE else self._as_text()

    def _as_text(self) -> list[str]:
        """Options for a table of the columns that this sacct has: unknown ones fail. Raises SourceUnavailable."""
        if self._columns is None:
            listed = self._run(["sacct", "--helpformat"])
            self._columns = accounting_columns(listed.output.decode("ascii", "replace"))
            if "JobID" not in self._columns:
                raise _refusal("sacct", listed)
        return accounting_table(self._columns)

    def _label(self, arguments: Sequence[str]) -> str:
        """The command as citations name it; of long node lists only the first names."""
        short_arguments = [
            argument if len(argument) <= 80 else f"{argument[:60]}...({argument.count(',') + 1})"
            for argument in arguments
        ]
        return " ".join([short_arguments[0], *(["-M", self.cluster] if self.cluster else []), *short_arguments[1:]])


def _refusal(name: str, result: CommandResult) -> SourceUnavailable:
    """The error of a failed command, with its message and a remedy."""
    kind: FailureKind = next((kind for pattern, kind in _KINDS if re.search(pattern, result.message)), "broken")
    ending = f"exit {result.status}" if result.status >= 0 else f"signal {-result.status}"
    remedy = _REMEDY.get(kind, "")
    message = f"{ending}: {_last_error(name, result.message) or 'no error message'}"
    return SourceUnavailable(kind, f"{message}; {remedy}" if remedy else message)


def _last_error(name: str, message: str) -> str:
    """The last of several messages on one line: the one that ended the command."""
    return re.split(rf"\b{re.escape(name)}: (?:error|fatal): ", message)[-1]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that ended by itself. ``message``: one line of stderr or, if that is empty, of its output."""

    status: int
    output: bytes
    message: str


def run(
    arguments: Sequence[str], *, timeout_s: float, max_bytes: int, env: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command; returns its exit status, output and message.

    Raises SourceUnavailable: not found, not runnable, slower than ``timeout_s``, or more output than ``max_bytes``.
    """
    shown = arguments[0].rsplit("/", 1)[-1]
    command = Command(arguments, timeout_s=timeout_s, max_bytes=max_bytes, env=env)
    try:
        output = b"".join(command.output())
    except FileNotFoundError:
        raise SourceUnavailable("unreachable", f"{shown} is not at {arguments[0]}") from None
    except OSError as error:
        raise SourceUnavailable("refused", f"{arguments[0]} cannot be run: {error.strerror or error}") from None
    except CommandStopped as stop:
        limit = (
            f"did not end within {timeout_s:g} s"
            if stop.reason == "timeout"
            else f"wrote more than {max_bytes:,} bytes"
        )
        raise SourceUnavailable(stop.reason, f"{shown} {limit} and was stopped") from None
    message = command.errors.strip() or output[:MAX_ERROR_BYTES]
    return CommandResult(command.status, output, plain(message.decode("utf-8", "replace")))
