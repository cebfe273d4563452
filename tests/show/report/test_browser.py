"""Pages in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.services import program
from tests.show.report.pages import hostile_labels_page, hostile_log, verdict_page
from tools.screenshot import FLAGS
from trackside.show.document import VerdictDoc

pytestmark = pytest.mark.service

WATCH = "window.refused = []; addEventListener('securitypolicyviolation', (e) => refused.push(e.violatedDirective))"
TIMELINE, HEAT, MEMORY = "#chart-timeline .chart", "#chart-ranks .chart", "#chart-memory .chart"
Opened = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def pages(hang: tuple[VerdictDoc, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in ("hang", "hostile", "labeled")}
    paths["hang"].write_text(hang[1], "utf-8")
    paths["hostile"].write_bytes(verdict_page(hostile_log(folder))[1])
    paths["labeled"].write_bytes(hostile_labels_page())
    return paths


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Opened:
    @contextmanager
    def opened(name: str, theme: str = "light") -> Iterator[Page]:
        """A page once its charts are drawn; fails if it requests the network, violates its policy or logs a message."""
        context = browser.new_context(
            viewport={"width": 1280, "height": 2400},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(10_000)
        page, messages, requests = context.new_page(), [], []
        page.add_init_script(WATCH)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        with closing(context):
            page.goto(pages[name].as_uri())
            page.wait_for_selector("html[data-ready]")
            yield page
            assert page.evaluate("refused") == []
            assert messages == []
            assert [url for url in requests if not url.startswith("blob:")] == [pages[name].as_uri()]

    return opened


def painted(page: Page, chart: str) -> int:
    """How many different colors a chart shows."""
    return int(
        page.evaluate(
            """async (chart) => {
              const box = document.querySelector(chart), drawn = box.querySelector("canvas, svg");
              if (drawn.tagName !== "CANVAS")
                return new Set([...drawn.querySelectorAll("*")].flatMap((e) => [e.getAttribute("fill"), e.getAttribute("stroke")])).size;
              const { data } = drawn.getContext("2d").getImageData(0, 0, drawn.width, drawn.height);
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
            chart,
        )
    )


def test_every_chart_is_drawn_and_has_a_table(opened: Opened) -> None:
    with opened("hang") as page:
        charts = page.evaluate("[...document.querySelectorAll('figure')].map((element) => element.id)")
        assert {"chart-timeline", "chart-ranks"} <= set(charts)
        for chart in charts:
            assert painted(page, f"#{chart} .chart") >= 4, chart
            box = page.locator(f"#{chart} .chart").bounding_box()
            assert box is not None
            assert box["height"] > 60
            page.locator(f"#{chart}").get_by_text("Show as table").click()
            assert page.locator(f"#{chart} table").is_visible()
            assert page.locator(f"#{chart} tbody tr").count() > 0


@pytest.mark.parametrize("name", ["hang", "hostile"])
def test_nothing_is_wider_than_the_page(opened: Opened, name: str) -> None:
    with opened(name) as page:
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 2400})
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def texts(page: Page, chart: str) -> list[str]:
    """The texts of an SVG chart, sorted because Vega appends newly visible ones."""
    return sorted(filter(None, page.locator(f"{chart} svg text").all_text_contents()))


def ticks(page: Page, chart: str) -> list[str]:
    """The times along the axis of a chart."""
    return [text for text in texts(page, chart) if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)]


def tick(page: Page, chart: str, text: str) -> Locator:
    """The locator of a time along the axis of a chart."""
    return page.locator(f"{chart} svg text", has_text=re.compile(f"^{text}$")).first


def test_the_mouse_moves_the_cursor_of_all_charts_and_zooms_them(opened: Opened) -> None:
    with opened("hang") as page:
        box = page.locator(TIMELINE)
        box.scroll_into_view_if_needed()
        place = box.bounding_box()
        assert place is not None
        before, cells = ticks(page, MEMORY), page.locator(HEAT).screenshot()
        y = place["y"] + place["height"] / 2
        page.mouse.move(place["x"] + 400, y)
        page.locator(f"{MEMORY} svg text", has_text=re.compile(r"\d GiB$")).first.wait_for(state="attached")
        assert page.locator(HEAT).screenshot() != cells
        page.mouse.down()
        page.mouse.move(place["x"] + 500, y, steps=4)
        page.mouse.up()
        tick(page, MEMORY, before[0]).wait_for(state="detached")
        zoomed = ticks(page, MEMORY)
        assert len(zoomed) >= 2
        assert before[0] < zoomed[0] < zoomed[-1] < before[-1]
        box.dblclick()
        tick(page, MEMORY, before[0]).wait_for(state="attached")
        assert ticks(page, MEMORY) == before


