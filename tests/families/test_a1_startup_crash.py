"""A1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.grids import (
    NO_LOG,
    Cluster,
    idle_contexts,
    raised_late,
    working,
)
from tests.families.rows import (
    ABSENT,
    END,
    ESTABLISHED,
    FAILED,
    FOUND,
    GIB,
    POSSIBLE,
    START,
    UNKNOWN,
    event,
    exception,
    job,
    judge,
    keys,
    log_points,
    outcome,
    root,
    sentence_name,
    text_of,
    unhandled_exception,
)
from trackside.finding import Certainty, clause
from trackside.model import EventRole, Run


def test_an_exception_before_any_step_is_a_startup_crash() -> None:
    finding = judge(
        "A1",
        unhandled_exception("ValueError", rank=0),
        unhandled_exception("ValueError", 60, rank=1),
        job("FAILED", exit_code=1),
    )
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "job")
    assert (finding.ranks, finding.exception) == ((0, 1), ("ValueError", "it went wrong"))


def test_an_exception_after_steps_or_handled_is_no_startup_crash() -> None:
    assert keys(judge("A1", log_points(), unhandled_exception("ValueError"))) == ["raised_after_step"]
    assert judge("A1", unhandled_exception("ValueError", 5), log_points()).outcome is ABSENT
    logged = unhandled_exception("ValueError", logged=True)
    assert keys(judge("A1", logged, job("COMPLETED"))) == ["logged_but_ended_well"]


@pytest.mark.parametrize("about", ["oom", "rendezvous", "checkpoint", "storage", "collective", "interrupt"])
def test_a1_ignores_exceptions_of_other_families(about: str) -> None:
    assert judge("A1", unhandled_exception("RuntimeError", about=about)).outcome is ABSENT


def test_a_failed_launch_before_python_is_a_startup_crash() -> None:
    finding = judge("A1", event("process_exit", exit_code=127, source="bash"), job("FAILED", exit_code=127))
    assert (finding.outcome, finding.fault_class) == (FOUND, "env")
    finding = judge("A1", job("FAILED", exit_code=0, signal=53), planes=("scheduler",))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.SUPPORTED)
    assert judge("A1", job("FAILED", exit_code=1), planes=("scheduler",)).outcome is UNKNOWN


def test_an_error_after_a_long_loop_is_not_at_startup() -> None:
    cut = event("unread_error", 60, severe=True, in_traceback=True, frame="/home/u/filter.py:8 in f")
    bar = event("work_bar", 40, count=90, total=100, elapsed_s=400)
    for error in (unhandled_exception("ValueError", 60), cut):
        for bars, words in (((), "crashed at startup"), ((bar,), "crashed")):
            finding = judge("A1", error, *bars, event("log_activity", 1, lines=60, last_line_number=60))
            assert finding.headline is not None
            assert clause(finding.headline).startswith(f"{words}: ")
            assert ("bar_before" in keys(finding)) is bool(bars)
    brief = event("work_bar", 40, count=90, total=100, elapsed_s=20)
    assert "bar_before" not in keys(judge("A1", unhandled_exception("ValueError", 60), brief))


def test_gpus_without_work_establish_a_startup_crash() -> None:
    finding = idle_contexts().judge("A1", raised_late(), FAILED)
    assert (finding.outcome, finding.certainty, finding.cannot_decide) == (FOUND, ESTABLISHED, ())
    assert {"no_launch", "context_only"} <= set(keys(finding))
    assert "metric" in finding.planes
    loaded = Cluster().per_gpu("gpu_memory_used_bytes", 50 * GIB).per_gpu("gpu_memory_total_bytes", 80 * GIB)
    loaded.per_gpu("gpu_sm_active_ratio", 0.0)
    assert {"never_busy", "memory_loaded"} <= set(keys(loaded.judge("A1", raised_late(), FAILED)))
    blind = Cluster().per_node("host_load1", 3)
    assert [sentence_name(claim) for claim in blind.judge("A1", raised_late(), FAILED).cannot_decide] == [
        "gpu_use_unknown"
    ]


def test_a_crash_within_seconds_is_too_short_for_counters() -> None:
    """One sample of a counter shows no growth; its value does show work, and so do the gauges."""

    def crashed(launches: float) -> list[str]:
        cluster = Cluster(end=START + 20, interval=30.0)
        cluster.put("trackside_cuda_kernel_launches_total", launches, node="n1", rank="0")
        cluster.per_gpu("gpu_memory_used_bytes", GIB // 2).per_gpu("gpu_memory_total_bytes", 80 * GIB)
        short = job("FAILED", exit_code=1, end=START + 20, elapsed_s=20.0)
        return keys(cluster.judge("A1", raised_late(time=START + 15), short))

    assert {"no_launch", "context_only"} <= set(crashed(0))
    assert not {"no_launch", "context_only"} & set(crashed(1e6))


def test_long_gpu_work_rules_out_a_startup_crash() -> None:
    """The training loop prints nothing readable; the GPUs show that it ran."""
    assert keys(working().judge("A1", raised_late(), FAILED)) == ["raised_after_gpu_work"]
    finding = working().judge("H2", raised_late(), FAILED)
    assert (finding.outcome, "gpus_had_computed" in keys(finding)) == (FOUND, True)
    assert idle_contexts().judge("H2", raised_late(), FAILED).outcome is ABSENT


def test_a_quick_failure_without_a_log_is_possible() -> None:
    quick = job("FAILED", exit_code=1, end=1060.0, elapsed_s=60.0)
    assert outcome(idle_contexts().judge("A1", quick, planes=NO_LOG))[:2] == (FOUND, POSSIBLE)
    assert working().judge("A1", quick, planes=NO_LOG).outcome is UNKNOWN


def test_work_of_other_gpus_on_the_node_does_not_rule_out_a_startup_crash() -> None:
    """The run's GPUs on the node are unknown: those that worked may belong to a neighbor."""
    cluster = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8, {"n1:0": 0.0, "n1:1": 0.0})
    assert (
        cluster.judge("A1", raised_late(), FAILED, run=Run(id="7", start=START, end=END, nodes=("n1",))).outcome
        is FOUND
    )
    whole = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8)
    assert keys(whole.judge("A1", raised_late(), FAILED, run=Run(id="7", start=START, end=END, nodes=("n1",)))) == [
        "raised_after_gpu_work"
    ]


