"""A GPU's memory fails during the job: a double-bit error, and the driver's reaction."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, RankDeath, crash, hang, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.kernel_lines import log_xid
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import NodeStateChange, Simulation

ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)


@fault("ecc")
class Ecc(SimulatedFault):
    """An uncorrectable ECC error: Xid 48, a row to remap, and the process that used the row is lost."""

    errors: int = 1
    """Uncorrectable errors that the GPU counts."""
    contained: bool = True
    """Whether only this process is lost (Xid 94), else 95."""
    remap: str = "pending"
    """pending (Xid 63), failed (Xid 64) or none."""
    peers: str = "teardown"
    """How the other ranks end: by the launcher (teardown) or by their own watchdogs (watchdog)."""
    silent: bool = False
    """Whether the process prints nothing."""
    drain: bool = False
    """Whether Slurm's health check drains the node afterwards."""

    def apply(self, sim: Simulation) -> None:
        if self.remap not in ("pending", "failed", "none") or self.peers not in ("teardown", "watchdog"):
            raise ScenarioError(
                f"fault {self.kind}: remap is one of pending, failed, none; peers one of teardown, watchdog"
            )
        placement, time, attempt = self.placement(sim), self.start_time(sim), sim.attempt
        text = traceback(
            sim,
            placement.rank,
            f"RuntimeError: CUDA error: uncorrectable ECC error encountered\n{ADVICE}",
            (
                (CODE, 196, "main", "loss.backward()"),
                (f"{SITE}/torch/_tensor.py", 626, "backward", "torch.autograd.backward("),
            ),
        )
        has_watchdog = self.peers == "watchdog" and bool(sim.scenario.job.watchdog_s) and len(sim.placements) > 1
        if has_watchdog:
            hang(sim, time + 1.0, [placement.rank], dead=True)
            if not self.silent:
                attempt.log(time + 1.2, text, placement.rank, error=True, marked=True)
        else:
            crash(
                sim,
                time + 1.0,
                [RankDeath(placement.rank, 0.3, 1 if not self.silent else -6, "" if self.silent else text)],
            )
        self._driver(sim, time)
        if self.drain:
            sim.node_changes.append(
                NodeStateChange(attempt.end + 15, placement.node, "IDLE+DRAIN", f"gpu{placement.gpu} Xid 48")
            )
        self.record_truth(
            sim, "B2", "infrastructure", "active", since=time, nodes=(placement.node,), gpus=(placement.key,),
            ranks=(placement.rank,), cascade=("C2",) if has_watchdog else ("H2",),
            sufficient_planes=(("kernel",), ("gpu", "full")), halts=True,
        )  # fmt: skip

    def _driver(self, sim: Simulation, time: float) -> None:
        placement, attempt = self.placement(sim), sim.attempt
        sim.change(placement.node, placement.gpu, time, "ecc_uncorrectable", float(self.errors))
        codes = [48]
        if self.remap == "pending":
            codes.append(63)
            sim.change(placement.node, placement.gpu, time + 0.1, "remap_pending", to=1.0)
            sim.change(placement.node, placement.gpu, time + 0.1, "rows_uncorrectable", 1.0)
        elif self.remap == "failed":
            codes.append(64)
            sim.change(placement.node, placement.gpu, time + 0.1, "remap_failure", to=1.0)
        codes += [94 if self.contained else 95]
        for number, code in enumerate(codes):
            log_xid(sim, attempt, placement, time + 0.05 * number, code)
        log_xid(sim, attempt, placement, time + 1.6, 45)
