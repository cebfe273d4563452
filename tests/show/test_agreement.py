"""The headline, the facts and the other findings of a verdict agree, in scenarios where they contradicted each other before."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path

import pytest

import trackside
from tests.families.rows import exception, judge_store, store
from tools.cases import Case, scenarios
from trackside.evidence import Frame
from trackside.facts.logs.exceptions import error_in_brief, raised_claim
from trackside.facts.logs.unread_errors import without_prefix
from trackside.finding import claim_sentence
from trackside.logs.scan import scan_text
from trackside.query import events
from trackside.show import heading
from trackside.show.citations import figure, main_location
from trackside.show.document import VerdictDoc, document
from trackside.show.heading import progress
from trackside.show.report.page import facts
from trackside.wording import word


@lru_cache(maxsize=32)
def _doc(name: str) -> VerdictDoc:
    case = next(case for case in scenarios() if case.name == name)
    with case.inputs() as folder:
        return document(trackside.diagnose(folder, job=case.expected.get("job")))


def _headline(doc: VerdictDoc) -> str:
    assert doc.primary.headline is not None
    return doc.primary.headline.text


def _all_text(doc: VerdictDoc) -> str:
    parts = [*doc.shows, *doc.implies, *doc.cannot_decide]
    return " ".join([_headline(doc), *(part.text for part in parts)])


@pytest.mark.parametrize(
    ("name", "line", "claim"),
    [
        ("f2/sim-preempted-and-back", "47 logged steps (last attempt)", ""),
        ("h1/notice-behind-a-bar", "step 1,231, loss 4,100 \N{RIGHTWARDS ARROW} 77 in 65 logged steps", ""),
        (
            "g1/falls-slowly-at-every-epoch",
            "epoch 119, loss 9.04 \N{RIGHTWARDS ARROW} 7.023 in 120 logged epochs",
            "epoch 119",
        ),
        ("g1/falls-slowly-at-every-epoch", "120 logged epochs", "from 9.04 to 7.023 over 120 logged epochs"),
        ("e1/thread-nnunet-nan", "5 logged epochs", "at any of 5 logged epochs"),
        ("g1/trained-after-crashed-attempts", "step 400, loss 5.1", "The log reaches step 400"),
    ],
)
def test_the_line_of_the_run_and_the_evidence_have_the_same_figures(name: str, line: str, claim: str) -> None:
    doc = _doc(name)
    assert line in progress(doc)
    assert claim in _all_text(doc) + " ".join(part.text for other in doc.warnings for part in other.shows)


@pytest.mark.parametrize("name", ["e1/loop-aborts-on-nan", "a2/lab-loader-worker-killed"])
def test_an_exception_whose_line_the_answer_cites_is_no_second_finding(name: str) -> None:
    doc = _doc(name)
    assert not [finding.family for finding in (*doc.consequences, *doc.warnings) if finding.exception is not None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[2022-04-30 13:35:32,994][hydra.utils][ERROR] - CUDA_HOME is not set", "CUDA_HOME is not set"),
        ("2026-03-02 08:15:00 [ERROR] shard 41 is unreadable", "shard 41 is unreadable"),
        ("2026-03-02 08:15:00,120 ERROR: no space", "no space"),
        ("ERROR", "ERROR"),
        ("cannot open [config]", "cannot open [config]"),
    ],
)
def test_a_headline_has_the_message_of_an_unread_line_without_the_logger_s_prefix(line: str, message: str) -> None:
    assert without_prefix(line) == message


def test_the_last_line_is_quoted_with_the_words_above_a_bracket() -> None:
    text = "loading\n(lm_head): Linear(in_features=4096)\n  )\n)\n"
    (activity,) = [event for event in scan_text(text) if event.kind == "log_activity"]
    assert activity.text == "(lm_head): Linear(in_features=4096) ) )"
    finding = judge_store("U0", store(activity))
    assert claim_sentence(finding.shows[0]) == f'The log ends with: "{activity.text}"'


def test_an_exception_without_a_message_has_no_colon() -> None:
    frame = Frame(events("exception"), "rows", (exception("StopIteration", ""),), ("log",))
    assert claim_sentence(raised_claim(frame, frame.events[0])) == "The job raised StopIteration"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("d2/sim-interconnect-sockets-16", "NCCL uses TCP sockets"),
        ("a2/kernel-oom-takes-one-rank", "Host memory ran out"),
        ("c2/sim-loader-killed-timeout", "The trigger: a data-loader worker of rank 6 died"),
        ("c2/sim-stuck-rank-watchdog", "A collective timed out"),
        ("f3/finished-but-never-exited", "The job had reported that it was done"),
        ("b1/another-process-holds-the-card", "GPU memory ran out"),
    ],
)
def test_the_reason_is_the_first_claim(name: str, first: str) -> None:
    assert _doc(name).shows[0].text.startswith(first)


def test_the_sm_activity_of_a_healthy_run_is_the_cited_one() -> None:
    doc = _doc("g1/sim-sixteen-gpus")
    claim = next(claim for claim in doc.shows if "SM activity" in claim.text)
    assert f"SM activity {figure(doc.cites[claim.cites[0]])} (median GPU" in claim.text


def test_cited_throttle_reasons_name_the_power_brake() -> None:
    doc = _doc("b3/sim-power-brake-node")
    figures = {figure(cite) for cite in doc.cites.values() if cite.query.startswith("metric(gpu_throttle_reasons)")}
    assert "0x88 (hardware slowdown, hardware power brake slowdown)" in figures


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("c2/sim-stuck-rank-watchdog", "Rank 2 reported no error, while the rest did"),
        ("c2/sim-metrics-and-scheduler-only", "GPU gpu001:0 went idle"),
        ("b1/another-process-holds-the-card", "Another process (pid 3120112) used"),
        ("b1/sim-fragmented", "free memory was fragmented"),
        ("b3/sim-power-brake-node", "were lowered"),
        ("d3/sim-cpu-contention", "waited for a CPU"),
    ],
)
def test_the_decisive_claim_is_among_the_first_three(name: str, fact: str) -> None:
    assert any(fact in claim.text for claim in _doc(name).shows[:3])


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("c2/sim-loader-killed-timeout", "Hung in a collective: a data-loader worker died"),
        ("c2/stacks-and-a-stuck-process", "Hung in a collective: a process is stuck in uninterruptible I/O"),
        ("c1/sim-socket-timeout", "The ranks never connected: only 4 of 16 joined in time"),
        ("c1/port-taken-by-another-job", "The ranks never connected: the coordinator's port 29500 is in use"),
        ("b2/sim-ecc-remap-failed-metrics-only", "GPU memory fault: a bad memory row could not be remapped"),
        ("b1/sim-fragmented", "Out of GPU memory: free memory was fragmented"),
        ("e1/deepspeed-every-step-overflows", "Gradients overflow: nearly every recent step was skipped"),
        ("e1/hf-learning-rate-zero", "The model learns nothing: the learning rate is near zero"),
        ("e1/mllog-score-falls-to-zero", "The model collapsed: its evaluation score is zero"),
        ("e1/sim-nan", "Training diverged by step 130: the loss is no longer finite"),
        (
            "d1/sim-starved-storage-no-tracer",
            "GPU starvation: GPUs busy 16% of the time, most likely because input is too slow",
        ),
        ("g1/two-networks-against-each-other", "No fault found; a loss of this kind"),
        ("g1/grpo-loss-near-zero", "No fault found; reward improved"),
        ("h4/lab-file-size-limit", "A write failed, possibly for lack of space; the log names no reason"),
        ("a1/container-image-missing", "Crashed at startup: pyxis: failed to create container"),
        ("a2/lab-loader-worker-killed", "A data-loader worker was killed (SIGKILL)"),
        ("a2/lab-slurm-out-of-memory", "Out of host memory: Slurm counted 1 OOM kill among the job's processes"),
        ("a2/sim-segv-native", "A process crashed in libtokenizers.so (SIGSEGV)"),
        ("e1/thread-nnunet-nan", "Training diverged: the loss was never finite"),
    ],
)
def test_the_headline_agrees_with_the_evidence(name: str, headline: str) -> None:
    assert _headline(_doc(name)).startswith(headline)


@pytest.mark.parametrize(
    ("name", "family", "reason"),
    [
        ("b1/another-process-holds-the-card", "A1", "the exception in the log is about GPU memory"),
        ("b1/sim-fragmented", "H2", "the exception in the log is about GPU memory"),
        ("c1/port-taken-by-another-job", "A1", "the exception in the log is about connecting the ranks"),
        ("f2/sim-preempted-lost", "A2", "asks a process to end, and no crash or kill"),
    ],
)
def test_a_family_is_ruled_out_by_what_the_log_holds(name: str, family: str, reason: str) -> None:
    assert [
        ruled_out for ruled_out in _doc(name).ruled_out if ruled_out.family == family and reason in ruled_out.because
    ]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a1/appended-runs-last-raises", "LOCAL_RANK is not set: start the script with torchrun"),
        (
            "a1/lab-custom-lost-data-file",
            "Check that data/val.jsonl exists, relative to the folder in which the job starts",
        ),
        ("a1/weights-missing-where-the-model-is-built", "Check that /home/ines/weights/mask_head.pt exists"),
        ("d2/sim-interconnect-sockets-16", "sees /dev/infiniband"),
        ("b2/latent-before-a-good-run", "Look at the warnings; they did not end this run"),
    ],
)
def test_the_advice_fits_what_is_known(name: str, advice: str) -> None:
    texts = [action.text for action in _doc(name).actions]
    assert any(advice in text for text in texts)
    assert not any("NCCL_DEBUG=INFO" in text for text in texts)  # its lines are in the log


def test_a_claim_about_the_loss_is_located_at_its_onset() -> None:
    doc = _doc("e1/sim-plateau")
    path, _, line = main_location(doc.shows[0], doc.cites).rpartition(":")
    assert "at 150" in doc.shows[0].text or "step 150" in doc.shows[0].text
    cited = {doc.cites[name].where: doc.cites[name].value for name in doc.shows[0].cites}
    assert cited[f"{path}:{line}"] == 150
    assert doc.shows[1].text.startswith("Before that, the loss fell to")


def test_a_consequence_that_was_seen_before_its_cause_has_no_time() -> None:
    doc = _doc("c2/storage-freezes-a-rank")
    early = [finding for finding in doc.consequences if finding.since is not None and finding.since < doc.primary.since]
    assert early
    assert all(finding.began is None for finding in early)


def test_processes_that_slurm_could_not_end_are_a_caution() -> None:
    assert any("some may still be on cn3" in claim.text for claim in _doc("h1/canceled-and-unkillable").preflight)


def test_the_kernel_line_of_a_native_crash_comes_first() -> None:
    assert _doc("a2/sim-segv-native").shows[0].text.startswith("The kernel names the library")


def test_an_xid_of_a_management_tool_is_not_attributed_to_the_job() -> None:
    doc = _doc("b2/xid-of-a-monitor-command")
    assert _headline(doc) == "GPU firmware (GSP) fault: Xid 119 (GSP RPC timeout)"
    text = _all_text(doc)
    assert "under the job" not in text
    assert "the kernel's report names nvidia-smi, a management tool" in text
    assert any("update driver and GPU firmware" in action.text for action in doc.actions)


def test_a_job_without_a_gpu_is_not_reported_to_hold_one() -> None:
    doc = _doc("c3/no-gpu-in-the-record")
    assert _headline(doc).startswith("Possibly hung")
    assert not any(words in _all_text(doc) for words in ("holds its GPU", "held its GPU", "idle GPU"))


def test_a_faulty_gpu_of_another_job_on_the_node_is_a_caution() -> None:
    doc = _doc("b2/sim-rival-neighbour-ecc")
    assert doc.primary.family != "B2"
    assert [claim.text for claim in doc.preflight if "which this run did not use, reported Xid" in claim.text]


def test_a_hang_begins_where_its_evidence_begins() -> None:
    doc = _doc("c2/sim-loader-killed-timeout")
    windows = [doc.cites[name].window for claim in doc.shows for name in claim.cites if "kernel launches" in claim.text]
    assert doc.primary.began in {window[0] for window in windows if window is not None}


def test_a_hang_without_metrics_claims_no_idle_gpu() -> None:
    doc = _doc("c3/lab-agent-stacks-nobody-waits")
    assert _headline(doc) == "Hung at fifo.py:12 in next_labels"


@pytest.mark.parametrize(
    ("name", "cause"), [("c2/sim-loader-killed-timeout", "A2"), ("c2/sim-loader-killed-timeout", "H2")]
)
def test_a_named_trigger_is_not_listed_as_a_consequence(name: str, cause: str) -> None:
    doc = _doc(name)
    assert cause not in {finding.family for finding in (*doc.consequences, *doc.warnings)}


def test_the_throttling_of_a_slow_gpu_is_its_cause() -> None:
    doc = _doc("d3/sim-throttled-gpu-is-the-cause")
    assert (doc.primary.family, [finding.family for finding in doc.consequences]) == ("B3", ["D3"])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "57%|#####7| 270/474 [13:34<10:15, 3.01s/it]slurmstepd: error: *** STEP 1.0",
            "slurmstepd: error: *** STEP 1.0",
        ),
        ("29948it [35:34, 7.00s/it]slurmstepd: error: *** JOB 2", "slurmstepd: error: *** JOB 2"),
        ("\x1b[33m(raylet)\x1b[0m a worker died", "(raylet) a worker died"),
        ("57%|#####7| 270/474 [13:34<10:15, 3.01s/it]", "57%|#####7| 270/474 [13:34<10:15, 3.01s/it]"),
        ("92%|\u2588\u2588\ufffd[rank1]:[E Watchdog caught", "[rank1]:[E Watchdog caught"),
        ("step 1 | loss 2.0", "step 1 | loss 2.0"),
    ],
)
def test_a_quoted_line_drops_the_progress_bar_before_it(line: str, shown: str) -> None:
    assert word(line) == shown


SIZES = "size mismatch for layers.{}.weight: copying a param with shape torch.Size([{}, 8]) from checkpoint, the shape in current model is torch.Size([{}, 8])."


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["\t" + SIZES.format(0, 64, 128)], "RuntimeError: Error(s) in loading state_dict for Net (layers.0.weight is 64 x 8 in the checkpoint, 128 x 8 in the model)"),
        ([f"\t{SIZES.format(i, 64, 128)}" for i in range(3)], "layers.0.weight is 64 x 8 in the checkpoint, 128 x 8 in the model (and 2 more)"),
        ([f"\t{SIZES.format(i, 64, 128)}" for i in range(90)], "layers.0.weight is 64 x 8 in the checkpoint, 128 x 8 in the model (and 89 more)"),
        (
            ["\tMissing key(s) in state_dict: " + ", ".join(f'"k{i}"' for i in range(900)), "\t" + SIZES.format(0, 64, 128)],
            "layers.0.weight is 64 x 8 in the checkpoint, 128 x 8 in the model",
        ),
    ],
)  # fmt: skip
def test_a_list_of_parameters_is_quoted_by_the_first_one_and_their_number(
    tmp_path: Path, lines: list[str], shown: str
) -> None:
    log = tmp_path / "train.log"
    head = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 3, in <module>\n    main()\n'
    log.write_text(head + "\n".join(["RuntimeError: Error(s) in loading state_dict for Net:", *lines]) + "\n")
    doc = document(trackside.diagnose(log))
    assert shown in doc.shows[0].text
    assert "layers.0.weight is 64 x 8 in the checkpoint" in _headline(doc)


@pytest.mark.parametrize(
    ("line", "begin", "end"),
    [
        (f"Command '['gcc'{', -I/usr/include' * 20}]' returned non-zero exit status 1.", "Command '['gcc'", "returned non-zero exit status 1."),
        (f"HTTPConnectionPool(host='x'){'a' * 190} b: Failed to establish a new connection: refused", "HTTPConnectionPool(host='x')", "connection: refused"),
        (f"CUDA out of memory. {'Of the allocated memory x is free. ' * 8}See documentation for Memory Management", "CUDA out of memory.", "\N{HORIZONTAL ELLIPSIS}"),
        (f"no such file\n{'detail ' * 60}end", "no such file", "\N{HORIZONTAL ELLIPSIS}"),
    ],
)  # fmt: skip
def test_a_long_line_keeps_its_end_where_the_reason_stands(line: str, begin: str, end: str) -> None:
    text = word(line)
    assert text.startswith(begin)
    assert text.endswith(end)
    assert len(text) <= 223


@pytest.mark.parametrize(
    ("message", "brief"),
    [
        ("Error(s) in loading state_dict for LM:\n\tsize mismatch for head", "E: Error(s) in loading state_dict for LM: size mismatch for head"),
        (
            'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a.weight", "a.bias". \n'
            '\tUnexpected key(s) in state_dict: "model_state_dict". ',
            'E in load_state_dict: only the model has "a.weight" and 1 more; only the checkpoint has "model_state_dict"',
        ),
        ("child 202117 failed with error code: 1\nslurmstepd: error: pyxis: no image", "E: pyxis: no image"),
        ("Can't load it. Make sure that:\n- it exists", "E: Can't load it. Make sure that"),
        ("#ifdef __HIPCC__\n#define X\nnvrtc: error: invalid value for --gpu-architecture", "E: nvrtc: error: invalid value for --gpu-architecture"),
        ("#ifdef __HIPCC__\n#define X", "E"),
        (f"Command '['gcc'{', -I/usr' * 20}]' returned non-zero exit status 1.", f"E: Command '['gcc'{', -I/usr' * 7}, \N{HORIZONTAL ELLIPSIS} returned non-zero exit status 1."),
        (f"[Errno 2] No such file or directory: '/a/{'b' * 60}/{'c' * 40}/index.bin'", "E: [Errno 2] No such file or directory: '…/index.bin'"),
    ],
)  # fmt: skip
def test_a_headline_quotes_the_informative_line_of_an_error(message: str, brief: str) -> None:
    frame = store(exception("E", message)).ask(events("exception"))
    assert isinstance(frame, Frame)
    assert error_in_brief(frame, frame.events[0]).value == brief


def test_a_log_that_counts_in_epochs_is_quoted_in_its_own_words(tmp_path: Path) -> None:
    steps = [
        f"[Epoch: {epoch}] [{step}/49] loss = {9 - epoch - step / 50:.4f}" for epoch in (9, 10) for step in (0, 20, 40)
    ]
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join([*steps, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.36 GiB.\n"])
    )
    doc = document(trackside.diagnose(log))
    assert "epoch 10, step 40 of 49, loss" in heading.run(doc)
    assert any(claim.text.startswith("Last logged step: epoch 10, step 40 of 49, loss") for claim in doc.shows)
    log.write_text("\n".join([*steps, ""]))
    assert "up to epoch 10, step 40 of 49" in _headline(document(trackside.diagnose(log)))


def test_the_wait_for_data_is_read_from_the_means_over_an_epoch(tmp_path: Path) -> None:
    line = "Epoch: [{}][{}/200]\tTime 0.00{} (0.0{})\tData 0.00{} (0.0{})\tLoss {:.4f} (2.1)"
    steps = [(0, 3, 300, 2, 299), (100, 2, 128, 1, 119), (199, 2, "100", 1, "090")]
    lines = [
        line.format(epoch, step, time, mean, wait, mean_wait, 3 - epoch / 9 - step / 2000)
        for epoch in range(9)
        for step, time, mean, wait, mean_wait in steps
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    doc = document(trackside.diagnose(log))
    texts = [claim.text for finding in doc.warnings for claim in finding.shows] + [claim.text for claim in doc.shows]
    assert any(
        text.startswith("Each step waits for data 90% of its time (median of 9 epochs; for example 9 ms of 10 ms")
        for text in texts
    ), texts


COUNTED_STEPS = {
    "b1/bar-drawn-at-exit": "a bar drawn before its step is counted",
    "b1/caught-and-training-time-printed": "the same",
    "g1/lab-lightning-rich-ddp": "the columns of a CSV are named in its header",
    "h1/lab-ctrl-c-hf": "prints epochs; the Trainer's bar counts the steps",
    "g1/thread-nnunet-negative-dice": "the epoch stands above the lines of its losses",
    "h1/notice-behind-a-bar": "bars of several epochs without their names",
}
"""Scenarios whose log does not print the position that a sentence names -> what it counts instead."""
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@pytest.mark.parametrize(
    "case", [case for case in scenarios() if case.name not in COUNTED_STEPS], ids=lambda case: case.name
)
def test_the_position_and_the_loss_of_a_sentence_stand_in_the_line_that_it_cites(case: Case) -> None:
    doc = _doc(case.name)
    # the Trainer prints epochs; its bar counts the steps
    counts_elsewhere = doc.progress is not None and doc.progress.framework == "hf-trainer"
    names = "epoch|loss" if counts_elsewhere else "step|epoch|step_in_epoch|loss"
    ids = {cite for part in doc.shows for cite in part.cites}
    cited = [cite for name, cite in doc.cites.items() if name in ids]
    for cite in cited:
        is_point = re.search(rf"events\(progress\).*\.first\((?:{names})\)$", cite.query)
        if is_point is None or not isinstance(cite.value, (int, float)) or not math.isfinite(cite.value):
            continue
        printed = [float(text.replace(",", "")) for text in _FIGURE.findall(cite.text or "")]
        assert any(math.isclose(abs(cite.value), value, rel_tol=1e-6) for value in printed), (cite.value, cite.text)


PADDLE = """Traceback (most recent call last):
  File "/home/u/train.py", line 90, in <module>
    main()
