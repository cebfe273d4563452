"""From hanging processes to the line of code in the verdict: over HTTP, through a real receiver and its store."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import trackside
from tests.agent.hanging import Jobs, collect_until, hang_collector, is_hang_reported, running
from tests.families.rows import sentence_name
from tests.serve.receiving import JSON, RunningReceiver
from trackside.agent.source import LogLine
from trackside.catalog.job_states import is_active
from trackside.finding import Certainty, Verdict, claim_sentence
from trackside.session.choice import choose_run
from trackside.session.paths import load
from trackside.show.document import document, encode
from trackside.stores.receiver.options import RetentionOptions, ServeOptions

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

LIBRARY = """
import os, time

def all_reduce(step, ranks):
    open(f"there-{os.environ['RANK']}-{step}", "w").close()
    while not all(os.path.exists(f"there-{rank}-{step}") for rank in range(ranks)):
        time.sleep(0.05)
"""
"""A file-based collective in place of PyTorch's."""
TRAINING = """
import sys, time
sys.path.insert(0, "site-packages")
from torch.distributed.distributed_c10d import all_reduce

rank, ranks = int(sys.argv[1]), int(sys.argv[2])


def load_batch(step):
    if rank == 1 and step == 12:
        time.sleep(10000)


def train():
    for step in range(100):
        load_batch(step)
        all_reduce(step, ranks)
        if rank == 0:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(f"{now} step {step} loss {2.5 / (step + 1):.4f}", flush=True)
        time.sleep(0.1)


train()
"""
ASLEEP, WAITING = (
    1 + TRAINING.splitlines().index(line) for line in ("        time.sleep(10000)", "        all_reduce(step, ranks)")
)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    server = RunningReceiver(ServeOptions(store=str(tmp_path / "store"), keeping=RetentionOptions(flush_s=3600.0)))
    yield server
    server.close()


def push(receiver: RunningReceiver, lines: Sequence[LogLine]) -> None:
    """Push lines as the agent's sender does: it adds the node and makes one stream of lines with equal labels."""
    streams = defaultdict(list)
    for line in lines:
        streams[line.labels].append([str(line.time_ns), line.text])
    body = {"streams": [{"stream": {**dict(labels), "node": "n1"}, "values": rows} for labels, rows in streams.items()]}
    assert receiver.ask("/loki/api/v1/push", json.dumps(body).encode(), JSON).status == 204


def lines_of_hung_job(folder: Path, program: str) -> list[LogLine]:
    """What the agent sends of a program with three ranks: their output and the hang report."""
    library = folder / "site-packages" / "torch" / "distributed"
    library.mkdir(parents=True)
    (library / "distributed_c10d.py").write_text(LIBRARY)
    with running(program, folder, ranks=3) as processes:
        report = collect_until(hang_collector(Jobs(*(process.pid for process in processes))), is_hang_reported, 40.0)
    output = (folder / "slurm-4242.out").read_text().splitlines()
    labels = (("filename", "slurm-4242.out"), ("slurm_job_id", "4242"), ("stream", "stdout"))
    begin = time.time_ns() - 120 * 10**9
    return [*(LogLine(begin + n, labels, text) for n, text in enumerate(output)), *report.lines]


def diagnose_job(receiver: RunningReceiver, tmp_path: Path) -> Verdict:
    receiver.intake.flush(True).result(30)
    return trackside.diagnose(store=tmp_path / "store", job="4242")


def sentences(verdict: Verdict) -> str:
    running = is_active(verdict.run.disposition)
    return "\n".join(claim_sentence(claim, running) for claim in verdict.primary.shows)


def test_the_verdict_names_the_line_where_the_missing_rank_stayed(receiver: RunningReceiver, tmp_path: Path) -> None:
    lines = lines_of_hung_job(tmp_path / "job", TRAINING)
    push(receiver, lines)
    push(receiver, lines)  # again, as after a lost response
    verdict = diagnose_job(receiver, tmp_path)
    assert (verdict.family, verdict.primary.ranks, verdict.primary.culprit) == ("C2", (1,), "job")
    assert verdict.primary.certainty is Certainty.SUPPORTED
    assert not verdict.primary.cannot_decide
    text = sentences(verdict)
    assert f"Ranks 0 and 2 waited in all_reduce, at train.py:{WAITING} in train" in text
    assert f"Rank 1 did not reach it: the stack shows train.py:{ASLEEP} in load_batch" in text
    assert f"train.py:{ASLEEP}" in encode(document(verdict)).decode()
    assert verdict.progress is not None
    assert verdict.progress.points == 12


def test_stack_lines_do_not_count_as_output_of_the_job(receiver: RunningReceiver, tmp_path: Path) -> None:
    """The agent writes its lines after the silence began."""
    push(receiver, lines_of_hung_job(tmp_path / "job", TRAINING))
    receiver.intake.flush(True).result(30)
    _, store = choose_run(load([tmp_path / "store" / "received" / "logs"], job="4242"))
    logs = [row for row in store.all_rows() if row.kind == "log_activity"]
    assert [row.get("lines") for row in logs] == [12]


def test_stacks_do_not_affect_another_job_of_the_node(receiver: RunningReceiver, tmp_path: Path) -> None:
    """The stacks of one job are not evidence for another job."""
    lines = lines_of_hung_job(tmp_path / "job", TRAINING)
    push(receiver, lines)
    lines_of_other_job = [
        LogLine(
            lines[0].time_ns + n, (("filename", "slurm-77.out"), ("slurm_job_id", "77")), f"step {n} loss {9 - n}.5"
        )
        for n in range(8)
    ]
    push(receiver, lines_of_other_job)
    receiver.intake.flush(True).result(30)
    verdict = trackside.diagnose(store=tmp_path / "store", job="77")
    assert verdict.family not in ("C2", "C3")
    assert diagnose_job(receiver, tmp_path).family == "C2"


def test_a_hang_in_all_ranks_names_their_common_line(receiver: RunningReceiver, tmp_path: Path) -> None:
    push(receiver, lines_of_hung_job(tmp_path / "job", TRAINING.replace("rank == 1 and ", "")))
    verdict = diagnose_job(receiver, tmp_path)
    assert (verdict.family, verdict.primary.ranks) == ("C3", (0, 1, 2))
    assert f"The stack of ranks 0-2 shows train.py:{ASLEEP} in load_batch" in sentences(verdict)
    assert "absence_unexplained" not in [sentence_name(claim) for claim in verdict.primary.cannot_decide]
