"""B1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

from tests.families.grids import (
    NO_LOG,
    Cluster,
    Make,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    ESTABLISHED,
    FAILED,
    FOUND,
    GIB,
    POSSIBLE,
    SUPPORTED,
    UNKNOWN,
    event,
    job,
    judge,
    keys,
    log_points,
    points,
    root,
    sentence_name,
    text_of,
    unhandled_exception,
)
from trackside.facts.logs.exceptions import unhandled_exceptions
from trackside.finding import Certainty, clause
from trackside.model import Event, EventRole, Run


def oom_gib(line: int = 50, **sizes: float) -> Event:
    return root("cuda_oom", line, rank=3, **{name: int(size * GIB) for name, size in sizes.items()})


def test_a_request_beyond_the_total_memory_is_a_cuda_oom() -> None:
    finding = judge("B1", oom_gib(requested_bytes=91.6, total_bytes=79.2), job("FAILED", exit_code=1))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "job")
    assert finding.ranks == (3,)
    assert "larger_than_gpu" in keys(finding)


def test_cuda_oom_from_fragmentation_or_another_process() -> None:
    pieces = oom_gib(requested_bytes=4, total_bytes=80, allocated_bytes=58, reserved_bytes=75)
    assert "memory_fragmented" in keys(judge("B1", pieces))
    crowded = oom_gib(requested_bytes=1, total_bytes=40, allocated_bytes=4, reserved_bytes=4, other_process_bytes=34)
    assert judge("B1", crowded).culprit == "infrastructure"
    assert judge("B1", crowded, run=Run(n_ranks=8)).culprit == "job"


def test_a_handled_or_quoted_cuda_oom_is_absent() -> None:
    assert keys(judge("B1", oom_gib(5), log_points())) == ["error_handled"]
    assert judge("B1", event("cuda_oom", 50, EventRole.CONFIRMATION)).outcome is ABSENT


def test_buffered_points_after_a_traceback_do_not_count_as_recovery() -> None:
    late = log_points(line=60, time=None)
    assert judge("B1", oom_gib(), late, job("FAILED", exit_code=1)).outcome is FOUND
    error = unhandled_exception("ValueError")
    assert unhandled_exceptions([error], late) == []
    assert unhandled_exceptions([error], late, crashed=True) == [error]
    assert unhandled_exceptions([error], log_points(line=60), crashed=True) == []


def oom(rank: int = 3, **fields: Any) -> Event:
    fields = {"requested_bytes": 2 * GIB, "total_bytes": 80 * GIB, "time": 4990.0, **fields}
    return event("cuda_oom", 50, role=EventRole.ROOT, rank=rank, text="CUDA out of memory", **fields)


def filled(used: Make | float, but: dict[str, Make] | None = None, **shape: Any) -> Cluster:
    cluster = Cluster(**shape)
    own = {name: make(cluster) for name, make in (but or {}).items()}
    cluster.per_gpu("gpu_memory_used_bytes", used(cluster) if callable(used) else used, own)
    return cluster.per_gpu("gpu_memory_total_bytes", 80 * GIB)


def test_a_memory_curve_near_its_limit_supports_a_cuda_oom() -> None:
    cluster = filled(lambda c: c.between(1030, 4990, 78 * GIB)).per_gpu("gpu_ecc_uncorrectable_total", 0)
    finding = cluster.judge("B1", oom(), FAILED, run=cluster.run(n_ranks=16))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, ESTABLISHED, "job")
    assert (finding.gpus, set(finding.planes)) == (("n1:3",), {"log", "metric", "scheduler"})
    assert {"memory_climbed", "no_ecc_errors"} <= set(keys(finding))


def test_a_single_large_request_does_not_show_in_the_memory_curve() -> None:
    cluster = filled(lambda c: c.between(1030, 4990, 40 * GIB))
    finding = cluster.judge("B1", oom(requested_bytes=91 * GIB), FAILED, run=cluster.run(n_ranks=16))
    assert finding.certainty is ESTABLISHED
    assert "memory_climbed" not in keys(finding)
    assert "peak_below_total" in [sentence_name(claim) for claim in finding.implies]


def test_memory_capacity_is_used_plus_free() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 78 * GIB).per_gpu("gpu_memory_free_bytes", 2 * GIB)
    assert "memory_climbed" in keys(cluster.judge("B1", oom(), FAILED, run=cluster.run(n_ranks=16)))


def test_memory_of_another_process_blames_infrastructure() -> None:
    long: dict[str, Any] = {"start": 400.0, "end": 5600.0}
    run = Cluster().run(n_ranks=16)

    def own(level: float, before: float) -> Make:
        return lambda c: c.between(1040, 4990, level * GIB, before * GIB)

    shared = filled(own(50, 0), {"n1:3": own(79, 30)}, **long)
    finding = shared.judge("B1", oom(), FAILED, run=run)
    assert (finding.culprit, "used_by_other_process" in keys(finding)) == ("infrastructure", True)
    assert sentence_name(finding.actions[0]) == "find_other_processes"
    too_large = shared.judge("B1", oom(requested_bytes=60 * GIB), FAILED, run=run)
    assert (too_large.culprit, "used_by_other_process" in keys(too_large)) == ("job", True)
    before: Make = lambda c: c.between(1040, 4990, 79 * GIB, c.between(0, 1000, 60 * GIB))  # noqa: E731
    assert "used_by_other_process" not in keys(filled(before, **long).judge("B1", oom(), FAILED, run=run))


def test_a_climbing_memory_curve_alone_is_only_possible() -> None:
    climbing = filled(lambda c: c.between(4700, 4990, 79 * GIB, 50 * GIB))
    finding = climbing.judge("B1", FAILED, planes=NO_LOG)
    assert (finding.outcome, finding.certainty) == (FOUND, POSSIBLE)
    cache = filled(79 * GIB)
    assert cache.judge("B1", FAILED, planes=NO_LOG).outcome is UNKNOWN
    assert climbing.judge("B1", job("COMPLETED"), planes=NO_LOG).outcome is UNKNOWN
    assert climbing.judge("B1", job("FAILED", exit_code=0, signal=9), planes=NO_LOG).outcome is UNKNOWN
    finding = filled(40 * GIB).judge("B1", *points(), FAILED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["no_oom_error", "used_at_most"])


def test_failed_allocations_counted_by_the_framework_support_a_cuda_oom() -> None:
    def counted(at: float) -> Cluster:
        cluster = filled(40 * GIB)
        return cluster.put("training_memory_ooms_total", cluster.after(at, 1), node="n1", rank="0")

    finding = counted(4950).judge("B1", FAILED, planes=NO_LOG)
    assert (finding.outcome, finding.certainty, "failures_counted" in keys(finding)) == (FOUND, SUPPORTED, True)
    assert counted(2000).judge("B1", FAILED, planes=NO_LOG).outcome is UNKNOWN  # caught long before
    assert counted(4950).judge("B1", COMPLETED, planes=NO_LOG).outcome is UNKNOWN
    assert counted(4950).judge("B1", *points(), FAILED).outcome is FOUND
    row = event(
        "exception", 50, type="ValueError", message="bad", about="application", role=EventRole.ROOT, time=4990.0
    )
    assert counted(4950).judge("B1", row, FAILED).outcome is ABSENT
    assert "failures_counted" in keys(counted(4950).judge("B1", oom(), FAILED))


def test_the_remedy_of_fragmentation_comes_first_and_is_offered_if_free_memory_would_have_been_enough() -> None:
    pieces = judge("B1", oom_gib(requested_bytes=4, total_bytes=80, allocated_bytes=58, reserved_bytes=75))
    assert [sentence_name(step) for step in pieces.actions] == ["limit_splits", "use_less_memory"]
    sizes = {
        "requested_bytes": 7.9,
        "total_bytes": 39.4,
        "free_bytes": 8.2,
        "allocated_bytes": 24,
        "reserved_bytes": 31,
    }
    free = judge("B1", oom_gib(**sizes))
    assert [sentence_name(step) for step in free.actions] == ["use_less_memory", "limit_splits"]
    assert [sentence_name(claim) for claim in free.implies] == ["free_not_usable"]
    assert "allocation_failed_free" in keys(free)
    (reason,) = judge("B1", oom_gib(**{**sizes, "free_bytes": 3})).implies
    assert clause(reason).startswith("7.9 GiB did not fit although 3 GiB were free and 7 GiB were reserved but unused")


def test_an_exception_is_quoted_rather_than_the_line_that_announces_it() -> None:
    check = root("cuda_oom", 50, text="THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory")
    runtime_error = root(
        "cuda_oom", 70, text="RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58"
    )
    assert "RuntimeError: cuda runtime error" in text_of(judge("B1", check, runtime_error))
    assert "THCudaCheck" in text_of(judge("B1", check))


def test_a_process_that_holds_little_of_a_full_gpu_is_not_alone_on_it() -> None:
    sizes = {"requested_bytes": 0.05, "total_bytes": 79.2, "free_bytes": 0.01, "allocated_bytes": 5.2}
    crowded = judge("B1", oom_gib(**sizes, reserved_bytes=5.3))
    assert "used_by_unnamed" in keys(crowded)
    assert (crowded.culprit, sentence_name(crowded.cannot_decide[0])) == ("job", "holder_unknown")
    assert crowded.headline is not None
    assert clause(crowded.headline) == "out of GPU memory: other processes held 73.89 GiB of the GPU's 79.2 GiB"
    assert "used_by_unnamed" not in keys(judge("B1", oom_gib(**sizes, reserved_bytes=76)))


def test_a_few_bytes_for_nccl_are_no_reason_for_a_smaller_batch() -> None:
    finding = judge(
        "B1", root("cuda_oom", backend="nccl", requested_bytes=4, text="Failed to CUDA calloc async 4 bytes")
    )
    assert finding.headline is not None
    assert "the GPU was full, or CUDA failed" in finding.headline.sentence.text
    assert finding.certainty is SUPPORTED, "whether memory ran out is an open question"
    assert not any("micro-batch" in action.sentence.text for action in finding.actions)


def test_a_process_of_the_same_job_is_no_stranger() -> None:
    text = "GPU 0 has 40 GiB, this process has 30 GiB in use. Process 4711 has 6 GiB memory in use."
    sizes = {"requested_bytes": 5 * GIB, "total_bytes": 40 * GIB, "free_bytes": 4 * GIB, "allocated_bytes": 26 * GIB,
             "reserved_bytes": 29 * GIB, "other_process_bytes": 6 * GIB}  # fmt: skip
    error = root("cuda_oom", 50, text=text, **sizes)
    stranger = judge("B1", error)
    assert "Another process (pid 4711) used" in text_of(stranger)
    own = judge("B1", error, event("signal_received", 60, role=EventRole.TEARDOWN, pid=4711, by="deepspeed"))
    assert "Another process of this job (pid 4711) used" in text_of(own)
    assert "Of the 29 GiB that the allocator had reserved, 26 GiB were in use" in text_of(own)
    assert "find_other_processes" not in [sentence_name(step) for step in own.actions]
    both = root("cuda_oom", 50, text=text + " Process 4712 has 1 GiB memory in use.", **sizes)
    partly = judge("B1", both, event("process_exit", 60, role=EventRole.ROOT, source="bash", signal=9, pid=4711))
    assert "the log shows process 4711 as one of this job" in text_of(partly)
    assert (judge("B1", both).culprit, partly.culprit) == ("infrastructure", "job")
