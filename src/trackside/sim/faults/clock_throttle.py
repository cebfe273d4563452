"""Clocks are held down by heat or by power."""

from __future__ import annotations

import math

from trackside.sim.faults import Fault, fault
from trackside.sim.hardware import INLET
from trackside.sim.scenario import ScenarioError
from trackside.sim.stage import Regime, Stage, Throttle

SW_THERMAL, HW_THERMAL, HW_SLOWDOWN, POWER_BRAKE = 0x20, 0x40, 0x8, 0x80
REASONS = {
    "thermal": HW_SLOWDOWN | HW_THERMAL,
    "software-thermal": SW_THERMAL,
    "power-brake": HW_SLOWDOWN | POWER_BRAKE,
}


@fault("clock-throttle")
class ClockThrottle(Fault):
    """Cooling fails on a GPU or a node, or the power brake is pulled: clocks fall, steps take longer."""

    reason: str = "thermal"
    """thermal, software-thermal or power-brake."""
    whole_node: bool = False
    factor: float = 0.5
    """What is left of the clock."""
    length_s: float = 0.0
    """0: to the end."""

    def shape(self, stage: Stage) -> None:
        self.check("reason", REASONS)
        if not 0.05 <= self.factor < 1:
            raise ScenarioError(
                f"fault {self.kind}: factor: {self.factor} is out of range; from 0.05 to below 1 will do"
            )
        place, model = self.place(stage), stage.model
        at = self.begin(stage)
        end = at + self.length_s if self.length_s else math.inf
        hold = resistance = 0.0
        begin = at
        if self.reason != "power-brake":
            hold = model.slowdown - (4 if self.reason == "software-thermal" else 0.5)
            held_power = model.context_idle + 0.85 * (model.tdp - model.context_idle) * self.factor**2
            rise = (model.temperature_full - INLET) / model.tdp
            resistance = (hold + 2 - stage.scenario.cluster.inlet_celsius) / (rise * held_power)
            full = stage.scenario.cluster.inlet_celsius + rise * resistance * 0.85 * model.tdp
            normal = stage.scenario.cluster.inlet_celsius + rise * 0.85 * model.tdp
            begin = at + model.lag_s * math.log((full - normal) / (full - hold))
        ranks = self.node_ranks(stage) if self.whole_node else [place.rank]
        places = [stage.places[rank] for rank in ranks]
        for one in places:
            if resistance:
                stage.throttles.append(Throttle(one.node, one.gpu, at, begin, 1.0, 0, resistance))
            stage.throttles.append(
                Throttle(one.node, one.gpu, begin, end, self.factor, REASONS[self.reason], resistance or 1.0, hold)
            )
        stage.regimes.append(Regime(begin, end, frozenset(ranks), compute=1 / self.factor))
        self.inject(
            stage, "B3", "infrastructure", since=begin, nodes=tuple(dict.fromkeys(p.node for p in places)),
            gpus=tuple(one.key for one in places), ranks=tuple(ranks),
            cascade=("D3",) if len(ranks) < len(stage.places) else (), enough=(("gpu", "full"),),
        )  # fmt: skip
