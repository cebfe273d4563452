"""Names of scores with their direction: whether a higher or a lower figure is a better model.

Only names whose direction is the same everywhere. A bare ``score`` is missing because some libraries call their loss so.
A score shows learning if it goes the right way; one that goes the other way is no verdict: models overfit, and games of
two networks and rewards vary.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Direction = Literal["higher", "lower"]

SCORES: dict[Direction, str] = {
    "higher": (
        # classification
        "acc accuracy accu top1 top3 top5 top1acc top5acc exactmatch wacc uar war sensitivity specificity"
        " prec precision recall f1 f1score fscore fmeasure macrof1 microf1 auc auroc rocauc aucroc aupr auprc prauc averageprecision"
        " kappa mcc balancedaccuracy hit hits hitrate hr success successrate solverate winrate passrate correctrate"
        # detection and segmentation
        " map ap iou miou fwiou dice dsc dicescore pq mota motp idf1 nds pck jaccard"
        # ranking and retrieval
        " ndcg mrr recallat rsum"
        # language and speech
        " bleu bleuscore sacrebleu rouge rougel rougelsum meteor cider spice chrf bertscore stoi pesq sdr sisdr sisnr snr"
        # images
        " psnr ssim msssim inceptionscore"
        # likelihood
        " elbo loglikelihood loglik logprob avglike likeframe objf"
        # reinforcement learning
        " reward rewards avgreward meanreward averagereward episodereward eprew eprewmean epreward eprewardmean rewmean"
        " avgreturn meanreturn averagereturn episodereturn episodicreturn episodicreward evalreward testreward epreturn epret averageepret avgscore averagescore meanscore episodescore"
        # statistics
        " pearson pearsonr spearman spearmanr r2 r2score ccc"
    ),
    "lower": (
        "ppl perplexity bpc bpb bpd bitsperbyte bitsperchar bitsperdim"
        " logloss binarylogloss multilogloss mlogloss merror errorrate classificationerror validationerror valerror testerror trainerror trainingerror top1err top5err top1error top5error"
        " classerr acer eer wer cer ter der ber mer"
        " mae mse rmse mape smape nrmse msle l1error l2error nll negloglik negativeloglikelihood"
        " fid kid lpips epe absrel sqrel hd95 hausdorff chamfer rmsd ade fde minade minfde mpjpe pampjpe mpjve"
    ),
}
"""Direction -> names without separators, in lower case; digits at the end of a printed name may be omitted."""

_DIRECTIONS: dict[str, Direction] = {name: direction for direction, names in SCORES.items() for name in names.split()}
_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})|[^A-Za-z0-9]+")
_OTHER_WORDS = (
    "best max min maximum minimum lowest highest previous prev last target threshold thresh goal baseline expected required chance random"
    " weight coef coeff scale time patience delta std var count num number loss gain drop change improvement metric monitor early counter"
    " model initial init old cache key id ids size memory disk speed fps gap diff difference"
)
_NOT_MEASURED = frozenset(_OTHER_WORDS.split())
"""Words that make it another figure: a record so far, a setting, a difference."""


@lru_cache(maxsize=4096)
def score_direction(name: str) -> Direction | None:
    """The direction of a printed name such as ``Train-accuracy``, ``val/mAP@0.5`` or ``M0_RPNAcc``; None for another
    figure."""
    words = [word.lower() for word in _SPLIT.split(name) if word]
    if not words or not _NOT_MEASURED.isdisjoint(words):
        return None
    while len(words) > 1 and words[-1] in ("is", "was"):
        words.pop()
    for start in range(len(words)):
        joined = "".join(words[start:])
        direction = _DIRECTIONS.get(joined) or _DIRECTIONS.get(joined.rstrip("0123456789"))
        if direction is not None:
            return direction
    return None
