"""Mohapatra et al. (2022), Section 4.1 and Theorem 3: how learning rate and clip norm interact.

    python -m papers.honest-selection.coupling

DP-SGD and DPAdam are run over a grid of both on the digits that come with scikit-learn. Theorem 2
has a best learning rate in proportion to 1 / clip for DP-SGD; DPAdam should not need another one
when the clip norm changes. Then the step sizes of a long run of DPAdam are held to their limit.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import privada as pv
from privada.charts import write
from privada.selection import Coupling, coupling_grid, effective_step_sizes

NOISE, DELTA, TRAINED, BATCH_SIZE, STEPS, SEEDS, BOUND = 4.0, 1e-5, 1400, 140, 60, 3, 10.0
CLIPS = [4.0**k for k in range(-3, 3)]
# Up to this clip norm, every gradient is clipped at the start.
CLIPPED = 1.0
GRIDS = {
    pv.methods.DPSGD: [2.0**k for k in range(-7, 11)],
    pv.methods.DPAdam: [2.0**k for k in range(-12, 3)],
}


def digits() -> tuple[Any, Any]:
    """Return the records to train on, and those that stand for public ones."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype("float32"), y[order]
    return (x[:TRAINED], y[:TRAINED]), (x[TRAINED:], y[TRAINED:])


def candidate(kind: Any, lr: float, clip: float) -> pv.selection.Candidate:
    """Return a linear classifier with one pair of settings."""
    return pv.selection.Candidate(
        nn.Linear(64, 10),
        nn.CrossEntropyLoss(),
        kind(lr=lr, clip=clip),
        batch_size=BATCH_SIZE,
        steps=STEPS,
    )


def study(kind: Any, rates: list[float], repeats: int = SEEDS, n_jobs: int = 2) -> Coupling:
    """Return the grid of one method, scored by its loss on the public records."""
    train, test = digits()
    return coupling_grid(
        partial(candidate, kind),
        train,
        test=pv.Public(test),
        learning_rates=rates,
        clips=CLIPS,
        repeats=repeats,
        noise_multiplier=NOISE,
        delta=DELTA,
        score=pv.selection.bounded_loss(nn.CrossEntropyLoss(), BOUND),
        seed=0,
        n_jobs=n_jobs,
    )


def by_accuracy(found: Coupling) -> Coupling:
    """Return the same runs with their accuracy, which public records give for nothing."""
    _, (x, y) = digits()
    score, each = pv.selection.accuracy(), []
    with torch.no_grad():
        for run in found.tried:
            outputs = run.model(torch.from_numpy(x))
            each.append(float(score.each(outputs, torch.from_numpy(y)).mean()))
    return replace(found, score=score, each=np.array(each).reshape(found.each.shape))


def slopes(found: Coupling, largest: float = float("inf")) -> tuple[float, list[float]]:
    """Return the slope of the means and of each repeat, over clip norms up to the largest."""
    some = [i for i, clip in enumerate(found.clips) if clip <= largest]
    kept = replace(found, clips=tuple(found.clips[i] for i in some), each=found.each[:, :, some])
    alone = [replace(kept, each=one[None]).slope() for one in kept.each]
    return kept.slope(), alone


def rows(grids: list[Coupling]) -> str:
    """Return a table of slopes."""
    lines = []
    for found in grids:
        for words, largest in ((f"up to {CLIPPED:g}", CLIPPED), ("all", float("inf"))):
            mean, alone = slopes(found, largest)
            lines.append(
                f"| {found.method} | {found.score.name} | {words} | {mean:+.2f} | "
                f"{min(alone):+.2f} to {max(alone):+.2f} |"
            )
    return "\n".join(lines)