def test_unused_gpu_memory_is_reported() -> None:
    cluster = Cluster(end=START + 200)
    cluster.per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_memory_used_bytes", 0)
    cluster.per_gpu("gpu_memory_total_bytes", 80 << 30)
    error = event("exception", 20, role=EventRole.ROOT, type="ValueError", message="no", about="application")
    finding = cluster.judge("A1", error, job("FAILED", exit_code=1, end=START + 200, elapsed_s=200.0))
    assert "no_memory_used" in keys(finding)


@pytest.mark.parametrize(
    ("ranks", "implied"),
    [(range(16), "failed_on_every_rank"), (range(8, 16), "node_differs"), ((3,), "failed_at_startup")],
)
def test_the_failed_ranks_point_to_the_job_or_a_node(ranks: Any, implied: str) -> None:
    """One rank may only be the first to fail; all ranks of one node and no others point to that node."""
    errors = [
        event(
            "exception", 20 + rank, role=EventRole.ROOT, rank=rank, type="ImportError", message="x", about="application"
        )
        for rank in ranks
    ]
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", 0)
    finding = cluster.judge("A1", *errors, FAILED, run=cluster.run(n_ranks=16))
    assert implied in [sentence_name(claim) for claim in finding.implies]


def test_an_error_that_is_only_announced_is_followed_to_its_cause() -> None:
    announced = root("exception", 10, type="RuntimeError", message="failed to import on the worker:")
    symbol = "/env/lib/python3.9/site-packages/attn_2_cuda.so: undefined symbol: _ZN3"
    cause = root("exception", 40, type="RuntimeError", message="Failed to import because of this:", chain="ImportError",
                 root_type="ImportError", root_message=symbol)  # fmt: skip
    finding = judge("A1", announced, cause)
    assert finding.headline is not None
    assert "ImportError" in clause(finding.headline)
    assert "Caused by ImportError" in text_of(finding)


