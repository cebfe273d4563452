"""Families D to H on events built by hand: what they find, what they must not, and what they cannot tell."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from trackside.families import families, find_family
from trackside.finding import Certainty, Finding, Outcome
from trackside.logs.scan import scan_text
from trackside.model import Event, Plane, Position, Record, Role, Run
from trackside.show.wording import sentence
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine
from trackside.verdict.arbiter import arbitrate

NAN = math.nan
FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
OURS = ("D1", "D2", "D3", "E1", "E2", "E3", "F1", "F2", "F3", "G1", "H1", "H2", "H3", "H4")
Row = Event | Record


def ev(kind: str, line: int = 1, role: Role = Role.FACT, **fields: Any) -> Event:
    known = {name: fields.pop(name) for name in ("text", "time", "rank", "node") if name in fields}
    plane: Plane = fields.pop("plane", "log")
    path = fields.pop("path", "train.log")
    return Event(kind, Position(path, line, line * 100), plane, role=role, fields=fields, **{"text": kind, **known})


def job(state: str, line: int = 2, **fields: Any) -> Record:
    fields = {"id": "7", "state": state, "start": 1000.0, "end": 2000.0, "source": "sacct", **fields}
    return Record("job", Position("sacct.txt", line), "scheduler", fields)


def curve(losses: Iterable[float | None], every: int = 10, kind: str = "progress", **fields: Any) -> list[Row]:
    rows: list[Row] = []
    for i, loss in enumerate(losses, 1):
        told: dict[str, Any] = {"step": i * every, "loss": loss, "framework": "hf-trainer", **fields}
        told = {name: value(i) if callable(value) else value for name, value in told.items()}
        time = told.pop("time", 1000.0 + 10 * i)
        rows.append(ev(kind, 10 + i, time=time, **{k: v for k, v in told.items() if v is not None}))
    return rows


def raised(name: str, message: str, line: int = 500, about: str = "application", **fields: Any) -> Event:
    return ev("exception", line, Role.ROOT, type=name, message=message, about=about, **fields)


def store(*rows: Row | list[Row], planes: tuple[Plane, ...] = ("log", "scheduler")) -> MemoryStore:
    flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
    return MemoryStore(
        [row for row in flat if isinstance(row, Event)], [row for row in flat if isinstance(row, Record)], planes
    )


def judge(code: str, where: MemoryStore, run: Run | None = None) -> Finding:
    family = find_family(code)
    assert family is not None
    finding = engine.judge_all(where, run or Run(), [family])[0]
    for said in (*finding.shows, *finding.implies, *finding.cannot_decide, *finding.because):
        sentence(family.says[said.key], said.values)
    for act in finding.actions:
        assert act.key in family.says
    return finding


def primary(where: MemoryStore, run: Run | None = None) -> Finding:
    chosen = [family for family in families() if family.code in (*OURS, "U0")]
    return arbitrate(engine.judge_all(where, run or Run(), chosen), chosen).primary


FALLING = [4.0 - 0.1 * i for i in range(30)]
DONE = ev("training_end", 900, text="train_runtime", status="success")
STEPS = {"every": 1}


# -- contract


def test_every_family_is_documented_and_says_no_digits() -> None:
    for code in OURS:
        family = find_family(code)
        assert family is not None
        assert all(family.sections().get(heading) for heading in family.sections())
        assert len(family.sections()) == 7
        assert not any(any(char.isdigit() for char in text) for text in family.says.values()), code


@pytest.mark.parametrize("code", OURS)
def test_blind_is_unknown(code: str) -> None:
    """With no input of the planes that it needs, a family does not know."""
    finding = judge(code, MemoryStore())
    assert finding.outcome is UNKNOWN
    assert finding.missing


# -- E1


@pytest.mark.parametrize(
    ("rows", "variant"),
    [
        (curve([5.0, 4.0, 3.0, NAN, NAN, NAN]), "non-finite"),
        (curve([5.6, 5.3, NAN, 5.7, 5.6, NAN, 5.1, NAN, 5.9, 6.1, NAN]), "non-finite"),
        (curve([900.0, 1200.0, 0.0, 0.0, 0.0, 0.0], grad_norm=lambda i: 80.0 if i < 3 else NAN), "non-finite"),
        (curve([2.1, 1.9, 1.8, 0.0, 0.0, 0.0]), "non-finite"),
        (curve([None] * 3 + [None] * 6, nan_iterations=lambda i: None if i < 3 else 1), "non-finite"),
        (curve([None] * 6, skipped=lambda i: 10 * i), "non-finite"),
        (curve([48810226.31, NAN, NAN, NAN]), "non-finite"),
        (curve([2.0, 1.9, 2.1, 5.0, 9.0, 11.0, 11.5, 11.9, 11.8, 11.9, 11.9, 11.8]), "diverging"),
        (curve([144.2, 252.1, 267.8, 270.9, 246.6, 222.7, 206.6, 191.9, 126.5, 243.5, 143.5, 145.4]), "diverging"),
        (curve([21.05, 50.59, 43.7, 29.8, 26.1, 18.2, 13.4, 10.9, 9.4, 11.5, 9.4, 10.4]), "diverging"),
        (curve([579000.0] + [5.198] * 19, grad_norm=0.0), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(25)] + [7.9, 7.8, 8.0, 7.9, 7.8, 7.9, 7.9, 7.8] * 3), "plateau"),
        (curve([8.0, 5.0, 2.0] + [1.15, 1.16, 1.14] * 9, grad_norm=lambda i: 2.0 if i < 6 else 3e-4), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(20)] + [7.9, 10.4] + [11.9, 11.88, 11.92, 11.9] * 8), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(20)] + [8.0 + 0.2 * i for i in range(14)]), "diverging"),
        (curve([4.3 + 0.1 * (i * 7 % 11) / 11 for i in range(20)], lr=0.0), "flat"),
        (curve([4.3, 4.5, 4.33, 4.31, 4.29, 4.35] * 3, grad_norm=0.0), "flat"),
        (curve([4.3053, 4.4975, 4.3301, 4.3419, 4.2965, 4.3775] * 5, framework="nanogpt"), "flat"),
        (curve([2.3026 + 0.002 * (i * 7 % 11 - 5) for i in range(30)], framework="generic"), "flat"),
    ],
)
def test_e1_finds_each_shape(rows: list[Row], variant: str) -> None:
    finding = judge("E1", store(rows, DONE))
    assert (finding.outcome, finding.variant, finding.culprit) == (FOUND, variant, "job")


@pytest.mark.parametrize(
    "rows",
    [
        curve(FALLING),
        curve([3.0, 2.5, 2.2, 15.0, 2.3, 2.1, 2.0, 1.9, 1.8, 1.8, 1.7, 1.7]),  # a spike that recovers
        curve([*FALLING, NAN, *(1.0 - 0.01 * i for i in range(40))]),  # one overflow
        curve([0.0, 0.01, 0.0, 0.02, 0.03, 0.05, 0.06, 0.08], objective="grpo", reward=lambda i: 0.1 * i),
        curve([-0.1, -0.2, -0.9, -0.3, -0.5, -0.2, 0.4, 0.9]),  # no distance from the truth
        curve([0.693, 0.65, 0.5, 0.31, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]),  # converged to a printed zero
        curve([2.5, 1.0, 0.5] + [0.05, 0.06, 0.055, 0.05] * 6),  # a low plateau
        curve([8.0, 5.0, 2.0] + [1.15, 1.16, 1.14] * 9, grad_norm=lambda i: 2.0 if i < 6 else 0.2),  # converged
        curve([1.10, 1.16, 1.05, 1.2, 1.02, 1.1, 1.13, 1.07, 1.0, 1.1] * 3),  # a fine-tune that hardly moves
        curve([3.0, 2.9, 2.7, 2.5, 2.3, 2.2], grad_norm=lambda i: 2.0**i),  # only the gradient norm rises
        curve([0.31, 0.29, 0.3, 0.28, 0.3, 0.31] * 3, every=10, step=lambda i: 5000 + 10 * i, lr=1e-9),  # a tail
        curve([10.98, 10.97, 10.97, 10.96, 10.96, 10.95] * 4, total_steps=100000, framework="megatron"),  # warm-up
        [*curve(FALLING), *curve([NAN] * 20, split="eval")],
    ],
)
def test_e1_leaves_healthy_shapes(rows: list[Row]) -> None:
    assert judge("E1", store(rows)).outcome is ABSENT


def test_e1_needs_points() -> None:
    assert judge("E1", store(curve([7.6, 7.1]))).outcome is UNKNOWN
    assert judge("E1", store(ev("log_activity"))).outcome is UNKNOWN


def test_e1_explains_the_abort_that_it_caused() -> None:
    rows = store(curve([5.0, 4.0, NAN]), raised("RuntimeError", "loss is nan at step 30"), job("FAILED"))
    assert primary(rows).family == "E1"
    assert judge("E1", store(raised("ValueError", "Loss is nan, stopping training"))).variant == "non-finite"
    assert judge("E1", store(curve(FALLING), raised("ValueError", "input holds a nanometre"))).outcome is ABSENT


def test_e1_reads_a_score_that_collapses() -> None:
    scores: list[Row] = [
        ev("evaluation", 50 + i, metric="eval_accuracy", value=v) for i, v in enumerate([0.85, 0.88, 0.89, 0.0])
    ]
    assert judge("E1", store(scores)).variant == "diverging"
    losses: list[Row] = [ev("evaluation", 50 + i, metric="eval_loss", value=v) for i, v in enumerate([0.8, 0.0])]
    assert judge("E1", store(losses)).outcome is UNKNOWN


# -- E2


def child(parent_by: str = "dependency") -> Run:
    return Run(id="8", parent="7", parent_by=parent_by)


PARENT = curve([6.4, 3.4, 2.0, 1.5, 1.2, 1.1], kind="parent_progress", path="parent.log")


def test_e2_silent_start_over() -> None:
    finding = judge("E2", store(PARENT, curve([6.4, 3.4, 2.0, 1.4, 1.2, 1.0])), child())
    assert (finding.outcome, finding.variant, finding.certainty) == (FOUND, "silent", Certainty.ESTABLISHED)


def test_e2_leaves_a_resume_that_worked() -> None:
    on = curve([1.05, 1.0, 0.9], step=lambda i: 60 + 10 * i)
    assert judge("E2", store(PARENT, on), child()).outcome is ABSENT
    marker = ev("checkpoint_loaded", 5, text="resumed from ckpt.pt", step=60)
    assert judge("E2", store(PARENT, marker, curve([6.0, 3.0, 2.0])), child()).outcome is ABSENT
    weights_only = curve([1.1, 1.0, 0.9])  # steps restart, the loss does not
    assert judge("E2", store(PARENT, weights_only), child()).outcome is ABSENT


def test_e2_missing_checkpoint_is_a_warning_on_a_first_run() -> None:
    gone = ev("checkpoint_missing", 5, text="could not find the metadata file", what="metadata file")
    assert judge("E2", store(gone)).certainty is Certainty.POSSIBLE
    assert primary(store(gone, curve(FALLING), DONE, job("COMPLETED"))).family == "G1"
    again = store(gone, curve(FALLING), job("COMPLETED", restarts=1))
    assert judge("E2", again, child("requeue")).certainty is Certainty.SUPPORTED


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Error(s) in loading state_dict for Lit: size mismatch for fc.weight", "config"),
        ("PytorchStreamReader failed reading zip archive: failed finding central directory", "asset"),
    ],
)
def test_e2_crash_at_the_load(message: str, kind: str) -> None:
    finding = judge("E2", store(raised("RuntimeError", message, about="checkpoint")))
    assert (finding.variant, finding.fault_class, finding.exception) == ("crash", kind, ("RuntimeError", message))


def test_e2_leaves_a_failed_save_to_storage() -> None:
    broken = raised("RuntimeError", "PytorchStreamWriter failed writing file data/7", about="checkpoint")
    assert judge("E2", store(broken)).outcome is ABSENT
    assert judge("H4", store(curve(FALLING), broken, job("FAILED"))).variant == "full"


# -- E3


def test_e3_counts_steps_not_lines() -> None:
    assert judge("E3", store(curve([5.2, 5.1, 5.1], **STEPS), DONE, job("COMPLETED"))).outcome is FOUND
    silent = ev("training_end", 90, status="success", steps=3)
    assert judge("E3", store(silent, job("COMPLETED"))).outcome is FOUND
    assert judge("E3", store(curve([2.0, 1.9, 1.8], every=500), DONE, job("COMPLETED"))).outcome is ABSENT
    assert judge("E3", store(curve([5.2, 5.1, 5.1], **STEPS), job("FAILED"))).outcome is ABSENT
    assert judge("E3", store(curve([5.2, 5.1, 5.1], **STEPS))).outcome is UNKNOWN


def test_e3_counts_what_the_summary_was_reckoned_from() -> None:
    """Two steps, of which no point was printed: the bar is closed after the summary, and the rate tells the plan."""
    summary = "{'train_runtime': 6.02, 'train_steps_per_second': %s, 'train_loss': 2.11, 'epoch': 0.0}\n"
    bar = "100%|##########| 2/2 [00:06<00:00,  3.01s/it]\n"
    for text in (summary % "0.332", summary % "0.3" + bar):
        finding = judge("E3", store(*scan_text(text), job("COMPLETED")))
        assert (finding.outcome, finding.shows[0].values["steps"].value) == (FOUND, 2)
    coarse = "{'train_runtime': 5000.1, 'train_steps_per_second': 0.3, 'train_loss': 2.1, 'epoch': 1.0}\n"
    assert judge("E3", store(*scan_text(coarse), job("COMPLETED"))).outcome is UNKNOWN, "any of some 250 steps"
    done = summary % "0.332" + "  0%|          | 0/8 [00:00<?, ?it/s]\n"
    assert judge("E3", store(*scan_text(done), job("COMPLETED"))).shows[0].values["steps"].value == 2


def test_e3_smoke_tests_are_meant() -> None:
    finding = judge("E3", store(curve([5.2, 5.1, 5.1], **STEPS), DONE, job("COMPLETED", name="smoke-test")))
    assert finding.latent


# -- D


def timed(data: float, compute: float = 0.05, count: int = 12) -> list[Row]:
    return curve([4 - 0.1 * i for i in range(count)], data_time_s=data, compute_time_s=compute, comm_time_s=0.02)


def test_d1_starved_step() -> None:
    assert judge("D1", store(timed(1.04), job("COMPLETED"))).certainty is Certainty.SUPPORTED
    assert judge("D1", store(timed(0.004), job("COMPLETED"))).outcome is ABSENT
    assert judge("D1", store(timed(1.04, count=6))).outcome is UNKNOWN
    assert primary(store(timed(1.04), DONE, job("COMPLETED"))).family == "D1"
    assert judge("D1", store(timed(1.04), job("FAILED"))).latent


def saves(steps: Iterable[int]) -> list[Row]:
    return [ev("checkpoint_saved", 600 + s, step=s, path=f"out/checkpoint-{s}") for s in steps]


def test_d2_save_storm() -> None:
    points = curve(FALLING, **STEPS)
    assert primary(store(points, saves(range(1, 31)), DONE, job("COMPLETED"))).variant == "save-storm"
    assert judge("D2", store(points, saves([10, 20, 30]), DONE)).outcome is ABSENT
    assert judge("D2", store(curve([5.0, 4.0], **STEPS), saves([1, 2]), DONE)).outcome is UNKNOWN


def test_d2_flag_and_sockets() -> None:
    flag = ev("env_flag", 3, name="CUDA_LAUNCH_BLOCKING", value="1")
    assert judge("D2", store(curve(FALLING), flag, DONE)).variant == "launch-blocking"
    off = ev("env_flag", 3, name="CUDA_LAUNCH_BLOCKING", value="0")
    assert judge("D2", store(curve(FALLING), off, DONE)).outcome is ABSENT
    socket = ev("nccl_transport", 3, transport="socket", nnodes=2, nranks=16)
    finding = judge("D2", store(curve(FALLING), socket, DONE, job("COMPLETED")))
    assert (finding.variant, finding.latent) == ("interconnect", True)
    assert primary(store(curve(FALLING), socket, DONE, job("COMPLETED"))).family == "G1"
    alone = ev("nccl_transport", 3, transport="socket", nnodes=1, nranks=8)
    assert judge("D2", store(curve(FALLING), alone, DONE)).outcome is ABSENT


def ranks(slow: float, steps: int = 25) -> list[Row]:
    return [
        ev("rank_progress", 10 * s + r, rank=r, step=s, compute_time_s=slow if r == 2 else 0.1)
        for s in range(1, steps + 1)
        for r in range(4)
    ]


def test_d3_one_slow_rank() -> None:
    assert judge("D3", store(ranks(0.25))).ranks == (2,)
    assert judge("D3", store(ranks(0.104))).outcome is ABSENT
    assert judge("D3", store(ranks(0.25, steps=5))).outcome is UNKNOWN


# -- F


def notice(reason: str, line: int = 800, text: str = "", **fields: Any) -> Event:
    return ev("scheduler_notice", line, Role.ROOT, reason=reason, text=text or f"CANCELLED DUE TO {reason}", **fields)


def test_f1_names_the_node() -> None:
    told = notice("node_failure", node="n3", text="srun: error: Node failure on n3")
    rows = store(curve(FALLING), told, job("NODE_FAIL"))
    finding = primary(rows, Run(nodes=("n2", "n3"), start=1000.0, end=2000.0))
    assert (finding.family, finding.nodes, finding.culprit) == ("F1", ("n3",), "infrastructure")


@pytest.mark.parametrize(("complained", "first"), [(1750.0, "F1"), (1250.0, "C2")])
def test_f1_is_noticed_later_than_it_happens(complained: float, first: str) -> None:
    """Peers complain at once, the controller gives a node up after SlurmdTimeout; not of a hang long before it."""
    trained = curve(FALLING, time=lambda i: complained - 300 + 10 * i)
    lost = ev("peer_lost", 700, Role.CASCADE, time=complained, text="Connection closed by peer", rank=0)
    told = notice("node_failure", time=2000.0, node="n3", text="srun: error: Node failure on n3")
    rows = store(trained, lost, told, job("NODE_FAIL"))
    both = [family for family in families() if family.code in ("C2", "F1")]
    findings = engine.judge_all(rows, Run(nodes=("n2", "n3"), start=900.0, end=2000.0, n_ranks=2), both)
    assert [finding.outcome for finding in findings] == [FOUND, FOUND]
    assert arbitrate(findings, both).primary.family == first


def node(state: str, when: float) -> Record:
    fields: dict[str, Any] = {"name": "n3", "state": state, "reason": "Not responding", "reason_time": when}
    return Record("node", Position("nodes.txt", 1), "scheduler", fields)


def test_f1_looks_at_the_moment() -> None:
    run = Run(nodes=("n3",), start=1000.0, end=2000.0)
    assert judge("F1", store(node("down", 2010.0), job("FAILED")), run).outcome is FOUND
    assert judge("F1", store(node("down", 9000.0), job("FAILED")), run).outcome is ABSENT
    assert judge("F1", store(node("down", 2010.0), job("COMPLETED")), run).outcome is ABSENT
    assert judge("F1", store(node("down", 2010.0), job("FAILED")), Run(nodes=("n1",), end=2000.0)).outcome is ABSENT


def test_f2_history_counts() -> None:
    twice = store(job("PREEMPTED"), job("COMPLETED", 3, start=3000.0, end=4000.0), curve(FALLING))
    finding = primary(twice)
    assert (finding.family, finding.culprit) == ("F2", "scheduler")
    assert judge("F2", store(job("CANCELLED", cancelled_by="1000"))).outcome is ABSENT
    assert judge("F2", store(notice("preemption"), job("PREEMPTED"))).variant == "preempted"
    own = ev("requeue_requested", 700, text="requeueing 7")
    assert judge("F2", store(own, job("COMPLETED", restarts=1))).variant == "requeued"


def test_f3_says_what_it_was_doing() -> None:
    late = curve(FALLING, total_steps=600, time=lambda i: 1000.0 + 33 * i)
    finding = primary(store(late, notice("time_limit"), job("TIMEOUT")))
    assert (finding.family, finding.variant) == ("F3", "slow")
    assert "projected" in [said.key for said in finding.shows]
    assert judge("F3", store(curve(FALLING), DONE, notice("time_limit", 950), job("TIMEOUT"))).variant == "after-end"
    early = curve(FALLING, time=lambda i: 1000.0 + i)
    assert judge("F3", store(early, job("TIMEOUT", end=9000.0))).variant == "silent"
    assert judge("F3", store(job("COMPLETED"))).outcome is ABSENT


# -- G1


def test_g1_needs_positive_evidence() -> None:
    healthy = store(curve(FALLING), DONE, job("COMPLETED"))
    finding = primary(healthy)
    assert (finding.family, finding.variant, finding.certainty) == ("G1", "healthy", Certainty.SUPPORTED)  # no metrics
    assert judge("G1", store(job("COMPLETED"))).variant == "unverifiable"
    assert judge("G1", store(curve([None] * 4, lr=5e-5))).variant == "unverifiable"
    assert judge("G1", store(curve([7.6, 7.1]))).certainty is Certainty.SUPPORTED
    assert judge("G1", store(curve(FALLING), job("FAILED"))).outcome is ABSENT
    assert judge("G1", store(curve(FALLING), raised("KeyError", "'text'"))).outcome is ABSENT
    assert judge("G1", store(ev("log_activity"))).outcome is UNKNOWN


def test_g1_with_an_error_that_was_handled() -> None:
    rows = store(raised("FileNotFoundError", "shard", line=5), curve(FALLING), DONE, job("COMPLETED"))
    assert primary(rows).family == "G1"


# -- H


def test_h1_whose_processes_would_not_end() -> None:
    """What Slurm does about processes that outlive a user's cancellation is no end of its own."""
    told = [notice("cancelled"), notice("unkillable", 801)]
    assert judge("H1", store(*told, job("CANCELLED", cancelled_by="1000"))).outcome is FOUND
    assert judge("H1", store(*told, job("CANCELLED"))).outcome is ABSENT