paddle.fluid.core_avx.EnforceNotMet:

--------------------------------------------
C++ Call Stacks (More useful to developers):
--------------------------------------------
0   paddle::platform::EnforceNotMet::EnforceNotMet(std::string const&, char const*, int)

----------------------
Error Message Summary:
----------------------
InvalidArgumentError: The input has 4 channels.
  [Hint: Expected 3, but received 4.] at (/paddle/conv_op.cc:96)
  [operator < conv2d > error]
"""


@pytest.mark.parametrize(
    ("text", "headline", "claim"),
    [
        (
            PADDLE,
            "InvalidArgumentError: The input has 4 channels.",
            "The job raised paddle.fluid.core_avx.EnforceNotMet",
        ),
        (PADDLE.partition("paddle.fluid")[0] + "AssertionError\n", "AssertionError", "The job raised AssertionError"),
    ],
)
def test_an_error_without_a_message_is_named_alone_or_by_the_error_below(
    tmp_path: Path, text: str, headline: str, claim: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    doc = document(trackside.diagnose(log))
    assert _headline(doc) == f"Crashed at startup in train.py:90: {headline}"
    assert doc.shows[0].text == claim


def test_a_requeued_run_is_not_said_to_continue_itself() -> None:
    doc = _doc("f2/sim-preempted-and-back")
    named = dict(facts(doc))
    assert doc.run.parent == doc.run.id
    assert {"Attempt 2 started", "Attempts"} <= set(named)
    assert not {"Started", "Continues"} & set(named)
    assert named["Attempts"] == "2: PREEMPTED, COMPLETED"
