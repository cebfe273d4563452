"""The pictures of the families' pages exist and are up to date."""

from __future__ import annotations

import re

import pytest

from tools.pictures import FOLDER, picture
from trackside.families import families, find_family
from trackside.family import Family
from trackside.show.charts.static_image import LIGHT
from trackside.show.report import assets
from trackside.sim import scenario_titles


@pytest.mark.parametrize("family", families(), ids=lambda family: family.code)
def test_a_family_with_an_example_has_a_picture(family: Family) -> None:
    if family.example is None:
        assert not (FOLDER / f"{family.id}.svg").exists()
        return
    assert family.example[0] in dict(scenario_titles())
    assert (FOLDER / f"{family.id}.svg").read_text("utf-8").startswith("<svg")


def test_pictures_have_the_colors_of_the_page() -> None:
    style = (assets.HERE / "page.css").read_text("utf-8")
    colors = dict(re.findall(r"--(\w+): light-dark\((#\w{6}),", style))
    assert {name: colors[name] for name in LIGHT} == LIGHT


@pytest.mark.parametrize("code", ["B3", "E2"])
def test_pictures_are_up_to_date(code: str) -> None:
    family = find_family(code)
    assert family is not None
    assert picture(family) == (FOLDER / f"{family.id}.svg").read_text("utf-8"), "run make docs, then look at it"
