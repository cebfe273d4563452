"""fairseq: the simple and the JSON log format. The tqdm parser reads its tqdm format."""

from __future__ import annotations

import json
import re

from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

_PAIR = re.compile(r"([a-z_]{1,30})=([^,\s]{1,30})")

PARSER = Parser("fairseq", "fairseq", "framework", precedence=140)


@PARSER.pattern(
    rb"epoch [0-9]{1,6}: {1,8}[0-9]{1,9} ?/ ?[0-9]{1,9} [^\n\r]{0,30}loss=",
    r"\| epoch (\d{1,6}):\s{1,8}(\d{1,9}) ?/ ?(\d{1,9}) (.*)",
    safety="The summary at the end of an epoch is a mean, not a logged step.",
    matches=(
        "2021-05-01 12:00:00 | INFO | train_inner | epoch 001:    100 / 1196 loss=11.505, nll_loss=11.2, wps=9000, "
        "num_updates=100, lr=1.2e-05, gnorm=2.51, loss_scale=128, train_wall=20, wall=30",
    ),
    avoids=("2021-05-01 12:00:00 | INFO | valid | epoch 001:    100 / 1196 loss=11.505",),
)
def _simple_point(line: Line, match: re.Match[str]) -> Event | None:
    if "valid" in line.text[: match.start()]:
        return None
    figures = dict(_PAIR.findall(match[4]))
    if "loss" not in figures:
        return None
    epoch, count, total = int(match[1]), int(match[2]), int(match[3])
    updates = whole_number(figures.get("num_updates"))
    return _progress_event(
        line, figures, (epoch - 1) * total + count if updates is None else updates, epoch - 1 + count / max(total, 1)
    )


def _progress_event(line: Line, figures: dict[str, str], step: int | None, epoch: float | None) -> Event:
    """The logged step with fairseq's figures."""
    rate = number(figures.get("wps"))
    return line.event(
        "progress",
        step=step,
        epoch=epoch,
        loss=number(figures.get("loss")),
        grad_norm=number(figures.get("gnorm")),
        lr=number(figures.get("lr")),
        loss_scale=number(figures.get("loss_scale")),
        throughput=rate,
        throughput_unit=None if rate is None else "tokens/s",
        framework="fairseq",
    )


@PARSER.pattern(
    rb"\| train_inner \| \{|\| valid \| \{",
    safety="Only fairseq's own logger names.",
    matches=(
        '2021-05-01 12:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.084, "loss": "11.505", "num_updates": "100", '
        '"lr": "1.2e-05", "gnorm": "2.5"}',
    ),
    avoids=("2021-05-01 12:00:00 | INFO | train_inner | {not json}",),
)
def _json_point(line: Line) -> Event | None:
    start = line.text.find("{")
    try:
        row = json.loads(line.text[start : line.text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    figures = {str(key): str(value) for key, value in row.items()}
    if "valid_loss" in figures:
        loss = number(figures["valid_loss"])
        steps = whole_number(figures.get("valid_num_updates"))
        return line.event(
            "evaluation", step=steps, epoch=number(figures.get("epoch")), metric="valid_loss", value=loss, loss=loss
        )
    if "loss" not in figures or "num_updates" not in figures:
        return None
    return _progress_event(
        line, figures, whole_number(figures["num_updates"]), number(figures.get("update") or figures.get("epoch"))
    )


@PARSER.pattern(
    rb"valid on '[^'\n\r]{1,60}' subset \| loss ",
    r"\| epoch (\d{1,6}) \| (?:valid on '[^']{0,60}' subset \| )?(?:valid_)?loss ([^ |]+)",
    safety="Never a logged step.",
    matches=(
        "2021-05-01 12:20:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.102 | ppl 275 | num_updates 1196",
    ),
    avoids=("valid on 'valid' subset | loss unknown",),
)
def _evaluation(line: Line, match: re.Match[str]) -> Event | None:
    if "valid" not in line.text:
        return None
    loss = number(match[2])
    return line.event("evaluation", epoch=int(match[1]), metric="valid_loss", value=loss, loss=loss)
