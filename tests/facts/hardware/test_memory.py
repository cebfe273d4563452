"""GPU and host memory on curves built by hand."""

from __future__ import annotations

from tests.families.grids import Cluster
from tests.families.rows import END, GIB, START, event
from trackside.evidence import Missing
from trackside.facts.fact import Facts
from trackside.facts.hardware.host_memory import HostMemory
from trackside.facts.hardware.memory import GpuMemory
from trackside.facts.hardware.node_presence import NodePresence


def sampled(cluster: Cluster) -> Facts:
    """The facts of a run on a cluster."""
    run, store = cluster.store(event("progress", 10, step=1, loss=2.0, time=START + 60))
    return Facts(store, run, lambda query, answer: answer)


def gpu_memory(cluster: Cluster) -> GpuMemory:
    memory = sampled(cluster).get(GpuMemory)
    assert not isinstance(memory, Missing)
    return memory


def test_the_fullest_gpu_and_its_share() -> None:
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", 40.0 * GIB, {"n2:3": 60.0 * GIB})
    peak = gpu_memory(cluster.per_gpu("gpu_memory_total_bytes", 80.0 * GIB)).fullest()
    assert peak is not None
    assert (peak.name, peak.share) == ("n2:3", 0.75)


def test_capacity_without_a_total_is_used_plus_free_memory() -> None:
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", 30.0 * GIB)
    assert gpu_memory(cluster).capacity("n1:0") is None
    size = gpu_memory(cluster.per_gpu("gpu_memory_free_bytes", 50.0 * GIB)).capacity("n1:0")
    assert size is not None
    assert size.number == 80.0 * GIB


def test_memory_that_is_full_early_did_not_climb_late() -> None:
    late, early = Cluster(), Cluster()
    late.per_gpu("gpu_memory_used_bytes", late.after(END - 300, 79.0 * GIB, 40.0 * GIB))
    early.per_gpu("gpu_memory_used_bytes", early.after(START + 300, 79.0 * GIB, 40.0 * GIB))
    for cluster, climbed in ((late, True), (early, False)):
        memory = gpu_memory(cluster)
        peak = memory.fullest()
        assert peak is not None
        assert memory.climbed_late(peak) is climbed


def test_no_memory_metric_is_missing() -> None:
    assert isinstance(sampled(Cluster().per_gpu("gpu_power_watts", 300.0)).get(GpuMemory), Missing)


def test_host_memory_is_short_only_in_its_window() -> None:
    cluster = Cluster()
    cluster.per_node("host_memory_available_bytes", 400.0 * GIB, {"n1": cluster.between(3000, 3100, GIB, 400.0 * GIB)})
    memory = sampled(cluster.per_node("host_memory_total_bytes", 500.0 * GIB)).get(HostMemory)
    assert not isinstance(memory, Missing)
    assert memory.near((), 3050.0).nodes == ("n1",)
    assert not memory.near((), 1100.0).short
    assert memory.near(("n2",), 3050.0).ample


def test_a_node_whose_samples_stop_is_lost() -> None:
    cluster = Cluster()
    cluster.per_node("host_load1", 1.0, {"n2": cluster.until(4000, 1.0)})
    presence = sampled(cluster).get(NodePresence)
    assert not isinstance(presence, Missing)
    assert [str(lost.node.value) for lost in presence.lost] == ["n2"]
    whole = sampled(Cluster().per_node("host_load1", 1.0)).get(NodePresence)
    assert not isinstance(whole, Missing)
    assert (whole.lost, len(whole.alive)) == ((), 1)
