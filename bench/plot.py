"""A line plot on logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 52
COLORS = ("#0b6bcb", "#c2410c", "#15803d", "#7e22ce")
GRAY = "#9ca3af"
Points = Sequence[tuple[float, float]]


def loglog(title: str, across: str, up: str, lines: Mapping[str, Points], guides: Mapping[str, Points]) -> str:
    """Points joined by lines, each labeled at its end; guides are dashed. Ticks are at the first line's points     and at powers of ten."""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / min(xs)) / math.log(max(xs) / min(xs))

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, title, size=14),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, "middle"),
        _text(LEFT - 50, TOP - 8, up),
    ]
    for x, _ in next(iter(lines.values())):
        parts += [_line([(x_of(x), TOP), (x_of(x), HEIGHT - BOTTOM)], "#e5e7eb"),
                  _text(x_of(x), HEIGHT - BOTTOM + 18, f"{x:,.0f}", "middle")]  # fmt: skip
    tick = low
    while tick <= high * 1.0001:
        parts += [_line([(LEFT, y_of(tick)), (WIDTH - RIGHT, y_of(tick))], "#e5e7eb"),
                  _text(LEFT - 8, y_of(tick) + 4, f"{tick:g}", "end")]  # fmt: skip
        tick *= 10
    for name, points in guides.items():
        visible_points = [(x_of(x), y_of(y)) for x, y in points if low <= y <= high]
        parts += [
            _line(visible_points, GRAY, ' stroke-dasharray="5 4"'),
            _text(visible_points[0][0] + 8, visible_points[0][1] + 12, name, fill=GRAY),
        ]
    above = 0.0
    for color, (name, points) in sorted(zip(COLORS, lines.items(), strict=False), key=lambda line: -line[1][1][-1][1]):
        pixels = [(x_of(x), y_of(y)) for x, y in points]
        above = max(pixels[-1][1] + 4, above + 16)  # one name below the other
        parts.append(_line(pixels, color, ' stroke-width="2"'))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in pixels]
        parts.append(_text(pixels[-1][0] + 8, above, name, fill=color))
    return "\n".join([*parts, "</svg>\n"])


def _line(points: Points, color: str, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}"{more}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12, fill: str = "#111827") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{text}</text>'
