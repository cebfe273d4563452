"""Processes of jobs: renews the process map that the other sources use, and reports each job's processes and ranks."""

from __future__ import annotations

from collections import Counter

from trackside.agent.owners import Owner
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading

MAX_RANKS = 1024
"""Maximum number of owners that are reported individually."""
_STEPS_WITHOUT_TASKS = frozenset({"extern"})
"""Steps without processes of the job itself."""


class _Processes(Collector):
    def __init__(self, context: Context) -> None:
        self._map = context.owners

    def collect(self, reading: Reading) -> None:
        try:
            self._map.renew()
        except OSError as error:
            raise AgentSourceUnavailable(f"processes cannot be listed: {error}") from error
        processes: Counter[str] = Counter()
        owners: Counter[Owner] = Counter()
        for process in self._map.processes():
            if process.owner.job is not None and process.owner.step not in _STEPS_WITHOUT_TASKS:
                processes[process.owner.job] += 1
            if process.owner.rank is not None or process.owner.container is not None:
                owners[process.owner] += 1
        for job, count in processes.items():
            reading.sample("trackside_job_processes", count, job=job)
        named_ranks = {(owner.job, owner.rank) for owner in owners if owner.rank is not None}
        ranks = Counter(job for job, rank in named_ranks if job)
        for job, count in ranks.items():
            reading.sample("trackside_job_ranks", count, job=job)
        for owner, count in owners.most_common(MAX_RANKS):
            reading.sample("trackside_owner_processes", count, **_labels(owner))
        if len(owners) > MAX_RANKS:
            reading.lost["owners"] = len(owners) - MAX_RANKS
        if self._map.unread:
            reading.sample("trackside_unread_processes", self._map.unread)


def _labels(owner: Owner) -> dict[str, str | int | None]:
    names = ("job", "user", "step", "task", "rank", "local_rank", "pod")
    return {"container": (owner.container or "")[:12], **{name: getattr(owner, name) for name in names}}


SOURCE = AgentSource(
    id="processes",
    title="processes of jobs and containers, and their owners by cgroup and environment",
    open=_Processes,
    metrics=(
        "trackside_job_processes",
        "trackside_job_ranks",
        "trackside_owner_processes",
        "trackside_unread_processes",
    ),
    interval_s=5.0,
    needs="CAP_SYS_PTRACE, to read the environment of other users' processes; without it ranks are unknown",
    capabilities=("CAP_SYS_PTRACE",),
)
