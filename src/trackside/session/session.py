"""One run with its evidence and verdict: what the packages above work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from trackside.catalog.job_states import Stage
from trackside.evidence import Answer
from trackside.facts.fact import Facts
from trackside.finding import PendingEvidence, Verdict
from trackside.model import Input, Run
from trackside.query import Query
from trackside.session import settling
from trackside.session.choice import choose_run
from trackside.session.earlier_runs import judge_earlier_runs
from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import MetricBackend
from trackside.verdict import engine
from trackside.version import package_version


@dataclass(slots=True)
class Session:
    """A run, the store with its rows and metrics, and the loaded inputs that it was chosen from.

    ``as_of``: POSIX seconds taken as the present for a run that is still going. ``queried``: servers and commands that
    were queried, as a verdict names them. ``files``: the files that were read, including those that Slurm named.
    """

    run: Run
    store: MemoryStore
    loaded: LoadedInputs = field(default_factory=LoadedInputs)
    as_of: float | None = None
    stage: Stage = "unknown"
    """Whether the job is still going, according to the site's Slurm."""
    queried: tuple[str, ...] = ()
    files: Paths = ()
    servers: Sequence[MetricBackend] = ()
    """The site's metric servers."""
    now: float | None = None
    """When the evidence was collected, POSIX seconds; None if another time was given as the present."""
    _facts: Facts | None = None
    _verdict: Verdict | None = None

    @classmethod
    def of(cls, loaded: LoadedInputs, as_of: float | None = None, files: Paths = (), now: float | None = None) -> Self:
        """A session on the job to choose from loaded inputs. ``now``: when reading began; ignored if a time is taken as
        the present. Raises SeveralRuns or NoSuchRun."""
        as_of = loaded.as_of if as_of is None else as_of
        return cls(*choose_run(loaded, as_of), loaded, as_of, files=files, now=now if as_of is None else None)

    @property
    def inputs(self) -> Sequence[Input]:
        """Each input with its detected format and status."""
        return self.loaded.inputs

    def ask(self, query: Query) -> Answer:
        """Answer a query from the evidence: see :class:`trackside.evidence.Store`."""
        return self.store.ask(query)

    @property
    def facts(self) -> Facts:
        """The facts of the run, each derived once; facts that preflight does not trust are missing."""
        if self._facts is None:
            self._facts = engine.facts_of(self.store, self.run)
        return self._facts

    def verdict(self) -> Verdict:
        """The verdict, computed once. Raises NothingReadable if the files or the site hold nothing about the run."""
        if self._verdict is None:
            self._verdict = self._diagnose()
        return self._verdict

    def _unsettled(self) -> PendingEvidence | None:
        """Whether more evidence may still come; not if a time was given as the present."""
        return None if self.now is None else settling.by_arrival(self.loaded.last_arrival, self.now)

    def _diagnose(self) -> Verdict:
        verdict = engine.verdict_of(self.facts, self.inputs, package_version(), self._unsettled())
        return replace(verdict, earlier=judge_earlier_runs(self.loaded, self.run))
