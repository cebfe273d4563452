"""Whether the GPUs of a run that makes progress wait for each other, or for each kernel launch, instead of working.

Engine activity counts a kernel that only spins in a collective; SM activity hardly does. The difference is the wait.
Exporters report tensor-pipe and device-memory activity by default, but not SM activity. A spinning kernel uses neither
and draws little power; FP32 work, which uses no tensor pipe either, draws more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Grid, Missing, Value, derived
from trackside.facts import maths
from trackside.facts.fact import Maybe, fact, or_none
from trackside.facts.gpu.activity import COLLECTIVE_SECONDS, TITLES, GpuActivity
from trackside.facts.gpu.duty import DutyCycle
from trackside.facts.gpu.power_limits import PowerLimits
from trackside.facts.gpu.traffic import TRAFFIC_CLAIMS, GpuTraffic
from trackside.facts.gpus import value_or_none
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.query import Query, Reducer, metric


def _by_api(name: str) -> Query:
    return metric(name).over("run", "increase").by("api", how="sum")


BUSY_WAIT: Mapping[str, Query] = {
    "steps": metric("training_step").over("run", "max"),
    "waits": COLLECTIVE_SECONDS,
    "api_seconds": _by_api("trackside_cuda_api_seconds_total"),
    "api_calls": _by_api("trackside_cuda_api_calls_total"),
    "all_reduce": metric("training_all_reduce_seconds").over("run", "avg"),
    "step_seconds": metric("training_step_seconds").over("run", "avg"),
    "network": metric("host_network_tx_bytes_total").over("run", "increase").by("node", how="max"),
    "fabric": metric("host_infiniband_tx_bytes_total").over("run", "increase").by("node", how="max"),
}  # fmt: skip
"""The queries behind :class:`BusyWait`."""

LAUNCHES_WAIT = Sentence("a kernel launch takes {mean} (mean of {count}), as long as the kernel itself")
LAUNCH_TIME_SHARE = Sentence("launch calls take {share} of the time, and kernels run {busy:share} of the time")
BUSY_WITHOUT_WORK = Sentence(
    "the GPUs look busy but hardly compute: {signal} {busy}, SM activity {sm} (median GPU, averaged over "
    "{seconds} of training)"
)
LOOK_BUSY = Sentence("the GPUs look busy: {signal} {busy} (median GPU, averaged over {seconds} of training)")
CALLS_BLOCK = Sentence("CUDA calls block for {mean} on average (a call that does not wait takes microseconds)")
CALLS_BLOCK_LONGER = Sentence("CUDA calls block for {mean} on average; a kernel launch takes {floor}")
POWER_DRAWN = Sentence("power: {power} per GPU (median)")
POWER_OF_LIMIT = Sentence("power: {power} per GPU (median) of a {limit} limit")
TENSOR_PIPES = Sentence("tensor cores were active {level} of the time (mean)")
IN_COLLECTIVES = Sentence(
    "{share} of the time is spent in communication: GPUs inside collectives (median of {seconds} of training)"
)
COMMUNICATION_SHARE = Sentence("communication takes {share} of each step: {communication} of {step}")
FABRIC_IDLE = Sentence("a node sends {sent} over Ethernet and {carried} over InfiniBand (medians)")


@dataclass(frozen=True)
class Limits:
    """Thresholds for waiting."""

    pinned_activity: float = 0.85
    """Engine activity (or utilization) of GPUs that always have a kernel resident."""
    low_sm: float = 0.2
    """SM activity of GPUs that mostly spin. Only 2 to 9% of all samples of two clusters of language-model training lie
    between idle and this (AcmeTrace), so that little other work looks like it."""
    doubtful_sm: float = 0.35
    """GPUs with at most this SM activity wait if another sign agrees, and may wait if none does."""
    wait_share: float = 0.5
    """Collectives set the pace if they take at least this share of the time."""
    idle_fabric: float = 0.1
    """Collectives use the plain network if the fast fabric carries at most this fraction of its traffic."""
    min_network_bytes_per_s: float = 2e7
    """Less traffic of a node's network is insignificant."""
    long_launch_s: float = 5e-5
    """A launch returns in 2 to 10 microseconds; one that waits for its kernel takes as long as the kernel."""
    launch_match: tuple[float, float] = (0.7, 1.4)
    """Ratio of time in launches to kernel run time if each launch waits for its kernel."""
    gapless_activity: float = 0.95
    """With more engine activity kernels follow one another without gaps, so that launches wait for a full queue."""
    call_ratio: float = 2.0
    """The calls wait if they take at least this many times as long as a launch (means)."""
    quiet_pipes: float = 0.1
    """Mean activity of tensor pipes and of device memory: training that is limited by either shows a few tenths of one
    of them."""
    little_power_share: float = 0.4
    """GPUs with a resident kernel hardly work if they draw at most this share of their power limit: spinning ones drew
    85 of 400 W (public nvidia-smi output of a hang on A100s)."""
    min_points: int = 5
    """Minimum number of printed points with the time in collectives for a reliable median."""


