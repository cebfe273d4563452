"""Forms in which a training loop's line gives its position: step, epoch, of how many."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trackside.logs.figures import LineFigures


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Where the loop is by one line; ``epoch_steps``: steps per epoch, if the step is counted from its start; ``total``: planned
    steps; ``epoch_share``: the share of the epoch that is done, which ``epoch`` contains; ``heading``: the line above that
    prints the position of a record that does not."""

    step: int | None = None
    epoch: float | None = None
    epoch_steps: int | None = None
    total: int | None = None
    epoch_share: float | None = None
    heading: str = field(default="", compare=False)

    @property
    def is_known(self) -> bool:
        """Whether there is a step or an epoch."""
        return self.step is not None or self.epoch is not None


EPOCH_BATCH = re.compile(
    r"(?:\[\s{0,6}|\bTrain: {1,8})(?P<epoch>\d{1,7})(?:/\d{1,7}(?: \( {0,2}\d{1,3}%\))?)?(?:\s{0,3}\]\s{0,3}(?:[A-Z][a-z]{2,9})?| )[\[(]\s{0,9}(?P<step>\d{1,9})\s{0,3}/\s{0,9}(?P<of>\d{1,9})\s{0,3}[\])(]"
)
"""``Epoch: [0][ 50/500]`` of the ImageNet example, ``Train: 0 [50/1251 (4%)]`` of timm, ``Train:   1/80 (  1%) [ 50/464 ( 11%)]`` of
OpenPCDet, ``Epoch[16](381/1500)``."""
SAMPLES = re.compile(r"\[\s{0,9}(?P<done>\d{1,12})\s?/\s?(?P<of>\d{1,12})\s{1,3}\(\s{0,3}\d{1,3}(?:\.\d+)?%\)\]")
"""Samples of an epoch: ``[640/60000 (1%)]``."""
_EPOCH_AND_STEP_FORMS = (
    EPOCH_BATCH,
    # WeNet prints epoch and batch here, not batch and number of batches
    re.compile(r"\bTRAIN Batch (?P<epoch>\d{1,7})/(?P<step>\d{1,9}) loss "),
    # PyTorch's tutorial
    re.compile(r"\[\s{0,6}(?P<epoch>\d{1,7}),\s{1,9}(?P<step>\d{1,9})\]\s{0,3}(?:[Tt]rain(?:ing)?\s)?[Ll]oss"),
    # MXNet
    re.compile(r"\bEpoch\[(?P<epoch>\d{1,7})\] Batch ?\[(?:\d{1,9}-)?(?P<step>\d{1,9})\]"),
    re.compile(
        r"\[\s{0,6}(?P<epoch>\d{1,7})/\d{1,7}\s{0,2}\]\s{1,4}(?:[Bb]atch|[Ss]tep|[Ii]ter)\w{0,6}:?\s(?P<step>\d{1,9})\s?/\s?(?P<of>\d{1,9})\b"
    ),
    # E3 B120/400
    re.compile(
        r"^\W{0,8}[Ee](?:p|poch)?\s?(?P<epoch>\d{1,6})(?:/\d{1,6})?[\s,|:]{1,3}(?:[BbSsIi]|[Bb]atch|[Ss]tep|[Ii]t(?:er)?)\s?(?P<step>\d{1,9})/(?P<of>\d{1,9})\b"
    ),
    # epoch: 4, 30/1875, acc: 81.2
    re.compile(
        r"\b[Ee]poch:?\s{1,3}(?P<epoch>\d{1,7})(?:/\d{1,7})?\s?[,|]\s{0,3}(?P<step>\d{1,9})/(?P<of>\d{1,9})(?=\s?[,|])"
    ),
    # two digits behind the colon may be a clock
    re.compile(r"^\s{0,4}\[(?P<epoch>\d{1,7}):(?P<step>\d|\d{3,12})\]\s"),
)
"""Forms that give epoch and step."""
_BATCHES = re.compile(r"\|\s{1,9}(\d{1,9})/\s{0,9}(\d{1,9}) (?:batches|steps|iter)")
_EPOCH_FORMS = (
    re.compile(r"\b(\d{1,7}) epoch\b[.:,]"),
    re.compile(r"\bEpoch\[(\d{1,7})\] "),
    re.compile(r"(?:^|\s)[Ee]p(?:och)?(\d{1,7})(?=[\s:,|-])"),
    re.compile(r"\b[Ee]poch (?:of|no\.?|number|num|is|index|idx):? {0,2}(\d{1,7})\b(?!\.\d)"),
    re.compile(r"^\W{0,6}\(\s{0,4}(\d{1,7})\s{1,4}\) "),
)
"""Forms that give an epoch."""
_COUNT_FORMS = (
    re.compile(r"(?:^|\s)(\d{1,9})/(\d{1,9}) \[[=>.]{5,60}\]"),
    re.compile(r"(?:^|\s|\b[Bb]atch|\b[Ii]ter|\b[Ss]tep)[\[(]\s{0,9}(\d{1,9})\s?/\s{0,9}(\d{1,9})\s?[\])]"),
    re.compile(r"^\s{0,9}(\d{1,9})\s?/\s{0,9}(\d{1,9})[\s:|,]"),
    re.compile(r"\d%\s{1,3}(\d{1,9})/(\d{1,9})(?=[\s|,]{1,3}[^\s\[])"),
)
"""Forms that give a step and of how many."""
_COUNTS_OTHERS = re.compile(r"(?<![-\d])[Ee](?:poch|p|POCH)s?\W{0,6}$|\b[Aa]cc\w{0,6}\W{1,3}[\d.]{1,9} ?%\W{1,4}$")
"""Words before a count of something other than steps: an epoch, or how many answers were right."""
_GLUED_EPOCH = re.compile(r"(?:^|[\s\[(|,])(?:[Ee]poch|[Ee]p|E)(?:_|\s{0,3}(?=\d{1,3}/))?(\d{1,3})(?=[\s\])|,:/]|$)")
_GLUED_STEP = re.compile(
    r"(?:^|[\s\[(|,])(?:[Ii]ter|[Ss]tep|[Bb]atch|[Ii]t|B)_?(\d{1,9})(?:/(\d{1,9}))?(?=[\s\])|,:]|$)"
)
"""Names without a gap before their figures: ``Ep1``, ``epoch0, iter10``, ``E1 B20/300``."""
_STEP_IN_BRACKETS = re.compile(r"(?:^|\s)\[\s{0,9}(\d{1,9})\]\s(?:\| )?[a-zA-Z_]{2,40}[ :=]")


