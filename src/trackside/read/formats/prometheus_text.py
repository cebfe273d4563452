"""Prometheus text exposition and OpenMetrics: one scrape or a million in a file, as exporters and promtool write them.

Where lines carry no times, the time of a scrape is what a comment or a bare line before it says (the output of
``date``, say). Without that too, the file holds one scrape, taken when the file was last written.
"""

from __future__ import annotations

from trackside.catalog.dialect import translate
from trackside.catalog.exposition import line_of, series_of
from trackside.read.format import Format, Match, Source
from trackside.read.scrape_times import stamp
from trackside.read.scrapes import read_scrapes

_HEAD_LINES = 400
_ENOUGH = 0.9
"""Share of the head's lines that must be exposition."""


def _sniff(source: Source) -> Match | None:
    lines = source.head.split(b"\n")
    if len(source.head) == len(source.head.rstrip(b"\n")) and len(lines) > 1:
        lines.pop()  # the head's end cuts it
    good = bad = labelled = described = known = 0
    for text in lines[:_HEAD_LINES]:
        text = text.strip()
        if not text:
            continue
        if text.startswith(b"#"):
            described += text[2:7] in (b"HELP ", b"TYPE ")
            continue
        line = line_of(text) if len(text) < 1 << 14 else None
        parsed = None if line is None else series_of(line.series.decode("utf-8", "replace"))
        if parsed is not None:
            good += 1
            labelled += bool(parsed[1])
            known += translate(*parsed) is not None
        elif stamp(text.decode("utf-8", "replace")) is None:
            bad += 1
    if not good or good < _ENOUGH * (good + bad) or not (labelled or described or known):
        return None
    return Match(0.9 if described or known else 0.7, "OpenMetrics" if b"\n# EOF" in source.head else "Prometheus text")


FORMAT = Format("prometheus-text", "Prometheus text exposition and OpenMetrics", "metric", _sniff, read_scrapes)
