"""Checkpoints saved, restored, missing or skipped, and requests to resume: the wordings of all frameworks in one
table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "checkpoints"

_STEP_IN_PATH = re.compile(
    r"(?:checkpoint|ckpt|global_step|step|iter|epoch\d*-step)[-_=]{0,2}(\d{1,9})(?!\d)", re.IGNORECASE
)
_STEP_IN_TEXT = re.compile(
    r"\b(?:global[_ ]step|step|iteration|iter|update)s?[ :=#_-]{1,12}(\d[\d,]{0,11})|@ (\d{1,9}) updates|[\[(](\d{1,9})[\])]\s*$",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"(?:took|in|writing took) ?:?\s?(\d+\.?\d*) ?(?:s|sec|seconds)\b")
_PATH = re.compile(
    r"['\"]?((?:[\w.~-]+)?/[^\s'\",;()]{1,400}|[\w.-]{1,200}\.(?:ckpt|pth?|bin|safetensors|tar|h5|keras|npz|msgpack|pkl|joblib)(?![\w]))"
)
_PRETRAINED = re.compile(
    r"pre-?trained|base model|backbone|shards|tokenizer|configuration|config\.json|template|unexpected keys|weights saved|metadata from|state_dict_metadata|imagenet|\bvocab|processor|hugging ?face hub",
    re.IGNORECASE,
)
_NOT_DONE = re.compile(
    r"\b(?:fail(?:ed|ure|s|ing)?|error|could ?n.t|could not|cannot|can.t|unable|will be|would|should|if|every|when|not|no|to be|before"
    r"|without|skip\w*|frequency|interval|strategy|deleting|remov\w+)\b",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
SAME_SAVE_S = 1.0
"""Seconds within which ranks that save together print it."""
MAX_WORDINGS = 64
"""Wordings of one save that are remembered."""
_ERROR = re.compile(r"^\s*(?:[\w.]+(?:Error|Exception)\b|File \"|raise |return |def |#|assert )")


@dataclass(frozen=True, slots=True)
class _Wordings:
    """The regexes of one kind of event; one of them must match."""

    kind: str
    regexes: tuple[re.Pattern[str], ...]
    refuses_denials: bool
    """Whether a line that denies the event, or announces it, is refused."""


def _compile_wordings(kind: str, *regexes: str, refuses_denials: bool = True) -> _Wordings:
    """The wordings of a kind of event, without regard to case."""
    return _Wordings(kind, tuple(re.compile(regex, re.IGNORECASE) for regex in regexes), refuses_denials)


_FILE = r"\S{1,300}\.(?:pth?|ckpt|tar|safetensors|bin|h5|keras|npz|msgpack)\b"
_MODEL_FILE = r"\S{0,300}(?:model|forecaster|classifier|estimator|regressor|agent|policy|weights)\S{0,60}\.(?:pkl|pickle|joblib|onnx|gguf|cbm)\b"
"""A model's file in a format that also holds other objects: by its name."""
_SAVE_WORDINGS = _compile_wordings(
    "checkpoint_saved",
    r"\bsuccessfully saved checkpoint (?:from|at) iteration",
    r"\bfinished saving the checkpoint|\bsaving a full checkpoint",
    r"\bsaving model checkpoint(?: to|:) ",
    r"\bsaving (?:current state|(?:the )?(?:\w+ ){0,2}(?:checkpoint|ckpt|snapshot)s?)\b(?! at iteration\s)(?: at| to| as| for|:|\.\.\.| [/'\"\w])",
    r"\bsaving (?:model|state|weights)(?: to| as| at) ",
    r"\b(?:saved|wrote|written|stored)\b.{0,40}\b(?:checkpoint|ckpt|snapshot|state)\b",
    r"\b(?:checkpoint|ckpt|snapshot)\b.{0,60}\b(?:saved|written|stored)\b",
    rf"\b(?:saved|saving|wrote|writing) (?:\w+ ){{0,3}}(?:to |as |at )?['\"]?{_FILE}",
    rf"\bsave (?:to|checkpoint|ckpt) {_FILE}",
    rf"\bsav(?:ed|ing) (?:\w+ ){{0,3}}(?:to |as |at |in |-> ?|→ ?)?['\"]?{_MODEL_FILE}",
    r"\bsav(?:e|ed|ing) (?:the )?(?:(?:new|latest|last|best|final|current|trained) ){0,2}(?:models?|networks?)"
    r"(?: and (?:training|optimizer) states?)?\s*(?:[.!]|$|(?:to|at|in|as|with)\b)",
    r"\b(?:model|weights|network) (?:at|of) (?:iteration|iter|step|epoch)[ :=#]{0,3}\d{1,12} (?:is|was|has been)? ?saved\b",
    r"\bmodels? (?:(?:was|were|has been|have been) )?(?:successfully )?saved\b(?! by\b)",
)
_LOAD_WORDINGS = _compile_wordings(
    "checkpoint_loaded",
    r"\bsuccessfully loaded (?:checkpoint|ckpt)",
    r"\bloaded (?:the )?(?:model|weights|network) (?:at|from) (?:iteration|iter|step|epoch)[ :=#]{0,3}\d",
    r"\brestored all states from the checkpoint",
    r"\bcontinuing training from global step \d",
    r"\bloading model from \S{0,300}checkpoint-\d",
    r"\bfinished loading the checkpoint|\bloading the checkpoint at step",
    r"\bresum(?:ed|ing)\b.{0,120}?\b(?:step|iteration|iter|update|epoch)s?[ :=#]{1,3}\d",
    r"\bresumed\b.{0,60}\b(?:from|at|training)\b",
    r"\b(?:loaded|restored)\b.{0,60}\b(?:checkpoint|ckpt|snapshot|training state|optimizer state)",
    r"\b(?:checkpoint|ckpt|snapshot)\b.{0,200}\b(?:loaded|restored)\b",
    r"\bcontinu(?:ed|ing) (?:training )?from (?:step|iteration|checkpoint)\b",
    r"\bloading states from \S{0,300}(?:checkpoint|step|epoch|iter)[-_]?\d",
)
_MISSING_WORDINGS = _compile_wordings(
    "checkpoint_missing",
    r"\bcould not find the metadata file",
    r"\bunable to find latest file at",
    r"\bno (?:\w+ ){0,3}(?:checkpoint|ckpt|snapshot)s? (?:\w+ ){0,2}(?:found|exists?|available|to (?:resume|load))",
    r"\bno (?:\w+ ){0,3}(?:checkpoint|ckpt|snapshot)s?\b.{0,80}\b(?:from scratch|start(?:ing|s)? (?:fresh|anew|over))",
    r"\b(?:checkpoint|ckpt|snapshot)\b(?!.{0,200}\b(?:parameters|keys|buffers)\b).{0,200}\b(?:not found|does ?n.t exist|does not exist|not exist)\b",
    r"\b(?:can ?not|can't|could ?n.t|could not|did ?n.t|did not|unable to) (?:find|locate) (?:\w+ ){0,3}(?:checkpoint|ckpt)",
    refuses_denials=False,
)
_LIBRARY_MISSES = re.compile(r"could not find the metadata file|unable to find latest file at", re.IGNORECASE)
"""Megatron-LM's and DeepSpeed's messages, which follow a request to load."""
_SKIP_WORDINGS = _compile_wordings(
    "checkpoint_skipped",
    r"\bskip(?:ping|ped)? (?:\w+ ){0,2}(?:checkpoint|ckpt|save|saving)\b",
    r"\b(?:checkpoint|ckpt)\b.{0,120}\b(?:skipped|skipping|ignored)\b",
    refuses_denials=False,
)
_REQUEST_WORDINGS = _compile_wordings(
    "resume_requested",
    r"\brestoring states from the checkpoint path at",
    r"\bresum(?:e|ing)\b.{0,40}\bfrom\b.{0,20}(?:checkpoint|ckpt|snapshot|/|\blast\b|\blatest\b)",
    r"=> loading checkpoint '",
    r"\bloading (?:the )?(?:latest |last |training )?(?:checkpoint|ckpt|snapshot|state)\b.{0,200}(?:(?:checkpoint|ckpt|step|iter|epoch)[-_=]?\d|\blatest\b|\blast\b)",
    r"\bcheckpoint detected, resuming",
)

