"""Draw the pictures of the pages on methods: `python docs/pictures.py`.

Every number in them is computed by the library, with seeds, on the digits of scikit-learn or on
records that are made up here. A name or two after the command draws only those pictures.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import privada as pv
from privada.accounting import events
from privada.clipping import Batch, Clipping, ellipsoid, make_engine, threshold
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling
from privada.train.public_training import ModelSide

FOLDER = Path(__file__).parent / "methods" / "pictures"

# Okabe and Ito's colours, which people who do not see all colours can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, GRID, GREY = "#444444", "#e2e2e2", "#777777"
WIDTH, HEIGHT, LEFT, TOP, BETWEEN, BELOW = 720.0, 270.0, 76.0, 34.0, 88.0, 46.0
MOST_POINTS = 160

Numbers = Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A line, dashes, points or a band, and its name in the legend; without one it has no entry."""

    name: str
    x: Numbers
    y: Numbers
    kind: str = "line"
    colour: str = COLOURS[0]
    high: Numbers = ()


@dataclass(frozen=True)
class Axis:
    """One axis of a panel; limits that are not given are those of the marks."""

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Panel:
    """One plot of a picture."""

    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Scale:
    """From values to places on the page."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, 1e-300)) if self.log else value
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        found = self._within(self._decades()) if self.log else []
        return found if len(found) > 1 else self._within(self._steps())

    def _within(self, values: list[float]) -> list[float]:
        slack = 1e-9 * (self.high - self.low)
        return [v for v in values if self.low - slack <= v <= self.high + slack]

    def _decades(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        span = math.log10(self.high / self.low)
        every = 1 + int(span // 7)
        parts = (1, 2, 5) if span < 2.2 else (1,)
        return [m * 10.0**e for e in range(first, last + 1, every) for m in parts]

    def _steps(self) -> list[float]:
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, first + 12)]


def limits(axis: Axis, values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis, with a little room around the marks."""
    if axis.limits is not None:
        return axis.limits
    found = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    low, high = min(found), max(found)
    if axis.log:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * (high - low or 1.0)
    return low - room, high + room


def text(x: float, y: float, words: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'
    )


def thinned(points: list[str]) -> list[str]:
    every = math.ceil(len(points) / MOST_POINTS)
    return [*points[::every], *([points[-1]] if len(points) % every != 1 and every > 1 else [])]


def drawn(mark: Mark, across: Scale, up: Scale) -> str:
    """Return a mark as SVG."""

    def places(ys: Numbers) -> list[str]:
        pairs = zip(mark.x, ys, strict=True)
        return [f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in pairs]

    if mark.kind == "points":
        dots = (p.split(",") for p in places(mark.y))
        circles = "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in dots)
        return f'<g fill="{mark.colour}" fill-opacity=".55">{circles}</g>'
    if mark.kind == "band":
        outline = " ".join(thinned(places(mark.y)) + thinned(places(mark.high))[::-1])
        return f'<polygon points="{outline}" fill="{mark.colour}" fill-opacity=".18"/>'
    dash = ' stroke-dasharray="6 4"' if mark.kind == "dashes" else ""
    width = 1 if mark.kind == "thin" else 2.2
    return (
        f'<polyline points="{" ".join(thinned(places(mark.y)))}" fill="none" '
        f'stroke="{mark.colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>'
    )


def frame(panel: Panel, across: Scale, up: Scale) -> list[str]:
    """Return grid, ticks and labels of a panel."""
    parts = [
        text((across.start + across.end) / 2, TOP - 14, panel.title, extra='font-weight="600"'),
        text((across.start + across.end) / 2, up.start + 36, panel.x.label),
    ]
    middle, left = (up.start + up.end) / 2, across.start - 60
    turned = f'transform="rotate(-90 {left:.1f} {middle:.1f})"'
    parts.append(text(left, middle, panel.y.label, extra=turned))
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(line(x, up.start, x, up.end, GRID))
        parts.append(text(x, up.start + 17, f"{tick:g}", extra='font-size="12"'))
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(line(across.start, y, across.end, y, GRID))
        parts.append(text(across.start - 7, y + 4, f"{tick:g}", "end", 'font-size="12"'))
    return parts


