"""Comparisons of federated methods: test accuracy against rounds, tuned alike, and a chart."""

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from privada.charts import COLOURS

Settings = dict[str, float]
# Returns test accuracies in per cent of a method with some settings and a seed: before the first
# round, and after every so many rounds, the last of them after all.
Trial = Callable[[str, Settings, int], list[float]]


@dataclass(frozen=True)
class Search:
    """Where the search for a method's settings starts, and by what factors it moves."""

    start: Settings
    factors: Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """What a method reached: its settings, and a curve for each of the further seeds.

    `inside` says whether all neighbours of the settings were tried, and none was better by more
    than the search asks for.
    """

    method: str
    settings: Settings
    tried: int
    inside: bool
    curves: tuple[tuple[float, ...], ...]

    @property
    def finals(self) -> list[float]:
        """The accuracy after all rounds, for each seed."""
        return [curve[-1] for curve in self.curves]

    @property
    def median(self) -> float:
        """The median of the accuracies after all rounds."""
        return statistics.median(self.finals)

    def median_curve(self) -> list[float]:
        """The median over seeds, point by point."""
        return [statistics.median(points) for points in zip(*self.curves, strict=True)]


def climb(
    worth: Callable[[Settings], float], search: Search, gain: float = 0.0, most: int = 30
) -> tuple[Settings, int, bool]:
    """Return the best settings found on a lattice, how many were tried, and whether it is a top.

    From the start, each setting is multiplied and divided by its factor, and the best of these
    neighbours is the next place, until none is better by more than `gain`. So the settings found
    are never at the end of a grid, unless `most` ends the search. Nothing is run if there is
    nothing to choose.
    """
    names = list(search.factors)
    if not names:
        return dict(search.start), 1, True
    known: dict[tuple[int, ...], float] = {}

    def at(place: tuple[int, ...]) -> Settings:
        found = dict(search.start)
        for name, step in zip(names, place, strict=True):
            found[name] = float(f"{search.start[name] * search.factors[name] ** step:.3g}")
        return found

    def value(place: tuple[int, ...]) -> float:
        if place not in known:
            known[place] = worth(at(place))
        return known[place]

    here = tuple(0 for _ in names)
    while len(known) < most:
        around = [
            (*here[:k], here[k] + step, *here[k + 1 :])
            for k in range(len(names))
            for step in (-1, 1)
        ]
        value(here)
        best = max(around, key=value)
        if value(best) <= value(here) + gain:
            return at(here), len(known), True
        here = best
    return at(max(known, key=known.__getitem__)), len(known), False


def compare(
    trial: Trial,
    searches: Mapping[str, Search],
    tuning_seed: int,
    seeds: Sequence[int],
    gain: float = 0.0,
) -> list[Line]:
    """Tune each method by its accuracy after all rounds on one seed, and run it on others."""
    lines = []
    for method, search in searches.items():

        def worth(settings: Settings, method: str = method) -> float:
            reached = trial(method, settings, tuning_seed)[-1]
            print(f"{method} {settings}: {reached:.2f}", file=sys.stderr, flush=True)
            return reached

        settings, tried, inside = climb(worth, search, gain)
        curves = tuple(tuple(round(each, 3) for each in trial(method, settings, s)) for s in seeds)
        lines.append(Line(method, settings, tried, inside, curves))
        print(f"{method}: {lines[-1].finals}", file=sys.stderr, flush=True)
    return lines


def follow(trainer: Any, accuracy: Callable[[], float], every: int) -> list[float]:
    """Return the accuracy before the first round and after every so many, taking all of them."""
    found = [accuracy()]
    while trainer.steps_done < trainer.steps:
        trainer.step()
        if trainer.steps_done % every == 0:
            found.append(accuracy())
    return found


