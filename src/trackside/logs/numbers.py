"""Numbers as logs print them, and the names under which training loops print their figures."""

from __future__ import annotations

import re
from functools import lru_cache

NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3}){1,9}(?!\d)(?:\.\d{1,40})?|\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,5})?|\.\d{1,40}(?:[eE][-+]?\d{1,5})?|(?:nan|NaN|NAN|[iI]nf(?:inity)?|INF)(?![A-Za-z]))"
"""One number: thousands separators, exponents, nan and inf; a unit may follow without a space."""
_NUMBER = re.compile(NUMBER)
_WRAPPER = re.compile(r"^(?:tensor|array|np\.float\d+|numpy\.float\d+|Decimal|float)\(\[?['\"]?")
_WORD_END = re.compile(r"[ /.]+")
_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=Loss)|[^A-Za-z0-9]+")


def number(text: str | None) -> float | None:
    """The number at the start of a text (without quotes and ``tensor(``), or None."""
    if not text:
        return None
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        pass
    text = text.strip().lstrip("'\"([")
    match = _NUMBER.match(_WRAPPER.sub("", text))
    return None if match is None else float(match[0].replace(",", ""))


def whole_number(text: str | None) -> int | None:
    """A number without a fraction, such as a step, or None. ``9.000`` counts, ``9.5`` and ``nan`` do not."""
    return as_whole(number(text))


def as_whole(value: float | None) -> int | None:
    """The value as an integer if it has no fraction, else None; so for ``nan``, infinity and what is too large to be
    exact."""
    return int(value) if value is not None and abs(value) < 1e15 and value == int(value) else None


