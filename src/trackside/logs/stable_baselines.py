"""Stable-Baselines3: a box of figures after each rollout.

| time/                   |             |
|    total_timesteps      | 28672       |
| train/                  |             |
|    loss                 | 5.79        |
"""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

_ROW = re.compile(r"^\s{0,8}\|\s{1,4}(\w[\w/]{0,40})\s{0,40}\|\s{1,4}(\S{1,30})\s{0,30}\|\s*$")
MAX_ROWS = 60
"""Rows of a box above and below the step."""

PARSER = Parser("stable-baselines3", "Stable-Baselines3", "framework")


@PARSER.pattern(
    rb"\|    total_timesteps {1,20}\| [0-9]",
    safety="Only a row of the box; the loss is printed from the second box on.",
    matches=(
        "| time/                |          |\n|    total_timesteps   | 2048     |\n| train/               |          |\n"
        "|    loss              | 5.79     |\n----------------------------------",
        "| time/                |          |\n|    total_timesteps   | 2048     |\n| train/               |          |\n"
        "|    actor_loss        | -36.4    |\n|    critic_loss       | 0.166    |\n----------------------------------",
        "| rollout/             |          |\n|    ep_rew_mean       | 87.6     |\n|    total_timesteps   | 2048     |\n---",
    ),
    avoids=("total_timesteps = 2048",),
)
def _progress(line: Line) -> Event | None:
    step = _ROW.match(line.text)
    if step is None or whole_number(step[2]) is None:
        return None
    rows = {step[1]: step[2]}
    for lines in (line.preceding(MAX_ROWS), line.following(MAX_ROWS)):
        for other in lines:
            if "|" not in other.text:
                break
            if row := _ROW.match(other.text):
                rows.setdefault(row[1].rpartition("/")[2], row[2])
    loss = number(rows.get("loss") or rows.get("critic_loss") or rows.get("qf_loss"))
    reward = number(rows.get("ep_rew_mean"))
    if loss is None and reward is None:
        return None
    return line.event(
        "progress",
        step=whole_number(step[2]),
        loss=loss,
        reward=reward,
        lr=number(rows.get("learning_rate")),
        objective="rl",
        throughput=number(rows.get("fps")),
        throughput_unit="steps/s",
        framework=PARSER.id,
    )
