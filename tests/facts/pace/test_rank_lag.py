"""Ranks compared by the times that they print."""

from __future__ import annotations

from tests.families.rows import Row, event, store
from trackside.evidence import Missing
from trackside.facts.fact import Facts
from trackside.facts.pace.rank_lag import LaggingRanks, RankLag
from trackside.finding import Claim
from trackside.model import Run
from trackside.stores.memory import MemoryStore


def ranks(evidence_store: MemoryStore) -> RankLag:
    fact = Facts(evidence_store, Run(), lambda query, answer: answer).get(RankLag)
    assert isinstance(fact, RankLag)
    return fact


def printed(slow: float, until: int = 40, count: int = 4, **fields: float) -> list[Row]:
    return [
        event("rank_progress", 10 * step + rank, rank=rank, step=step, time=100.0 + step, **{
            "compute_time_s": slow if rank == 2 and step <= until else 0.1, **fields
        })
        for step in range(1, 41) for rank in range(count)
    ]  # fmt: skip


def test_a_lag_covers_only_the_slow_steps() -> None:
    lag = ranks(store(printed(0.25, until=20))).printed
    assert isinstance(lag, LaggingRanks)
    assert (lag.ranks, lag.gpus) == ((2,), ())
    assert 0.4 < lag.share < 0.6
    assert lag.row is not None
    assert (lag.since, lag.row.get("step")) == (lag.row.time, 1)


def test_even_ranks_give_a_claim_and_two_ranks_give_nothing() -> None:
    even = ranks(store(printed(0.104))).printed
    assert isinstance(even, Claim)
    assert even.values["rank"].value == 2
    assert ranks(store(printed(0.25, count=2))).printed is None


def test_a_ranks_own_time_comes_before_the_wall_time() -> None:
    """All print the same wall time; their own part of it differs."""
    lag = ranks(store(printed(0.25, step_time_s=0.4))).printed
    assert isinstance(lag, LaggingRanks)
    assert lag.claims[0].values["own"].value == 0.25


def test_no_input_gives_a_reason() -> None:
    blind = ranks(MemoryStore((), (), ()))
    assert isinstance(blind.missing, Missing)
    assert (blind.printed, blind.exported) == (None, None)