_RESUME_OPTION = re.compile(
    r"--(?:resume|auto[-_]resume|restart|continue)(?:[-_]?(?:from|path|ckpt|checkpoint|training|run|train)){0,3}(?:['\"]?[=, ]{1,3}['\"]?(?P<arg>[^\s'\",\])]{1,400}))?"
    r"|\bresume(?:_(?:from|path|ckpt|checkpoint|training)){0,3}['\"]?\s{0,2}[=:]\s{0,4}['\"]?(?P<option>[^\s'\",)}\]]{1,400})"
    r"|--(?:load[-_]checkpoint|load[-_]ckpt|ckpt[-_]path(?=['\"]?[=, ]{1,3}\S{1,400}(?:\.(?:pt|pth|ckpt|bin|tar|safetensors)\b|[-_]\d)))"
    r"['\"]?[=, ]{1,3}['\"]?(?P<path>[^\s'\",\])]{1,400})"
)
_NOT_A_PATH = frozenset(
    ("none", "false", "null", "no", "0", "never", "allow", "must", "...", "auto", "~", "''", '""', "n/a")
)
_EXPRESSION = re.compile(
    r"^(?:\w*args|self|cfg|config|opts?|FLAGS|h?params|conf|hydra)\.|^(?:checkpoint|ckpt|resume\w*|[A-Z_]{3,})$|\(|<"
)
_SOURCE_CODE = re.compile(
    r"\.(?:train|fit|load\w*)\(|\busage: |\[--|unrecognized|^\s*(?:help|parser\.)|\bwandb\b|add_argument"
)


