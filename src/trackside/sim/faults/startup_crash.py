"""The job raises an exception before its first step."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.sim.endings import CODE, SITE, RankDeath, TracebackFrame, crash, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState


@dataclass(frozen=True, slots=True)
class StartupException:
    """An exception, its frames, and the startup phase in which it is raised."""

    exception: str
    frames: tuple[TracebackFrame, ...]
    phase: str


TEXTS = {
    "config": (
        StartupException(
            "ValueError: Target modules {'query_key_value'} not found in the base model. Please check the target modules "
            "and try again.",
            (
                (CODE, 140, "main", "model = get_peft_model(model, lora)"),
                (f"{SITE}/peft/tuners/tuners_utils.py", 446, "inject_adapter", "raise ValueError("),
            ),
            "load",
        ),
        StartupException(
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'learning_rte'",
            ((CODE, 96, "main", "args = TrainingArguments(**config)"),),
            "import",
        ),
    ),
    "data": (
        StartupException(
            "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 214 (char 213)",
            (
                (CODE, 121, "main", "rows = [json.loads(line) for line in file]"),
                ("/usr/lib/python3.11/json/decoder.py", 353, "raw_decode", "obj, end = self.scan_once(s, idx)"),
            ),
            "load",
        ),
        StartupException(
            "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/text) changed from string to number in row 8814",
            (
                (CODE, 118, "main", 'data = load_dataset("json", data_files=path)'),
                (
                    f"{SITE}/datasets/packaged_modules/json/json.py",
                    160,
                    "_generate_tables",
                    "pa_table = paj.read_json(",
                ),
            ),
            "load",
        ),
    ),
    "env": (
        StartupException(
            "ModuleNotFoundError: No module named 'flash_attn'",
            ((CODE, 14, "<module>", "import flash_attn"),),
            "import",
        ),
        StartupException(
            "ValueError: The checkpoint you are trying to load has model type `qwen3` but Transformers does not recognize "
            "this architecture. This could be because of an issue with the checkpoint, or because your version of "
            "Transformers is out of date.",
            ((f"{SITE}/transformers/models/auto/configuration_auto.py", 1091, "from_pretrained", "raise ValueError("),),
            "load",
        ),
    ),
    "asset": (
        StartupException(
            "OSError: Incorrect path_or_model_id: '/scratch/models/base-8b'. Please provide either the path to a local "
            "folder or the repo_id of a model on the Hub.",
            ((f"{SITE}/transformers/utils/hub.py", 499, "cached_files", "raise OSError("),),
            "load",
        ),
        StartupException(
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/user/data/tokenizer.model'",
            ((CODE, 104, "main", "tokenizer = load(path)"),),
            "import",
        ),
    ),
}


@fault("startup-crash")
class StartupCrash(SimulatedFault):
    """Bad data, configuration, environment or asset: every rank raises the same exception before the first step."""

    at: str = "0%"
    fault_class: str = "config"
    """config, data, env or asset."""
    text: int = 0
    """Which of the exceptions of that class."""
    one_node: bool = False
    """Whether only ranks of one node raise; the others wait for them."""

    def apply(self, sim: Simulation) -> None:
        self.check("fault_class", TEXTS)
        exceptions, attempt = TEXTS[self.fault_class], sim.attempt
        text = exceptions[self.text % len(exceptions)]
        begin, end = attempt.phases[text.phase]
        time = begin + min(8.0, 0.5 * (end - begin))
        ranks = self.node_ranks(sim) if self.one_node else list(sim.ranks)
        rng = sim.rng("startup-crash")
        deaths = [
            RankDeath(rank, float(rng.random()) * 1.2, 1, traceback(sim, rank, text.exception, text.frames))
            for rank in ranks
        ]
        nodes = tuple(dict.fromkeys(sim.placements[rank].node for rank in ranks)) if self.one_node else ()
        if text.phase == "load":
            for track in attempt.tracks:
                track.memory = [knot for knot in track.memory if knot[0] <= begin + 1]
        crash(sim, time, deaths, RankState.IDLE)
        attempt.phases.pop("load" if text.phase == "import" else "train", None)
        self.record_truth(
            sim, "A1", "job", fault_class=self.fault_class, since=time, nodes=nodes, ranks=tuple(ranks),
            sufficient_planes=(("logs",),), halts=True,
        )  # fmt: skip
