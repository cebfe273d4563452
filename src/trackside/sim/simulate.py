"""From a scenario to a folder: play it, let the faults strike, write what the run leaves behind."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from trackside.sim.endings import notice
from trackside.sim.exporters import dcgm, node, tracer, training
from trackside.sim.exposition import Exposition
from trackside.sim.faults import Fault, faults
from trackside.sim.parquet import ParquetTable
from trackside.sim.records import job_log, kernel, slurm
from trackside.sim.scenario import Scenario, ScenarioError
from trackside.sim.schedule import first_act, play
from trackside.sim.schema import build
from trackside.sim.stage import Stage
from trackside.sim.timeline import State
from trackside.sim.truth import Injected, Truth, primary_of
from trackside.sim.watch import befall_neighbours

TARGETS = {"dcgm": ("gpu", dcgm.write), "node": ("host", node.write), "tracer": ("tracer", tracer.write)}
"""Part of a metric file's name -> its plane and who writes it."""


def simulate(scenario: Scenario, folder: Path, metrics: str = "text") -> Truth:
    """Write ``folder``/run and ``folder``/truth.json; the same scenario gives the same bytes. Raises ScenarioError.

    ``metrics``: text as exporters serve it, or parquet.
    """
    stage = stage_of(scenario)
    truth = truth_of(stage)
    run = folder / "run"
    if run.exists():
        if not (folder / "truth.json").is_file():
            raise ScenarioError(f"{run} is there and was not simulated; give another folder")
        shutil.rmtree(run)
    run.mkdir(parents=True)
    (folder / "truth.json").write_bytes(truth.encode())
    write(stage, run, metrics)
    return truth


def stage_of(scenario: Scenario) -> Stage:
    """The scenario played to its end, nothing written."""
    stage = Stage(scenario)
    stage.acts.append(first_act(stage))
    play(stage.act, stage)
    stage.reference = stage.acts.pop()
    length = stage.reference.end - stage.reference.start
    stage.time_limit = scenario.job.time_limit_s or 60 * math.ceil(4 * length / 60)
    stage.steps = scenario.job.steps
    chosen = sorted(_chosen(scenario), key=lambda fault: fault.begin(stage))
    for fault in chosen:
        fault.shape(stage)
    befall_neighbours(stage)
    stage.acts.append(first_act(stage))
    stage.pauses.sort(key=lambda pause: pause.start)
    play(stage.act, stage)
    for fault in chosen:
        if fault.begin(stage) < stage.act.end:
            fault.strike(stage)
    _limit(stage)
    return stage


def _chosen(scenario: Scenario) -> list[Fault]:
    found = []
    for number, table in enumerate(scenario.faults):
        where = f"fault[{number}]"
        known = faults()
        kind = str(table.get("kind"))
        if kind not in known:
            raise ScenarioError(f"{where}.kind: {kind!r} is none of {', '.join(known)}")
        fields = {name: str(v) if name == "at" else v for name, v in table.items() if name != "kind"}
        found.append(build(known[kind], fields, f"{where} ({kind})", ""))
    return found


def _limit(stage: Stage) -> None:
    """Slurm ends whatever is still there when the time limit is reached."""
    act = stage.act
    limit = act.start + math.ceil(stage.time_limit / 60) * 60
    if act.end <= limit:
        return
    act.cut(limit)
    stop = limit + 1.5
    act.spend(None, limit, stop, State.IDLE)
    act.release(None, stop)
    act.ending.time, act.ending.state, act.ending.code, act.ending.signal = stop + 1, "TIMEOUT", 0, 0
    notice(stage, act, limit + 0.5, "DUE TO TIME LIMIT")


def write(stage: Stage, run: Path, metrics: str = "text") -> None:
    """Everything that the run leaves behind, plane by plane; metrics a node at a time."""
    telemetry = stage.scenario.telemetry
    planes = set(telemetry.planes)
    file_of, suffix = (ParquetTable, "parquet") if metrics == "parquet" else (Exposition, "prom")
    if planes & {"gpu", "host", "tracer"} or telemetry.training:
        (run / "metrics").mkdir(exist_ok=True)
    for name in stage.nodes:
        if name in telemetry.missing_nodes:
            continue
        for kind, (plane, serve) in TARGETS.items():
            if plane in planes:
                with file_of(run / "metrics" / f"{name}.{kind}.{suffix}", telemetry.dialect == "lower") as sink:
                    serve(stage, name, sink)
    if telemetry.training:
        with file_of(run / "metrics" / f"training.{suffix}") as sink:
            training.write(stage, sink)
    if "logs" in planes:
        job_log.write(stage, run)
    if "scheduler" in planes:
        slurm.write(stage, run)
    if "kernel" in planes:
        kernel.write(stage, run)


def truth_of(stage: Stage) -> Truth:
    """The answer sheet."""
    scenario, act = stage.scenario, stage.act
    cause = primary_of(stage.injected) or _healthy(stage)
    planes = scenario.telemetry.planes
    cascade = list(cause.cascade)
    if act.ending.state == "TIMEOUT" and cause.family not in ("F3",) and "F3" not in cascade:
        cascade.append("F3")
    others = [one.family for one in stage.injected if one is not cause and not one.latent and one.family not in cascade]
    return Truth(
        scenario.name,
        scenario.seed,
        act.job,
        cause.family,
        cause.variant,
        cause.fault_class,
        cause.culprit,
        act.ending.state,
        act.start,
        act.end,
        cause.since,
        cause.nodes,
        cause.gpus,
        cause.ranks,
        tuple(code for code in (*cascade, *others) if code != cause.family),
        tuple(one for one in stage.injected if one.latent),
        tuple(stage.injected),
        planes,
        cause.enough,
        any(set(wanted) <= _given(scenario) for wanted in cause.enough),
        act.steps_done,
        len(act.places),
    )


def _given(scenario: Scenario) -> set[str]:
    """The planes that are written, and what is in them: profiling and full of the GPUs, progress of the logs."""
    telemetry = scenario.telemetry
    full = telemetry.fields == "full"
    extra = {"full": full, "profiling": full and telemetry.profiling, "progress": scenario.job.framework != "silent"}
    return {*telemetry.planes, *(name for name, there in extra.items() if there)}


def _healthy(stage: Stage) -> Injected:
    """Nothing went wrong; a run that had not enough time is a plain timeout."""
    if stage.act.ending.state == "TIMEOUT":
        return Injected("timeout", "F3", "job", enough=(("scheduler",), ("logs",)))
    silent = stage.scenario.job.framework == "silent"
    enough = (("gpu", "profiling", "scheduler"), ("logs", "progress"), ("logs", "scheduler"))
    return Injected("healthy", "G1", "none", "unverifiable" if silent else "healthy", enough=enough)
