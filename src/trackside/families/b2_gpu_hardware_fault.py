"""GPU hardware fault.

Meaning
-------
A GPU, its memory or its link degraded or failed while the job ran on it. The hardware is at fault, not the
code. A fault before the run, or one that the run survived, is latent: it marks a GPU to check and does not
change the verdict.

What it looks like
------------------
In the kernel log a hardware-class Xid (uncontained or double-bit ECC, fallen off the bus, row-remap failure,
NVLink, GSP), or a fatal SXid of an NVSwitch, when the run failed. In metrics the count of uncorrectable ECC
errors or of rows remapped for them rises, the flag of a failed remap is set, the gauge of the last Xid changes
to such a number, or one GPU is no longer sampled while the others on its node are. In the job's log CUDA's own
"uncorrectable ECC error encountered". At the scheduler, a node drained for such a reason during the run or
within minutes of its end, before it returned to service.

Not this family when
--------------------
- Only Xids occurred that usually blame the application (illegal access, MMU fault, channel reset, cleanup), unless
  they recur on one GPU under different processes.
- The fault was long before the run, or training continued after it, or the run ended well: then the fault is latent, as
  is a counter that was above zero and did not rise.
- A counter was reset because its exporter restarted.
- Only a health flag is set.
- The GPU belongs to another job on the node: by its label, by the scheduler's records, or because it was idle while
  the run's GPUs worked.

Impact
------
The work since the last checkpoint is lost, and every run placed on this GPU is at risk.

Do next
-------
Drain the node, reset or replace the GPU, and rerun on healthy hardware, from the last checkpoint if there is one.

What it cannot decide
---------------------
Whether there was a fault at all, without a kernel log and GPU metrics: Xids (error numbers of NVIDIA's driver in the
kernel log) are not visible inside a container. Whether a reset is enough, or the hardware must be replaced. Whether an
Xid was repeated while the gauge kept its number. Whether driver, firmware or hardware is the reason that the GPU's
firmware processor (GSP, Xid 119 and 120) does not answer.

References
----------
- [NVIDIA: Xid catalog](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)
- [NVIDIA: GPU debug guidelines](https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html)
- [NVIDIA: GPU memory error management](https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html)
- [NVIDIA: Fabric Manager](https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html)
- [NVIDIA DCGM: field identifiers](https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trackside.catalog.xid import recovery_action, xid
from trackside.evidence import Missing, derived
from trackside.facts.gpus import address_key, distinct_gpus, gpus_of_ranks, nodes_of
from trackside.facts.hardware.fault_history import NOT_GIVEN, TOO_EARLY, TOO_LATE, FaultHistory, few_of_each
from trackside.facts.hardware.health import OLD_LEVELS, HardwareFault, HardwareHealth
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.ranks import ranks_of
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run
from trackside.remedies import DRAIN, RESUBMIT_ELSEWHERE

OFF_THE_BUS = re.compile(r"f[ae]ll(?:en)? off|\blost\b", re.IGNORECASE)
"""In the reason of a drained node: the GPU cannot be reset, because the driver cannot reach it."""
FIRMWARE_XIDS = (119, 120)
"""Xids of the GPU system processor: NVIDIA's catalog has the GPU reset and the software investigated."""
TOOL_PROCESSES = ("nvidia-smi", "nvidia-persiste", "nv-hostengine", "nvidia-fabricma", "dcgm", "nvtop", "nvitop")
"""Processes of NVIDIA's tools and monitors, as the kernel shortens their names."""
ENDED_NEVERTHELESS = Sentence("the run ended normally nevertheless: {state}")
XID_FAULT = Sentence("GPU hardware fault: Xid {xid} ({name})")
FIRMWARE_FAULT = Sentence("GPU firmware (GSP) fault: Xid {xid} ({name})")
FAULT_HEADLINES = {
    "remap_failed": Sentence("GPU memory fault: a bad memory row could not be remapped"),
    "ecc": Sentence("GPU memory fault: uncorrectable ECC errors"),
    "lifetime": Sentence("GPU memory fault: uncorrectable ECC errors"),
    "pages": Sentence("GPU memory fault: pages were retired for double-bit errors"),
    "remaps": Sentence("GPU memory fault: rows were remapped for uncorrectable errors"),
    "lost": Sentence("GPU hardware fault: a GPU became unreachable"),
    "vanished": Sentence("GPU hardware fault: a GPU is no longer sampled"),
    "drained": Sentence("GPU hardware fault: the node was drained for it"),
    "set_down": Sentence("GPU hardware fault: the node was set down for it"),
    "cuda": Sentence("GPU hardware fault, reported by CUDA"),
}
"""Sign of a fault without an Xid -> the answer in one clause, the most telling first."""
AFTER_SWITCH = ("lost", "vanished", "drained", "set_down", "cuda")
"""Signs of a fault that a failed NVSwitch explains."""
SWITCH_FAULT = Sentence("NVSwitch fault: fatal SXid {sxid} on the switch at PCI address {pci}")
HARDWARE_FAULT = Sentence("GPU hardware fault")
SAME_FAULT_REPEATED = Sentence("a GPU reported the same fault repeatedly")
OLD_XID = Sentence("a GPU reported a hardware Xid, which may be older than this run")
OLD_ERRORS: Mapping[Sentence, Sentence] = {
    OLD_LEVELS["remap_failed"]: Sentence("a memory row could not be remapped"),
    OLD_LEVELS["remaps"]: Sentence("memory rows were remapped before this run (up to {level}), and no new ones in it"),
    OLD_LEVELS["pages"]: Sentence("memory pages were retired before this run (up to {level}), and no new ones in it"),
    OLD_LEVELS["lifetime"]: Sentence("memory errors from before this run (up to {level}), and no new ones in it"),
    OLD_LEVELS["ecc"]: Sentence("memory errors from before this run (up to {level}), and no new ones in it"),
}
"""Sentence about a counter that did not rise -> the headline; the most telling counter first."""
OUTSIDE_RUN = {TOO_EARLY: ", before the run began", TOO_LATE: ", after the run had ended"}
"""What is added to the headline of a fault outside of the run, by the claim about its time."""
HARDWARE_FAILED = Sentence("the hardware failed while the job was running; no change in the code will fix it")
NO_JOB_FAILED = Sentence("a GPU or its driver is at fault; no job is known to have failed because of it")
FIRMWARE_SILENT = Sentence(
    "the GPU's firmware processor (GSP) did not answer: the driver, the firmware or the GPU is at fault, not the code"
)
REPORTED_BY_TOOL = Sentence("whether the job was affected: the kernel's report names {process}, a management tool")
ERRORS_BEFORE_RUN = Sentence(
    "the errors are from before this run and do not change the verdict, but the GPU may fail completely"
)
PART_UNKNOWN = Sentence("whether a reset is enough, or the hardware must be replaced")
PART_UNKNOWN_AFTER_REBOOT = Sentence("whether a reboot is enough, or the hardware must be replaced")
PART_UNKNOWN_AFTER_CYCLE = Sentence("whether a power cycle is enough, or the hardware must be replaced")
TIME_UNKNOWN = Sentence("whether it happened during the run: the kernel log has no wall-clock times")
NVIDIA_ADVICE = Sentence("when the drained node is empty, follow NVIDIA's advice for this Xid: {advice}")
DRAIN_NODE = Sentence("drain {node} (needs a Slurm administrator)")
DRAIN_ANY = Sentence("drain the node (needs a Slurm administrator)")
KEEP_DRAINED = Sentence("keep {node} drained")
KEEP_DOWN = Sentence("keep {node} out of service")
RERUN_ELSEWHERE = Sentence("rerun on other nodes with the same options, from the last checkpoint if there is one")
SAVE_REPORT = Sentence("save NVIDIA's bug report before a reset or reboot clears its state")
RESET_GPU = Sentence("when the drained node is empty, reset the GPU, and replace it if the fault recurs")
RESET_FABRIC = Sentence(
    "when the drained node is empty, reset all its GPUs and NVSwitches together, or reboot it; if the fault recurs, "
    "have the vendor test the baseboard"
)
RESET_ALL_COMMAND = ShellCommand("{on_node} sudo nvidia-smi --gpu-reset")
"""Without ``-i``, all GPUs are reset, with their NVSwitches (docs.nvidia.com/deploy/nvidia-smi): a reset of one GPU
leaves the switch as it is."""
POWER_CYCLE = Sentence(
    "when the drained node is empty, power-cycle it, check PCIe and power, and replace the GPU if the fault recurs"
)
FOR_SUPPORT = Sentence("if it must be replaced: {gpu} has UUID {gpu_uuid} and PCI address {gpu_pci}")
RESET_COMMAND = ShellCommand("{on_node} sudo nvidia-smi --gpu-reset -i {gpu_id}")
RECOVERY_ADVICE: Mapping[str, str] = {
    "GPU Reset Required": "reset the GPU (the driver asks for it)",
    "Drain and Reset": "reset the GPU (the driver asks for it)",
    "Drain P2P": "reset the GPU and its NVLink peers (the driver asks to end their traffic)",
    "Node Reboot Required": "reboot the node (the driver asks for it)",
}
"""The action that Xid 154 names -> what to do on a drained node: the recovery actions of NVIDIA's Xid catalog."""
RECOVERY_XID = 154
OTHER_XIDS = Sentence("{gpus} reported other Xids only, which may be consequences")
BUG_REPORT = ShellCommand("{on_node} sudo nvidia-bug-report.sh")
BUG_REPORT_SAFELY = ShellCommand("{on_node} sudo nvidia-bug-report.sh --safe-mode")
"""Without the parts that hang if a GPU does not answer."""
CHECK_REMAPPER = Sentence(
    "see whether a remapping or a retirement is pending or has failed; if not, the GPU can stay in service"
)
SHOW_REMAPPER = ShellCommand("{on_node} nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT -i {gpu_id}")
SHOW_REMAPPERS = ShellCommand("{on_node} nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT")
TEST_GPU = Sentence("run NVIDIA's diagnostics on this GPU before it gets another long job")
DIAGNOSTICS = (ShellCommand("{on_node} dcgmi diag -r 3 -i {gpu_index}"), ShellCommand("{on_node} dcgmi diag -r 3"))
ONLY_APPLICATION_XIDS = Sentence(
    "the kernel reported only Xids that usually blame the application, such as {xid}: {line}"
)
ONLY_HARMLESS_XIDS = Sentence(
    "the kernel reported only Xids that do not show a hardware fault by themselves, such as {xid}: {line}"
)
FOREIGN_XID = Sentence("Xid {xid} was on the GPU at PCI address {pci}, which this run did not use: {line}")
NO_XID = Sentence("no Xid in the kernel log")