@dataclass(frozen=True)
class SpinningGpus:
    """GPUs that are pinned but hardly work."""

    shows: tuple[Claim, ...]
    corroborated: tuple[Claim, ...]
    """Other evidence that they wait in collectives."""
    plain: bool
    """Whether SM activity alone is conclusive. If not, and nothing else agrees, it may be a model that fills few
    SMs."""


@dataclass(frozen=True, eq=False)
class BusyWait:
    """Whether GPUs wait while they look busy, during the time of work."""

    evidence: Evidence
    activity: GpuActivity
    duty: DutyCycle
    traffic: GpuTraffic
    powers: PowerLimits
    trajectory: Maybe[Trajectory]
    limits: Limits

    def spin(self, others: Sequence[Claim] = ()) -> SpinningGpus | None:
        """Several GPUs that always have a kernel resident but hardly work; None if not so or not measured.

        ``others``: claims of the log about slow collectives. Without SM activity, time in collectives or low power is
        the evidence, if tensor pipes and memory are idle as far as they were sampled.
        """
        duty, limits = self.duty, self.limits
        if int(duty.rows.sum()) < 2 or duty.busy is None or duty.busy.number < limits.pinned_activity:
            return None
        if (duty.sm is not None and duty.sm.number > limits.doubtful_sm) or not self._advances:
            return None
        power, limit = _over(self.activity.grid("power"), duty), self.powers.between(duty.start, duty.end)
        values = {
            "busy": duty.busy,
            "signal": derived(TITLES[self.activity.busy_by or "engine"], duty.busy),
            "seconds": derived(duty.seconds, duty.busy, unit="s"),
        }
        shows = [BUSY_WITHOUT_WORK(**values, sm=duty.sm) if duty.sm is not None else LOOK_BUSY(**values)]
        pipes = [_over(self.traffic.evidence.grid(name), duty, "avg") for name in ("tensor", "dram")]
        busy_pipes = any(level.number > limits.quiet_pipes for level in pipes if level is not None)
        if duty.sm is None:
            sentences = zip((TENSOR_PIPES, TRAFFIC_CLAIMS["copy"]), pipes, strict=True)
            shows += [sentence(level=level) for sentence, level in sentences if level is not None]
        if power is not None:
            shows.append(POWER_DRAWN(power=power) if limit is None else POWER_OF_LIMIT(power=power, limit=limit))
        shows += [*self._calls(), *self.activity.advancing(duty.start, duty.end)]
        waiting = self._in_collectives()
        corroborating = (*self._network(), *others, *waiting, *self._printed_share(), *self._gauge_share())
        if duty.sm is not None:
            return SpinningGpus(tuple(shows), corroborating, duty.sm.number <= limits.low_sm)
        if power is not None and limit is not None:
            little = power.number <= limits.little_power_share * limit.number
        else:
            little = limit is None and None not in pipes and bool(corroborating)
        return SpinningGpus(tuple(shows), corroborating, False) if waiting or (little and not busy_pipes) else None

    @property
    def _advances(self) -> bool:
        """Whether the run makes progress: steps, collectives, launches, or data transfer. A run that only spins is
        hung."""
        duty = self.duty
        steps, sent = self.evidence.grid("steps"), _over(self.evidence.grid("network"), duty)
        training = or_none(self.trajectory)
        if (training is not None and len(training.points) > 1) or self.activity.advancing(duty.start, duty.end):
            return True
        if steps is not None and steps.value("max").number > steps.value("min").number:
            return True
        if sent is not None and sent.number >= self.limits.min_network_bytes_per_s * self.activity.step:
            return True
        return bool(self.traffic.between(duty.start, duty.end).active)

    def _in_collectives(self) -> list[Claim]:
        grid = self.evidence.grid("waits")
        wait_s = _over(grid, self.duty)
        if grid is None or wait_s is None or wait_s.number < self.limits.wait_share * grid.step:
            return []
        share = derived(round(wait_s.number / grid.step, 3), wait_s, unit="share")
        return [IN_COLLECTIVES(share=share, seconds=derived(self.duty.seconds, wait_s, unit="s"))]

    def _printed_share(self) -> list[Claim]:
        """Communication share of the step, from the log."""
        if isinstance(self.trajectory, Missing):
            return []
        frame, parts = self.trajectory.progress, []
        for row in self.trajectory.points:
            comm_s, step_s = numeric_field(row, "comm_time_s"), numeric_field(row, "step_time_s")
            if comm_s is not None and step_s is not None and step_s > 0:
                parts.append((comm_s / step_s, row))
        share = maths.median([part for part, _ in parts])
        if len(parts) < self.limits.min_points or share < self.limits.wait_share:
            return []
        row = min(parts, key=lambda pair: abs(pair[0] - share))[1]
        sources = frame.value(row, "comm_time_s", "s"), frame.value(row, "step_time_s", "s")
        share_value = derived(round(share, 3), *sources, unit="share")
        return [COMMUNICATION_SHARE(communication=sources[0], step=sources[1], share=share_value)]

    def _gauge_share(self) -> list[Claim]:
        """Communication share of the step, from the training loop's gauges."""
        comm_s, step_s = (_over(self.evidence.grid(name), self.duty) for name in ("all_reduce", "step_seconds"))
        if comm_s is None or step_s is None or not step_s.number > 0:
            return []
        if comm_s.number < self.limits.wait_share * step_s.number:
            return []
        share = derived(round(comm_s.number / step_s.number, 3), comm_s, step_s, unit="share")
        return [COMMUNICATION_SHARE(communication=comm_s, step=step_s, share=share)]

    def _network(self) -> list[Claim]:
        """Traffic on the plain network while a fast fabric exists and carries almost none."""
        plain, limits = self.evidence.grid("network"), self.limits
        sent, carried = _over(plain, self.duty), _over(self.evidence.grid("fabric"), self.duty)
        if (
            plain is None
            or sent is None
            or carried is None
            or sent.number < limits.min_network_bytes_per_s * plain.step
        ):
            return []
        if carried.number > limits.idle_fabric * sent.number:
            return []
        rates = [derived(value.number / plain.step, value, unit="B/s") for value in (sent, carried)]
        return [FABRIC_IDLE(sent=rates[0], carried=rates[1])]

    def _calls(self) -> list[Claim]:
        """Mean duration of a CUDA call, compared with a launch, which does not wait."""
        seconds, calls = self.evidence.grid("api_seconds"), self.evidence.grid("api_calls")
        call_s = _mean(seconds, calls, self.duty)
        if call_s is None or seconds is None or calls is None:
            return []
        name = _launch_call(seconds)
        launch_s = _mean(seconds.where(api=name), calls.where(api=name), self.duty) if name else None
        if launch_s is None or not call_s.number > self.limits.call_ratio * launch_s.number > 0:
            return [CALLS_BLOCK(mean=call_s)]
        return [CALLS_BLOCK_LONGER(mean=call_s, floor=launch_s)]

    @cached_property
    def blocking(self) -> tuple[Claim, ...]:
        """Launches that take as long as their kernels, with gaps between kernels; empty if not so."""
        seconds, calls = self.evidence.grid("api_seconds"), self.evidence.grid("api_calls")
        duty, limits, launches = self.duty, self.limits, self.activity.launches
        if seconds is None or calls is None or duty.busy is None or duty.busy.number > limits.gapless_activity:
            return ()
        name = _launch_call(seconds)
        launch_s, count = (_over(grid.where(api=name), duty, "sum") if name else None for grid in (seconds, calls))
        if launch_s is None or count is None or not count.value:
            return ()
        traced = int(duty.rows.sum() if launches is None else (np.nan_to_num(launches).sum(axis=1) > 0).sum())
        mean_s, share = launch_s.number / count.number, launch_s.number / (duty.seconds * max(traced, 1))
        low, high = limits.launch_match
        if mean_s < limits.long_launch_s or not low <= share / duty.busy.number <= high:
            return ()
        share_value = derived(round(share, 3), launch_s, count, unit="share")
        mean_value = derived(mean_s, launch_s, count, unit="s")
        return LAUNCHES_WAIT(mean=mean_value, count=count), LAUNCH_TIME_SHARE(share=share_value, busy=duty.busy)