def position_of(text: str, figures: LineFigures) -> LinePosition:
    """The position that a line prints, by its form, else by its named figures."""
    if "[" in text or "/" in text or "TRAIN" in text:
        for form in _EPOCH_AND_STEP_FORMS:
            if match := form.search(text):
                of = match["of"] if "of" in form.groupindex else None
                return LinePosition(int(match["step"]), int(match["epoch"]), int(of) if of else None)
    epoch = figures.whole_value("epoch")
    if epoch is None and (match := next(filter(None, (form.search(text) for form in _EPOCH_FORMS)), None)):
        epoch = int(match[1])
    if epoch is None and (match := _GLUED_EPOCH.search(text)) is not None:
        epoch = int(match[1])
    epoch_or_fraction: float | None = epoch if epoch is not None else figures.values.get("epoch")
    if match := SAMPLES.search(text):
        share_done = int(match["done"]) / max(1, int(match["of"]))
        return LinePosition() if epoch is None else LinePosition(epoch=epoch + share_done, epoch_share=share_done)
    step, total = figures.whole_value("step"), figures.totals.get("step")
    match = _BATCHES.search(text)
    if match is None and step is None and epoch is not None and (glued := _GLUED_STEP.search(text)) is not None:
        step, total = int(glued[1]), int(glued[2]) if glued[2] else None
    if match is None and step is None:
        counts = (match for form in _COUNT_FORMS for match in form.finditer(text))
        match = next((match for match in counts if not _COUNTS_OTHERS.search(text, 0, match.start(1))), None)
    if match is not None:
        step, total = int(match[1]), int(match[2])
    elif step is None and epoch is None and (match := _STEP_IN_BRACKETS.search(text)):
        step = int(match[1])
    if epoch is not None and total is not None:
        return LinePosition(step, epoch, total)
    return LinePosition(step, epoch_or_fraction, None, total or figures.whole_value("total_steps"))