def figure(value: object) -> float | None:
    """A value decoded from JSON or CSV as a float, including nan and inf; None for booleans and for anything that is
    not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


_NAMES: dict[str, str] = {
    "loss": "loss train_loss training_loss loss_train all_loss train_loss_step train_loss_iter lm_loss loss_lm reduced_train_loss"
    " total_loss loss_total train_total_loss step_loss loss_step batch_loss loss_batch train_batch_loss avg_loss loss_avg"
    " average_loss mean_loss loss_mean train_avg_loss global_avg_loss train_loss_epoch running_loss smoothed_loss loss_ema"
    " per_token_loss token_loss nll_loss loss_nll ce_loss loss_ce cross_entropy_loss cross_entropy mlm_loss"
    " masked_lm_loss policy_loss actor_loss loss_policy_avg pg_loss loss_policy sft_loss dpo_loss train_cost mean_cost mcost cost"
    " g_gan g_a d_a",
    "step": "global_step global_step_max_steps num_updates current_steps current_step train_step training_step optimizer_step optim_step"
    " num_opt_steps step steps iteration iterations iter iters itr itrs it update updates batch_idx batch minibatch"
    " n_iter niter iter_num step_num iteration_num batch_num batch_id nbatch mini_batch total_timesteps num_timesteps timesteps timestep count sample",
    "epoch": "epoch epochs epch ep current_epoch num_epochs round episode",
    "lr": "lr learning_rate train_lr current_lr step_lr last_lr base_lr lr_0",
    "grad_norm": "grad_norm gradnorm gnorm gradient_norm total_norm global_grad_norm grad_norm_total norm",
    "total_steps": "total_steps max_steps total total_iters max_iters",
    "data_time_s": "data_time data data_load_time dataloader_time data_wait data_loading load_time",
    "compute_time_s": "compute_time compute fwd_bwd model_time forward_backward",
    "comm_time_s": "comm_time allreduce allreduce_time comm all_reduce sync_time communication reduce_time",
    "step_time_s": "step_time step_time_s time_per_step iter_time iteration_time batch_time time_per_iter step_avg"
    " sec_per_step train_step_timing train_step_time ms_per_step dt",
    "throughput": "tokens_per_sec tokens_per_second tok_s tokens_s tps tok_per_sec samples_per_sec samples_per_second"
    " samples_s img_s images_per_sec throughput wps",
    "loss_scale": "loss_scale grad_scale amp_scale",
    "reward": "reward mean_reward reward_mean score_mean rewards_mean rewards_margins objective_scores episode_reward",
}
"""Field of ``progress`` -> its printed names in snake case, the most specific first."""
_FIELD_RANKS = {name: (field, rank) for field, names in _NAMES.items() for rank, name in enumerate(names.split())}
LAST_RANK = 100
"""Rank of a name that is a loss, but not one of those above."""
_NOT_TRAINING = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "test", "dev", "best", "min", "max", "holdout", "heldout")
)
_NOT_LOSS = frozenset((
    "scale", "weight", "type", "coef", "coeff", "gamma", "beta", "delta", "eps", "margin", "factor", "reduction",
    "name", "alpha", "fn", "func", "function", "target", "threshold", "time", "scaler",
    "last", "final", "previous", "prev", "initial", "num", "count", "tokens",
))  # fmt: skip
"""Words in the name of a setting of the loss, or of a count."""


_SIDE_LOSS_WORDS = frozenset((
    "z", "aux", "auxiliary", "load", "balance", "balancing", "router", "kl", "reg", "regularization", "box", "cls",
    "bbox", "mask", "rpn", "d", "g", "gen", "disc", "generator", "discriminator", "value", "vf", "critic",
    "entropy", "q", "td", "distill", "recon", "vq", "commit", "grad", "contrastive", "mtp", "rec", "perceptual",
    "adv",
))  # fmt: skip
"""Words in the name of a loss that is only a part of the training loss."""
_TIMES = frozenset(("time", "times", "time_s", "timing", "timings", "timing_s", "timing_raw", "timer", "timers"))
"""Groups of names whose figures are times, whatever they are named."""
_TOTAL_WORDS = frozenset(("total", "tot", "overall", "whole", "full", "main", "combined"))
"""Words in the name of a loss that say that it is the one whose parts are printed beside it."""
TOTAL_RANK = 30
"""Rank of such a name: before every part, behind the plain names of the training loss."""
_PLAIN_WORDS = frozenset((
    "info", "debug", "train", "training", "the", "a", "current", "average", "avg", "mean", "batch", "step", "iter",
    "iteration", "epoch", "log", "logging", "stats",
))  # fmt: skip
"""Words before the name of a loss that do not make it another loss."""
_QUALIFIED_RANK = 40
"""Added to the rank of a name behind any other word: ``Train L1 Loss`` comes after ``Train Loss``."""
LOSS_FUNCTION = re.compile(
    r"(?<![A-Za-z0-9.])(?<!\b[Aa]gent )(?<!\b[Pp]rior )(?<!\b[Pp]olicy )"
    r"(?:(?i:(?:train(?:ing)?|mean|avg|total)[-_ /]{1,3}){0,2}(?:(?i:cross[-_ ]?entropy|x-?ent|b?ce|nll|recon(?:struction)?|l_total|objective)"
    rf"(?:\s{{0,2}}[:=]\s{{0,3}}|\s(?=\d{{1,6}}\.\d{{1,8}} \())|(?i:train(?:ing)?[-_ /](?:r?mse|mae|nll))(?:\s{{0,2}}[:=]\s{{0,3}}|\s)|(?i:nll)\s|(?i:tr(?:ai)?n?_?l)\s?[:=]\s{{0,3}}|(?:L(?:_[a-z]{{2,12}})?|[tT]ot)\s?[:=]\s{{0,3}}))(?P<value>{NUMBER})(?![\w%/])"
)
"""A loss under the name of its function, or a bare ``L``, printed with decimals: read only where no figure is named a loss. The
likelihood of what an agent samples is none: reinforcement learning maximizes a score."""


def function_loss(text: str) -> re.Match[str] | None:
    """The first loss under the name of its function, or None; whole numbers are counts."""
    match = LOSS_FUNCTION.search(text)
    return None if match is None or match["value"].lstrip("+-").isdigit() else match


@lru_cache(maxsize=4096)
def field_meaning(key: str) -> tuple[str, int] | None:
    """(field of ``progress``, rank among its names; lower is better) that a printed name means.

    Words before the name may be omitted (``train/loss``, ``INFO step``), parts of one word may not (``z_loss`` is
    another loss, of the last rank). Losses of validation and test are ``eval_loss``. None for every other name.
    """
    parts = [part for part in (_to_snake_case(part) for part in _WORD_END.split(key)) if part]
    words = {word.rstrip("0123456789") or word for part in parts for word in part.split("_")}
    exact_field = _FIELD_RANKS.get("_".join(parts))
    if exact_field is not None and exact_field[0] == "step":
        return exact_field
    if not _NOT_TRAINING.isdisjoint(words):
        return ("eval_loss", 0) if "loss" in words else None
    if parts and parts[0] in _TIMES:
        return _FIELD_RANKS["step_time"] if parts[1:] == ["step"] else None
    for start in range(len(parts)):
        known_field = _FIELD_RANKS.get("_".join(parts[start:]))
        if parts[start:] == ["cost"] and start:
            return None  # a time cost
        if known_field is None or (known_field[0] == "step" and "loss" in words):  # a loss per batch is no batch
            continue
        if known_field[0] == "loss" and not _SIDE_LOSS_WORDS.isdisjoint(words):
            return known_field[0], LAST_RANK
        if known_field[0] == "loss" and not _PLAIN_WORDS.issuperset(parts[:start]):
            is_total = not _TOTAL_WORDS.isdisjoint(words)
            return known_field[0], TOTAL_RANK if is_total else _QUALIFIED_RANK + known_field[1]
        return known_field
    if "loss" not in words or not _NOT_LOSS.isdisjoint(words):
        return None
    is_total = not _TOTAL_WORDS.isdisjoint(words) and _SIDE_LOSS_WORDS.isdisjoint(words)
    return "loss", TOTAL_RANK if is_total else LAST_RANK


def _to_snake_case(part: str) -> str:
    """A word of a name in snake case."""
    return "_".join(word.lower() for word in _SPLIT.split(part) if word)
