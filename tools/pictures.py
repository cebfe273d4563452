"""The picture of each family's typical case, drawn from a simulated run: docs/families/*.svg.

    python tools/pictures.py [FAMILY...]

A family names the scenario and the chart (``example``). ``tools/pages.py`` puts the picture on its page.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import vl_convert

from trackside.facts.fact import Facts
from trackside.families import families, find_family
from trackside.family import Family
from trackside.session import Session
from trackside.session.paths import load
from trackside.show.charts.chart import drawings
from trackside.show.charts.static_image import LIGHT, standalone
from trackside.sim import load_scenario, simulate

FOLDER = ROOT / "docs" / "families"


def picture(family: Family) -> str | None:
    """The chart as SVG; None if the family has no example. Raises LookupError if the run has no such chart or
    the verdict does not contain the family."""
    if family.example is None:
        return None
    scenario, slug = family.example
    with tempfile.TemporaryDirectory() as folder:
        simulate(load_scenario(scenario), Path(folder))
        session = Session.of(load([f"{folder}/run"]))
    verdict = session.verdict()
    found_families = {finding.family for finding in (verdict.primary, *verdict.consequences, *verdict.warnings)}
    if family.code not in found_families:
        raise LookupError(f"{family.code}: the verdict on {scenario} is {verdict.family}")
    for chart, drawing in drawings(verdict, Facts(session.store, verdict.run)):
        if chart.slug == slug:
            return _renumber_clips(vl_convert.vega_to_svg(standalone(drawing, LIGHT)))
    raise LookupError(f"{family.code}: {scenario} gives no chart {slug!r}")


def _renumber_clips(svg: str) -> str:
    """The SVG with its clip paths numbered from 1, because Vega continues the numbers of the previous picture."""
    ids: dict[str, str] = {}
    return re.sub(r"\bclip\d+", lambda match: ids.setdefault(match[0], f"clip{len(ids) + 1}"), svg)


def main() -> int:
    """Write those that are named, or all."""
    selected = [find_family(name) for name in sys.argv[1:]] or list(families())
    for family in selected:
        if family is not None and (svg := picture(family)) is not None:
            (FOLDER / f"{family.id}.svg").write_text(svg, encoding="utf-8")
            print(f"docs/families/{family.id}.svg  {len(svg):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