def plot(panel: Panel, left: float, width: float, number: int) -> list[str]:
    """Return one panel as SVG."""
    xs = [x for mark in panel.marks for x in mark.x]
    ys = [y for mark in panel.marks for y in (*mark.y, *mark.high)]
    across = Scale(*limits(panel.x, xs), left, left + width, panel.x.log)
    up = Scale(*limits(panel.y, ys), TOP + HEIGHT, TOP, panel.y.log)
    box = f'x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT}"'
    return [
        *frame(panel, across, up),
        f'<clipPath id="in{number}"><rect {box}/></clipPath>',
        f'<g clip-path="url(#in{number})">',
        *(drawn(mark, across, up) for mark in panel.marks),
        "</g>",
        f'<rect {box} fill="none" stroke="#999999"/>',
    ]


def sample(mark: Mark, x: float, y: float) -> str:
    """Return the sign of a mark in the legend."""
    if mark.kind == "points":
        return f'<circle cx="{x + 11:.1f}" cy="{y - 4:.1f}" r="4" fill="{mark.colour}"/>'
    if mark.kind == "band":
        at = f'x="{x:.1f}" y="{y - 10:.1f}"'
        return f'<rect {at} width="22" height="11" fill="{mark.colour}" fill-opacity=".3"/>'
    dash = ' stroke-dasharray="6 4"' if mark.kind == "dashes" else ""
    return line(x, y - 4, x + 22, y - 4, mark.colour, f'stroke-width="2.6"{dash}')


def legend(panels: Sequence[Panel]) -> tuple[list[str], float]:
    """Return the legend of all panels, and where it ends."""
    marks = {mark.name: mark for panel in panels for mark in panel.marks if mark.name}
    parts, x, y = [], LEFT, TOP + HEIGHT + BELOW + 18
    for name, mark in marks.items():
        width = 48 + 7.1 * len(name)
        if x > LEFT and x + width > WIDTH - 8:
            x, y = LEFT, y + 20
        parts += [sample(mark, x, y), text(x + 28, y, name, "start")]
        x += width
    return parts, y + 14


