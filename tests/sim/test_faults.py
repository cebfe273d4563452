"""Every fault takes effect, is recorded in the truth, and leaves files that our readers read."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from trackside.cli import main
from trackside.families import families
from trackside.finding import Culprit
from trackside.session.paths import load
from trackside.sim import Truth, load_scenario, scenario_titles, simulate
from trackside.sim.faults import faults
from trackside.sim.frameworks import frameworks
from trackside.sim.scenario import PLANES, ScenarioError
from trackside.sim.schema import built_in

pytestmark = pytest.mark.slow  # simulates every fault and every built-in scenario

SMALL = """
[cluster]
nodes = 2
gpus_per_node = 2
[job]
framework = "custom"
duration_s = "10m"
watchdog_s = 120
checkpoint_every = 30
time_limit_s = "25m"
"""
TOKENS = {*PLANES, "full", "profiling", "progress"}

VARIED = [
    ("startup-crash", f"fault_class={c!r}\ntext={i}") for c in ("config", "data", "env", "asset") for i in (0, 1)
] + [
    ("startup-crash", "one_node=true\nnode='1'"),
    ("signal-kill", "cause='cgroup-oom'"),
    ("signal-kill", "cause='native'\nsignal='SIGSEGV'"),
    ("signal-kill", "cause='unseen'\nsignal='SIGBUS'\nstartup=true\nranks=[1,2]"),
    ("cuda-oom", "phase='load'"),
    ("cuda-oom", "phase='mid'\nall_ranks=false\npeers='watchdog'"),
    ("ecc", "peers='watchdog'\nsilent=true\nremap='failed'"),
    ("ecc", "contained=false\nremap='none'\ndrain=true"),
    ("gpu-lost", "hangs=true"),
    ("latent-remap", "failed=true\necc=2\nxid=64"),
    ("clock-throttle", "reason='software-thermal'\nwhole_node=true"),
    ("clock-throttle", "reason='power-brake'\nlength_s='2m'"),
    ("rendezvous-hang", "ends='refused'\nwait_s='3m'"),
    ("rendezvous-hang", "ends='dns'\nwait_s='3m'"),
    ("rendezvous-hang", "ends='silent'"),
    ("collective-hang", "cause='loader-killed'\nwatchdog=false"),
    ("collective-hang", "cause='rank-killed'"),
    ("collective-hang", "watchdog=false\ncancel_after_s='5m'"),
    ("idle-hang", "attached=false"),
    ("idle-hang", "cancel_after_s='5m'"),
    ("starved-input", "saturated=false\nwarns=true"),
    ("slow-interconnect", "socket=false\nat='50%'"),
    ("straggler", "cause='cpu'\nwhole_node=true"),
    ("straggler", "cause='data'"),
    ("loss-divergence", "how='nan'\nstops=true"),
    ("loss-divergence", "how='explode'"),
    ("loss-divergence", "how='flat'"),
    ("loss-divergence", "how='spike'"),
    ("silent-resume", "how='proper'"),
    ("silent-resume", "how='size-mismatch'\nparent_state='TIMEOUT'"),
    ("silent-resume", "how='corrupt'"),
    ("silent-resume", "how='empty'"),
    ("node-down", "node='0'\nback_after_s='3m'"),
    ("node-down", "xid=79"),
    ("preempt", "requeue=true"),
    ("preempt", "resumes=false"),
    ("preempt", "returns=false"),
    ("storage-stall", "resumes_after_s=0"),
    ("storage-stall", "whole_node=true"),
    ("storage-full", "quota=true"),
    ("app-exception", "illegal_access=true"),
    ("app-exception", "fault_class='data'"),
]
HARMLESS = {("latent-remap", ""), ("storage-stall", ""), ("storage-stall", "whole_node=true")}
HARMLESS |= {
    ("loss-divergence", "how='spike'"),
    ("silent-resume", "how='proper'"),
    ("latent-remap", "failed=true\necc=2\nxid=64"),
}


def assert_complete(folder: Path, truth: Truth) -> None:
    """The truth is complete, and every file is read without a complaint."""
    scenario_gpus = {f"gpu00{n}:{i}" for n in range(1, 5) for i in range(8)}
    assert truth.family in {family.code for family in families()}
    assert truth.culprit in get_args(Culprit)
    assert truth.sufficient_planes
    assert all(set(expected) <= TOKENS for expected in truth.sufficient_planes)
    assert truth.enough_evidence or truth.planes != PLANES
    assert set(truth.gpus) <= scenario_gpus
    assert set(truth.ranks) <= set(range(truth.n_ranks))
    assert truth.end > truth.start
    for injection in truth.injected:
        assert injection.kind in faults()
        assert injection.since is None or injection.since <= truth.end + 1
        assert injection.latent or injection.since is not None
    evidence = load([folder / "run"])
    complaints = [(row.path, row.status, row.note) for row in evidence.inputs if row.status not in ("read", "empty")]
    assert complaints == []
    assert not [row.note for row in evidence.inputs if "defect" in row.note]


def scenario_with(kind: str, settings: str) -> str:
    return f"{SMALL}\n[[fault]]\nkind = {kind!r}\n{settings}\n"


@pytest.mark.parametrize(("kind", "settings"), [(kind, "") for kind in faults()] + VARIED)
def test_every_fault_takes_effect(kind: str, settings: str, tmp_path: Path) -> None:
    truth = simulate(load_scenario(scenario_with(kind, settings)), tmp_path)
    assert_complete(tmp_path, truth)
    assert (truth.family == "G1") == ((kind, settings) in HARMLESS)
    if (kind, settings) not in HARMLESS:
        assert truth.injected[0].kind == kind


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_scenario_is_complete(name: str, tmp_path: Path) -> None:
    truth = simulate(load_scenario(name), tmp_path)
    assert_complete(tmp_path, truth)
    assert truth.enough_evidence
    assert (truth.family == "G1") == name.startswith("healthy")


@pytest.mark.parametrize("name", frameworks())
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "python"])
def test_progress_of_every_framework_is_read(name: str, launcher: str, tmp_path: Path) -> None:
    layout = {"torchrun": "tree", "srun": "slurm", "python": "ranks"}[launcher]
    changes = (
        f"job.framework={name}",
        f"job.launcher={launcher}",
        f"job.layout={layout}",
        "job.eval_every=40",
        "telemetry.planes=['logs']",
    )
    truth = simulate(load_scenario(SMALL, changes), tmp_path)
    assert_complete(tmp_path, truth)
    evidence = load([tmp_path / "run"])
    points = [
        point for path in evidence.trajectories.paths for point in evidence.trajectories.points(frozenset([path]))
    ]
    assert (len(points) > 10) == (name != "silent")
    losses = [float(str(point.get("loss"))) for point in points if point.get("loss") is not None]
    assert not losses or losses[-1] < 0.8 * losses[0]


def test_the_truth_says_whether_the_evidence_suffices(tmp_path: Path) -> None:
    def enough(*changes: str) -> bool:
        return simulate(load_scenario("straggler", changes), tmp_path).enough_evidence

    assert enough("telemetry.planes=['gpu']")
    assert not enough("telemetry.planes=['gpu']", "telemetry.profiling=false")
    assert not enough("telemetry.planes=['gpu']", "telemetry.fields=default")
    assert not enough("telemetry.planes=['logs','scheduler']")
    assert enough("telemetry.planes=['tracer']")


def test_several_faults_combine_into_one_verdict() -> None:
    from trackside.sim.simulate import play_scenario, truth_of

    def truth_of_faults(*tables: str) -> Truth:
        text = SMALL + "".join(f"\n[[fault]]\n{table}\n" for table in tables)
        return truth_of(play_scenario(load_scenario(text)))

    slow_input = truth_of_faults("kind='starved-input'", "kind='node-down'\nat='60%'")
    assert (slow_input.family, slow_input.disposition, slow_input.cascade) == ("F1", "NODE_FAIL", ("D1",))
    late_fault = truth_of_faults("kind='app-exception'\nat='30%'", "kind='ecc'\nat='60%'")
    assert (late_fault.family, len(late_fault.injected)) == ("H2", 1)  # the run was over before the second
    marked_primary = truth_of_faults("kind='clock-throttle'\nat='20%'\nprimary=true", "kind='user-cancel'\nat='70%'")
    assert (marked_primary.family, marked_primary.cascade) == ("B3", ("D3", "H1"))
    hung_run = truth_of_faults("kind='collective-hang'\nwatchdog=false")
    assert (hung_run.family, hung_run.disposition, hung_run.cascade) == ("C2", "TIMEOUT", ("F3",))
    preempted = truth_of_faults("kind='preempt'\nat='30%'", "kind='loss-divergence'\nhow='nan'\nat='20%'\nprimary=true")
    assert (preempted.family, preempted.cascade) == ("E1", ("F2",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[job]\nsteps_s = 3\n", r"scenario: job.steps_s: unknown key; did you mean step_s"),
        ("[job]\nstep_s = 'soon'\n", r"job.step_s: 'soon' is not a duration; write seconds, or a length such as 10m"),
        ("[job]\nsteps = 2.5\n", r"job.steps: 2.5 is not a whole number"),
        ("[job]\nframework = 'mine'\n", r"job.framework: 'mine' is not one of: custom, "),
        ("[cluster]\ngpu = 'H900'\n", r"cluster.gpu: 'H900' is not one of: A100-40GB"),
        ("[cluster]\nnodes = 0\n", r"cluster.nodes: 0 is out of range \(1 to "),
        ("cluster = 3\n", r"cluster: 3 is not a table"),
        ("[telemetry]\nplanes = ['gpus']\n", r"telemetry.planes: 'gpus' is not one of: gpu, host"),
        ("[telemetry]\nplanes = 'gpu'\n", r"telemetry.planes: 'gpu' is not an array"),
        ("[[fault]]\nkind = 'gremlin'\n", r"fault\[0\].kind: 'gremlin' is not one of: app-exception, "),
        ("[[fault]]\nkind = 'ecc'\nerorrs = 2\n", r"fault\[0\] \(ecc\): erorrs: unknown key; did you mean errors"),
        ("[[fault]]\nkind = 'ecc'\nat = 'noon'\n", r"fault ecc: at: 'noon' is not a time; write"),
        ("[[fault]]\nkind = 'rendezvous-hang'\nat = '50%'\n", r"at: this fault always begins at the rendezvous"),
        ("[[fault]]\nkind = 'ecc'\nrank = 99\n", r"fault ecc: rank: 99 is not one of the 16 ranks"),
        (
            "[[fault]]\nkind = 'ecc'\nnode = 'gpu9'\n",
            r"fault ecc: node: 'gpu9' is not a node; the nodes are gpu001 to gpu002",
        ),
        ("[[fault]]\nkind = 'straggler'\ncause = 'luck'\n", r"cause: 'luck' is not one of: gpu, cpu, data"),
        (
            "[[fault]]\nkind = 'loss-divergence'\nhow = 'plateau'\nstops = true\n",
            r"fault loss-divergence: stops: the loop stops at a nan, and how is 'plateau'",
        ),
        ("[job]\nstart = 'today'\n", r"job.start: 'today' is not a time"),
        ("[job\n", r"scenario is not valid TOML"),
    ],
)
def test_scenario_errors_name_the_place_and_the_remedy(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        simulate(load_scenario(text + "\n"), tmp_path)
    assert not (tmp_path / "run").exists()


def test_the_simulate_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    def simulate_command(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["simulate", *arguments])
        return result.exit_code, result.output

    code, listing = simulate_command("--list")
    assert code == 0
    assert all(name in listing for name, _ in scenario_titles())
    code, output = simulate_command(
        "ecc", "-o", str(tmp_path / "a"), "--seed", "7", "--set", "job.duration_s=10m", "--set", "fault.0.at=40%"
    )
    assert (code, "injected fault: B2 active;" in output) == (0, True)
    assert (tmp_path / "a" / "truth.json").is_file()
    two = tmp_path / "two.toml"
    faults = ('kind = "clock-throttle"', 'kind = "node-down"\nprimary = true')
    two.write_text('[job]\nduration_s = "20m"\n' + "".join(f'[[fault]]\n{fault}\nat = "50%"\n' for fault in faults))
    code, output = simulate_command(str(two), "-o", str(tmp_path / "c"))
    assert (code, "injected faults: B3, F1;" in output) == (0, True)
    assert simulate_command("ecc")[0] == 2
    code, output = simulate_command("eccc", "-o", str(tmp_path / "b"))
    assert (code, "did you mean ecc" in output) == (2, True)
    code, output = simulate_command("ecc", "-o", str(tmp_path / "b"), "--set", "fault.9.at=40%")
    assert (code, "there are 1, counted from 0" in output) == (2, True)
    for change, message in (
        ("fault.at=40%", "fault is a list; give the number of the entry, such as fault.0.at=40%"),
        ("faults.0.errors=abc", "fault[0] (ecc): errors: 'abc' is not a whole number"),
        ("gap.0.at=40%", "the scenario has no gap; add [[gap]] to a copy of its file"),
    ):
        code, output = simulate_command("ecc", "-o", str(tmp_path / "b"), "--set", change)
        assert (code, message in output) == (2, True), output


def test_the_documentation_names_every_fault_framework_and_gpu() -> None:
    from trackside.sim.hardware import MODELS

    page = (Path(__file__).parents[2] / "docs/simulator.md").read_text()
    assert [kind for kind in faults() if f"`{kind}`" not in page] == []
    assert [name for name in (*frameworks(), *MODELS) if name not in page] == []
    example = page.split("```toml\n")[1].split("```")[0]
    assert [table["kind"] for table in load_scenario(example).faults] == ["clock-throttle", "node-down"]
