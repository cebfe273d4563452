"""Heat or power holds clocks down."""

from __future__ import annotations

import math

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.hardware import INLET_CELSIUS
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import Simulation, StepCostRule, ThrottlePeriod

SW_THERMAL, HW_THERMAL, HW_SLOWDOWN, POWER_BRAKE = 0x20, 0x40, 0x8, 0x80
REASONS = {
    "thermal": HW_SLOWDOWN | HW_THERMAL,
    "software-thermal": SW_THERMAL,
    "power-brake": HW_SLOWDOWN | POWER_BRAKE,
}


@fault("clock-throttle")
class ClockThrottle(SimulatedFault):
    """Cooling fails on a GPU or a node, or the power brake is applied: clocks fall, steps take longer."""

    reason: str = "thermal"
    """thermal, software-thermal or power-brake."""
    whole_node: bool = False
    """Whether all GPUs of the node are affected."""
    factor: float = 0.5
    """The share of the clock that is left."""
    length_s: float = 0.0
    """0: to the end of the run."""

    def prepare(self, sim: Simulation) -> None:
        self.check("reason", REASONS)
        if not 0.05 <= self.factor < 1:
            raise ScenarioError(f"fault {self.kind}: factor: {self.factor} is out of range (0.05 to below 1)")
        placement, model = self.placement(sim), sim.model
        time = self.start_time(sim)
        end = time + self.length_s if self.length_s else math.inf
        held_celsius = resistance = 0.0
        begin = time
        if self.reason != "power-brake":
            held_celsius = model.slowdown - (4 if self.reason == "software-thermal" else 0.5)
            power_when_held = model.context_idle + 0.85 * (model.tdp - model.context_idle) * self.factor**2
            rise = (model.temperature_full - INLET_CELSIUS) / model.tdp
            resistance = (held_celsius + 2 - sim.scenario.cluster.inlet_celsius) / (rise * power_when_held)
            full = sim.scenario.cluster.inlet_celsius + rise * resistance * 0.85 * model.tdp
            normal = sim.scenario.cluster.inlet_celsius + rise * 0.85 * model.tdp
            begin = time + model.lag_s * math.log((full - normal) / (full - held_celsius))
        ranks = self.node_ranks(sim) if self.whole_node else [placement.rank]
        placements = [sim.placements[rank] for rank in ranks]
        for affected_placement in placements:
            if resistance:
                sim.throttles.append(
                    ThrottlePeriod(affected_placement.node, affected_placement.gpu, time, begin, 1.0, 0, resistance)
                )
            sim.throttles.append(
                ThrottlePeriod(
                    affected_placement.node,
                    affected_placement.gpu,
                    begin,
                    end,
                    self.factor,
                    REASONS[self.reason],
                    resistance or 1.0,
                    held_celsius,
                )
            )
        sim.cost_rules.append(StepCostRule(begin, end, frozenset(ranks), compute=1 / self.factor))
        self.record_truth(
            sim, "B3", "infrastructure", since=begin, nodes=tuple(dict.fromkeys(p.node for p in placements)),
            gpus=tuple(affected_placement.key for affected_placement in placements), ranks=tuple(ranks),
            cascade=("D3",) if len(ranks) < len(sim.placements) else (), sufficient_planes=(("gpu", "full"),),
        )  # fmt: skip
