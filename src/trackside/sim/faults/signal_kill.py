"""A process is killed by a signal before it can say anything."""

from __future__ import annotations

from trackside.sim.endings import Death, crash, finish
from trackside.sim.faults import Fault, fault
from trackside.sim.kernel_lines import oom_kill, segfault
from trackside.sim.stage import HostEffect, Stage
from trackside.sim.timeline import State

SIGNALS = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6, "SIGBUS": 7}


@fault("signal-kill")
class SignalKill(Fault):
    """The kernel kills ranks for want of host memory, or native code crashes."""

    signal: str = "SIGKILL"
    cause: str = "host-oom"
    """host-oom (of the machine), cgroup-oom (of the job's limit), native (a crash) or unseen (nothing else shows it)."""
    ranks: tuple[int, ...] = ()
    """Which ranks; empty: the one that the fault strikes."""
    startup: bool = False
    """While the model is loaded, before anything is on the GPU."""
    leak_s: float = 240.0
    """How long host memory fills up before."""

    def strike(self, stage: Stage) -> None:
        self.check("signal", SIGNALS)
        self.check("cause", ("host-oom", "cgroup-oom", "native", "unseen"))
        act = stage.act
        ranks = self.ranks or (self.place(stage).rank,)
        at = act.phases["import"][1] - 2.0 if self.startup else self.begin(stage)
        rng, places = stage.rng("signal-kill"), [stage.places[rank] for rank in ranks]
        code = -SIGNALS[self.signal]
        crash(
            stage,
            at,
            [Death(rank, 0.4 * float(rng.random()), code) for rank in ranks],
            State.IDLE if self.startup else State.SPIN,
        )
        for place in places:
            if self.cause.endswith("oom"):
                self._starve(stage, place.node, at)
                oom_kill(stage, act, place, at, 0.7 * stage.scenario.cluster.memory_gib / 8, self.cause == "cgroup-oom")
            elif self.cause == "native" and self.signal == "SIGSEGV":
                segfault(stage, act, place, at)
        if self.cause == "cgroup-oom":
            finish(stage, act.end, "OUT_OF_MEMORY", 0, 125)
            text = f"slurmstepd: error: Detected {len(ranks)} oom_kill event in StepId={act.job}.0. Some of the step tasks have been OOM Killed."
            act.say(at + 2.5, text, node=places[0].node)
        enough = (("logs",), ("kernel",)) if self.cause.endswith("oom") else (("logs",),)
        self.inject(
            stage, "A2", "job", since=at, nodes=tuple(dict.fromkeys(p.node for p in places)),
            gpus=tuple(p.key for p in places), ranks=tuple(ranks), enough=enough, halts=True,
        )  # fmt: skip

    def _starve(self, stage: Stage, node: str, at: float) -> None:
        """Memory runs out by the moment of the kill; a job's own limit is well below the machine's."""
        if any(effect.node == node and effect.memory_gib for effect in stage.host_effects):
            return
        total = stage.scenario.cluster.memory_gib
        take = total * (0.93 if self.cause == "host-oom" else 0.4) - 60
        start = max(at - self.leak_s, stage.act.start + 2)
        stage.host_effects.append(HostEffect(node, start, at, memory_gib=take))
        if self.cause == "host-oom":
            stage.host_effects.append(
                HostEffect(node, at - min(30.0, self.leak_s / 3), at, stalled_memory=0.6, stalled_io=0.3)
            )
