"""The ranks never find each other."""

from __future__ import annotations

from trackside.sim.endings import Death, crash, finish, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage
from trackside.sim.timeline import State

TEXTS = {
    "timeout": "torch.distributed.DistStoreError: Timed out after {s} seconds waiting for clients. {have}/{all} clients joined.",
    "refused": "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(head-0, 29500). The client socket has failed to connect to head-0:29500 (errno: 111 - Connection refused).",
    "dns": "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(head-0, 29500). The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or service "
    "not known).",
}


@fault("rendezvous-hang")
class RendezvousHang(Fault):
    """Every rank waits for the others before there is a group: until a socket times out, or for ever."""

    at: str = "0%"
    ends: str = "timeout"
    """timeout, refused or dns: what is printed in the end; silent: nothing, until the time limit."""
    wait_s: float = 600.0
    """Until that."""

    def strike(self, stage: Stage) -> None:
        self.check("ends", ("silent", *TEXTS))
        act = stage.act
        at = act.phases["rendezvous"][0]
        act.cut(at)
        for track in act.tracks:
            track.processes, track.memory = [], []
        act.say(
            at - 0.5,
            f"Initializing distributed process group: backend=nccl world_size={len(act.places)} init_method=env://",
            0,
        )
        over = at + self.wait_s if self.ends != "silent" else act.start + stage.time_limit + 120
        act.spend(None, at, over, State.IDLE)
        finish(stage, over + 3, "COMPLETED")
        if self.ends != "silent":
            joined = len(act.places) // max(2, len(act.nodes))
            text = TEXTS[self.ends].format(s=int(self.wait_s), have=joined, all=len(act.places))
            rng = stage.rng("rendezvous")
            frame = (("/home/user/train/train.py", 61, "main", 'dist.init_process_group("nccl")'),)
            crash(
                stage,
                over,
                [
                    Death(
                        rank,
                        float(rng.random()) * 0.8,
                        1,
                        traceback(stage, rank, text, frame).replace(f"[rank{rank}]: ", ""),
                    )
                    for rank in stage.ranks
                ],
                State.IDLE,
            )
        act.phases.pop("load", None)
        self.inject(
            stage, "C1", "unknown", since=at, nodes=act.nodes, ranks=tuple(stage.ranks),
            enough=(("gpu", "tracer"), ("logs",)) if self.ends != "silent" else (("gpu", "logs"), ("gpu", "tracer")),
            halts=True,
        )  # fmt: skip