KILLED = "srun: error: n1: task 1: Killed"
TERMINATED = "srun: error: n2: task 0: Terminated"
ENDS = ("srun: Terminating StepId=3.0", "srun: launch/slurm: _step_signal: Terminating StepId=3.0")
STEP, JOB = (
    f"slurmstepd-n1: error: *** {what} ON n1 CANCELLED AT 2026-11-22T03:20:00 ***" for what in ("STEP 3.0", "JOB 3")
)


@pytest.mark.parametrize(
    ("lines", "family"),
    [
        *(((KILLED, *rest), "A2") for end in ENDS for rest in ((STEP, end, TERMINATED), (end, STEP, TERMINATED))),
        ((KILLED, ENDS[0], TERMINATED, STEP), "A2"),
        ((KILLED, ENDS[0].replace("3.0", "3.1"), STEP), "H1"),
        ((STEP, TERMINATED), "H1"),
        ((TERMINATED, ENDS[0], STEP), "H1"),
        ((JOB, ENDS[0], KILLED), "H1"),
        ((STEP, JOB, ENDS[0], KILLED), "H1"),
    ],
)
def test_h1_is_no_step_that_srun_ended_after_a_task_was_killed(lines: tuple[str, ...], family: str) -> None:
    text = "\n".join((*(f"step {step}0 loss {3 - step / 10}" for step in range(1, 9)), *lines))
    rows: list[Row] = [row for row in scan_text(text) if isinstance(row, Event)]
    chosen = list(families())
    assert arbitrate(engine.judge_all(store(rows, planes=("log",)), Run(), chosen), chosen).primary.family == family