def judge(history: FaultHistory, run: Run) -> Finding | Missing:
    """Hardware faults during the run without a later logged step; other faults are latent."""
    if history.active:
        return _finding(history, history.active, run)
    if history.faults:
        finding, good_end = _finding(history, history.faults, run), history.ending.completed
        if history.outside and finding.headline is not None:
            sides = "".join(OUTSIDE_RUN[claim.sentence] for claim in history.outside[:1])
            headline = Claim(Sentence(finding.headline.sentence.text + sides), finding.headline.values)
            finding = replace(finding, headline=headline)
        reasons = history.outside or [ENDED_NEVERTHELESS(state=good_end) if good_end is not None else history.not_then]
        return replace(finding, latent=True, variant="latent", shows=(*finding.shows, *reasons), signal=None)
    if history.reports.repeated_xid is not None:
        shows, position, gpu = history.reports.repeated_xid
        return present(
            Certainty.POSSIBLE,
            "unknown",
            [shows],
            headline=SAME_FAULT_REPEATED(),
            actions=[action(TEST_GPU, *DIAGNOSTICS)],
            at=position,
            variant="latent",
            gpus=(gpu,),
            latent=True,
        )
    return _old_errors(history.reports.health) or _ruled_out(history)


def _finding(history: FaultHistory, faults: Sequence[HardwareFault], run: Run) -> Finding:
    best = max(faults, key=lambda fault: fault.certainty.strength)
    planes, bad_end = {fault.plane for fault in faults}, history.ending.bad_end
    is_dated = best.time is not None or len(planes) > 1 or history.same_process(faults)
    certainty = best.certainty
    if certainty is Certainty.ESTABLISHED and (not is_dated or bad_end is None):
        certainty = Certainty.SUPPORTED
    if certainty is Certainty.SUPPORTED and len(planes) > 1:
        certainty = Certainty.ESTABLISHED
    rows = [fault.row for fault in faults if isinstance(fault.row, Event)]
    ranks = ranks_of(rows, history.ending.launchers)
    all_gpus = distinct_gpus([(fault.node, fault.gpu) for fault in faults if fault.gpu], run)
    blamed = {address_key(fault.gpu) for fault in _of_headline(faults) if fault.gpu}
    others = tuple(gpu for gpu in all_gpus if address_key(gpu) not in blamed)
    gpus = tuple(gpu for gpu in all_gpus if gpu not in others) or gpus_of_ranks(run, ranks)
    source = next(iter(faults[0].claim.values.values()))
    nodes = tuple(sorted({f.node for f in faults if f.node})) or (run.nodes if len(run.nodes) == 1 else ())
    return present(
        certainty,
        "infrastructure",
        [*(fault.claim for fault in few_of_each(faults)), *([bad_end] if bad_end is not None else [])],
        headline=_headline(faults),
        implies=[
            *([FIRMWARE_SILENT()] if _is_firmware_fault(faults) else []),
            (NO_JOB_FAILED if bad_end is None else HARDWARE_FAILED)(),
            *([OTHER_XIDS(gpus=derived(others, source))] if others else []),
        ],
        cannot_decide=[
            _part_unknown(faults)(),
            *([] if is_dated else [TIME_UNKNOWN()]),
            *_tool_claim(history.reports, faults),
        ],
        actions=_actions(faults, nodes, bad_end is not None, _is_back(history, faults)),
        since=history.since(faults),
        at=best.at,
        variant="active",
        ranks=ranks,
        nodes=nodes,
        gpus=gpus,
    )