def test_a_script_that_python_cannot_open_is_no_exception_of_the_job() -> None:
    dash = "can't open file '\N{EN DASH}selected_gpus=0': [Errno 2] No such file or directory"
    finding = judge("A1", root("exception", 1, type="FileNotFoundError", message=dash))
    assert text_of(finding).startswith("Python could not open its script")
    assert [sentence_name(action) for action in finding.actions] == ["check_dash"]


def test_a_guessed_class_sends_the_reader_to_the_line() -> None:
    frame = {"user_frame": "/w/biot.py:121 in stft", "frames": "/w/dataset.py:3 in __getitem__"}
    error = root("exception", 5, type="TypeError", message="got an unexpected keyword argument 'x'", **frame)
    (advice,) = judge("A1", error).actions
    assert "{place}" in advice.sentence.text


def test_code_that_raises_on_purpose_is_not_called_a_bug() -> None:
    place = {"user_frame": "/w/trainer.py:388 in resources", "user_code": "raise ValueError("}
    error = root("exception", 5, type="ValueError", message="Not enough resources", about="application", **place)
    finding = judge("A1", error)
    assert [sentence_name(action) for action in finding.actions] == ["raises_itself"]
    assert "a setting or an input that the code rejects" in clause(finding.implies[-1])
    advising = root("exception", 5, type="ValueError", message="Please build it first", about="application", **place)
    assert [sentence_name(action) for action in judge("A1", advising).actions] == ["follow_message"]


def test_a_dash_of_an_editor_is_named() -> None:
    dash = "can't open file '\N{EN DASH}selected_gpus=0': [Errno 2] No such file or directory"
    (advice,) = judge("A1", root("exception", 1, type="FileNotFoundError", message=dash)).actions
    assert advice.values["dash"].value == "an en dash"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "NVIDIA driver is older"),
        ("CUDA error: invalid device ordinal", "a GPU number that it cannot see"),
    ],
)
def test_the_advice_fits_an_error_of_cuda(message: str, advice: str) -> None:
    finding = judge("A1", exception("RuntimeError", message))
    assert advice in clause(finding.actions[0])