def _read_event(wordings: _Wordings, line: Line) -> Event | None:
    """The event of a line that has one of these wordings; None for any other line."""
    text = line.text
    if len(text) > 2_000 or _ERROR.match(text):
        return None
    match = next((hit for regex in wordings.regexes if (hit := regex.search(text))), None)
    if match is None or (wordings.refuses_denials and _NOT_DONE.search(text)) or _PRETRAINED.search(text):
        return None
    return _event(line, wordings.kind, text[match.start() :])


def _event(line: Line, kind: str, text: str) -> Event | None:
    """An event with the path, step and duration in the text of a matched wording."""
    match = _PATH.search(text)
    path = match[1].rstrip(".:") if match else None
    in_text = _STEP_IN_TEXT.search(text)
    in_path = _STEP_IN_PATH.findall(path or "")
    step = next((whole_number(group) for group in in_text.groups() if group), None) if in_text else None
    if step is None and in_path:
        step = int(in_path[-1])
    fields: dict[str, Any] = {"path": path}
    if kind in ("checkpoint_saved", "checkpoint_loaded"):
        fields["step"] = step
    if kind == "checkpoint_saved":
        seconds = _SECONDS.search(text)
        fields["seconds"] = number(seconds[1]) if seconds else None
        if _is_repeat(line, step, path, text):
            return None
    elif kind == "checkpoint_missing":
        fields["what"] = text[:200].strip()
        fields["requested"] = True if _LIBRARY_MISSES.search(text) else None
    elif kind == "checkpoint_skipped":
        fields["why"] = text[:200].strip()
    elif kind == "resume_requested":
        fields["by"] = "message"
    return line.event(kind, **fields)


def _is_repeat(line: Line, step: int | None, path: str | None, text: str) -> bool:
    """Whether the same save was just reported: before and after saving, by several ranks, or by two libraries.

    If no step distinguishes two saves, a writer that prints the same words more than SAME_SAVE_S later has saved again.
    """
    notes = line.notes(ID)
    save = (step, path if step is None else None)
    if save == (None, None):
        is_repeat: bool = line.number - notes.get("line", -100) <= 3
    else:
        is_repeat = bool(notes.get("save") == save)
    wording = line.rank, line.label, _DIGITS.sub("", text)
    known_wordings: set[object] = notes.setdefault("words", set())
    if is_repeat and step is None and wording in known_wordings:
        is_repeat = line.time is not None and abs(line.time - notes["time"]) <= SAME_SAVE_S
    if not is_repeat:
        known_wordings.clear()
        notes["time"] = line.time if line.time is not None else 0.0
    if len(known_wordings) < MAX_WORDINGS:
        known_wordings.add(wording)
    notes["save"], notes["line"] = save, line.number
    return is_repeat