def _headline(faults: Sequence[HardwareFault]) -> Claim:
    """The Xid that is surest, by its number and NVIDIA's name for it."""
    best = _best_xid(faults)
    if best is None:
        switch = _switch_fault(faults)
        if switch is not None:
            return SWITCH_FAULT(sxid=switch.claim.values["sxid"], pci=switch.claim.values["pci"])
        signs = {fault.sign for fault in faults}
        return next((sentence for sign, sentence in FAULT_HEADLINES.items() if sign in signs), HARDWARE_FAULT)()
    number = best.claim.values["xid"]
    return (FIRMWARE_FAULT if best.number in FIRMWARE_XIDS else XID_FAULT)(
        xid=number, name=derived(xid(best.number or 0).name, number)
    )


def _best_xid(faults: Sequence[HardwareFault]) -> HardwareFault | None:
    """The surest Xid, in preference one that is the fault itself: 154 only asks for a recovery from another."""
    numbered = [fault for fault in faults if fault.number is not None and "xid" in fault.claim.values]
    return max(numbered, key=lambda fault: (fault.certainty.strength, fault.number != RECOVERY_XID), default=None)


def _switch_fault(faults: Sequence[HardwareFault]) -> HardwareFault | None:
    """The NVSwitch's fault, if no sign of a GPU's own fault is more telling."""
    tells_more = any(fault.sign in FAULT_HEADLINES and fault.sign not in AFTER_SWITCH for fault in faults)
    return None if tells_more else next((fault for fault in faults if fault.sign == "switch"), None)