@fact(BUSY_WAIT, limits=Limits())
def busy_wait(
    evidence: Evidence, activity: GpuActivity, duty: DutyCycle, traffic: GpuTraffic, powers: PowerLimits,
    trajectory: Maybe[Trajectory], limits: Limits,
) -> BusyWait:  # fmt: skip
    """Needs GPU activity during the time of work; otherwise missing."""
    return BusyWait(evidence, activity, duty, traffic, powers, trajectory, limits)


def _launch_call(seconds: Grid) -> str | None:
    """The API call that launches kernels; the one with the most time if there are several."""
    names = [name for (name,) in seconds.labels("api") if "launch" in name.lower()]
    return max(names, key=lambda name: float(np.nansum(seconds.where(api=name).values))) if names else None


def _mean(seconds: Grid | None, calls: Grid | None, duty: DutyCycle) -> Value | None:
    """Seconds per call."""
    total_s, count = _over(seconds, duty, "sum"), _over(calls, duty, "sum")
    if total_s is None or count is None or not count.number > 0:
        return None
    return derived(total_s.number / count.number, total_s, count, unit="s")


def _over(grid: Grid | None, duty: DutyCycle, reducer: Reducer = "median") -> Value | None:
    """A grid over the time of work, reduced to one value; None if nothing was sampled."""
    if grid is None:
        return None
    return value_or_none(
        grid.during(duty.start, duty.end), reducer, "" if reducer == "sum" and grid.unit != "s" else None
    )
