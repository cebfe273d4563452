"""Plays the faults at the same time, requests a verdict on each, and checks it."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lab.demo.fault import DemoFault, SubmittedFault
from lab.demo.outcome import FaultResult, mismatches
from lab.demo.site import DemoSite
from lab.stage import RunFailed, Stage

SETTLE_S = 8.0
"""Time after a job's end for the agents to send the rest, and for accounting."""
SUBMIT_INTERVAL_S = 1.5
"""Time between two submissions, because starting torch takes most of the CPU."""
OPTIONS = ("--mem=2000",)
HEADER = "export OMP_NUM_THREADS=1 STANDIN_GPU_BOARD={board}\n"
COMPARED_CHARS = 60
"""Of a verdict's paragraph and the job's comment."""
MAX_WAIT_S = 420.0
TAIL_LINES, TAIL_CHARS = 30, 160
"""How much of the output of a job is printed below a wrong verdict."""


class Demo:
    """The demonstration on a running site."""

    def __init__(self, site: DemoSite, say: Callable[[str], None]) -> None:
        self.site, self.say = site, say
        self.stop = threading.Event()

    def play(self, faults: Sequence[DemoFault]) -> list[FaultResult]:
        """Play all faults at the same time, each in its own thread."""
        results: queue.Queue[FaultResult] = queue.Queue()
        try:
            for fault in faults:
                threading.Thread(target=lambda fault=fault: results.put(self._play_fault(fault)), daemon=True).start()
                time.sleep(SUBMIT_INTERVAL_S)
            outcomes = {outcome.fault.name: outcome for outcome in (results.get(timeout=MAX_WAIT_S) for _ in faults)}
        except queue.Empty:
            raise RunFailed(f"some faults did not end within {MAX_WAIT_S:.0f} s") from None
        finally:
            self.stop.set()
        return [outcomes[fault.name] for fault in faults]

    def wait_epilog(self, outcomes: Sequence[FaultResult], within_s: float = 60) -> list[str]:
        """The verdicts of Slurm's epilog that are missing or differ from the requested ones, as one line each."""
        end = time.monotonic() + within_s
        while (
            problems := [text for outcome in outcomes if (text := self._epilog_problem(outcome))]
        ) and time.monotonic() < end:
            time.sleep(0.5)
        errors = self.site.verdicts / "errors.log"
        return [*problems, *(errors.read_text().splitlines()[-5:] if problems and errors.exists() else [])]

    def _epilog_problem(self, outcome: FaultResult) -> str:
        """How the epilog's verdict on a job differs from the requested one; empty if it does not."""
        path = self.site.verdicts / f"{outcome.job}.json"
        if outcome.verdict is None:
            return ""
        if not path.exists():
            return f"{outcome.fault.name}: the epilog wrote no {path.name}"
        family = json.loads(path.read_text())["primary"]["family"]
        expected_family = outcome.primary["family"]
        if family != expected_family:
            return f"{outcome.fault.name}: the epilog's {path.name} says {family}, not {expected_family}"
        comment = self.site.cluster.ask("sacct", "-j", outcome.job, "-X", "-n", "-P", "-o", "AdminComment").strip()
        text = path.with_suffix(".txt")
        headline = text.read_text()[:COMPARED_CHARS] if text.exists() else "no text"
        is_there = _letters(comment).startswith(_letters(f"Trackside: {headline}"))
        return "" if is_there else f"{outcome.fault.name}: the comment of job {outcome.job} is {comment!r}"

    def _play_fault(self, fault: DemoFault) -> FaultResult:
        job = ""
        try:
            play = self._submit(fault)
            job = play.job.number
            if fault.inject is not None:
                fault.inject(play)
            account = self.site.accounts.wait_over(job, fault.state, fault.seconds)
            play.pause(SETTLE_S)
            verdict = self._final_verdict(play, fault, account.state)
        except Exception as error:  # noqa: BLE001 - any error becomes this fault's row
            if not self.stop.is_set():
                self.say(f"{fault.name}: {error}")
            return FaultResult(fault, job, "", None, None, (str(error) or type(error).__name__,))
        seconds = time.time() - (account.end or 0.0)
        (self.site.answers_folder / f"{fault.name}.json").write_text(json.dumps(verdict, indent=1))
        texts = mismatches(fault, account.state, verdict, self.site.cluster.nodes)
        output_tail = "" if not texts or not play.job.log.exists() else _tail(play.job.log.read_text(errors="replace"))
        outcome = FaultResult(fault, job, account.state, verdict, seconds, texts, output_tail)
        self.say(f"{fault.name}: {outcome.title}{'' if outcome.is_right else ': WRONG, ' + '; '.join(texts)}")
        return outcome

    def _final_verdict(self, play: SubmittedFault, fault: DemoFault, state: str) -> dict[str, Any]:
        """The first verdict if it is right; else, if it says that it is not settled yet, the one after that time."""
        verdict = self.site.receiver.diagnose(play.job.number)
        unsettled = verdict.get("unsettled")
        if (
            not unsettled
            or unsettled["until"] is None
            or not mismatches(fault, state, verdict, self.site.cluster.nodes)
        ):
            return verdict
        self.say(f"{fault.name}: not settled yet ({unsettled['reason']}); asking again")
        play.pause(max(0.0, unsettled["until"] - time.time()) + 1)
        return self.site.receiver.diagnose(play.job.number)

    def _submit(self, fault: DemoFault) -> SubmittedFault:
        work = self.site.jobs / fault.name
        work.mkdir()
        stage = Stage(work, template=self.site.template)
        cluster = self.site.cluster
        excluded_nodes = ",".join(
            node for number, node in enumerate(cluster.nodes, 1) if str(number) not in fault.nodes
        )
        options = (*OPTIONS, f"--exclude={excluded_nodes}", *fault.options)
        header = HEADER.format(board=self.site.gpus.board)
        if fault.parent:
            parent = cluster.submit(stage, header + fault.parent, *options, name=f"{fault.name}-1")
            options = (*options, f"--dependency=afterok:{parent.number}")
        job = cluster.submit(stage, header + fault.script, *options, name=fault.name)
        return SubmittedFault(cluster, self.site.agents, stage, job, self.stop)


def _tail(output: str) -> str:
    return "\n".join(f"  output   {line[:TAIL_CHARS]}" for line in output.splitlines()[-TAIL_LINES:])


def _letters(text: str) -> str:
    """Letters and digits alone: sacctmgr changes case and quotes of a comment."""
    return "".join(char for char in text.lower() if char.isalnum())