@pytest.mark.parametrize(
    ("name", "message", "about", "advice"),
    [
        ("argparse.ArgumentError", "t.py: error: argument --fp8: ignored explicit argument 'true'", "application",
         "--fp8 is a switch: give --fp8 to turn it on and leave it out to keep it off, but not --fp8=true"),
        ("argparse.ArgumentError", "t.py: error: argument --fp8: ignored explicit argument 'e4m3'", "application",
         "--fp8 is a switch: write --fp8, not --fp8=e4m3"),
        ("ValueError", "Tokenizer class NewTokenizer does not exist or is not currently imported.", "application",
         "upgrade transformers in the job's environment"),
        ("datasets.exceptions.DatasetGenerationCastError", "at some point there are 2 new columns ({'a', 'b'}) and 1 "
         "missing columns ({'c'}). This happened while the json dataset builder was generating data using /d/two.json",
         "application", "give /d/two.json the columns of the other data files, or load it as a configuration of its own, and "
         "resubmit: columns that only it has: 'a', 'b'; columns that it lacks: 'c'"),
        ("argparse.ArgumentError", "t.py: error: unrecognized arguments: --lrate 0.1", "application",
         "remove --lrate 0.1 from the command line"),
        ("ShellError", "queue.sh: line 5: step2.sh: command not found", "application",
         "correct the path of step2.sh in line 5 of queue.sh"),
        ("ShellError", "bash: accelerate: command not found", "application", "install accelerate"),
        ("ImportError", "The Trainer requires `accelerate>=0.26.0`: Please run `pip install x[torch]`", "application",
         "install accelerate>=0.26.0 in"),
        ("torch._inductor.exc.TritonMissing", "Cannot find a working triton installation.", "application",
         "turn torch.compile off"),
        ("ImportError", "libnccl.so.2: cannot open shared object file: No such file or directory", "application",
         "install libnccl.so.2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["A1", "H2"])
def test_the_advice_names_what_the_message_names(family: str, name: str, message: str, about: str, advice: str) -> None:
    points = log_points() if family == "H2" else []
    finding = judge(family, *points, exception(name, message, about=about))
    assert clause(finding.actions[0]).startswith(advice) or advice in clause(finding.actions[0])


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("You are trying to access a gated repo.\nMake sure to have access to it at "
         "https://huggingface.co/acme/base-9b.\n403 Client Error.",
         "request access at https://huggingface.co/acme/base-9b,"),
        ("acme/base-9b is not a local folder and is not a valid model identifier listed on "
         "'https://huggingface.co/models'", "correct the name acme/base-9b,"),
        ("Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/base-9b'. Use `repo_type`",
         "check that /models/base-9b exists"),
        ("We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached "
         "files.", "the job could not reach huggingface.co:"),
        ("403 Client Error: Forbidden for url: https://example.org/a.zip",
         "check that the job's account or token may read https://example.org/a.zip,"),
    ],
)  # fmt: skip
def test_advice_about_a_file_names_what_the_message_names(message: str, advice: str) -> None:
    assert clause(judge("A1", exception("OSError", message)).actions[0]).startswith(advice)


def test_a_gated_repository_is_named_in_the_headline() -> None:
    message = "You are trying to access a gated repo.\nSee https://huggingface.co/acme/base-9b.\n403 Client Error."
    headline = judge("A1", exception("OSError", message)).headline
    assert headline is not None
    assert clause(headline).endswith("OSError: no access to the gated repository acme/base-9b (HTTP 403)")


@pytest.mark.parametrize(
    ("frames", "python"),
    [
        ("/w/train.py:1 in <module>;/opt/conda/envs/a/lib/python3.9/site-packages/x/y.py:3 in f",
         "/opt/conda/envs/a/bin/python3"),
        ("/usr/lib/python3.10/runpy.py:5 in g;/h/venv/lib/python3.10/site-packages/x/y.py:3 in f", "/h/venv/bin/python3"),
        ("/usr/local/lib/python3.10/dist-packages/x/y.py:3 in f", "python3.10"),
        ("/home/u/.local/lib/python3.8/site-packages/x/y.py:3 in f", "python3.8"),
        ("/w/train.py:1 in <module>", "python"),
    ],
)  # fmt: skip
def test_the_interpreter_is_the_one_that_the_traceback_shows(frames: str, python: str) -> None:
    (advice,) = judge("A1", exception("ModuleNotFoundError", "No module named 'triton'", frames=frames)).actions
    assert (advice.values["python"].value, advice.values["known_package"].value) == (python, "triton")


def test_a_library_that_does_not_fit_names_its_package() -> None:
    message = "/e/lib/python3.9/site-packages/flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so: undefined symbol: _ZN3"
    (advice,) = judge("A1", exception("ImportError", message)).actions
    assert clause(advice).startswith("flash-attn, which loads flash_attn_2_cuda.cpython-39")


def test_an_assertion_without_a_message_is_named_by_its_condition() -> None:
    code = {"user_frame": "/w/model.py:258 in __init__", "user_code": "assert self.dim == config.hidden + config.types"}
    finding = judge("A1", exception("AssertionError", "", **code))
    assert finding.headline is not None
    assert clause(finding.headline).endswith("AssertionError: assert self.dim == config.hidden + config.types")
    assert clause(finding.actions[0]).startswith('model.py:258 checks "self.dim == config.hidden + config.types"')


def test_a_rejected_command_line_is_no_exception_that_was_raised() -> None:
    finding = judge("A1", exception("argparse.ArgumentError", "t.py: error: argument --model: expected one argument"))
    assert finding.headline is not None
    assert clause(finding.headline) == (
        "crashed at startup: t.py rejected its command line: argument --model: expected one argument"
    )
    assert "raised" not in text_of(finding)


def test_a_headline_ends_before_the_advice_of_a_long_message() -> None:
    message = f"Using the trainer requires {'a' * 60} in the environment: Please run {'b' * 80}"
    headline = judge("A1", exception("ImportError", message)).headline
    assert headline is not None
    assert clause(headline).endswith("in the environment")
