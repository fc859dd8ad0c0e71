"""Wu et al. (2021), Remark 4.1: how much noise an adapted schedule saves, predicted and measured.

    python -m papers.adp_sgd.quadratic

With steps eta / b_t, b_t = sqrt(20 + t), t = 1 .. T, the noise in the final parameters is
proportional to M = sum (alpha_t / b_t)^2 sum 1 / alpha_t^2 at equal privacy: T sum 1/b_t^2 for
DP-SGD, and (sum 1/b_t)^2 for alpha_t^2 = b_t. A quadratic so flat that nothing but noise moves
shows it.
"""

import json
import math
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import torch
from torch import nn

import privada as pv
from papers.study import one_thread

STEPS, COORDINATES, SEEDS = 23_400, 400, 10


def predicted(steps: int = STEPS) -> float:
    """Return M_dp / M_adp in closed form."""
    b = [math.sqrt(20 + t) for t in range(1, steps + 1)]
    return steps * sum(1 / x**2 for x in b) / sum(1 / x for x in b) ** 2


def flat_quadratic(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a square whose curvature is too small to matter in so many steps."""
    return 1e-6 * (output - target).square().sum()


def variance(alpha: bool, rate: float, steps: int, epsilon: float, seed: int) -> float:
    """Return the mean square of the coordinates after a run from 0, where the gradient is 0."""
    records = 10
    model = nn.Linear(1, COORDINATES, bias=False)
    nn.init.zeros_(model.weight)
    method = pv.methods.ADPSGD(lr=1.0, alpha=None if alpha else lambda t: 1.0)
    run = pv.Trainer(
        model,
        flat_quadratic,
        (torch.ones(records, 1), torch.zeros(records, COORDINATES)),
        method=method,
        batch_size=rate * records,
        steps=steps,
        budget=pv.Budget(epsilon, 1e-5),
        seed=2 * seed + alpha,
    ).fit()
    with torch.no_grad():
        return float(run.model.weight.square().mean())


def seen(rate: float, steps: int, epsilon: float) -> float:
    """Return the median over seeds of the ratio of both variances."""
    runs = [(kind, rate, steps, epsilon, seed) for kind in (False, True) for seed in range(SEEDS)]
    with ProcessPoolExecutor(os.cpu_count(), initializer=one_thread) as pool:
        found = list(pool.map(variance, *zip(*runs, strict=True)))
    # the two kinds share no noise: they draw from streams of different seeds
    return median(dp / adp for dp, adp in zip(found[:SEEDS], found[SEEDS:], strict=True))


def main() -> None:
    """Print and write the ratios, predicted and seen, with and without sampling."""
    whole = seen(1.0, STEPS, 1.0)
    sampled = seen(0.1, 2_000, 1.0)
    words = f"""# The noise that a schedule saves

M_dp / M_adp for b_t = sqrt(20 + t), t = 1 .. {STEPS:,}: {predicted():.4f} in closed form.

Measured on a flat quadratic with {COORDINATES} coordinates, at epsilon 1 and delta 1e-5 by privacy
loss distributions, as the ratio of the variances of the final parameters (medians over {SEEDS}
pairs of runs):

| sampling rate | steps | predicted | measured |
|---:|---:|---:|---:|
| 1 | {STEPS:,} | {predicted():.4f} | {whole:.3f} |
| 0.1 | 2,000 | {predicted(2_000):.4f} | {sampled:.3f} |

Without sampling, tight accounting of Gaussians is a sum of 1 / sigma_t^2, as in the prediction.
With sampling this holds only where every multiplier is large.
"""
    folder = Path(__file__).parent
    (folder / "quadratic.md").write_text(words)
    figures = {"predicted": predicted(), "seen": whole, "seen with sampling": sampled}
    (folder / "quadratic.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(words)


if __name__ == "__main__":
    main()
