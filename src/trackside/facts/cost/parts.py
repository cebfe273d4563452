"""One part of what a fault cost: a stretch of time, or so many steps, times the GPUs held. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.evidence import Value, derived
from trackside.facts.cost.held import Held, hour, hours, length
from trackside.finding import Loss, claim

KINDS: Mapping[str, tuple[str, str]] = {
    "startup": ("startup", "assume_all"),
    "all": ("all", "assume_all"),
    "unbegun": ("startup", "assume_all"),
    "unsaved": ("work", "assume_unsaved"),
    "unsaved_before": ("work", "assume_unsaved"),
    "unsaved_steps": ("work", "assume_unsaved"),
    "since_save": ("work", "assume_saved"),
    "since_step": ("work", "assume_pace"),
    "hung": ("stopped", "assume_still"),
    "stopped": ("stopped", "assume_still"),
    "finished": ("stopped", "assume_still"),
    "paused": ("paused", "assume_still"),
    "spoilt": ("spoilt", "assume_gone_wrong"),
    "spoilt_undated": ("spoilt", "assume_good_before"),
    "spoilt_since_save": ("spoilt", "assume_good_save"),
    "spoilt_steps": ("spoilt", "assume_redone"),
    "repeated": ("repeated", "assume_redone"),
    "slow": ("slow", "assume_same_work"),
    "thrown_away": ("attempt", "assume_started_over"),
    "since_loaded": ("attempt", "assume_loaded"),
    "restart": ("attempt", "assume_one_start"),
}
"""Part -> (its kind in the document, what it takes for granted)."""
AT_MOST = frozenset({"assume_unsaved"})
"""What is taken for granted that makes a part the most that can have been lost."""
PARTS_SAYS: Mapping[str, str] = {
    "by_time": "{gpus} x {seconds:plain} s, {since} to {until}, / {hour:plain} s an hour = {hours:plain} GPU-hours",
    "by_steps": "{gpus} x ({last:plain} - {first:plain}) steps x {pace:plain} s a step / "
    "{hour:plain} s an hour = {hours:plain} GPU-hours",
    "by_share": "{gpus} x {lasted:plain} s x ({last:plain} - {first:plain}) / {last:plain} steps / "
    "{hour:plain} s an hour = {hours:plain} GPU-hours",
    "by_share_of": "{gpus} x {lasted:plain} s x {first:plain} / {last:plain} steps / "
    "{hour:plain} s an hour = {hours:plain} GPU-hours",
    "startup": "the run failed before its first training step: all that it held",
    "all": "the run trained next to nothing: all that it held",
    "unbegun": "from the start until it hung, before its first training step",
    "unsaved": "the work from the start to where it ended, as no checkpoint was seen",
    "unsaved_before": "the work from the start to where it went wrong, as no checkpoint was seen",
    "unsaved_steps": "the work to where it went wrong, step {last}, as no checkpoint was seen",
    "since_save": "the work since the last checkpoint",
    "since_step": "the work since the last checkpoint, from step {first} to step {last}",
    "hung": "the time that the run hung, its GPUs held and idle",
    "stopped": "the time that its GPUs were held after the fault",
    "finished": "the time that its GPUs were held after training was over",
    "paused": "a pause in which training stood still",
    "spoilt": "the work from where it went wrong to the end",
    "spoilt_undated": "the work from where it went wrong to the end",
    "spoilt_since_save": "the work since the last checkpoint from before it went wrong, to the end",
    "spoilt_steps": "the work from where it went wrong, step {first}, to step {last}",
    "spoilt_share": "the work from where it went wrong, step {first}, to step {last}",
    "repeated": "steps {first} to {last}, which the run before it had done already",
    "assume_all": "nothing of it is of use",
    "since_loaded": "the time of an attempt after its checkpoint at step {first}, from which the next one went on",
    "restart": "the start-up of an attempt that went on from a checkpoint",
    "assume_unsaved": "nothing was saved without a word in the log; a checkpoint that was would make it less",
    "assume_saved": "the last checkpoint that the log tells of is whole",
    "assume_pace": "the last checkpoint that the log tells of is whole, and each step took as long as they mostly did",
    "assume_still": "no work was done that the log or the metrics don't show",
    "assume_gone_wrong": "nothing that it trained after that is of use",
    "assume_good_before": "what was trained until then is of use: a checkpoint from before it can be gone back to",
    "assume_loaded": "all that came after that checkpoint had to be done again",
    "assume_one_start": "without the interruption there would have been one start-up",
    "assume_good_save": "that checkpoint is whole, and can be gone back to",
    "assume_redone": "each step took as long as they mostly did",
    "assume_even": "its steps were spread evenly over its time",
    "assume_same_work": "all its work would have gone as fast as in its good phase",
    "assume_started_over": "the next attempt began anew: nothing of it was used",
}
"""Sentences."""


def span(key: str, held: Held, since: Value, until: Value, **told: Value) -> Loss:
    """A stretch of time; ``told``: what else its sentence names."""
    first = since if since.number >= held.start.number else derived(held.start.number, since, held.start, unit="time")
    seconds = length(first, until)
    lost = hours(held.gpus, seconds)
    kind, assumed = KINDS[key]
    formula = claim(
        "by_time", gpus=held.gpus, seconds=seconds, since=first, until=until, hour=hour(seconds), hours=lost
    )
    return Loss(kind, lost, claim(key, **told), formula, claim(assumed))


def steps(key: str, held: Held, first: Value, last: Value, pace: Value) -> Loss:
    """So many steps, at so many seconds each, and at most for as long as the attempt lasted."""
    each = derived(float(f"{pace.number:.4g}"), pace, unit="s")
    seconds = derived((last.number - first.number) * each.number, first, last, each, unit="s")
    seconds = derived(min(seconds.number, held.seconds), seconds, unit="s")
    lost = hours(held.gpus, seconds)
    kind, assumed = KINDS[key]
    formula = claim("by_steps", gpus=held.gpus, first=first, last=last, pace=each, hour=hour(seconds), hours=lost)
    return Loss(kind, lost, claim(key, first=first, last=last), formula, claim(assumed))
