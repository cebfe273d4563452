"""A GPU's memory is too small for what the job requests."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, RankDeath, crash, hang, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState

PHASES = ("load", "first-step", "mid")
FRAMES = {
    "load": ((CODE, 131, "main", 'model = model.to("cuda")'),),
    "first-step": (
        (CODE, 196, "main", "loss.backward()"),
        (f"{SITE}/torch/_tensor.py", 626, "backward", "torch.autograd.backward("),
    ),
    "mid": (
        (CODE, 193, "main", "loss = model(**batch).loss"),
        (f"{SITE}/torch/nn/functional.py", 3479, "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
    ),
}


@fault("cuda-oom")
class CudaOom(SimulatedFault):
    """A rank runs out of GPU memory: at model load, in the first step, or later on a long batch."""

    phase: str = "first-step"
    """load, first-step or mid (at ``at``)."""
    all_ranks: bool = True
    request_gib: float = 0.0
    """Size of the failing request; 0: slightly more than what is left."""
    reserved_unused_gib: float = 0.3
    """Reserved by the caching allocator but not allocated; a large value is fragmentation."""
    peers: str = "teardown"
    """What happens to the other ranks if one fails: teardown, or watchdog (its launcher does not end them)."""

    def apply(self, sim: Simulation) -> None:
        self.check("phase", PHASES)
        self.check("peers", ("teardown", "watchdog"))
        attempt = sim.attempt
        time = self._moment(sim)
        ranks = list(sim.ranks) if self.all_ranks else [self.placement(sim).rank]
        total_gib = sim.model.memory_mib / 1024
        requested_gib = self.request_gib or 0.03 * total_gib
        used_gib = max(sim.model.context_mib / 1024, min(total_gib - 0.4, total_gib - 0.6 * requested_gib))
        if requested_gib > 0.5 * total_gib:
            used_gib = 0.55 * total_gib
        self._raise_memory(sim, ranks, time, used_gib * 1024)
        rng = sim.rng("cuda-oom")
        outputs = {
            rank: traceback(sim, rank, self._text(sim, rank, total_gib, used_gib, requested_gib), FRAMES[self.phase])
            for rank in ranks
        }
        if self.peers == "watchdog" and not self.all_ranks and sim.scenario.job.watchdog_s:
            hang(sim, time, ranks, dead=True)
            for rank, text in outputs.items():
                attempt.log(time + 0.1, text, rank, error=True, marked=True)
        else:
            deaths = [
                RankDeath(rank, (0.9 if self.all_ranks else 0.1) * float(rng.random()), 1, outputs[rank])
                for rank in ranks
            ]
            crash(sim, time, deaths, RankState.IDLE if self.phase == "load" else RankState.SPIN)
        placements = [sim.placements[rank] for rank in ranks]
        blamed = () if self.all_ranks else tuple(placement.key for placement in placements)
        self.record_truth(
            sim, "B1", "job", since=time, nodes=tuple(dict.fromkeys(p.node for p in placements)) if blamed else (),
            gpus=blamed, ranks=tuple(ranks), cascade=("C2",) if self.peers == "watchdog" and blamed else (),
            sufficient_planes=(("logs",),), halts=True,
        )  # fmt: skip

    def _moment(self, sim: Simulation) -> float:
        phases = sim.attempt.phases
        if self.phase == "load":
            begin, end = phases["load"]
            return begin + 0.85 * (end - begin)
        if self.phase == "first-step":
            return phases["train"][0] + 0.6 * (float(sim.attempt.step_ends[0]) - phases["train"][0])
        return self.start_time(sim)

    def _raise_memory(self, sim: Simulation, ranks: list[int], time: float, used_mib: float) -> None:
        """Raise memory to where the request fails: within seconds, so often between two scrapes."""
        begin = sim.attempt.phases["load"][0] + 1.5
        for track in sim.attempt.split_tracks(ranks):
            track.memory = [knot for knot in track.memory if knot[0] < time - 6]
            last = track.memory[-1] if track.memory else (begin, 0.0)
            if self.phase == "load":
                track.memory.append((max(begin, last[0] + 0.1), float(sim.model.context_mib)))
            elif self.phase == "mid":
                track.memory.append((time - 5, last[1]))
            track.memory.append((time - 0.2, used_mib))

    def _text(self, sim: Simulation, rank: int, total_gib: float, used_gib: float, requested_gib: float) -> str:
        placement = sim.placements[rank]
        free_gib = max(total_gib - used_gib - sim.model.reserved_mib / 1024, 0.02)
        free_text = f"{free_gib:.2f} GiB" if free_gib >= 1 else f"{free_gib * 1024:.2f} MiB"
        allocated_gib = used_gib - self.reserved_unused_gib - 0.6
        return (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested_gib:.2f} GiB. GPU {placement.local_rank} has a total "
            f"capacity of {(total_gib * 1024 - sim.model.reserved_mib) / 1024:.2f} GiB of which {free_text} is free. Including "
            f"non-PyTorch memory, this process has {used_gib:.2f} GiB memory in use. Of the allocated memory {allocated_gib:.2f} GiB "
            f"is allocated by PyTorch, and {self.reserved_unused_gib * 1024:.2f} MiB is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
