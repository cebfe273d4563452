"""Commands of a verdict: filled with the names of the run, and safe to paste for any input."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.families.rows import event, job, store
from trackside.facts.fact import Facts
from trackside.facts.logs.ending import Ending
from trackside.families.c2_collective_hang import SHOW_KERNEL_STACKS
from trackside.finding import Certainty, Finding, Sentence, action, present
from trackside.model import Record, Run
from trackside.remedies import DUMP_STACKS, DUMP_STACKS_OF_RANK, RESUBMIT, RESUBMIT_ELSEWHERE
from trackside.verdict.commands import fill_commands
from trackside.wording import fill_template

DO = Sentence("do it")
OTHER_OPTIONS = "sacct -j 7 -X -P --format=WorkDir,SubmitLine  # then: sbatch --exclude=n2 OPTIONS_OF_THAT_SUBMISSION "
RUN = Run(id="7", nodes=("n1", "n2"))


def finding(facts: Facts, *commands: Sentence, **fields: Any) -> Finding:
    """A finding with one action, located as the fields say."""
    ending = facts.get(Ending)
    assert isinstance(ending, Ending)
    shows = Sentence("it ended: {state}")(state=ending.state)  # type: ignore[arg-type]
    return replace(present(Certainty.SUPPORTED, "job", [shows], actions=[action(DO, *commands)]), **fields)


def commands(*templates: Sentence, rows: tuple[Any, ...] = (), run: Run = RUN, record: Record | None = None,
             **fields: Any) -> list[str]:  # fmt: skip
    """The commands of the filled finding, as printed."""
    facts = Facts(store(job("FAILED") if record is None else record, *rows, planes=("log", "scheduler", "trace")), run)
    filled = fill_commands(finding(facts, *templates, **fields), facts)
    return [fill_template(command.template(run.disposition == "RUNNING"), action.values).strip()
            for action in filled.actions for command in action.commands]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "printed"),
    [
        ({"command": "/home/a/train.sbatch"}, OTHER_OPTIONS + "/home/a/train.sbatch"),
        ({"command": "/home/a b/train.sh"}, OTHER_OPTIONS + "JOB_SCRIPT"),
        (
            {"submit_line": "sbatch --export=TOKEN=secret -N 2 run.slurm --lr 3"},
            OTHER_OPTIONS + "run.slurm",
        ),
        ({"submit_line": "sbatch --wrap 'python train.py'"}, OTHER_OPTIONS + "JOB_SCRIPT"),
        ({"submit_line": "sbatch 'unbalanced"}, OTHER_OPTIONS + "JOB_SCRIPT"),
        (
            {"submit_line": "sbatch --nodes=2 --gpus-per-node=8 --time=02:00:00 train.sh", "work_dir": "/home/a b"},
            "cd '/home/a b' && sbatch --exclude=n2 --nodes=2 --gpus-per-node=8 --time=02:00:00 train.sh",
        ),
        (
            {"submit_line": "sbatch -N 2 -p gpu --output=logs/%x-%j.out -e %j.err train.sh", "work_dir": "/a"},
            "cd /a && sbatch --exclude=n2 -N 2 -p gpu --output=logs/%x-%j.out -e %j.err train.sh",
        ),
        (
            {"submit_line": f"sbatch --job-name={'n' * 150} --requeue --nodes=2 train.sh", "work_dir": "/a"},
            f"cd /a && sbatch --exclude=n2 --job-name={'n' * 150} --requeue --nodes=2 train.sh",
        ),
        ({"submit_line": "sbatch -N --nodelist=n2 train.sh", "work_dir": "/a"}, OTHER_OPTIONS + "train.sh"),
        (
            {"submit_line": "sbatch -N2 --comment=token train.sh", "work_dir": "/home/a"},
            OTHER_OPTIONS + "train.sh",
        ),
        ({}, OTHER_OPTIONS + "JOB_SCRIPT"),
    ],
)
def test_the_script_of_the_record_is_resubmitted_with_options_that_hold_no_secret(
    record: dict[str, str], printed: str
) -> None:
    assert commands(*RESUBMIT_ELSEWHERE, nodes=("n2",), record=job("FAILED", **record)) == [printed]


def test_a_command_with_unknown_names_is_not_shown() -> None:
    assert commands(*RESUBMIT) == []
    assert commands(*RESUBMIT_ELSEWHERE) == []


def test_a_stack_dump_names_the_process_and_node_of_the_rank() -> None:
    rows = (event("stack", rank=9, node="n2", pid=411, plane="trace"), event("stack", 2, rank=3, pid=97, plane="trace"))
    running = replace(RUN, disposition="RUNNING")
    at = {"ranks": (9,), "nodes": ("n2",), "rows": rows}
    assert commands(*DUMP_STACKS, **at) == ["ssh n2 py-spy dump --pid 411"]
    (ended,) = commands(*DUMP_STACKS, run=replace(RUN, disposition="FAILED"), **at)
    assert ended.startswith(
        "srun --jobid=NEW_JOB_ID --overlap "
    )  # the process is gone, and the next job has another id
    (of_rank,) = commands(*DUMP_STACKS_OF_RANK, run=replace(RUN, disposition="FAILED"), **at)
    assert of_rank.startswith("srun --jobid=NEW_JOB_ID --overlap --nodelist=NODE_OF_THE_RANK --ntasks=1 ")
    assert commands(*DUMP_STACKS, run=running, record=job("RUNNING"), **at) == [
        "srun --jobid=7 --overlap --nodelist=n2 --ntasks=1 py-spy dump --pid 411"
    ]


def test_kernel_stacks_are_read_for_processes_in_state_d() -> None:
    rows = tuple(event("process_state", i, pid=40 + i, state="D", plane="trace") for i in range(2))
    assert commands(*SHOW_KERNEL_STACKS, rows=rows, nodes=("n1",)) == [
        "ssh n1 'for p in 40 41; do sudo cat /proc/$p/stack; done'"
    ]


def test_a_long_list_of_nodes_is_not_shortened_in_a_command() -> None:
    assert commands(*RESUBMIT_ELSEWHERE, nodes=tuple(f"node-{i:04}" for i in range(64))) == []


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_hostile_names_stay_one_quoted_word_of_a_command(node: str, script: str, job_id: str) -> None:
    run = Run(id=job_id, nodes=("n1", node))
    record = job("FAILED", id=job_id, command=script + ".sh")
    for printed in commands(*RESUBMIT_ELSEWHERE, nodes=(node,), run=run, record=record):
        first, *others = shlex.split(printed)[2:]
        assert first.split() == job_id.split()
        assert others[:5] == ["-X", "-P", "--format=WorkDir,SubmitLine", "#", "then:"]
        assert "\n" not in printed[printed.rindex("  # then: ") :]  # it would end the comment
        words = others[5:]
        assert words[0] == "sbatch"
        assert words[1].startswith("--exclude=")
        assert len(words) == 4
        assert not words[3].startswith("-")
    for printed in commands(*DUMP_STACKS, nodes=(node,), run=run, record=record):
        assert not shlex.split(printed)[1].startswith("-") or printed.startswith(("srun --jobid=", "for p in "))
