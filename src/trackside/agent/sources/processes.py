"""Whose the node's processes are: renews the map that the other sources ask, and tells what of each job is here."""

from __future__ import annotations

from collections import Counter

from trackside.agent.owners import Owner
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable

MOST_RANKS = 1024
"""Ranks of a node that are told one by one."""
_NO_TASKS = frozenset({"extern"})
"""Steps that hold none of a job's own processes."""


class _Processes(Collector):
    def __init__(self, context: Context) -> None:
        self._map = context.owners

    def collect(self, reading: Reading) -> None:
        try:
            self._map.renew()
        except OSError as error:
            raise Unavailable(f"the processes can't be listed: {error}") from error
        processes: Counter[str] = Counter()
        owners: Counter[Owner] = Counter()
        for each in self._map.processes():
            if each.owner.job is not None and each.owner.step not in _NO_TASKS:
                processes[each.owner.job] += 1
            if each.owner.rank is not None or each.owner.container is not None:
                owners[each.owner] += 1
        for job, count in processes.items():
            reading.sample("trackside_job_processes", count, job=job)
        ranks = Counter(job for job, rank in {(each.job, each.rank) for each in owners if each.rank is not None} if job)
        for job, count in ranks.items():
            reading.sample("trackside_job_ranks", count, job=job)
        for owner, count in owners.most_common(MOST_RANKS):
            reading.sample("trackside_owner_processes", count, **_labels(owner))
        if len(owners) > MOST_RANKS:
            reading.lost["owners"] = len(owners) - MOST_RANKS
        if self._map.unread:
            reading.sample("trackside_unread_processes", self._map.unread)


def _labels(owner: Owner) -> dict[str, str | int | None]:
    names = ("job", "user", "step", "task", "rank", "local_rank", "pod")
    return {"container": (owner.container or "")[:12], **{name: getattr(owner, name) for name in names}}


SOURCE = Source(
    id="processes",
    title="processes of jobs and containers: whose each is, by cgroup and environment",
    open=_Processes,
    metrics=(
        "trackside_job_processes",
        "trackside_job_ranks",
        "trackside_owner_processes",
        "trackside_unread_processes",
    ),
    interval_s=5.0,
    needs="CAP_SYS_PTRACE, to read the environment of other users' processes: without it ranks are unknown",
)
