"""A GPU's memory fails under the job: a double-bit error, and what the driver does about it."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, Death, crash, hang, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.kernel_lines import xid
from trackside.sim.scenario import ScenarioError
from trackside.sim.stage import NodeChange, Stage

ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)


@fault("ecc")
class Ecc(Fault):
    """An uncorrectable ECC error: Xid 48, a row to remap, and the process that used it is lost."""

    errors: int = 1
    contained: bool = True
    """Xid 94 (only this process is lost), or 95."""
    remap: str = "pending"
    """pending (Xid 63), failed (Xid 64) or none."""
    peers: str = "teardown"
    """teardown, or watchdog: its launcher does not end the others, their watchdogs do."""
    silent: bool = False
    """The process prints nothing (it is only seen to be gone)."""
    drain: bool = False
    """Slurm's health check drains the node afterwards."""

    def strike(self, stage: Stage) -> None:
        if self.remap not in ("pending", "failed", "none") or self.peers not in ("teardown", "watchdog"):
            raise ScenarioError(
                f"fault {self.kind}: remap is one of pending, failed, none; peers one of teardown, watchdog"
            )
        place, at, act = self.place(stage), self.begin(stage), stage.act
        text = traceback(
            stage,
            place.rank,
            f"RuntimeError: CUDA error: uncorrectable ECC error encountered\n{ADVICE}",
            (
                (CODE, 196, "main", "loss.backward()"),
                (f"{SITE}/torch/_tensor.py", 626, "backward", "torch.autograd.backward("),
            ),
        )
        watch = self.peers == "watchdog" and bool(stage.scenario.job.watchdog_s) and len(stage.places) > 1
        if watch:
            hang(stage, at + 1.0, [place.rank], dead=True)
            if not self.silent:
                act.say(at + 1.2, text, place.rank, error=True, marked=True)
        else:
            crash(stage, at + 1.0, [Death(place.rank, 0.3, 1 if not self.silent else -6, "" if self.silent else text)])
        self._driver(stage, at)
        if self.drain:
            stage.node_changes.append(NodeChange(act.end + 15, place.node, "IDLE+DRAIN", f"gpu{place.gpu} Xid 48"))
        self.inject(
            stage, "B2", "infrastructure", "active", since=at, nodes=(place.node,), gpus=(place.key,),
            ranks=(place.rank,), cascade=("C2",) if watch else ("H2",), enough=(("kernel",), ("gpu", "full")),
            halts=True,
        )  # fmt: skip

    def _driver(self, stage: Stage, at: float) -> None:
        place, act = self.place(stage), stage.act
        stage.change(place.node, place.gpu, at, "ecc_uncorrectable", float(self.errors))
        codes = [48]
        if self.remap == "pending":
            codes.append(63)
            stage.change(place.node, place.gpu, at + 0.1, "remap_pending", to=1.0)
            stage.change(place.node, place.gpu, at + 0.1, "rows_uncorrectable", 1.0)
        elif self.remap == "failed":
            codes.append(64)
            stage.change(place.node, place.gpu, at + 0.1, "remap_failure", to=1.0)
        codes += [94 if self.contained else 95]
        for number, code in enumerate(codes):
            xid(stage, act, place, at + 0.05 * number, code)
        xid(stage, act, place, at + 1.6, 45)
