"""What is probed, held against the programs in C and the stub libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackside.agent.trace import calls, collectives, functions

PROGRAMS = Path(functions.__file__).parent / "programs"


@pytest.mark.parametrize("table", [functions.cuda(), functions.nccl("x86_64"), functions.nccl("aarch64")])
def test_numbers_and_names_are_of_one_function_each(table: dict[int, functions.Function]) -> None:
    names = [each.name for each in table.values()]
    assert len(names) == len(set(names))
    assert all(number == each.number == each.cookie & 0xFF for number, each in table.items())
    assert max(table) < 256


def test_actions_are_numbered_as_the_program_does() -> None:
    source = (PROGRAMS / "nccl.bpf.c").read_text()
    listed = re.search(r"enum \{(.*?)\};", source, re.DOTALL)
    assert listed is not None
    names = re.findall(r"^    ([A-Z_]+)[ ,]", listed[1], re.MULTILINE)
    assert {name: getattr(functions, name) for name in names} == {name: at for at, name in enumerate(names, 1)}


def test_lanes_have_as_many_slots_as_the_program_says() -> None:
    assert f"#define SLOTS {collectives.SLOTS} " in (PROGRAMS / "nccl.bpf.c").read_text()


def test_sizes_are_those_of_the_tables() -> None:
    assert (calls.CELL_KEY.size, calls.CELL.size, calls.PROCESS.size) == (8, 24, 16)
    assert (collectives.HANDLE.size, collectives.COMMUNICATOR.size, collectives.TALLY.size) == (16, 176, 40)


def test_the_rank_follows_an_identifier_by_value_in_another_register_on_each_machine() -> None:
    by_machine = {
        machine: next(each for each in functions.nccl(machine).values() if each.name == "ncclCommInitRank").cookie >> 28
        & 15
        for machine in ("x86_64", "aarch64")
    }
    assert by_machine == {"x86_64": 2, "aarch64": 3}


def test_one_launch_in_so_many_is_timed() -> None:
    def shift(one_in: int) -> int:
        return (
            next(each for each in functions.cuda(one_in).values() if each.name == "cudaLaunchKernel").cookie >> 8 & 15
        )

    assert [shift(one_in) for one_in in (1, 16, 1024)] == [0, 4, 10]
    assert shift(0) == functions.NEVER_TIMED
    with pytest.raises(ValueError, match="power of two"):
        functions.cuda(12)