def table(lines: Sequence[Line], every: int) -> str:
    """Return a Markdown table of accuracies on the way and at the end."""
    points = len(lines[0].curves[0]) - 1
    some = sorted({max(1, points // 4), max(1, points // 2), points})
    lines_ = [
        f"| method | {' | '.join(f'after {p * every} rounds' for p in some)} | lowest to highest |"
        " settings | tried |",
        f"|---|{'---:|' * len(some)}---:|---|---:|",
    ]
    for each in lines:
        middle = each.median_curve()
        cells = " | ".join(f"{middle[p]:.1f}" for p in some)
        ends = f"{min(each.finals):.1f} to {max(each.finals):.1f}"
        words = ", ".join(f"{name} {value:g}" for name, value in each.settings.items())
        tried = f"{each.tried}" if each.inside else f"{each.tried}, at the end of the search"
        lines_.append(f"| {each.method} | {cells} | {ends} | {words} | {tried} |")
    return "\n".join(lines_)


def over(one: Line, others: Sequence[Line]) -> str:
    """Return in words how far one method is over the better of others, by points of accuracy."""
    best = max(others, key=lambda line: line.median)
    gains = [a - b for a, b in zip(one.finals, best.finals, strict=True)]
    return (
        f"{one.median - best.median:+.1f} points over {best.method} in the median "
        f"({min(gains):+.1f} to {max(gains):+.1f} by seed)"
    )


def write(folder: Path, name: str, words: str, groups: Mapping[str, Sequence[Line]]) -> None:
    """Write the page and the figures behind it, and print the page."""
    (folder / f"{name}.md").write_text(words)
    plain = {title: [asdict(line) for line in lines] for title, lines in groups.items()}
    (folder / f"{name}.json").write_text(json.dumps(plain) + "\n")
    print(words)


def read(file: Path) -> dict[str, list[Line]]:
    """Return the figures behind a page."""
    kept = json.loads(file.read_text())
    return {
        title: [Line(**{**each, "curves": tuple(map(tuple, each["curves"]))}) for each in lines]
        for title, lines in kept.items()
    }


def chart(panels: Mapping[str, Sequence[Line]], every: int) -> str:
    """Return an SVG with a panel for each title: medians as lines, lowest to highest as bands."""
    size, left, top, gap = (330.0, 240.0), 56.0, 40.0, 66.0
    names = list(dict.fromkeys(line.method for lines in panels.values() for line in lines))
    below = top + size[1] + 54
    width = left + len(panels) * (size[0] + gap)
    columns = 2 if width / 2 > 50 + 7.5 * max(map(len, names)) else 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} '
        f'{below + 20 * math.ceil(len(names) / columns):.0f}" '
        'style="font-family:system-ui,sans-serif;font-size:13px;background:#fff" fill="#444">'
    ]
    for number, (title, lines) in enumerate(panels.items()):
        x0 = left + number * (size[0] + gap)
        parts += _panel(title, lines, every, (x0, top), size, names)
    for number, name in enumerate(names):
        x, y = left + number % columns * width / 2, below + 20 * (number // columns)
        parts.append(f'<path d="M{x:.0f} {y:.0f}h24" {_stroke(number)}/>')
        parts.append(f'<text x="{x + 32:.0f}" y="{y + 4:.0f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _stroke(number: int) -> str:
    dashes = ' stroke-dasharray="6 4"' if number >= len(COLOURS) else ""
    return f'fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"{dashes}'


def _panel(
    title: str,
    lines: Sequence[Line],
    every: int,
    corner: tuple[float, float],
    size: tuple[float, float],
    names: Sequence[str],
) -> list[str]:
    (x0, y0), (wide, high) = corner, size
    last = len(lines[0].curves[0]) - 1
    values = [v for line in lines for curve in line.curves for v in curve]
    low, top = 5 * math.floor(min(values) / 5), 5 * math.ceil(max(values) / 5)

    def place(point: int, value: float) -> str:
        across = x0 + wide * point / last
        return f"{across:.1f},{y0 + high * (top - value) / (top - low):.1f}"

    parts = [
        f'<text x="{x0}" y="{y0 - 14}" font-weight="600">{escape(title)}</text>',
        f'<rect x="{x0}" y="{y0}" width="{wide}" height="{high}" fill="none" stroke="#ccc"/>',
        f'<text x="{x0 + wide / 2}" y="{y0 + high + 34}" text-anchor="middle">rounds</text>',
        f'<text x="{x0 - 40}" y="{y0 - 14}">%</text>',
    ]
    step = 5 if top - low <= 30 else 10
    for value in range(math.ceil(low / step) * step, top + 1, step):
        y = y0 + high * (top - value) / (top - low)
        parts.append(f'<path d="M{x0} {y:.1f}h{wide}" stroke="#e2e2e2"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    for quarter in range(5):
        x = x0 + wide * quarter / 4
        rounds = f"{last * every * quarter / 4:g}"
        parts.append(f'<text x="{x}" y="{y0 + high + 16}" text-anchor="middle">{rounds}</text>')
    for line in lines:
        colour = names.index(line.method)
        spread = list(zip(*line.curves, strict=True))
        edge = [place(p, max(v)) for p, v in enumerate(spread)]
        edge += [place(p, min(v)) for p, v in reversed(list(enumerate(spread)))]
        fill = COLOURS[colour % len(COLOURS)]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{fill}" opacity="0.15"/>')
        points = " ".join(place(p, v) for p, v in enumerate(line.median_curve()))
        parts.append(f'<polyline points="{points}" {_stroke(colour)}/>')
    return parts
