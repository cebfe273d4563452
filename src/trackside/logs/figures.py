"""Figures that a line prints next to their names: ``step 10``, ``loss=3.42``, ``"acc": "0.9"``, ``Loss 3.1 (3.4)``.

What a name means is declared in :mod:`trackside.logs.numbers` and :mod:`trackside.catalog.scores`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trackside.logs.numbers import LAST_RANK, NUMBER, TOTAL_RANK, as_whole, field_meaning, number

WRAPPER = r"(?:(?:np\.|tf\.|torch\.)?(?:[tT]ensor|array|Array|DeviceArray|float\d\d)\([\[\s]{0,4})?"
"""What a number is printed in, if it is not a plain one."""
_PAIR = re.compile(
    r"(?<![\w/.\-])(?P<key>[A-Za-z_][\w/.\-@]{0,60}+(?: (?!(?i:nan|inf)\b)[A-Za-z_(][\w/\-)]{0,40}+){0,3})"
    r"(?:\s?\((?:ms|s|sec|avg|%|it/s|phase|running|total|overall|mean|train(?:ing)?|1e-(?P<exponent>\d))\))?['\"\]]{0,2}"
    r"(?:\s{0,3}(?:[:=]{1,2}|[-=]>|[→⇒┃│])[\s,'\"]{0,60}|(?<=['\"]),\s{0,3}|\s{1,10}|\s{0,3}#)['\"\[(]{0,3}\s{0,8}"
    rf"{WRAPPER}(?P<value>{NUMBER})(?P<magnitude>[KMG](?![A-Za-z]))?"
    r"(?:\s{0,2}/\s{0,8}(?P<of>\d{1,12}))?(?:\s?(?P<unit>ms|us|µs|s|secs?|seconds)\b)?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d{1,12}|\d{1,9},(?:\d{1,2}|\d{4,12}))(?![\d.,])")
"""A number with a decimal comma, where it cannot be a thousands separator: ``0,412``, ``1,6263``."""
_NAME_BEFORE_POSITION = re.compile(
    r"(?<![\w/.\-])(?P<key>[A-Za-z_][\w/\-@]{0,40}(?: [A-Za-z_(][\w/\-)]{0,40}){0,3}?) (?:for|at|after|of|in|on) (?:the )?"
    r"(?P<counter>[Ee]poch|[Ss]tep|[Ii]ter(?:ation)?|[Bb]atch|[Rr]ound|[Uu]pdate) {0,4}[\[(]?#?(?P<count>\d{1,12})(?P<of>/\d{1,12})?[\])]?"
    r"(?=\s{0,3}(?::|=|is\b))"
)
"""A name with its position: ``Loss for Iter 51: 0.4`` means the same as ``Iter 51 Loss: 0.4``."""
_EPOCH_AND_STEP = re.compile(r"epochs?/(?:steps?|iter(?:ation)?s?|batch(?:es)?)$", re.IGNORECASE)
"""A name for two figures: ``epoch/iter: 119/24239``."""
_WORDS = re.compile(r"[a-z]+")
_PLAYER_NAMES = {
    "discriminator": "d dis disc discriminator netd errd critic",
    "generator": "g gen generator netg errg dcgan",
    "real samples": "real",
    "fake samples": "fake",
}
_DUELS = (
    {"discriminator", "generator"}, {"adversary", "reconstruction"}, {"real samples", "fake samples"},
)  # fmt: skip
"""Losses that, side by side, show two networks trained against each other."""
_ADVERSARIAL_PARTS = frozenset({"adv", "adv_loss", "loss_adv", "adversarial_loss", "loss_gan", "gan_loss"})
_RECONSTRUCTION_PARTS = frozenset((
    "rec", "recon", "rec_loss", "recon_loss", "loss_rec", "reconstruction", "cycle", "cyc", "idt", "perceptual",
    "lpips",
))  # fmt: skip
"""Parts of a loss that, next to an adversarial one, show two networks trained against each other."""
_PLAYER_OF_WORD = {name: player for player, names in _PLAYER_NAMES.items() for name in names.split()}
FIRST_PART_PRECEDENCE = 3
"""Precedence of a name from which a loss may be one of several, so that a zero among others means that it is not in use."""
_NAME_BEFORE_POSITION_HINTS = (" for ", " at ", " after ", " of ", " in ", " on ")


class NamedFigure(NamedTuple):
    """A name, its number, and what follows it: of how many, a unit."""

    name: str
    value: float
    of: str | None
    unit: str | None
    has_magnitude_suffix: bool
    """Whether the number ends in K, M or G, and so is rounded."""
    fractional: bool
    """Whether it is printed with decimals or a percent sign."""


@dataclass(slots=True)
class LineFigures:
    """The figures of a line, each field of ``progress`` taken from its most specific name."""

    values: dict[str, float] = field(default_factory=dict)
    precedences: dict[str, int] = field(default_factory=dict)
    """Field -> precedence of the name that set it; lower is more specific."""
    totals: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    is_step_rounded: bool = False
    """Whether a step is printed in thousands: its order is known, its number is not."""
    step_name: str = ""
    is_adversarial: bool = False
    """Whether there are losses of two networks that play against each other: their level means nothing."""

    def add(self, name: str, precedence: int, value: float, total: str | None = None, unit: str | None = None) -> None:
        """Set a field to a figure, unless a more specific name has set it; ``precedence``: lower is more specific."""
        if name in self.precedences and self.precedences[name] <= precedence:
            return
        self.values[name], self.precedences[name] = value, precedence
        self.totals.pop(name, None)
        if total:
            self.totals[name] = int(total)
        if unit:
            self.units[name] = unit

    def whole_value(self, name: str) -> int | None:
        """A field as a whole number; None if it has a fraction or is missing."""
        return as_whole(self.values.get(name))

    def epoch(self) -> float | None:
        """The epoch, an integer if it has no fraction."""
        whole = self.whole_value("epoch")
        return self.values.get("epoch") if whole is None else whole


def put_position_first(text: str) -> str:
    """Rewrite ``Loss for Iter 51:`` as ``Iter 51 Loss:``, and ``LOSS train 0.3`` as ``train loss 0.3``."""
    if "LOSS train" in text:
        text = text.replace("LOSS train", "train loss", 1)
    if not any(hint in text for hint in _NAME_BEFORE_POSITION_HINTS):
        return text
    return _NAME_BEFORE_POSITION.sub(
        lambda match: f"{match['counter']} {match['count']}{match['of'] or ''} {match['key']}", text
    )


def named_figures(text: str) -> Iterator[NamedFigure]:
    """All figures of a text that have a name, in order."""
    for match in _PAIR.finditer(text):
        decimal = _DECIMAL_COMMA.match(text, match.start("value")) if "loss" in match["key"].lower() else None
        value = number(match["value"]) if decimal is None else float(decimal[0].replace(",", "."))
        if value is not None:
            if match["exponent"]:
                value = float(f"{value / 10 ** int(match['exponent']):.12g}")
            fractional = (
                "." in match["value"] or decimal is not None or text[match.end() : match.end() + 2].strip() == "%"
            )
            yield NamedFigure(
                match["key"].removesuffix(" is"),
                value,
                match["of"],
                match["unit"],
                match["magnitude"] is not None,
                fractional,
            )


def line_figures(text: str) -> LineFigures:
    """The figures of a text that are fields of ``progress``."""
    figures = LineFigures()
    losses: list[tuple[int, float]] = []
    generator_losses: list[float] = []
    players: set[str] = set()
    for name, value, of, unit, has_magnitude_suffix, fractional in named_figures(text):
        if of is not None and _EPOCH_AND_STEP.search(name):
            figures.add("epoch", 0, value)
            figures.add("step", 0, float(of))
            continue
        meaning = field_meaning(name)
        if name.lower() in _ADVERSARIAL_PARTS:
            players.add("adversary")
        elif name.lower() in _RECONSTRUCTION_PARTS:
            players.add("reconstruction")
        if meaning is None:
            continue
        if meaning[0] == "total_steps" and math.isfinite(value) and fractional:
            meaning = ("loss", TOTAL_RANK)  # a total with a fraction is the sum of the losses
        if meaning[0] == "loss" and unit:
            continue
        if meaning[0] == "step" and as_whole(value) is None:
            continue  # something per step
        if has_magnitude_suffix:
            figures.is_step_rounded = figures.is_step_rounded or meaning[0] == "step"
            continue
        if meaning[0] == "loss":
            losses.append((meaning[1], value))
            named_players = {_PLAYER_OF_WORD.get(word, "") for word in _WORDS.findall(name.lower())}
            players |= named_players
            if "generator" in named_players and "discriminator" not in named_players:
                generator_losses.append(value)
        if meaning[0] == "step" and meaning[1] < figures.precedences.get("step", LAST_RANK + 1):
            figures.step_name = name
        figures.add(meaning[0], meaning[1], value, of, unit)
    figures.is_adversarial = any(players >= duel for duel in _DUELS)
    if generator_losses and "discriminator" in players and figures.precedences["loss"] == LAST_RANK:
        figures.values["loss"] = generator_losses[0]  # the network that is trained to be used
    if figures.values.get("loss") == 0 and figures.precedences["loss"] >= FIRST_PART_PRECEDENCE:
        in_use = ((rank, value) for rank, value in losses if value)
        default = figures.precedences["loss"], 0.0
        figures.precedences["loss"], figures.values["loss"] = min(in_use, key=lambda loss: loss[0], default=default)
    return figures
