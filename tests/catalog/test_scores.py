"""Names of scores: their direction, and names that only look like one."""

import pytest

from trackside.catalog.scores import SCORES, score_direction


@pytest.mark.parametrize(
    "name",
    [
        "Train-accuracy",
        "val/mAP@0.5",
        "M0_RPNAcc",
        "mIoU",
        "top-1",
        "rouge1",
        "AverageEpRet",
        "dev BLEU",
        "F1Score",
        "accuracy is",
    ],
)
def test_higher_is_better(name: str) -> None:
    assert score_direction(name) == "higher"


@pytest.mark.parametrize(
    "name", ["Validation perplexity", "valid_ppl", "dev WER", "train-logloss", "soft_rmse", "val_FID", "hd95"]
)
def test_lower_is_better(name: str) -> None:
    assert score_direction(name) == "lower"


@pytest.mark.parametrize(
    "name",
    ["best accuracy", "target_accuracy", "cache_hits", "loss", "score", "error", "map size", "learning rate", "p", ""],
)
def test_other_figures_have_no_direction(name: str) -> None:
    assert score_direction(name) is None


def test_no_name_has_two_directions() -> None:
    assert not set(SCORES["higher"].split()) & set(SCORES["lower"].split())
