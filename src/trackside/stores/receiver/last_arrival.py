"""When the last data of a job arrived in a store."""

from __future__ import annotations

from collections.abc import Collection

from trackside.stores.embedded.rows import SERIES_PATH
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.receiver.lines import line_files


def last_arrival(snapshot: Snapshot, ids: Collection[str]) -> float | None:
    """POSIX seconds of the last line, or sample with the job's label, that was received for a job with these ids; None
    if none was."""
    times = [*_line_times(snapshot, ids), *_sample_times(snapshot, ids)]
    return max(times, default=None)


def _line_times(snapshot: Snapshot, ids: Collection[str]) -> list[float]:
    """When lines were appended to each file of the job."""
    folder = snapshot.directory.path / "received" / "logs"
    if not ids or not folder.is_dir():
        return []
    tops = [folder, *folder.glob("part-*")]
    folders = [top / f"job-{id_}" for top in tops for id_ in ids if "/" not in id_]
    return [stat.st_mtime for job_folder in folders for _, stat in line_files(job_folder)]


def _sample_times(snapshot: Snapshot, ids: Collection[str]) -> list[float]:
    """The time of the last sample with the job's label."""
    if not ids:
        return []
    marks = ", ".join("?" * len(ids))
    ((last_ms,),) = snapshot.rows(
        f"SELECT max(p.last_ms) FROM {snapshot.table('spans')} p JOIN {snapshot.table('series')} s USING (series)"
        f" WHERE p.count > 0 AND p.path LIKE '{SERIES_PATH}/%' AND s.job IN ({marks})",
        list(ids),
    )
    return [] if last_ms is None else [last_ms / 1000]
