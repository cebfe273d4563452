"""The tables of probed functions agree with the BPF programs in C."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackside.agent.trace import calls, collectives, functions

PROGRAMS = Path(functions.__file__).parent / "programs"


@pytest.mark.parametrize("table", [functions.cuda(), functions.nccl("x86_64"), functions.nccl("aarch64")])
def test_numbers_and_names_are_unique(table: dict[int, functions.Function]) -> None:
    names = [function.name for function in table.values()]
    assert len(names) == len(set(names))
    assert all(number == function.number == function.cookie & 0xFF for number, function in table.items())
    assert max(table) < 256


def test_actions_have_the_numbers_of_the_program() -> None:
    source = (PROGRAMS / "nccl.bpf.c").read_text()
    enum = re.search(r"enum \{(.*?)\};", source, re.DOTALL)
    assert enum is not None
    names = re.findall(r"^    ([A-Z_]+)[ ,]", enum[1], re.MULTILINE)
    assert {name: getattr(functions, name) for name in names} == {name: number for number, name in enumerate(names, 1)}


def test_a_lane_has_as_many_slots_as_in_the_program() -> None:
    assert f"#define SLOTS {collectives.SLOTS} " in (PROGRAMS / "nccl.bpf.c").read_text()


def test_record_sizes_are_those_of_the_tables() -> None:
    assert (calls.CELL_KEY.size, calls.CELL.size, calls.PROCESS.size) == (8, 24, 16)
    assert (collectives.HANDLE.size, collectives.COMMUNICATOR.size, collectives.TALLY.size) == (16, 176, 40)


def test_the_register_of_the_rank_depends_on_the_machine() -> None:
    by_machine = {
        machine: next(
            function for function in functions.nccl(machine).values() if function.name == "ncclCommInitRank"
        ).cookie
        >> 28
        & 15
        for machine in ("x86_64", "aarch64")
    }
    assert by_machine == {"x86_64": 2, "aarch64": 3}


@pytest.mark.parametrize(
    ("one_in", "launch", "query"), [(0, functions.NEVER_TIMED, 4), (1, 0, 0), (16, 4, 4), (1024, 10, 4)]
)
def test_launches_are_timed_as_set_and_queries_at_least_1_in_16(one_in: int, launch: int, query: int) -> None:
    cookies = {function.name: function.cookie for function in functions.cuda(one_in).values()}
    assert [cookies[name] >> 8 & 15 for name in ("cudaLaunchKernel", "cudaEventQuery")] == [launch, query]
