"""What the inputs hold: their rows, logged steps and measurements, before a run is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trackside.errors import StoreError
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Samples
from trackside.read.bundle import recorded_job_and_time
from trackside.read.detect import read_source
from trackside.read.format import InputSource
from trackside.read.formats.job_log import empty_output
from trackside.read.walk import walk
from trackside.runs.resolve import ResolvedRun, resolve
from trackside.session.request import Paths, ProgressCallback
from trackside.stores.embedded.layout import Directory
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import MetricBackend

if TYPE_CHECKING:
    from trackside.stores.embedded.spill import Spill
    from trackside.stores.receiver.lag import IntakeLag

MAX_SAMPLES_IN_MEMORY = 30_000_000
"""20 bytes each; more are written to a temporary store."""


@dataclass(slots=True)
class LoadedInputs:
    """What the inputs hold, and the detected format of each file. A sink for readers until ``finish``."""

    store: MemoryStore = field(default_factory=MemoryStore)
    trajectories: Trajectories = field(default_factory=Trajectories)
    inputs: list[Input] = field(default_factory=list)
    metric_backend: MetricBackend | None = None
    """The measurements; None if no input has any."""
    paths: tuple[str, ...] = ()
    """Logs whose rows are not loaded, but which matter when logs are assigned to jobs."""
    home: frozenset[str] | None = None
    """The logs that came in one folder with the job's; None: all did."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Path of a log whose job is known, whatever its file name -> the job's id."""
    job: str | None = None
    """The job to choose; None: the one that the inputs are about."""
    as_of: float | None = None
    """The present, POSIX seconds, according to a bundle's verdict."""
    on_source: Callable[[InputSource], None] | None = None
    """Called with each source before it is read: a bundle stores what a site returned."""
    lags: Sequence[IntakeLag] = ()
    """What a store's receiver accepted and is not in the store yet."""
    last_arrival: float | None = None
    """When the last data of the job arrived in a store or server, POSIX seconds; None if none did, or not known."""
    _memory: MemoryBackend | None = None
    _spill: Spill | None = None
    _finished: bool = False

    def event(self, event: Event) -> None:
        """Take one event from a reader."""
        if event.kind == "progress":
            self.trajectories.add(event)
        else:
            self.store.add_event(event)

    def record(self, record: Record) -> None:
        """Take one record from a reader."""
        self.store.add_record(record)

    def samples(self, samples: Samples) -> None:
        """Take measurements from a reader."""
        if self._spill is not None:
            self._spill.add(samples)
            return
        if self._memory is None:
            self.metric_backend = self._memory = MemoryBackend()
        self._memory.add(samples)
        if len(self._memory) > MAX_SAMPLES_IN_MEMORY:
            from trackside.stores.embedded.spill import Spill  # imports DuckDB

            self._spill, self._memory, self.metric_backend = Spill(self._memory), None, None

    def read(self, source: InputSource | Input) -> None:
        """Read a source, or record why it cannot be read."""
        if self.on_source is not None and isinstance(source, InputSource):
            self.on_source(source)
        row = read_source(source, self) if isinstance(source, InputSource) else source
        self.inputs.append(row)
        if row.plane is not None and row.status in ("read", "partial"):
            self.store.planes.add(row.plane)

    def load(self, paths: Paths, on_progress: ProgressCallback | None = None) -> None:
        """Read everything under the paths. Raises FileNotFoundError for a missing path, and StoreError."""
        for path in paths:
            if not os.path.lexists(path):
                raise FileNotFoundError(f"no such file or folder: {os.fspath(path)}")
            if Directory(path).exists:
                raise StoreError(f"{os.fspath(path)} is a store: give it as the store, not among the paths")
        if len(paths) == 1:
            job, self.as_of = recorded_job_and_time(paths[0])
            self.job = self.job or job
        for source in walk(paths, on_progress):
            self.read(source)

    def finish(self) -> None:
        """Call after everything was read; a second call changes nothing."""
        if self._finished:
            return
        self._finished = True
        if "log" not in self.store.planes:  # if no log has any line, an empty one is evidence: the job wrote nothing
            for row in self.inputs:
                if row.status == "empty" and (event := empty_output(row.path)) is not None:
                    self.event(event)
        if self._spill is not None:
            self.metric_backend = self._spill.backend()

    def resolve_run(self) -> ResolvedRun:
        """The run to choose and its rows, without logged steps and metrics. Raises SeveralRuns or NoSuchRun."""
        paths = [*self.trajectories.paths, *self.paths]
        return resolve(self.store, self.job, paths, self.home, self.owners, self.trajectories)

    @property
    def readable(self) -> bool:
        """Whether any input could be read."""
        return self.metric_backend is not None or any(row.status in ("read", "partial") for row in self.inputs)