def test_the_keyboard_moves_the_cursor_zooms_and_resets(opened: Opened) -> None:
    with opened("hang") as page:
        announcement = page.locator("#announced")
        page.locator(TIMELINE).focus()
        before = ticks(page, TIMELINE)
        page.keyboard.press("ArrowRight")
        announcement.filter(has_text="2026-03-02 08:1").wait_for(state="attached")
        first = announcement.inner_text()
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_function("(first) => document.getElementById('announced').innerText > first", arg=first)
        page.keyboard.press("+")
        tick(page, TIMELINE, before[0]).wait_for(state="detached")
        zoomed = ticks(page, TIMELINE)
        assert before[0] < zoomed[0]
        page.keyboard.press("Escape")
        tick(page, TIMELINE, before[0]).wait_for(state="attached")
        assert ticks(page, TIMELINE) == before
        page.locator(MEMORY).focus()
        page.keyboard.press("ArrowRight")
        announcement.filter(has_text="GiB").wait_for(state="attached")


def test_the_metric_of_the_heatmap_can_be_chosen(opened: Opened) -> None:
    with opened("hang") as page:
        radios = page.locator("#chart-ranks input[type=radio]")
        assert radios.count() >= 4
        checked = page.locator("#chart-ranks input:checked")
        assert checked.count() == 1
        before, value = page.locator(HEAT).screenshot(), checked.get_attribute("value")
        checked.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(150)
        assert checked.get_attribute("value") != value
        assert page.locator(HEAT).screenshot() != before


def test_the_theme_can_be_switched(opened: Opened) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    bars = f"[...new Set([...document.querySelectorAll('{TIMELINE} svg path')].map((element) => element.getAttribute('stroke')))]"
    colors = {}
    for theme in ("light", "dark"):
        with opened("hang", theme) as page:
            before = page.evaluate(ground), page.evaluate(bars)
            button = page.get_by_role("button", name="theme")
            assert button.inner_text() == ("Light theme" if theme == "dark" else "Dark theme")  # what it switches to
            button.click()
            assert button.inner_text() == ("Dark theme" if theme == "dark" else "Light theme")
            page.wait_for_function(f"(before) => String({bars}) !== before", arg=",".join(map(str, before[1])))
            colors[theme], switched = before, (page.evaluate(ground), page.evaluate(bars))
            assert switched[0] != before[0]
            assert not set(switched[1]) & set(before[1]) - {None}
    assert colors["light"] != colors["dark"]
    assert switched == colors["light"]


def test_a_link_opens_a_folded_citation_and_a_button_copies_its_query(opened: Opened) -> None:
    with opened("hang") as page:
        folded = page.locator("details.more").last.locator(".citation").first
        assert not folded.is_visible()
        page.locator("details:has(.families) > summary").press("Enter")
        page.locator(f".families a[href='#{folded.get_attribute('id')}']").first.click()
        folded.wait_for(state="visible")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy query of citation 1", exact=True).click()
        query = page.locator("#c1 .query code").inner_text()
        assert page.evaluate("navigator.clipboard.readText()") == query


@pytest.mark.parametrize("name", ["hang", "hostile"])
def test_pages_have_no_accessibility_violations(opened: Opened, name: str) -> None:
    with opened(name) as page:
        page.evaluate("for (const element of document.querySelectorAll('details')) element.open = true")
        for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):  # the only rule about colors
            page.emulate_media(color_scheme=theme)
            violations = Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
            summaries = [
                (violation["id"], violation["impact"], [node["html"][:200] for node in violation["nodes"][:3]])
                for violation in violations
            ]
            assert summaries == [], theme


OUTSIDE = """(chart) => {
    const box = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll("svg text")].filter((element) => element.textContent.trim() && element.getAttribute("opacity") !== "0");
    return texts.filter((element) => { const at = element.getBoundingClientRect(); return at.left < box.left - 1 || at.right > box.right + 1; })
        .map((element) => element.textContent);
}"""


