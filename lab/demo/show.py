"""Plays the faults side by side, asks for a verdict on each, and says which are right."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence

from lab.demo.fault import Fault, Play
from lab.demo.outcome import Outcome, judged
from lab.demo.site import Site
from lab.stage import RunFailed, Stage

SETTLES_S = 8.0
"""After a job's end: for what the agents still have to send, and for accounting."""
BETWEEN_S = 1.5
"""Between two submissions: most of the work is to start torch."""
OPTIONS = ("--mem=2000",)
HEADER = "export OMP_NUM_THREADS=1 STANDIN_GPU_BOARD={board}\n"
MAX_WAIT_S = 420.0


class Show:
    """The demonstration on a site that is up."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self.site, self.say = site, say
        self.stop = threading.Event()

    def play(self, faults: Sequence[Fault]) -> list[Outcome]:
        """Play all faults at the same time, each in a thread of its own."""
        done: queue.Queue[Outcome] = queue.Queue()
        try:
            for fault in faults:
                threading.Thread(target=lambda fault=fault: done.put(self._one(fault)), daemon=True).start()
                time.sleep(BETWEEN_S)
            outcomes = {outcome.fault.name: outcome for outcome in (done.get(timeout=MAX_WAIT_S) for _ in faults)}
        except queue.Empty:
            raise RunFailed(f"some faults had not come to an end after {MAX_WAIT_S:.0f} s") from None
        finally:
            self.stop.set()
        return [outcomes[fault.name] for fault in faults]

    def wait_epilog(self, outcomes: Sequence[Outcome], within_s: float = 60) -> list[str]:
        """What of the verdicts that Slurm's epilog left by itself differs from those that were asked for, or is not
        there."""
        end = time.monotonic() + within_s
        while (
            left := [family_ for outcome in outcomes if (family_ := self._epilogs(outcome))]
        ) and time.monotonic() < end:
            time.sleep(0.5)
        errors = self.site.verdicts / "errors.log"
        return [*left, *(errors.read_text().splitlines()[-5:] if left and errors.exists() else [])]

    def _epilogs(self, outcome: Outcome) -> str:
        """How the epilog's verdict on a job differs; empty: it doesn't."""
        path = self.site.verdicts / f"{outcome.job}.json"
        if outcome.verdict is None:
            return ""
        if not path.exists():
            return f"{outcome.fault.name}: the epilog left no {path.name}"
        family = json.loads(path.read_text())["primary"]["family"]
        expected_family = outcome.primary["family"]
        return (
            ""
            if family == expected_family
            else f"{outcome.fault.name}: the epilog's {path.name} says {family}, not {expected_family}"
        )

    def _one(self, fault: Fault) -> Outcome:
        job = ""
        try:
            play = self._submit(fault)
            job = play.job.number
            if fault.inject is not None:
                fault.inject(play)
            account = self.site.accounts.wait_over(job, fault.state, fault.seconds)
            play.pause(SETTLES_S)
            verdict = self.site.receiver.diagnose(job)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is this fault's row
            if not self.stop.is_set():
                self.say(f"{fault.name}: {error}")
            return Outcome(fault, job, "", None, None, (str(error) or type(error).__name__,))
        seconds = time.time() - (account.end or 0.0)
        (self.site.answers_folder / f"{fault.name}.json").write_text(json.dumps(verdict, indent=1))
        wrong = judged(fault, account.state, verdict, self.site.cluster.nodes)
        outcome = Outcome(fault, job, account.state, verdict, seconds, wrong)
        self.say(f"{fault.name}: {outcome.title}{'' if outcome.right else ': WRONG, ' + '; '.join(wrong)}")
        return outcome

    def _submit(self, fault: Fault) -> Play:
        work = self.site.jobs / fault.name
        work.mkdir()
        stage = Stage(work, like=self.site.like)
        cluster = self.site.cluster
        where = ",".join(node for number, node in enumerate(cluster.nodes, 1) if str(number) not in fault.nodes)
        options = (*OPTIONS, f"--exclude={where}", *fault.options)
        header = HEADER.format(board=self.site.gpus.board)
        if fault.parent:
            parent = cluster.submit(stage, header + fault.parent, *options, name=f"{fault.name}-1")
            options = (*options, f"--dependency=afterok:{parent.number}")
        job = cluster.submit(stage, header + fault.script, *options, name=fault.name)
        return Play(cluster, self.site.agents, stage, job, self.stop)