def picture(name: str, *panels: Panel) -> None:
    """Write panels side by side to one file."""
    room = WIDTH - LEFT - 18 - BETWEEN * (len(panels) - 1)
    width = room / len(panels)
    parts = [
        part
        for number, panel in enumerate(panels)
        for part in plot(panel, LEFT + number * (width + BETWEEN), width, number)
    ]
    signs, height = legend(panels)
    style = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px"
    page = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        f'style="{style}" fill="{INK}">',
        f'<rect width="{WIDTH:.0f}" height="{height:.0f}" rx="6" fill="#ffffff"/>',
        *parts,
        *signs,
        "</svg>",
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text("\n".join(page) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Digits:
    """The digits, in three parts: private, declared public, and for tests."""

    private: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@cache
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = (order[540:], order[360:540], order[:360])
    private, public, test = ((x[part], y[part]) for part in parts)
    return Digits(private, public, test)


def classifier() -> nn.Linear:
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def trainer(method: pv.methods.Method, steps: int, noise: float, **settings: Any) -> pv.Trainer:
    """Return a seeded trainer of a linear classifier of the private digits."""
    options: dict[str, Any] = {"batch_size": 256, "seed": 0, "delta": 1e-5} | settings
    return pv.Trainer(
        classifier(), nn.CrossEntropyLoss(), digits().private,
        method=method, steps=steps, noise_multiplier=noise, **options,
    )  # fmt: skip


def fitted(method: pv.methods.Method, steps: int, noise: float, **settings: Any) -> nn.Module:
    return trainer(method, steps, noise, **settings).fit().model


@torch.no_grad()
def loss_of(model: nn.Module) -> float:
    x, y = digits().test
    return float(nn.functional.cross_entropy(model(x), y))


@torch.no_grad()
def accuracy_of(model: nn.Module) -> float:
    x, y = digits().test
    return float((model(x).argmax(1) == y).float().mean())


def curve(run: pv.Trainer, score: Callable[[nn.Module], float], every: int = 1) -> list[float]:
    """Take all steps and return the scores after every so many of them, and before the first."""
    scores = [score(run.model)]
    for number in range(1, run.steps + 1):
        run.step()
        if number % every == 0:
            scores.append(score(run.model))
    return scores


def middle(values: Iterable[float]) -> float:
    return float(torch.tensor(list(values)).median())


def some(steps: int) -> list[int]:
    """Return steps for a logarithmic axis: all of the first, fewer of the others."""
    return [t for t in range(1, steps + 1) if t < 40 or t % (steps // 100) == 0]


def quantiles(values: Tensor, *shares: float) -> list[float]:
    return [float(torch.quantile(values, share)) for share in shares]


@dataclass(frozen=True)
class Seen:
    """What one update was given, and what it did."""

    release: pv.Release
    move: pv.updates.ParameterStep
    state: dict[str, Any]


@dataclass(frozen=True)
class Watched(pv.methods.Method):
    """Another method, each of whose updates is kept."""

    name: ClassVar[str] = "watched"
    inner: pv.methods.Method
    seen: list[Seen]

    def parts(self, steps: int) -> pv.methods.Parts:
        parts = self.inner.parts(steps)

        def update(
            release: pv.Release, state: dict[str, Any], parameters: Parameters, lr: float
        ) -> tuple[pv.updates.ParameterStep, dict[str, Any]]:
            move, after = parts.rule.update(release, state, parameters, lr)
            self.seen.append(Seen(release, move, after))
            return move, after

        return replace(parts, rule=replace(parts.rule, update=update))


def watch(method: pv.methods.Method, steps: int, noise: float, **settings: Any) -> list[Seen]:
    """Return every update of a run."""
    seen: list[Seen] = []
    watched = Watched(method, seen, clip=method.clip, clipping=method.clipping)
    trainer(watched, steps, noise, **settings).fit()
    return seen


def whole_batch() -> int:
    return len(digits().private[1])


@cache
def average_gradient(clip: float) -> Tensor:
    """Return the average clipped gradient at the start, as good as without noise."""
    (seen,) = watch(pv.methods.DPSGD(lr=1e-9, clip=clip), 1, 1e-6, batch_size=whole_batch())
    return seen.release.gradient


def clipped(points: Tensor, scale: Tensor | None, clip: float, how: Clipping) -> Tensor:
    """Return points as the engine clips them when they are gradients, in their own units."""
    model = nn.Linear(2, 1, bias=False)
    ones = torch.ones(len(points), 1)
    engine = make_engine(
        "auto", model, lambda out, y: (out * y).sum(), Parameters(model),
        Batch(points[:1], ones[:1]), clipping=how,
    )  # fmt: skip
    found = [
        engine.clipped_sum(Batch(p[None], ones[:1]), FlatScaling(scale, None), clip).value
        for p in points
    ]
    rows = torch.stack(found)
    return rows if scale is None else rows * scale


def outline(scale: Tensor | None, clip: float, how: Clipping) -> tuple[list[float], list[float]]:
    """Return where gradients that are far too long end up when they are clipped."""
    angles = torch.linspace(0, 2 * math.pi, 121)
    shape = torch.ones(2) if scale is None else scale
    far = 100 * torch.stack([angles.cos(), angles.sin()], 1) * shape
    ends = clipped(far, scale, clip, how)
    return ends[:, 0].tolist(), ends[:, 1].tolist()


# ---------------------------------------------------------------- the pictures


def dp_sgd() -> None:
    clips, steps = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0], 100
    marks = []
    for epsilon, colour in ((0.5, COLOURS[1]), (2.0, COLOURS[0]), (8.0, COLOURS[2])):
        noise = pv.accounting.noise_multiplier(
            epsilon=epsilon, delta=1e-5, sampling_rate=256 / whole_batch(), steps=steps
        )
        scores = [
            middle(
                accuracy_of(fitted(pv.methods.DPSGD(lr=2 / c, clip=c), steps, noise, seed=s))
                for s in range(3)
            )
            for c in clips
        ]
        marks.append(Mark(f"ε = {epsilon:g}", clips, scores, colour=colour))
    picture(
        "dp-sgd",
        Panel(
            "Accuracy on other digits, lr = 2 / clip",
            Axis("clip norm", log=True), Axis("accuracy"), tuple(marks),
        ),
    )  # fmt: skip


def dp_momentum() -> None:
    steps, noise = 60, 2.0
    runs = {
        "dp-sgd, lr 0.2": (pv.methods.DPSGD(lr=0.2), COLOURS[1], "line"),
        "dp-momentum, lr 0.2, decay 0.9": (pv.methods.DPMomentum(lr=0.2), COLOURS[0], "line"),
        "dp-sgd, lr 0.2 / (1 - 0.9) = 2": (pv.methods.DPSGD(lr=2.0), COLOURS[2], "dashes"),
    }
    xs = list(range(steps + 1))
    marks = tuple(
        Mark(name, xs, curve(trainer(method, steps, noise), loss_of), kind, colour)
        for name, (method, colour, kind) in runs.items()
    )
    picture(
        "dp-momentum",
        Panel("Loss on other digits", Axis("step"), Axis("mean cross entropy"), marks),
    )


def dp_adam() -> None:
    clips = ((0.1, COLOURS[0]), (0.5, COLOURS[1]), (2.0, COLOURS[2]))

    def panel(title: str, rates: list[float]) -> Panel:
        made: Any = pv.methods.get(title)
        marks = [
            Mark(
                f"clip {c:g}", rates,
                [loss_of(fitted(made(lr=lr, clip=c), 60, 4.0))
                 for lr in rates],
                colour=colour,
            )
            for c, colour in clips
        ]  # fmt: skip
        axis = Axis("learning rate", log=True)
        return Panel(title, axis, Axis("loss on other digits", limits=(0, 2.5)), tuple(marks))

    picture(
        "dp-adam",
        panel("dp-sgd", [0.05 * 2.0**k for k in range(12)]),
        panel("dp-adam", [0.002 * 2.0**k for k in range(9)]),
    )


def dp_adam_wosm() -> None:
    steps, noise, lr, clip = 1000, 1.0, 0.001, 0.5
    seen = watch(pv.methods.DPAdam(lr=lr, clip=clip), steps, noise)
    xs = some(steps)
    sizes = [lr / ((seen[t - 1].state["second"] / (1 - 0.999**t)).sqrt() + 1e-8) for t in xs]
    low, half, high = zip(*(quantiles(size, 0.05, 0.5, 0.95) for size in sizes), strict=True)
    limit = lr / (noise * clip / 256 + 1e-8)
    picture(
        "dp-adam-wosm",
        Panel(
            "What the first moment is multiplied with",
            Axis("step", log=True), Axis("step size", log=True),
            (
                Mark("dp-adam: nine in ten coordinates", xs, low, "band", COLOURS[0], high),
                Mark("dp-adam: median", xs, half, "line", COLOURS[0]),
                Mark("dp-adam-wosm", xs, [limit] * len(xs), "dashes", COLOURS[1]),
            ),
        ),
    )  # fmt: skip


def dp_adam_bc() -> None:
    steps, noise, clip, batch = 1500, 8.0, 1.0, whole_batch()
    last = watch(pv.methods.DPAdamBC(lr=1e-12, clip=clip), steps, noise, batch_size=batch)[-1]
    second = last.state["second"] / (1 - 0.999**steps)
    std = noise * clip / batch
    corrected = (second - std**2).clamp(min=5e-8).sqrt()
    truth = average_gradient(clip).abs()
    shown = truth.argsort()[::3]
    shown = shown[truth[shown] > 1e-4]
    xs = truth[shown].tolist()
    ends = [min(xs), max(xs)]
    picture(
        "dp-adam-bc",
        Panel(
            "Root of the second moment of a coordinate",
            Axis("the coordinate's gradient, without noise", log=True), Axis("estimate", log=True),
            (
                Mark("dp-adam", xs, second.sqrt()[shown].tolist(), "points", COLOURS[1]),
                Mark("dp-adam-bc", xs, corrected[shown].tolist(), "points", COLOURS[0]),
                Mark("the noise, σC/B", ends, [std, std], "dashes", GREY),
                Mark("the gradient itself", ends, ends, "line", GREY),
            ),
        ),
    )  # fmt: skip


def dp_rmsprop() -> None:
    steps, noise = 400, 4.0
    xs = some(steps)

    def sizes(method: pv.methods.Method) -> list[float]:
        seen = watch(method, steps, noise)
        return [float(seen[t - 1].move.direction.abs().median()) for t in xs]

    runs: list[tuple[str, pv.methods.Method, str]] = [
        ("dp-rmsprop, decay 0.999", pv.methods.DPRMSProp(lr=0.001, decay=0.999), COLOURS[1]),
        ("dp-rmsprop, decay 0.99", pv.methods.DPRMSProp(lr=0.001, decay=0.99), COLOURS[0]),
        ("dp-rmsprop, decay 0.9", pv.methods.DPRMSProp(lr=0.001, decay=0.9), COLOURS[2]),
    ]
    marks = [Mark(name, xs, sizes(method), colour=colour) for name, method, colour in runs]
    picture(
        "dp-rmsprop",
        Panel(
            "How far a coordinate moves in a step (median)",
            Axis("step", log=True), Axis("in units of lr", log=True), tuple(marks),
        ),
    )  # fmt: skip


def dp_adagrad() -> None:
    steps, order = 300, average_gradient(1.0).abs().argsort()
    tenth = len(order) // 10
    groups = {"large gradients": order[-tenth:], "small gradients": order[tenth : 2 * tenth]}
    xs = some(steps)
    panels = []
    for title, noise in (("Next to no noise", 0.01), ("Noise multiplier 4", 4.0)):
        seen = watch(pv.methods.DPAdaGrad(lr=0.1), steps, noise)
        marks = [
            Mark(
                name, xs,
                [0.1 / float(seen[t - 1].state["total"][group].sqrt().median()) for t in xs],
                colour=colour,
            )
            for (name, group), colour in zip(groups.items(), COLOURS, strict=False)
        ]  # fmt: skip
        axis = Axis("lr / √(sum of v²)", log=True)
        panels.append(Panel(title, Axis("step", log=True), axis, tuple(marks)))
    picture("dp-adagrad", *panels)


def gradients_in_two_coordinates(scale: Tensor, count: int = 150) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    drawn_points = torch.randn(count, 2, generator=generator)
    return drawn_points * scale


def ball_or_ellipsoid(
    title: str, points: Tensor, scale: Tensor | None, clip: float, noise: float
) -> Panel:
    """Return gradients, where clipping keeps them, and where noise puts their sum."""
    edge = outline(scale, clip, threshold())
    far = outline(scale, noise * clip, threshold())
    kept = clipped(points, scale, clip, threshold())
    return Panel(
        title,
        Axis("frequent feature", limits=(-2.6, 2.6)), Axis("rare feature", limits=(-2.6, 2.6)),
        (
            Mark("gradients", points[:, 0].tolist(), points[:, 1].tolist(), "points", GREY),
            Mark("after clipping", kept[:, 0].tolist(), kept[:, 1].tolist(), "points", COLOURS[0]),
            Mark("where they are clipped", *edge, "line", COLOURS[0]),
            Mark("standard deviation of the noise", *far, "dashes", COLOURS[1]),
        ),
    )  # fmt: skip


def adadps() -> None:
    scale = torch.tensor([1.0, 0.25])
    points = gradients_in_two_coordinates(scale)
    picture(
        "adadps",
        ball_or_ellipsoid("dp-sgd, clip 1", points, None, 1.0, 1.2),
        ball_or_ellipsoid("adadps, clip 1.5", points, scale, 1.5, 1.2),
    )


def dp_r_pub() -> None:
    steps, noise, clip, batch = 200, 8.0, 1.0, whole_batch()
    public = pv.Public(digits().public)

    def spread(method: pv.methods.Method) -> Tensor:
        seen = watch(method, steps, noise, batch_size=batch)
        moves = torch.stack([each.move.direction * abs(each.move.length) for each in seen[100:]])
        return moves.std(0) / 1e-12

    after = spread(pv.methods.DPRPub(lr=1e-12, public=public, eps=1e-4, clip=clip))
    preconditioner = pv.preconditioning.public_gradients(public, eps=1e-4)
    before = spread(pv.methods.AdaDPS(lr=1e-12, preconditioner=preconditioner, clip=clip))
    run = trainer(pv.methods.DPSGD(lr=1.0), 1, 1.0)
    side = Parameters(run.model, ModelSide(run.model, nn.CrossEntropyLoss()))
    scale = side.public_gradient(public, 0).abs() + 1e-4
    shown = scale.argsort()[::3]
    xs, blue, orange = scale[shown].tolist(), *COLOURS[:2]
    picture(
        "dp-r-pub",
        Panel(
            "Noise in a coordinate's step",
            Axis("public scale of the coordinate", log=True),
            Axis("standard deviation / lr", log=True),
            (
                Mark("dp-r-pub: scaled after noise", xs, after[shown].tolist(), "points", orange),
                Mark("adadps: scaled before noise", xs, before[shown].tolist(), "points", blue),
            ),
        ),
    )  # fmt: skip


def dp_adam_pub() -> None:
    mixes = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
    x, y = digits().public
    public = pv.Public((x[:60], y[:60]))
    marks = []
    for noise, colour in ((1.0, COLOURS[2]), (8.0, COLOURS[0]), (32.0, COLOURS[1])):
        scores = [
            middle(
                accuracy_of(
                    fitted(
                        pv.methods.DPAdamPub(lr=0.01, public=public, mix=mix, eps=1e-3),
                        80, noise, seed=seed,
                    )
                )
                for seed in range(3)
            )
            for mix in mixes
        ]  # fmt: skip
        marks.append(Mark(f"noise multiplier {noise:g}", mixes, scores, colour=colour))
    picture(
        "dp-adam-pub",
        Panel(
            "Accuracy on other digits, with 60 public ones",
            Axis("mix: the weight of the release"), Axis("accuracy"), tuple(marks),
        ),
    )  # fmt: skip


def pda_dpmd() -> None:
    steps, noise = 100, 8.0
    x, y = digits().public
    public = pv.Public((x[:60], y[:60]))
    xs = list(range(steps + 1))
    weight = pv.updates.falling_weight(steps)
    runs: list[tuple[str, pv.methods.Method, str]] = [
        ("release alone (dp-sgd)", pv.methods.DPSGD(lr=1.0), COLOURS[1]),
        ("public alone", pv.methods.PDADPMD(lr=1.0, public=public, weight=0.0), COLOURS[2]),
        ("pda-dpmd", pv.methods.PDADPMD(lr=1.0, public=public), COLOURS[0]),
    ]
    marks = tuple(
        Mark(name, xs, curve(trainer(method, steps, noise), accuracy_of), colour=colour)
        for name, method, colour in runs
    )
    falling = Mark("pda-dpmd", xs, [weight(t) for t in xs], colour=COLOURS[0])
    picture(
        "pda-dpmd",
        Panel("Weight of the release", Axis("step"), Axis("weight"), (falling,)),
        Panel("On other digits", Axis("step"), Axis("accuracy"), marks),
    )


def pdp_sgd() -> None:
    public = pv.Public(digits().public)
    method = pv.methods.PDPSGD(lr=1e-9, public=public, dimensions=180)
    (seen,) = watch(method, 1, 1.0)
    basis, gradient = seen.state["basis"], average_gradient(1.0)
    size = gradient.numel()
    kept = (basis @ gradient).square().cumsum(0) / gradient.square().sum()
    noise = torch.randn(200, size, generator=torch.Generator().manual_seed(0))
    left = (noise @ basis.t()).square().cumsum(1).sum(0) / noise.square().sum()
    xs = list(range(1, len(basis) + 1))
    picture(
        "pdp-sgd",
        Panel(
            "What the projection keeps of a squared norm",
            Axis("dimensions of the subspace"), Axis("share", limits=(0, 1.02)),
            (
                Mark("private average gradient", xs, kept.tolist(), colour=COLOURS[0]),
                Mark("noise", xs, left.tolist(), colour=COLOURS[1]),
            ),
        ),
    )  # fmt: skip


def pasan() -> None:
    sigma, clip = torch.tensor([1.0, 0.3]), 0.8
    points = gradients_in_two_coordinates(sigma, 60)
    scale = sigma.sqrt()
    whitened = (points / scale).norm(dim=1)
    long = points[whitened > clip]
    marks = [
        Mark("gradients", points[:, 0].tolist(), points[:, 1].tolist(), "points", GREY),
        Mark("ellipsoid", *outline(scale, clip, threshold()), "line", GREY),
    ]
    ways = (("shortened", threshold(), COLOURS[0]), ("projected", ellipsoid(), COLOURS[1]))
    panels = []
    for name, how, colour in ways:
        ends = clipped(long, scale, clip, how)
        paths = [
            Mark("", [float(a[0]), float(b[0])], [float(a[1]), float(b[1])], "thin", colour)
            for a, b in zip(long, ends, strict=True)
        ]
        dots = Mark(name, ends[:, 0].tolist(), ends[:, 1].tolist(), "points", colour)
        panels.append(
            Panel(
                name, Axis("σ = 1", limits=(-2.6, 2.6)), Axis("σ = 0.3", limits=(-2.4, 2.4)),
                (*marks, *paths, dots),
            )
        )  # fmt: skip
    picture("pasan", *panels)


def pagan() -> None:
    places = torch.arange(1, 101, dtype=torch.float32)
    sigma, noise = places**-1.5, 2.5
    gradients = sigma * torch.randn(4000, 100, generator=torch.Generator().manual_seed(1))
    zero = pv.ClippedSum(torch.zeros(100), 1.0)
    xs = places.tolist()
    marks = [Mark("gradients (σ_j)", xs, sigma.tolist(), "line", GREY)]
    ways = (
        ("a ball", 1e-6, COLOURS[1]),
        ("pasan, σ^(1/2)", 0.5, COLOURS[3]),
        ("pagan, σ^(2/3)", 2 / 3, COLOURS[0]),
    )
    for name, exponent, colour in ways:
        shape = pv.preconditioning.known_moments(sigma).ellipsoid(exponent, floor=1e-9)
        parameters = Parameters(nn.Linear(100, 1, bias=False))
        state = shape.prepare(shape.init(parameters), parameters, no_releases)
        scale = shape.at(state, parameters)[0].on(parameters).scale
        assert scale is not None
        clip = float((gradients / scale).norm(dim=1).median())
        event = events.gaussian(noise)
        receipt = pv.Ledger(None).charge({event: 1}, run="picture").use(event)
        release = pv.noise.GaussianNoise().release(replace(zero, sensitivity=clip), receipt, 70)
        std = release.restored(scale, None).gradient_std
        assert isinstance(std, Tensor)
        marks.append(Mark(f"noise: {name}", xs, std.tolist(), "line", colour))
    picture(
        "pagan",
        Panel(
            "Gradients and noise, coordinate by coordinate",
            Axis("coordinate j", log=True), Axis("standard deviation", log=True), tuple(marks),
        ),
    )  # fmt: skip


def no_releases(bound: float, noise_multiplier: float) -> pv.Release:
    raise TypeError("Known moments ask for no releases.")


def adadp() -> None:
    marks = []
    for start, colour in zip((0.001, 0.01, 0.1, 1.0, 10.0), COLOURS, strict=False):
        run = trainer(pv.methods.ADADP(lr=start), 200, 4.0).fit()
        rates = [each.lr for each in run.history]
        marks.append(Mark(f"from {start:g}", list(range(1, 201)), rates, colour=colour))
    picture(
        "adadp",
        Panel(
            "The learning rate finds itself",
            Axis("iteration"), Axis("learning rate", log=True), tuple(marks),
        ),
    )  # fmt: skip


def adp_sgd() -> None:
    steps, budget = 300, pv.Budget(2.0, 1e-5)
    runs = {
        "adp-sgd": (pv.methods.ADPSGD(lr=20.0), COLOURS[0], "line"),
        "alpha = 1: dp-sgd": (pv.methods.ADPSGD(lr=20.0, alpha=lambda t: 1), COLOURS[1], "dashes"),
    }  # fmt: skip
    noise, rates = [], []
    xs = list(range(1, steps + 1))
    for name, (method, colour, kind) in runs.items():
        run = pv.Trainer(
            classifier(), nn.CrossEntropyLoss(), digits().private,
            method=method, steps=steps, budget=budget, batch_size=256, seed=0,
        )  # fmt: skip
        parts: Any = method.parts(steps)
        levels = [run.noise_multiplier * parts.schedule.factor(t - 1) for t in xs]
        noise.append(Mark(name, xs, levels, kind, colour))
        steps_taken = [parts.controller.rate(t - 1) for t in xs]
        rates.append(Mark(name, xs, steps_taken, kind, colour))
    picture(
        "adp-sgd",
        Panel("Noise, ε = 2 for all steps", Axis("step"), Axis("noise multiplier"), tuple(noise)),
        Panel("Steps", Axis("step"), Axis("learning rate"), tuple(rates)),
    )


def scale_then_privatise() -> None:
    steps = 300
    method = pv.methods.ScaleThenPrivatise(lr=1e-12, beta2=0.99, clip=100.0)
    seen = watch(method, steps, 2.0, batch_size=whole_batch())
    order = average_gradient(1e6).abs().argsort()
    tenth = len(order) // 10
    groups = {
        "large gradients": order[-tenth:],
        "middling": order[4 * tenth : 6 * tenth],
        "small gradients": order[tenth : 2 * tenth],
    }
    xs = list(range(1, steps + 1))
    marks = [
        Mark(
            name, xs,
            [float(torch.as_tensor(each.release.gradient_std)[group].median()) for each in seen],
            colour=colour,
        )
        for (name, group), colour in zip(groups.items(), COLOURS, strict=False)
    ]  # fmt: skip
    picture(
        "scale-then-privatise",
        Panel(
            "Noise in a coordinate of the release (median)",
            Axis("step"), Axis("standard deviation", log=True), tuple(marks),
        ),
    )  # fmt: skip


def dp2_rmsprop() -> None:
    steps, plain, adaptive = 200, 30, 20
    method = pv.methods.DP2RMSProp(
        lr=1.0, adaptive_lr=0.05, plain=plain, adaptive=adaptive, eps=1e-3, adaptive_clip=2.0
    )
    releases = [each.release for each in watch(method, steps, 1.0)]
    shape = pv.preconditioning.delayed(plain, adaptive, 0.9, 1e-3)
    parameters = Parameters(classifier())
    state, scales = shape.init(parameters), []
    for release in releases:
        preconditioner, state = shape.at(state, parameters)
        scales.append(preconditioner.on(parameters).scale)
        state = shape.seen(release, state)
    spread = [[1.0] * 3 if s is None else quantiles(s, 0.1, 0.5, 0.9) for s in scales]
    low, half, high = zip(*spread, strict=True)
    xs = list(range(1, steps + 1))
    picture(
        "dp2-rmsprop",
        Panel(
            "What gradients are divided by before they are clipped",
            Axis("step"), Axis("scale", log=True),
            (
                Mark("eight in ten coordinates", xs, low, "band", COLOURS[0], high),
                Mark("median", xs, half, "line", COLOURS[0]),
            ),
        ),
    )  # fmt: skip


PICTURES: dict[str, Callable[[], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        dp_sgd, dp_momentum, dp_adam, dp_adam_wosm, dp_adam_bc, dp_rmsprop, dp_adagrad, adadps,
        dp_r_pub, dp_adam_pub, pda_dpmd, pdp_sgd, pasan, pagan, adadp, adp_sgd,
        scale_then_privatise, dp2_rmsprop,
    )
}  # fmt: skip


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(name)


if __name__ == "__main__":
    main()
