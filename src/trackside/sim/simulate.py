"""From a scenario to a folder: play it, apply the faults, write what the run leaves behind."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from trackside.sim.endings import slurm_notice
from trackside.sim.exporters import dcgm, node, tracer, training
from trackside.sim.exposition import Exposition
from trackside.sim.faults import SimulatedFault, faults
from trackside.sim.parquet import ParquetTable
from trackside.sim.records import job_log, kernel, slurm
from trackside.sim.scenario import Scenario, ScenarioError
from trackside.sim.schedule import first_attempt, simulate_attempt
from trackside.sim.schema import build
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState
from trackside.sim.truth import InjectedFault, Truth, primary_of
from trackside.sim.watch import apply_neighbor_faults

EXPORTERS = {"dcgm": ("gpu", dcgm.write), "node": ("host", node.write), "tracer": ("tracer", tracer.write)}
"""Part of a metric file's name -> its plane and its writer."""


def simulate(scenario: Scenario, folder: Path, metrics: str = "text") -> Truth:
    """Write ``folder``/run and ``folder``/truth.json; the same scenario gives the same bytes. Raises ScenarioError.

    ``folder``: new, empty, or written by this function, whose files are replaced. ``metrics``: text as exporters serve
    it, or parquet.
    """
    run, truth_file = folder / "run", folder / "truth.json"
    if folder.is_dir() and any(folder.iterdir()) and not truth_file.is_file():
        raise ScenarioError(f"{folder} is not empty and was not made by simulate; give a new or empty folder")
    sim = play_scenario(scenario)
    truth = truth_of(sim)
    if run.exists():
        shutil.rmtree(run)
    run.mkdir(parents=True)
    truth_file.write_bytes(truth.encode())
    write(sim, run, metrics)
    return truth


def play_scenario(scenario: Scenario) -> Simulation:
    """The scenario played to its end, with nothing written."""
    sim = Simulation(scenario)
    sim.attempts.append(first_attempt(sim))
    simulate_attempt(sim.attempt, sim)
    sim.reference = sim.attempts.pop()
    length = sim.reference.end - sim.reference.start
    sim.time_limit = scenario.job.time_limit_s or 60 * math.ceil(4 * length / 60)
    sim.steps = scenario.job.steps
    faults_of_run = sorted(_faults(scenario), key=lambda fault: fault.start_time(sim))
    for fault in faults_of_run:
        fault.prepare(sim)
    apply_neighbor_faults(sim)
    sim.attempts.append(first_attempt(sim))
    sim.pauses.sort(key=lambda pause: pause.start)
    simulate_attempt(sim.attempt, sim)
    for fault in faults_of_run:
        if fault.start_time(sim) < sim.attempt.end:
            fault.apply(sim)
    _enforce_time_limit(sim)
    return sim


def _faults(scenario: Scenario) -> list[SimulatedFault]:
    built = []
    for number, table in enumerate(scenario.faults):
        location = f"fault[{number}]"
        classes = faults()
        kind = str(table.get("kind"))
        if kind not in classes:
            raise ScenarioError(f"{location}.kind: {kind!r} is not one of: {', '.join(classes)}")
        fields = {name: str(v) if name == "at" else v for name, v in table.items() if name != "kind"}
        built.append(build(classes[kind], fields, f"{location} ({kind})", ""))
    return built


def _enforce_time_limit(sim: Simulation) -> None:
    """Let Slurm end whatever still runs when the time limit is reached."""
    attempt = sim.attempt
    limit = attempt.start + math.ceil(sim.time_limit / 60) * 60
    if attempt.end <= limit:
        return
    attempt.truncate(limit)
    end = limit + 1.5
    attempt.add_activity(None, limit, end, RankState.IDLE)
    attempt.release(None, end)
    outcome = attempt.outcome
    outcome.time, outcome.state, outcome.code, outcome.signal = (
        end + 1,
        "TIMEOUT",
        0,
        0,
    )
    slurm_notice(sim, attempt, limit + 0.5, "DUE TO TIME LIMIT")


def write(sim: Simulation, run: Path, metrics: str = "text") -> None:
    """Write everything that the run leaves behind, plane by plane; metrics one node at a time."""
    telemetry = sim.scenario.telemetry
    planes = set(telemetry.planes)
    file_of, suffix = (ParquetTable, "parquet") if metrics == "parquet" else (Exposition, "prom")
    if planes & {"gpu", "host", "tracer"} or telemetry.training:
        (run / "metrics").mkdir(exist_ok=True)
    for name in sim.nodes:
        if name in telemetry.missing_nodes:
            continue
        for kind, (plane, serve) in EXPORTERS.items():
            if plane in planes:
                with file_of(run / "metrics" / f"{name}.{kind}.{suffix}", telemetry.dialect == "lower") as sink:
                    serve(sim, name, sink)
    if telemetry.training:
        with file_of(run / "metrics" / f"training.{suffix}") as sink:
            training.write(sim, sink)
    if "logs" in planes:
        job_log.write(sim, run)
    if "scheduler" in planes:
        slurm.write(sim, run)
    if "kernel" in planes:
        kernel.write(sim, run)


def truth_of(sim: Simulation) -> Truth:
    """The truth about the run."""
    scenario, attempt = sim.scenario, sim.attempt
    cause = primary_of(sim.injected) or _healthy(sim)
    planes = scenario.telemetry.planes
    cascade = list(cause.cascade)
    if attempt.outcome.state == "TIMEOUT" and cause.family not in ("F3",) and "F3" not in cascade:
        cascade.append("F3")
    other_families = [
        fault.family
        for fault in sim.injected
        if fault is not cause and not fault.latent and fault.family not in cascade
    ]
    return Truth(
        scenario.name,
        scenario.seed,
        attempt.job,
        cause.family,
        cause.variant,
        cause.fault_class,
        cause.culprit,
        attempt.outcome.state,
        attempt.start,
        attempt.end,
        cause.since,
        cause.nodes,
        cause.gpus,
        cause.ranks,
        tuple(code for code in (*cascade, *other_families) if code != cause.family),
        tuple(fault for fault in sim.injected if fault.latent),
        tuple(sim.injected),
        planes,
        cause.sufficient_planes,
        any(set(planes_needed) <= _written_planes(scenario) for planes_needed in cause.sufficient_planes),
        attempt.steps_done,
        len(attempt.placements),
    )


def _written_planes(scenario: Scenario) -> set[str]:
    """The planes that are written, and what is in them: profiling and full for the GPUs, progress for the logs."""
    telemetry = scenario.telemetry
    full = telemetry.fields == "full"
    extra = {"full": full, "profiling": full and telemetry.profiling, "progress": scenario.job.framework != "silent"}
    return {*telemetry.planes, *(name for name, included in extra.items() if included)}


def _healthy(sim: Simulation) -> InjectedFault:
    """Nothing went wrong; a run that did not have enough time is a plain timeout."""
    if sim.attempt.outcome.state == "TIMEOUT":
        return InjectedFault("timeout", "F3", "job", sufficient_planes=(("scheduler",), ("logs",)))
    silent = sim.scenario.job.framework == "silent"
    sufficient_planes = (("gpu", "profiling", "scheduler"), ("logs", "progress"), ("logs", "scheduler"))
    return InjectedFault(
        "healthy", "G1", "none", "unverifiable" if silent else "healthy", sufficient_planes=sufficient_planes
    )