def test_a_narrow_page_cuts_no_text_and_does_not_scroll(opened: Opened) -> None:
    with opened("hang") as page:
        shown = page.locator(".chart svg text")
        wide = set(shown.all_text_contents())
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function(
            "() => [...document.querySelectorAll('.chart')].every((element) => element.scrollWidth <= element.clientWidth)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        for chart in page.locator(".chart").all():
            assert chart.evaluate(OUTSIDE) == []
        assert {"engine active", "SM active", "median", "maximum"} <= wide & set(shown.all_text_contents())
        page.set_viewport_size({"width": 1280, "height": 2400})
        ends = "[...document.querySelectorAll('.chart:not(.proof *) svg')].map((element) => element.getBoundingClientRect().width)"
        page.wait_for_function(f"() => {ends}.every((width) => width > 800)")


def test_the_head_is_above_the_fold_and_does_not_move_when_charts_load(
    browser: Browser, pages: dict[str, Path]
) -> None:
    bottoms = """() => Object.fromEntries([".badge", "#headline", ".summary", ".proof .chart"]
        .map((name) => [name, document.querySelector(name).getBoundingClientRect().bottom]))"""
    heights = "() => [...document.querySelectorAll('.chart')].map((box) => box.getBoundingClientRect().height)"
    for width, height in ((1280, 800), (400, 844)):
        page = browser.new_page(viewport={"width": width, "height": height})
        page.add_init_script("addEventListener('DOMContentLoaded', () => { window.reserved = (" + heights + ")() })")
        page.goto(pages["hang"].as_uri())
        page.wait_for_selector("html[data-ready]")
        below = {name: bottom for name, bottom in page.evaluate(bottoms).items() if bottom > height}
        assert not below, width
        assert page.evaluate("reserved") == page.evaluate(heights)
        page.close()


COLLISIONS = """(chart) => {
    const shown = [...chart.querySelectorAll("svg text")].filter((element) => element.textContent.trim() && element.getAttribute("opacity") !== "0");
    const boxes = shown.map((element) => [element.textContent, element.getBoundingClientRect()]);
    return boxes.flatMap(([text, a], i) => boxes.slice(i + 1)
        .filter(([other, b]) => other !== text && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
        .map(([other]) => `${text} / ${other}`));
}"""


@pytest.mark.parametrize("width", [400, 800, 1280, 1920])
def test_labels_do_not_collide(opened: Opened, width: int) -> None:
    with opened("hang") as page:
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(300)
        assert [overlap for chart in page.locator(".chart").all() for overlap in chart.evaluate(COLLISIONS)] == []


def test_hostile_text_is_inert(opened: Opened) -> None:
    with opened("hostile") as page:
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img").count() == 0
        assert "<script>hacked=1</script>" in page.locator("#citations ~ ol pre").first.inner_text()


def test_hostile_labels_are_inert_in_charts(opened: Opened) -> None:
    with opened("labeled") as page:
        assert page.locator("figure").count() == 5
        for figure in page.locator("figure").all():
            figure.locator(".chart").scroll_into_view_if_needed()
            box = figure.locator(".chart").bounding_box()
            assert box is not None
            for share in (0.3, 0.6, 0.9):  # over bars, events and rows, whose tooltips show their names
                page.mouse.move(box["x"] + box["width"] / 2, box["y"] + share * box["height"])
        assert page.locator(".failed").count() == 0
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img").count() == 0
        assert any("<img src=x onerror=hacked=1>" in text for text in texts(page, TIMELINE))


def test_printing_uses_the_light_theme_with_all_citations(opened: Opened, tmp_path: Path) -> None:
    with opened("hang", "dark") as page:
        page.evaluate("""addEventListener('beforeprint', () => { window.printed = {
            theme: document.documentElement.dataset.theme, folded: document.querySelectorAll('details.more:not([open])').length } })""")
        paper = page.pdf(format="A4")
        assert paper.startswith(b"%PDF-")
        assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") > 3
        assert page.evaluate("printed.theme") == "light"
        assert page.evaluate("printed.folded") == 0
        assert page.evaluate("document.documentElement.dataset.theme") is None
        assert page.locator("details.more[open]").count() == 0
        page.emulate_media(media="print")
        over = "[...document.querySelectorAll('.chart svg, .chart canvas')].filter((e) => e.getBoundingClientRect().right > innerWidth).length"
        assert page.evaluate(over) == 0


def test_the_page_is_readable_without_scripts(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["hang"].as_uri())
    assert page.get_by_role("heading", level=1).is_visible()
    assert page.get_by_text("The charts need JavaScript").is_visible()
    assert page.locator("button:visible").count() == 0
    context.close()