def _of_headline(faults: Sequence[HardwareFault]) -> list[HardwareFault]:
    """The faults of the Xid in the headline, and those without a number; all if the headline names none."""
    best = _best_xid(faults)
    return [fault for fault in faults if best is None or fault.number in (None, best.number)]


def _recovery(fault: HardwareFault | None) -> str:
    """What the driver asks for with Xid 154, as advice; empty for other faults."""
    if fault is None or fault.number != RECOVERY_XID or fault.row is None:
        return ""
    return RECOVERY_ADVICE.get(recovery_action(str(fault.row.get("detail"))) or "", "")


def _part_unknown(faults: Sequence[HardwareFault]) -> Sentence:
    """What remains open about the broken part, after the advice that is given."""
    if _recovery(_best_xid(faults)).startswith("reboot"):
        return PART_UNKNOWN_AFTER_REBOOT
    return PART_UNKNOWN_AFTER_CYCLE if _by_power_cycle(faults) else PART_UNKNOWN


def _by_power_cycle(faults: Sequence[HardwareFault]) -> bool:
    """Whether the first advice is to power-cycle the node, not to reset the GPU."""
    best = _best_xid(faults)
    if best is not None:
        return xid(best.number or 0).action.startswith("power-cycle")
    reasons = [str(fault.row.get("reason")) for fault in faults if fault.row is not None and fault.row.get("reason")]
    return bool({fault.sign for fault in faults} & {"lost", "vanished"}) or any(map(OFF_THE_BUS.search, reasons))


def _is_firmware_fault(faults: Sequence[HardwareFault]) -> bool:
    """Whether every Xid is one of the GPU's firmware processor."""
    numbers = {fault.number for fault in faults if fault.number is not None}
    return bool(numbers) and numbers <= set(FIRMWARE_XIDS)


def _tool_claim(reports: HardwareReports, faults: Sequence[HardwareFault]) -> list[Claim]:
    """The claim that the first Xid names a management tool: its calls may meet a fault that touched no job."""
    rows = [fault.row for fault in faults if isinstance(fault.row, Event) and fault.sign == "xid"]
    if not rows or not str(rows[0].get("process")).startswith(TOOL_PROCESSES):
        return []
    return [REPORTED_BY_TOOL(process=reports.xids.value(rows[0], "process"))]


def _is_back(history: FaultHistory, faults: Sequence[HardwareFault]) -> bool:
    """Whether a node that was drained or set down for a fault takes jobs again."""
    drained = [fault for fault in faults if fault.sign in ("drained", "set_down")]
    return any(history.reports.drained.returned(str(fault.node), fault.time) for fault in drained)


