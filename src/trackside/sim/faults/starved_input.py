"""The input pipeline can't keep the GPUs fed."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import HostEffect, Regime, Stage


@fault("starved-input")
class StarvedInput(Fault):
    """Every step waits for its batch: ``data_s`` seconds on top of what a step takes."""

    at: str = "0%"
    data_s: float = 12.0
    saturated: bool = True
    """The host's CPUs are busy with it (tokenising); else it waits for storage."""
    warns: bool = False
    """torch warns of more loader workers than CPUs."""

    def shape(self, stage: Stage) -> None:
        at = self.begin(stage)
        stage.regimes.append(Regime(at, data_s=self.data_s))

    def strike(self, stage: Stage) -> None:
        act = stage.act
        begin = max(self.begin(stage), act.phases["train"][0])
        cores = 0.5 * stage.scenario.cluster.cores
        for node in act.nodes:
            if self.saturated:
                effect = HostEffect(node, begin, act.phases["end"][0], cores=cores, stalled_cpu=0.4)
            else:
                effect = HostEffect(node, begin, act.phases["end"][0], blocked_tasks=4.0, stalled_io=0.5)
            stage.host_effects.append(effect)
        if self.warns:
            text = (
                "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader "
                f"will create 32 worker processes in total. Our suggested max number of worker in current system is "
                f"{stage.scenario.cluster.cores // 8}, which is smaller than what this DataLoader is going to create. Please be "
                "aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker "
                "number to avoid potential slowness/freeze if necessary."
            )
            act.say(begin - 0.5, text, 0, error=True)
        self.inject(stage, "D1", "job", since=begin, enough=(("gpu", "tracer"), ("gpu", "logs", "progress")))
