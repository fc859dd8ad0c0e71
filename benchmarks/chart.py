"""Charts as SVG, drawn by hand: no plotting library is needed to run the benchmarks."""

import math
from html import escape
from pathlib import Path

_COLOURS = ["#6b7280", "#9ca3af", "#2563eb", "#7c3aed", "#d97706", "#dc2626", "#059669"]
_STYLE = "font-family:system-ui,sans-serif;font-size:12px"


def _text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def _page(width: float, height: float, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="{_STYLE};background:#fff" fill="#111827">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def bars(path: Path, title: str, groups: dict[str, dict[str, float]], unit: str) -> None:
    """Write groups of horizontal bars on a logarithmic scale."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    values = [value for group in groups.values() for value in group.values()]
    low, high = math.log10(min(values)) - 0.2, math.log10(max(values))
    left, width, row, y = 230.0, 560.0, 14.0, 60.0
    parts = [_text(10, 24, title, extra='font-size="16" font-weight="600"')]
    for index, name in enumerate(names):
        x = 10 + 150 * index
        parts.append(f'<rect x="{x}" y="36" width="10" height="10" fill="{_COLOURS[index]}"/>')
        parts.append(_text(x + 14, 45, name))
    for group, entries in groups.items():
        parts.append(_text(left - 8, y + row * len(entries) / 2 + 4, group, "end"))
        for name, value in entries.items():
            length = width * (math.log10(value) - low) / (high - low)
            colour = _COLOURS[names.index(name)]
            parts.append(
                f'<rect x="{left}" y="{y:.1f}" width="{length:.1f}" height="{row - 3}" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(left + length + 4, y + row - 5, f"{_number(value)} {unit}"))
            y += row
        y += 10
    path.write_text(_page(max(left + width + 90, 10 + 150 * len(names)), y + 10, parts))


def lines(path: Path, panels: dict[str, dict[str, dict[float, float]]], unit: str) -> None:
    """Write panels of lines on logarithmic axes, one beside the other."""
    size, gap, parts = 330.0, 90.0, []
    for number, (title, series) in enumerate(panels.items()):
        x0, y0 = 70 + number * (size + gap), 50.0
        xs = [math.log10(x) for points in series.values() for x in points]
        ys = [math.log10(y) for points in series.values() for y in points.values()]
        low_x, high_x, low_y, high_y = min(xs), max(xs), math.floor(min(ys)), math.ceil(max(ys))

        def place(
            x: float, y: float, x0=x0, y0=y0, box=(low_x, high_x, low_y, high_y)
        ) -> tuple[float, float]:
            across = (math.log10(x) - box[0]) / (box[1] - box[0])
            up = (math.log10(y) - box[2]) / (box[3] - box[2])
            return x0 + size * across, y0 + size * (1 - up)

        parts.append(_text(x0, y0 - 14, title, extra='font-weight="600"'))
        parts.append(
            f'<rect x="{x0}" y="{y0}" width="{size}" height="{size}" fill="none" stroke="#d1d5db"/>'
        )
        for power in range(low_y, high_y + 1):
            _, y = place(10**low_x, 10.0**power)
            parts.append(_text(x0 - 6, y + 4, f"{_number(10.0**power)} {unit}", "end"))
        for x in sorted({x for points in series.values() for x in points}):
            across, _ = place(x, 10.0**low_y)
            label = f"{x:g}" if x < 10_000 else f"{x:.0e}".replace("e+0", "e")
            parts.append(_text(across, y0 + size + 16, label, "middle", 'font-size="10"'))
        for index, (name, points) in enumerate(series.items()):
            colour = _COLOURS[index]
            path_ = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points.items())
            parts.append(
                f'<polyline points="{path_}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            parts.append(_text(x0 + 10, y0 + 18 + 15 * index, name, extra=f'fill="{colour}"'))
    path.write_text(_page(70 + len(panels) * (size + gap), 420, parts))
