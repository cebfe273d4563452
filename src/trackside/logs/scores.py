"""Scores that training loops print: accuracy, perplexity, mAP, Dice, BLEU, reward, and so on.

``Epoch[9] Train-accuracy=0.93``, ``Validation Accuracy: 97.3%``, ``Train perplexity at epoch 0: 396.3``,
``[Valid]: Recall: 0.0097 NDCG: 0.0064``. Which names count, and in which direction each improves, is declared in
:mod:`trackside.catalog.scores`. Only lines in which no parser read a loss are looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from trackside.catalog.scores import score_direction
from trackside.logs.figures import line_figures, named_figures, put_position_first
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition, position_of
from trackside.logs.pattern import Parser
from trackside.logs.positions import position_above
from trackside.model import Event

MAX_TEXT_CHARS = 1_000
"""A longer line is a dump."""
MAX_SCORES = 4
"""Scores of one line that are read."""
_WHOLE = re.compile(r"reward|return|score", re.IGNORECASE)
"""Scores that may be whole numbers; others have decimals or a percent sign."""
_BAR = re.compile(r"%\|[^|]{0,200}\|\s{0,9}\d{1,12}/\d{1,12} \[[^\]]{0,300}\]")
_OTHER = re.compile(
    r"\b(?:[Bb]est|BEST|improved|[Ll]owest|[Hh]ighest|[Tt]arget|[Mm]ax(?:imum)?|patience|[Ss]av(?:ed|ing)|Trial)\b|[Ee]arly ?[Ss]top|Namespace\(|[Cc]onfig|Args|^\s*File \"|Traceback"
    r"|\bImages\b|^\s*(?:def|return|import|assert|print|raise)\b|\bwandb: "
)
_EPISODE = re.compile(r"\bep(?:isode)?s?\b", re.IGNORECASE)
_SPLIT_NAME = re.compile(r"^\W{0,12}(train\w*|val\w*|test\w*|dev|eval\w*)\b\W{1,4}", re.IGNORECASE)
"""The split at the start of a line, which qualifies all names on it: ``[Valid]: Recall: 0.01``."""
_NAMES_SPLIT = re.compile(r"train|val|test|dev|eval", re.IGNORECASE)

PARSER = Parser("scores", "scores of training loops", "framework", generic=True, precedence=640)


_NUMBER = rb"[a-z0-9@_./ -]{0,60}[\"')\]]{0,3}(?: ?\(%\))? {0,3}[:= ][:=\[(\"' \t]{0,16}-?[0-9]{0,9}[.%0-9]"
"""What follows a name: more words, then a number."""
_LONG_NAMES = (
    rb"(?:accuracy|top-?[135]|precision|prec@[15]|recall|f1[_ -]?score|auroc|miou|dice|ndcg|hits|bleu|rouge|meteor|cider|chrf|psnr|ssim|elbo|objf|"
    rb"likelihood|score|logloss|reward|rew_mean|return|perplexity|error|rmse|mape|lpips|pearson|spearman|success)"
)
_SHORT_NAMES = (
    rb"(?:\b|_)(?:acc|prec|f1|auc|m?ap|iou|dsc|mrr|hit|r@[15]|ppl|bpc|bpb|err|wer|cer|per|eer|mae|mse|nll|fid|kid)"
)
"""Names that are parts of many words: only after another word's end. Two patterns are faster than one for both."""


@PARSER.pattern(
    _LONG_NAMES + _NUMBER,
    safety="Records so far, targets, settings, code and results of trials are not scores of this training at this time; "
    "a number without decimals or percent sign is a count.",
    matches=(
        "INFO:root:Epoch[4] Train-accuracy=0.867188",
        "INFO:root:Epoch[0] Batch [20]\tSpeed: 142.33 samples/sec\taccuracy=0.562500",
        "Epoch 3: Validation Accuracy: 7.27%",
        "Episode: 3/500, Score: 21, e: 0.73",
        "Train perplexity at epoch 0:   396.31",
        "0.10700828 perplexity:  1527.65 speed: 8936.41 wps",
        "[Valid]: Precision: 0.0024-0.002 Recall: 0.0097-0.0169 NDCG: 0.0064-0.0085",
        "Testing performance in val model: mean_dice : 0.000455, best_dice : 0.002702",
        "Episode 20 reward: 35",
        "global_step=2048, episodic_return=22.0",
        "Episode 100\tAverage Score: 3.21",
        "[10]\ttrain-logloss:0.3012\teval-logloss:0.4012",
    ),
    avoids=(
        "Saved new best model with accuracy: 7.27%",
        "target_accuracy = 0.97",
        "error 404: not found",
        "    return 0.5 * accuracy",
        "   Class   Images   Labels    P    R   mAP@.5  mAP@.5:.95: 100% 12/12 [00:01<00:00]",
        "Trial 3 finished with value: 0.94, accuracy: 0.94",
    ),
    caseless=True,
)
@PARSER.pattern(
    _SHORT_NAMES + _NUMBER,
    safety="As for the long names.",
    matches=("Epoch: 748 Val Acc: 0.4515", "Mean AP: 75.3%", "train_acc 0.91 at epoch 3", "epoch 4 | ppl: 21.30"),
    avoids=("Best val acc: 0.97", "map: 12 files", "Map:  10%|█         | 1000/10000 [00:01<00:09, 980 examples/s]"),
    caseless=True,
)
def _scores(line: Line) -> Iterator[Event]:
    text = line.text
    if len(text) > MAX_TEXT_CHARS:
        return
    if "%|" in text and "100%|" not in text:  # of a bar only the last drawing counts, and what another print added
        bar = _BAR.search(text)
        text = "" if bar is None else text[bar.end() :]
    text = put_position_first(text)
    split = _SPLIT_NAME.match(text)
    if _OTHER.search(text) and "best_" not in text:
        return
    position: LinePosition | None = None
    count = 0
    for printed_name, value, _, _, has_magnitude_suffix, fractional in named_figures(text):
        # some libraries call a loss a score, but not one of an episode
        name = "episode score" if printed_name.lower() == "score" and _EPISODE.search(text) else printed_name
        if has_magnitude_suffix or not math.isfinite(value) or score_direction(name) is None:
            continue
        if not fractional and not _WHOLE.search(name):
            continue
        position = position or _position(line, text)
        words = f"{split[1]} {name}" if split is not None and not _NAMES_SPLIT.search(name) else name
        yield line.event("score", step=position.step, epoch=position.epoch, metric=words, value=value)
        line.notes(PARSER.id)["seen"] = True
        count += 1
        if count == MAX_SCORES:
            return


def _position(line: Line, text: str) -> LinePosition:
    """The position on the line, else the one printed above it."""
    position = position_of(text, line_figures(text))
    if position.is_known:
        return position
    above = position_above(line)
    return LinePosition() if above is None else above.record_position