def bests(grids: list[Coupling]) -> str:
    """Return a table of the best learning rate at each clip norm, and the loss there."""
    lines = ["| clip | " + " | ".join(f"{g.method}: best lr | its loss" for g in grids) + " |"]
    lines.append("|---:|" + "---:|---:|" * len(grids))
    for i, clip in enumerate(CLIPS):
        cells = [f"{g.peaks()[i].learning_rate:.3g} | {g.scores[:, i].min():.3f}" for g in grids]
        lines.append(f"| {clip:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run both grids and the long run; write the page, the figures and the charts."""
    folder = Path(__file__).parent
    losses = [study(kind, rates) for kind, rates in GRIDS.items()]
    accuracies = [by_accuracy(found) for found in losses]
    (x, y), _ = digits()
    torch.manual_seed(0)
    long = pv.Trainer(
        nn.Linear(64, 10), nn.CrossEntropyLoss(), (x, y), method=pv.methods.DPAdam(clip=0.5),
        batch_size=BATCH_SIZE, steps=2500, noise_multiplier=NOISE, delta=DELTA, seed=0,
    )  # fmt: skip
    sizes = effective_step_sizes(long)
    limit = sizes.limit[-1]
    low, high = sizes.low[-1] / limit, sizes.high[-1] / limit
    noise_low, noise_high = sizes.noise_low[-1] / limit, sizes.noise_high[-1] / limit
    prices = " and ".join(
        f"{g.price.epsilon:.1f} for the {g.price.runs:g} runs of {g.method}" for g in losses
    )
    default = min(losses[1].scores[losses[1].learning_rates.index(2.0**-10)])
    words = f"""# Learning rate and clip norm

A linear classifier on {TRAINED:,} of scikit-learn's digits: {STEPS} steps, expected batch size
{BATCH_SIZE} (Poisson), noise multiplier {NOISE:g}, {SEEDS} seeds for each pair of learning rate and
clip norm. Scores are of the other {1797 - TRAINED} digits, which are treated as public records: the
mean cross entropy, each record's cut off at {BOUND:g}, and the accuracy of the same models. The
noise is seeded, so that nothing here is a private release. Releasing all models would cost an
epsilon of {prices}, at delta {DELTA:g}.

For DP-SGD, [Mohapatra et al. (2022)](https://arxiv.org/abs/2111.04906) predict a best learning rate
in proportion to 1 / clip, a slope of -1 on logarithmic scales (Theorem 2: a bound for a convex and
smooth loss, whose gradient is clipped as a whole); for DPAdam, the same learning rate for all clip
norms, a slope of 0. Both are exact where every gradient is clipped. At the initial weights,
gradients here have norms of 2.9 to 4.7: with clip norms up to {CLIPPED:g} all are clipped at the
start, and fewer as the model learns.

| method | score | clip norms | slope of the means | slopes of single seeds |
|---|---|---|---:|---:|
{rows([*losses, *accuracies])}

Slopes are by least squares over clip norms a factor of 4 apart. A best learning rate is the top of
the parabola through the best mean score and its neighbours, on a grid of powers of two:

{bests(losses)}

The measurements confirm the claim, most clearly for the loss. The accuracy changes by only a few
percentage points when its best learning rate is halved or doubled, so its slopes are less certain.
The slopes do not show two things. The clip norm itself matters to both methods: above the norms of
the gradients it only adds noise, and no learning rate compensates for that. And that the best
learning rate of DPAdam is constant does not say what it is: here it is about 0.1. At their default
of 0.001, {STEPS} steps are too few: the loss is {default:.2f} at best.

![DP-SGD](coupling_dp_sgd.svg)
![DPAdam](coupling_dp_adam.svg)

## The step size of DPAdam

{sizes.steps[-1]:,} steps with the same noise of {sizes.method}. By Theorem 3, lr / (sqrt(v) + eps)
converges to lr / (sigma C / B + eps) = {limit:.4g} where gradients vanish compared with the noise.
At the last step the median over coordinates is {sizes.ratio:.3f} of that, and nine in ten
coordinates are between {low:.3f} and {high:.3f} of it. With noise alone they would be between
{noise_low:.3f} and {noise_high:.3f}, however long the run: the second moment has a finite memory,
so it fluctuates around its limit. The remaining gradients make the steps slightly shorter.

![step sizes](coupling_step_sizes.svg)
"""
    (folder / "coupling.md").write_text(words)
    figures = {
        "losses": [_plain(found) for found in losses],
        "accuracies": [_plain(found) for found in accuracies],
        "step sizes, every tenth": {
            k: v[::10] if isinstance(v, list) else v for k, v in sizes.to_dict().items()
        },
    }
    (folder / "coupling.json").write_text(json.dumps(figures) + "\n")
    for found in losses:
        write(found.figure(), folder / f"coupling_{found.method.replace('-', '_')}.svg")
    write(sizes.figure(), folder / "coupling_step_sizes.svg")
    print(words)


def _plain(found: Coupling) -> dict[str, Any]:
    return {k: v for k, v in found.to_dict().items() if k != "statement"}


if __name__ == "__main__":
    main()
