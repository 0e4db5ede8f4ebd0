"""Draws charts with logarithmic axes as SVG, without a plotting library."""

import math
from html import escape

WIDTH = 760
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; stroke: #ffffff; stroke-width: 3px; paint-order: stroke }
.small { font-size: 11px; fill: #59636e }
.title { font-weight: 600 }
.background { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.one { stroke: #59636e; stroke-width: 1.5 }
.torch { fill: #d4652f; stroke: #d4652f }
.ours { fill: #2a6fdb; stroke: #2a6fdb }
.spread { stroke: #1f2328; stroke-width: 1.2 }
.line { fill: none; stroke-width: 2.5 }
.open { fill: #ffffff; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; stroke: #0d1117 }
  .small { fill: #9198a1 }
  .background { fill: #0d1117 }
  .grid { stroke: #3d444d }
  .one { stroke: #9198a1 }
  .torch { fill: #f0883e; stroke: #f0883e }
  .ours { fill: #58a6ff; stroke: #58a6ff }
  .spread { stroke: #f0f6fc }
  .line { fill: none }
  .open { fill: #0d1117 }
}"""


class Axis:
    """A logarithmic axis. `at` returns the coordinate of a value in pixels."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Returns the powers of ten on the axis."""
        return [10.0**power for power in range(-6, 7) if self.low <= 10.0**power <= self.high * 1.0001]


def document(height: float, title: str, parts: list[str]) -> str:
    """Returns a complete SVG file. It has a background color, because the page around it may be dark or light."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, True)}">',
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="background" width="{WIDTH}" height="{height}" rx="6"/>',
            text(20, 28, title, "title"),
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, label: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(label)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


def legend(y: float, names: dict[str, str]) -> list[str]:
    """Returns a legend that ends at the right edge, with its baseline at `y`. `names` has a label for each kind."""
    parts, x = [], WIDTH - 20
    for kind, name in reversed(names.items()):
        x -= 8 * len(name) + 22
        parts += [f'<rect x="{x}" y="{y - 10}" width="12" height="12" class="{kind}"/>', text(x + 18, y, name)]
    return parts


def bars(title: str, groups: dict[str, list], low: float, high: float, show, names: dict[str, str]) -> str:
    """Returns a chart of horizontal bars.

    `groups` has a list of rows for each group. A row is a label and its bars. A bar is a CSS class of `STYLE` and a
    list of the median and, if there are several rounds, the minimum and the maximum (see `results.py`). `names` has the
    legend's label of each class. If `names` is empty and the axis contains 1, bars start at 1, so that the bar of a
    ratio below 1 points to the left. `show` formats a value.
    """
    axis = Axis(low, high, 210, WIDTH - 80)
    base = axis.at(1) if low < 1 < high and not names else axis.start
    parts, y = [], 50
    for group, rows in groups.items():
        if group:
            y += 16
            parts.append(text(20, y, group, "small"))
            y += 6
        for label, figures in rows:
            height = 13 if len(figures) > 1 else 15
            middle = y + height * len(figures) / 2
            parts.append(text(200, middle + 5, label, anchor="end"))
            for kind, (value, *ends) in figures:
                x = axis.at(value)
                top, left = y + 1, min(base, x)
                parts.append(f'<rect x="{left}" y="{top}" width="{max(1, abs(x - base)):.1f}" height="{height - 2}" class="{kind}"/>')
                if ends:
                    parts.append(line(axis.at(ends[0]), top + height / 2 - 1, axis.at(ends[1]), top + height / 2 - 1, "spread"))
                parts.append(text(max(x, base, axis.at(ends[1]) if ends else 0) + 6, y + height - 3, show(value), "small"))
                y += height
            y += 6
    bottom = y + 4
    grid = [line(axis.at(tick), 44, axis.at(tick), bottom, "one" if base == axis.at(tick) else "grid") for tick in axis.ticks()]
    labels = [text(axis.at(tick), bottom + 16, show(tick), "small", "middle") for tick in axis.ticks()]
    return document(bottom + 30, title, [*grid, *legend(28, names), *parts, *labels])


def lines(title: str, series: dict[str, list[tuple]], x_range: tuple, y_range: tuple, show, names: dict[str, str], x_title: str) -> str:
    """Returns a line chart. A point is x, y and whether y is only a lower bound. The circle of a lower bound is not filled."""
    x_axis, y_axis = Axis(*x_range, 80, WIDTH - 40), Axis(*y_range, 300, 50)
    parts = [line(80, y_axis.at(tick), WIDTH - 40, y_axis.at(tick), "grid") for tick in y_axis.ticks()]
    parts += [text(72, y_axis.at(tick) + 4, show(tick), "small", "end") for tick in y_axis.ticks()]
    for x in sorted({point[0] for points in series.values() for point in points}):
        parts.append(text(x_axis.at(x), 320, f"{x:g}", "small", "middle"))
    parts.append(text((80 + WIDTH - 40) / 2, 340, x_title, "small", "middle"))
    for kind, points in series.items():
        path = " ".join(f"{x_axis.at(x)},{y_axis.at(y)}" for x, y, _ in points)
        parts.append(f'<polyline points="{path}" class="{kind} line"/>')
        for x, y, is_bound in points:
            at = f'cx="{x_axis.at(x)}" cy="{y_axis.at(y)}"'
            parts.append(f'<circle {at} r="5" class="{kind}{" open" if is_bound else ""}"/>')
            label = f"more than {show(y)}" if is_bound else show(y)
            parts.append(text(x_axis.at(x), y_axis.at(y) - 11, label, "small", "middle"))
    return document(352, title, [*legend(28, names), *parts])
