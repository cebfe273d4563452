"""The ranks never find each other."""

from __future__ import annotations

from trackside.sim.endings import RankDeath, crash, finish, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState

TEXTS = {
    "timeout": "torch.distributed.DistStoreError: Timed out after {s} seconds waiting for clients. {have}/{all} clients joined.",
    "refused": "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(head-0, 29500). The client socket has failed to connect to head-0:29500 (errno: 111 - Connection refused).",
    "dns": "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(head-0, 29500). The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or service "
    "not known).",
}


@fault("rendezvous-hang")
class RendezvousHang(SimulatedFault):
    """Every rank waits for the others before there is a process group: until a socket times out, or forever."""

    at: str = ""
    """Not a key of this fault: it always begins at the rendezvous."""
    ends: str = "timeout"
    """timeout, refused or dns: the final error; silent: nothing, until the time limit."""
    wait_s: float = 600.0
    """Seconds until the error."""

    def start_time(self, sim: Simulation) -> float:
        if self.at:
            raise ScenarioError(f"fault {self.kind}: at: this fault always begins at the rendezvous; leave it out")
        return sim.reference.start

    def apply(self, sim: Simulation) -> None:
        self.check("ends", ("silent", *TEXTS))
        attempt = sim.attempt
        time = attempt.phases["rendezvous"][0]
        attempt.truncate(time)
        for track in attempt.tracks:
            track.processes, track.memory = [], []
        attempt.log(
            time - 0.5,
            f"Initializing distributed process group: backend=nccl world_size={len(attempt.placements)} init_method=env://",
            0,
        )
        end_time = time + self.wait_s if self.ends != "silent" else attempt.start + sim.time_limit + 120
        attempt.add_activity(None, time, end_time, RankState.IDLE)
        finish(sim, end_time + 3, "COMPLETED")
        if self.ends != "silent":
            joined = len(attempt.placements) // max(2, len(attempt.nodes))
            text = TEXTS[self.ends].format(s=int(self.wait_s), have=joined, all=len(attempt.placements))
            rng = sim.rng("rendezvous")
            frame = (("/home/user/train/train.py", 61, "main", 'dist.init_process_group("nccl")'),)
            crash(
                sim,
                end_time,
                [
                    RankDeath(
                        rank,
                        float(rng.random()) * 0.8,
                        1,
                        traceback(sim, rank, text, frame).replace(f"[rank{rank}]: ", ""),
                    )
                    for rank in sim.ranks
                ],
                RankState.IDLE,
            )
        attempt.phases.pop("load", None)
        self.record_truth(
            sim, "C1", "unknown", since=time, nodes=attempt.nodes, ranks=tuple(sim.ranks),
            sufficient_planes=(("gpu", "tracer"), ("logs",)) if self.ends != "silent" else (("gpu", "logs"), ("gpu", "tracer")),
            halts=True,
        )  # fmt: skip
