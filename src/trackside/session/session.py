"""One run and all that is known of it: what everybody above is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from trackside.catalog.job_states import Stage
from trackside.evidence import Answer
from trackside.facts.fact import Facts
from trackside.finding import Verdict
from trackside.model import Input, Run
from trackside.query import Query
from trackside.session.choice import choose
from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import MetricBackend
from trackside.verdict import engine
from trackside.version import package_version


@dataclass(slots=True)
class Session:
    """A run, the store that holds its rows and metrics, and the loaded inputs that it was chosen from.

    ``as_of``: POSIX seconds taken as the present for a run still going. ``asked``: servers and commands, as a verdict
    names them. ``files``: what was read of files, those that Slurm named included.
    """

    run: Run
    store: MemoryStore
    loaded: LoadedInputs = field(default_factory=LoadedInputs)
    as_of: float | None = None
    stage: Stage = "unknown"
    """Whether the job still goes on, as the site's Slurm has it."""
    asked: tuple[str, ...] = ()
    files: Paths = ()
    servers: Sequence[MetricBackend] = ()
    """The site's servers of metrics."""
    _facts: Facts | None = None
    _verdict: Verdict | None = None

    @classmethod
    def of(cls, loaded: LoadedInputs, as_of: float | None = None, files: Paths = ()) -> Self:
        """The session on the job to choose of loaded inputs. Raises SeveralRuns or NoSuchRun."""
        as_of = loaded.as_of if as_of is None else as_of
        return cls(*choose(loaded, as_of), loaded, as_of, files=files)

    @property
    def inputs(self) -> Sequence[Input]:
        """What each input was taken for."""
        return self.loaded.inputs

    def ask(self, query: Query) -> Answer:
        """What the evidence says: see :class:`trackside.evidence.Store`."""
        return self.store.ask(query)

    @property
    def facts(self) -> Facts:
        """What follows from the evidence, each fact derived once; what preflight does not trust is missing."""
        if self._facts is None:
            self._facts = engine.facts_of(self.store, self.run)
        return self._facts

    def verdict(self) -> Verdict:
        """What went wrong, judged once. Raises NothingReadable where files or a site hold nothing of the run."""
        if self._verdict is None:
            self._verdict = self._judged()
        return self._verdict

    def _judged(self) -> Verdict:
        return engine.verdict_of(self.facts, self.inputs, package_version())