def test_an_end_that_the_run_calls_aborted_is_said() -> None:
    """G1 and the families that an own end rules out speak of the same end in the same words."""
    for status, key in (("aborted", "aborted_itself"), ("success", "ended_itself")):
        rows = store(curve(FALLING), ev("training_end", 900, text="run_stop", status=status))
        for code in ("F2", "F3"):
            assert [each.key for each in judge(code, rows).because] == [key]
        healthy = judge("G1", rows)
        shown = [each.key for each in (*healthy.shows, *healthy.implies, *healthy.cannot_decide)]
        assert healthy.outcome is FOUND
        assert "no_end" not in shown
        assert ("aborted_itself" in shown) is (status == "aborted")
        assert ("called_aborted" in shown) is (status == "aborted")
        assert (healthy.variant == "unverifiable") is (status == "aborted")


def test_one_state_in_one_wording() -> None:
    """No family calls an end of its own what another says was none."""
    rows = store(curve(FALLING), ev("log_activity", 900, lines=900), job("FAILED"))
    said = []
    for code in ("C3", "E3", "G1"):
        family = find_family(code)
        assert family is not None
        said += [family.says[each.key] for each in judge(code, rows).because]
    assert said
    assert not [sentence for sentence in said if "by itself" in sentence]


def test_h1_cancelled_by_somebody() -> None:
    told = notice("cancelled", text="slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    finding = primary(store(curve(FALLING), told, job("CANCELLED", cancelled_by="1000")))
    assert (finding.family, finding.culprit) == ("H1", "none")
    assert judge("H1", store(curve(FALLING), told)).outcome is FOUND
    assert judge("H1", store(told, job("TIMEOUT"))).outcome is ABSENT
    assert judge("H1", store(notice("time_limit"))).outcome is ABSENT
    step = notice("cancelled", text="slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    failed = ev("process_exit", 700, Role.ROOT, exit_code=1, source="srun")
    assert judge("H1", store(step, failed)).outcome is ABSENT


def test_h1_keyboard_interrupt() -> None:
    stop = raised("KeyboardInterrupt", "", about="interrupt")
    assert primary(store(curve(FALLING), stop)).variant == "interrupt"


def test_h2_after_steps_only() -> None:
    bad = raised("ValueError", "substring not found", rank=1, frames="t.py:3 in encode")
    finding = primary(store(curve(FALLING), bad, job("FAILED")))
    assert (finding.family, finding.fault_class, finding.ranks) == ("H2", "data", (1,))
    assert judge("H2", store(bad)).outcome is ABSENT
    assert judge("H2", store(raised("ValueError", "x", line=1), curve(FALLING))).outcome is ABSENT
    lost = ev("exception", 500, Role.CASCADE, type="RuntimeError", message="gloo", about="collective")
    assert judge("H2", store(curve(FALLING), lost)).outcome is ABSENT


def test_h3_sigterm_from_nowhere() -> None:
    term = ev("signal_received", 500, Role.ROOT, signal=15, signal_name="SIGTERM", by="torchrun")
    assert primary(store(curve(FALLING), term, job("FAILED"))).family == "H3"
    assert judge("H3", store(curve(FALLING), term, job("CANCELLED"))).outcome is ABSENT
    assert judge("H3", store(curve(FALLING), term, notice("preemption"))).outcome is ABSENT
    first = ev("launcher_failure", 600, Role.ROOT, signal=9, first=True)
    assert judge("H3", store(curve(FALLING), term, first, job("FAILED"))).outcome is ABSENT
    assert judge("H3", store(curve(FALLING), raised("KeyError", "x", 450), term, job("FAILED"))).outcome is ABSENT


@pytest.mark.parametrize(
    ("message", "variant", "culprit"),
    [
        ("[Errno 28] No space left on device: 'out/ckpt.pt'", "full", "job"),
        ("[Errno 122] Disk quota exceeded", "quota", "job"),
        ("[Errno 30] Read-only file system: 'out'", "read-only", "infrastructure"),
        ("[Errno 116] Stale file handle", "stale", "infrastructure"),
        ("[Errno 5] Input/output error", "io-error", "infrastructure"),
    ],
)
def test_h4_reason_names_the_culprit(message: str, variant: str, culprit: str) -> None:
    finding = primary(store(curve(FALLING), raised("OSError", message, about="storage"), job("FAILED")))
    assert (finding.family, finding.variant, finding.culprit) == ("H4", variant, culprit)


def test_h4_leaves_shared_memory_and_what_was_survived() -> None:
    shm = raised("RuntimeError", "unable to allocate shared memory(shm): No space left on device", about="storage")
    assert judge("H4", store(shm, job("FAILED"))).outcome is ABSENT
    line = ev("storage_fault", 12, Role.ROOT, reason="io_error", text="Input/output error")
    assert judge("H4", store(line, curve(FALLING), DONE, job("COMPLETED"))).outcome is ABSENT


@pytest.mark.parametrize(
    ("message", "planes", "culprit"),
    [
        ("CUDA error: unspecified launch failure", ("log",), "unknown"),
        ("CUDA error: unspecified launch failure", ("log", "kernel"), "job"),
        ("CUDA error: device-side assert triggered", ("log",), "job"),
    ],
)
def test_h2_leaves_open_what_a_lost_card_says_too(message: str, planes: tuple[Plane, ...], culprit: str) -> None:
    rows = store(curve(FALLING), raised("RuntimeError", message, about="cuda"), planes=planes)
    finding = judge("H2", rows)
    assert (finding.outcome, finding.culprit) == (FOUND, culprit)