PARSER = Parser(ID, "checkpoints of any framework", "framework")


@PARSER.pattern(
    rb"(?:could not find the metadata file|nable to find latest file|no [a-z ]{0,40}(?:checkpoint|ckpt|snapshot)|"
    rb"(?:checkpoint|ckpt|snapshot)[^\n\r]{0,200} (?:not found|not exist|n.t exist)|(?:find|locate) [a-z ]{0,20}(?:checkpoint|ckpt))",
    safety="Normal on a first run: a cause only if the run should have resumed. Exceptions are read by the traceback "
    "parser.",
    matches=(
        "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt ",
        "[2025-03-18 07:25:40,881] [WARNING] [engine.py:2914:load_checkpoint] Unable to find latest file at /x/latest, if trying to load latest checkpoint please ensure this file exists",
        "=> no checkpoint found at 'out/last.pth'",
        "No existing checkpoint found checkpoints/checkpoint_last.pt",
        "Checkpoint 'latest' does not exist. Starting a new training run.",
    ),
    avoids=(
        "FileNotFoundError: checkpoint out/last.pt not found",
        "gradient checkpointing is on",
        "fvcore.common.checkpoint WARNING: Some model parameters or buffers are not found in the checkpoint:",
    ),
    caseless=True,
)
def _missing_event(line: Line) -> Event | None:
    return _read_event(_MISSING_WORDINGS, line)


@PARSER.pattern(
    rb"(?:skip[a-z]{0,4} [a-z ]{0,20}(?:checkpoint|ckpt|sav)|(?:checkpoint|ckpt)[^\n\r]{0,120} (?:skipp|ignored))",
    safety="Skipped activation checkpointing is something else and has other wordings.",
    matches=("Skipping checkpoint save: disk quota is nearly used up", "checkpoint out/ckpt-40 is corrupt, skipped"),
    avoids=("Skipping step, loss scale is now 4096",),
    caseless=True,
)
def _skipped_event(line: Line) -> Event | None:
    return _read_event(_SKIP_WORDINGS, line)


@PARSER.pattern(
    rb"(?:sav(?:ed|ing|e)|wrote|writ(?:ing|ten)|stored)[^\n\r]{0,80}(?:checkpoint|ckpt|snapshot|state|model|network|\.pt|\.bin|\.safetensors|\.h5|\.keras|\.tar|\.npz)"
    rb"|(?:model|weights|network) (?:at|of) (?:iter|step|epoch)[^\n\r]{1,40}saved",
    safety="Announcements, failures, tokenizers and configurations are not saved checkpoints; a save printed twice "
    "counts once.",
    matches=(
        "saved ckpt.pt (100)",
        "[transformers] Saving model checkpoint to out/checkpoint-40",
        "  successfully saved checkpoint at iteration     100 to /ckpt/gpt",
        "Epoch 0, global step 100: 'val_loss' reached 0.91 (best 0.91), saving model to '/p/epoch=0-step=100.ckpt' as top 1",
        "Saved checkpoint checkpoints/checkpoint_best.pt (epoch 1 @ 100 updates, score 4.2) (writing took 3.1 seconds)",
        "Saving current state to ckpt/epoch_1",
        "Finished saving the checkpoint in 12.3 seconds.",
        "2024-05-02 10:00:00,123 INFO: Saving models and training states.",
        "Save the latest model.",
        "Saving best model to out/run3",
        "model at iteration 52000 is saved",
    ),
    avoids=(
        "Checkpoints will be saved every 100 steps",
        "Failed to save checkpoint at step 100",
        "tokenizer config file saved in out/checkpoint-40/tokenizer_config.json",
        "Configuration saved in out/checkpoint-40/config.json",
        "save_model: True",
        "saved predictions of the model",
        "Loss did not improve, model is not saved",
    ),
    caseless=True,
)
@PARSER.pattern(
    rb"(?:(?:checkpoint|ckpt|snapshot)[^\n\r]{0,60} (?:saved|written|stored)|models? (?:(?:was|were|has been|have been) )?(?:successfully )?saved)",
    safety="The same as above, with the words in the other order.",
    matches=("Checkpoint written to /ckpt/step_200", "snapshot at step 50 saved", "Model saved successfully."),
    avoids=("checkpoint could not be saved", "no checkpoint saved", "the model saved by another job"),
    caseless=True,
)
def _saved_event(line: Line) -> Event | None:
    return _read_event(_SAVE_WORDINGS, line)


