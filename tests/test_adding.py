"""The example of docs/adding.md works as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.families.grids import Cluster
from trackside.evidence import Missing
from trackside.facts import fact
from trackside.facts.fact import Facts
from trackside.stores.memory import MemoryStore

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding.md"


def test_the_example_of_a_fact_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact, "_DERIVATIONS", dict(fact._DERIVATIONS))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, example.__name__, example)
    exec(compile(code, str(PAGE), "exec"), example.__dict__)
    cluster = Cluster().per_node("host_load1", 8.0, {"n2": 900.0})
    run, store = cluster.store()
    answer = Facts(store, run, lambda query, answer: answer).get(example.OverloadedHosts)
    assert not isinstance(answer, Missing)
    assert list(answer.claims) == ["n2"]
    assert answer.claims["n2"].values["load"].value == 900.0
    nothing = Facts(MemoryStore((), ()), run, lambda query, answer: answer)
    assert isinstance(nothing.get(example.OverloadedHosts), Missing)