def _actions(faults: Sequence[HardwareFault], nodes: Sequence[str], failed: bool, returned: bool) -> list[Action]:
    """Drain; save the GPU's state before a reset clears it; then NVIDIA's advice. Replace it only if it recurs."""
    source = next(iter(faults[0].claim.values.values()))
    best = _best_xid(faults)
    signs = {fault.sign for fault in faults}
    what = "GPU fault" if best is not None or _switch_fault(faults) is None else "NVSwitch fault"
    reason = derived(what if best is None else f"{what}, Xid {best.number}", source)
    if signs & {"drained", "set_down"} and not returned:
        drain = action(KEEP_DRAINED if "drained" in signs else KEEP_DOWN)
    else:
        drain = action(DRAIN_NODE if nodes else DRAIN_ANY, DRAIN, reason=reason)
    if best is not None and best.number is not None:
        recovery = _recovery(best)
        advice = derived(recovery or xid(best.number).action, best.claim.values["xid"])
        by_reset = recovery.startswith("reset the GPU (") or xid(best.number).by_reset
        remedy = action(NVIDIA_ADVICE, *([RESET_COMMAND] if by_reset else []), advice=advice)
    elif _switch_fault(faults) is not None:
        remedy = action(RESET_FABRIC, RESET_ALL_COMMAND)
    else:
        remedy = action(POWER_CYCLE) if _by_power_cycle(faults) else action(RESET_GPU, RESET_COMMAND)
    rerun = [action(RERUN_ELSEWHERE, *RESUBMIT_ELSEWHERE)] if failed else []
    report = BUG_REPORT_SAFELY if _by_power_cycle(faults) or signs & {"lost", "vanished"} else BUG_REPORT
    return [drain, action(SAVE_REPORT, report), *rerun, remedy, action(FOR_SUPPORT)]


# -- no fault of this run


def _old_errors(health: HardwareHealth) -> Finding | None:
    """Counters and flags that were set before the run: a GPU to check, whatever the verdict."""
    gpus = tuple(dict.fromkeys(name for _, names in health.old for name in names))
    if not gpus:
        return None
    claims = {claim.sentence: claim for claim, _ in health.old}
    most_telling = next((sentence for sentence in OLD_ERRORS if sentence in claims), None)
    headline = OLD_XID() if most_telling is None else OLD_ERRORS[most_telling](**claims[most_telling].values)
    in_doubt = most_telling in (None, OLD_LEVELS["remap_failed"])
    check = action(TEST_GPU, *DIAGNOSTICS) if in_doubt else action(CHECK_REMAPPER, SHOW_REMAPPER, SHOW_REMAPPERS)
    return present(
        Certainty.SUPPORTED,
        "infrastructure",
        [claim for claim, _ in health.old],
        headline=headline,
        implies=[ERRORS_BEFORE_RUN()],
        actions=[check],
        variant="latent",
        nodes=nodes_of(gpus),
        gpus=gpus,
        latent=True,
    )


def _ruled_out(history: FaultHistory) -> Finding | Missing:
    """Absent with the evidence; missing if neither the kernel log nor a counter was read."""
    xids = history.reports.xids
    because: list[Claim] = []
    if own := history.reports.own_xids:
        blames = {xid(number).blame for row in own if isinstance(number := row.get("xid"), int)}
        sentence = ONLY_APPLICATION_XIDS if blames == {"application"} else ONLY_HARMLESS_XIDS
        because.append(sentence(xid=xids.value(own[-1], "xid"), line=xids.value(own[-1], "text")))
    because += [
        FOREIGN_XID(xid=xids.value(row, "xid"), pci=xids.value(row, "pci"), line=xids.value(row, "text"))
        for row in history.reports.foreign_xids[-1:]
    ]
    because += [*history.reports.health.application[-1:], *history.reports.health.clean]
    if not xids and history.reports.has_kernel_log:
        because.append(NO_XID(count=xids.reduce("count")))
    return absent(*because) if because else NOT_GIVEN


FAMILY = Family(
    code="B2",
    id="gpu-hardware-fault",
    title="GPU hardware fault",
    example=("ecc", "timeline"),
    judge=judge,
    explains=("A1", "A2", "C1", "C2", "F1", "F3", "H2", "H3"),
    rivals=("A1", "H2", "F1"),
    collect=(
        "dmesg -T or journalctl -k of the job's nodes (Xid lines are not visible inside containers)",
        "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT of the job's nodes",
        "DCGM_FI_DEV_XID_ERRORS, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL and DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS "
        "over the run",
    ),
)