@PARSER.pattern(
    rb"(?:resum(?:ed|ing)|restored|loaded|continu(?:ed|ing) (?:training )?from|loading model from|loading the checkpoint|loading states from)",
    safety="Loading base or pretrained weights, tokenizers or data is not a resume.",
    matches=(
        "resumed from ckpt.pt at step 100",
        "Successfully loaded model at iteration 48000",
        "  successfully loaded checkpoint from /ckpt/gpt [ t 0, p 0 ] at iteration 500",
        "Restored all states from the checkpoint at /p/last.ckpt",
        "  Continuing training from global step 40",
        "Loading model from out/checkpoint-40.",
        "=> loaded checkpoint 'out/last.pth' (epoch 10)",
        "Resuming training from step 1,200",
    ),
    avoids=("Loaded pretrained weights from base.pth", "Loading model from ./models/base", "loaded 4000 examples"),
    caseless=True,
)
@PARSER.pattern(
    rb"(?:restoring states from|resum(?:e|ing) [^\n\r]{0,40}from|resuming from|loading [a-z ]{0,20}(?:checkpoint|ckpt|snapshot|state))",
    safety="It only requests a load; the loss and a load message show whether it happened.",
    matches=(
        "Restoring states from the checkpoint path at ckpts/last.ckpt",
        "Resuming from checkpoint out/checkpoint-40",
        "=> loading checkpoint 'out/last.pth'",
    ),
    avoids=("Loading checkpoint shards: 100%|██████████| 3/3 [00:05<00:00,  1.9s/it]",),
    caseless=True,
)
def _loaded_event(line: Line) -> Event | None:
    return _read_event(_LOAD_WORDINGS, line) or _read_event(_REQUEST_WORDINGS, line)


@PARSER.pattern(
    rb"(?:--(?:auto[-_])?resume|resume_?[a-z_]{0,20}['\"]?\s?[=:]|--(?:load[-_]checkpoint|ckpt[-_]path|load[-_]ckpt)|--continue[-_]|--restart[-_])",
    safety="None, False and W&B's resume modes request nothing; code in tracebacks and usage texts are not command "
    "lines.",
    matches=(
        "+ python train.py --steps 200 --resume ckpt.pt",
        "resume_from_checkpoint=out/checkpoint-40,",
        "cmd = ['python', 'train.py', '--resume_from_checkpoint', 'out/checkpoint-40']",
    ),
    avoids=(
        "resume_from_checkpoint=None,",
        "    trainer.train(resume_from_checkpoint=checkpoint)",
        "usage: train.py [-h] [--resume RESUME]",
        "resume: false",
    ),
)
def _resume_argument(line: Line) -> Event | None:
    text = line.text
    if _ERROR.match(text) or _SOURCE_CODE.search(text):
        return None
    for match in _RESUME_OPTION.finditer(text):
        value = match["arg"] or match["option"] or match["path"]
        flag = match[0].startswith("--")
        if value is None or value.startswith("-"):
            value = None
            if not flag:
                continue
        elif value.lower() in _NOT_A_PATH or _EXPRESSION.search(value):
            continue
        if value is not None and value.lower() in ("true", "yes", "1"):
            if not flag:
                continue  # a setting of one of many tools, such as W&B
            value = None
        return line.event("resume_requested", path=value, by="argument")
    return None
