"""A GPU's memory does not hold what is asked of it."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, Death, crash, hang, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage
from trackside.sim.timeline import State

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
class CudaOom(Fault):
    """torch.OutOfMemoryError: at model load, in the first step, or later on a long batch."""

    phase: str = "first-step"
    """load, first-step or mid (at ``at``)."""
    all_ranks: bool = True
    request_gib: float = 0.0
    """What is asked for at once; 0: some GiB more than is left."""
    reserved_unused_gib: float = 0.3
    """Of the caching allocator; large: fragmentation."""
    peers: str = "teardown"
    """What becomes of the others where one rank fails: teardown, or watchdog (its launcher does not end them)."""

    def strike(self, stage: Stage) -> None:
        self.check("phase", PHASES)
        self.check("peers", ("teardown", "watchdog"))
        act = stage.act
        at = self._moment(stage)
        ranks = list(stage.ranks) if self.all_ranks else [self.place(stage).rank]
        total = stage.model.memory_mib / 1024
        request = self.request_gib or 0.03 * total
        used = max(stage.model.context_mib / 1024, min(total - 0.4, total - 0.6 * request))
        if request > 0.5 * total:
            used = 0.55 * total
        self._climb(stage, ranks, at, used * 1024)
        rng = stage.rng("cuda-oom")
        said = {
            rank: traceback(stage, rank, self._text(stage, rank, total, used, request), FRAMES[self.phase])
            for rank in ranks
        }
        if self.peers == "watchdog" and not self.all_ranks and stage.scenario.job.watchdog_s:
            hang(stage, at, ranks, dead=True)
            for rank, text in said.items():
                act.say(at + 0.1, text, rank, error=True, marked=True)
        else:
            deaths = [
                Death(rank, (0.9 if self.all_ranks else 0.1) * float(rng.random()), 1, said[rank]) for rank in ranks
            ]
            crash(stage, at, deaths, State.IDLE if self.phase == "load" else State.SPIN)
        places = [stage.places[rank] for rank in ranks]
        blamed = () if self.all_ranks else tuple(place.key for place in places)
        self.inject(
            stage, "B1", "job", since=at, nodes=tuple(dict.fromkeys(p.node for p in places)) if blamed else (),
            gpus=blamed, ranks=tuple(ranks), cascade=("C2",) if self.peers == "watchdog" and blamed else (),
            enough=(("logs",),), halts=True,
        )  # fmt: skip

    def _moment(self, stage: Stage) -> float:
        phases = stage.act.phases
        if self.phase == "load":
            begin, end = phases["load"]
            return begin + 0.85 * (end - begin)
        if self.phase == "first-step":
            return phases["train"][0] + 0.6 * (float(stage.act.step_ends[0]) - phases["train"][0])
        return self.begin(stage)

    def _climb(self, stage: Stage, ranks: list[int], at: float, used: float) -> None:
        """Memory rises to where the request fails: in seconds, thus often between two scrapes."""
        begin = stage.act.phases["load"][0] + 1.5
        for track in stage.act.part(ranks):
            track.memory = [knot for knot in track.memory if knot[0] < at - 6]
            last = track.memory[-1] if track.memory else (begin, 0.0)
            if self.phase == "load":
                track.memory.append((max(begin, last[0] + 0.1), float(stage.model.context_mib)))
            elif self.phase == "mid":
                track.memory.append((at - 5, last[1]))
            track.memory.append((at - 0.2, used))

    def _text(self, stage: Stage, rank: int, total: float, used: float, request: float) -> str:
        place = stage.places[rank]
        free = max(total - used - stage.model.reserved_mib / 1024, 0.02)
        left = f"{free:.2f} GiB" if free >= 1 else f"{free * 1024:.2f} MiB"
        allocated = used - self.reserved_unused_gib - 0.6
        return (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request:.2f} GiB. GPU {place.local} has a total "
            f"capacity of {(total * 1024 - stage.model.reserved_mib) / 1024:.2f} GiB of which {left} is free. Including "
            f"non-PyTorch memory, this process has {used:.2f} GiB memory in use. Of the allocated memory {allocated:.2f} GiB "
            f"is allocated by PyTorch, and {self.reserved_unused_gib * 1024:.2f} MiB is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
