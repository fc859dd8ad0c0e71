"""Wu et al. (2021), the question at the end: can alpha_t follow b_t on the fly, within a budget?

    PRIVADA_DATA=folder python -m papers.adp_sgd.on_the_fly

Logistic regression on MNIST, and on 1,600 features of CIFAR-10 by two convolutions that were
trained on CIFAR-100. All methods take AdaGrad-norm steps lr / b_t, with b_t found from the
releases, and have one total epsilon by the same Renyi filter. They differ in their noise:

- dp-sgd: alpha_t = 1;
- fixed schedule: alpha_t^2 = sqrt(20 + C t), fixed beforehand, as in Section 6.2;
- on the fly: alpha_(t+1)^2 = b_t, each step charged at its own multiplier.

CIFAR-10 itself is read from cifar10.npz in the same folder, or from the file that CIFAR10 names.
"""

import math
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import privada as pv
from papers.study import Outcome, Settings, compare, grid, one_thread, write

BUDGET = pv.Budget(1.0, 1e-5)
BATCH, CLIP = 256, 1.0
SHORT, LONG = 11_700, 39_000
LARGE_BATCH, FEW = 4096, 2_000  # where all multipliers are well above 1, as the theory has it
TUNING_SEEDS, SEEDS = (100,), tuple(range(5))
RATES = (0.5, 1.0, 2.0, 4.0)
GRIDS = {
    "dp-sgd": grid(lr=RATES),
    "fixed schedule": grid(lr=RATES, growth=(0.01, 1.0)),
    "on the fly": grid(lr=RATES),
    "on the fly, noise in b_t": grid(lr=RATES),
}
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def folder() -> Path:
    """Return where the data sets are."""
    return Path(os.environ["PRIVADA_DATA"])


@lru_cache(maxsize=1)
def data(name: str) -> Data:
    """Return training inputs and classes, and those of the test."""
    return mnist() if name == "MNIST" else cifar_features()


def mnist() -> Data:
    """Return the pixels between 0 and 1."""
    with np.load(folder() / "mnist.npz") as found:
        parts = [
            torch.from_numpy(found[each]) for each in ("x_train", "y_train", "x_test", "y_test")
        ]
    x, y, x_test, y_test = parts
    return (
        x.reshape(len(x), -1).float() / 255, y.long(),
        x_test.reshape(len(x_test), -1).float() / 255, y_test.long(),
    )  # fmt: skip


def cifar_features() -> Data:
    """Return what two public convolutions make of the images, divided by 10.

    The convolutions are those of Koskela and Honkela (2020). The factor is fixed beforehand.
    """
    with np.load(folder() / "cifar100_conv_layers.npz") as layers:
        convolutions = [
            [torch.from_numpy(layers[f"conv{k}_{part}"]).float() for part in ("weight", "bias")]
            for k in (1, 2)
        ]
    with np.load(os.environ.get("CIFAR10", folder() / "cifar10.npz")) as found:
        images = {name: found[name] for name in found.files}
    center = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
    width = torch.tensor([0.2023, 0.1994, 0.2010]).reshape(3, 1, 1)

    def features(pixels: np.ndarray) -> Tensor:
        made = []
        for start in range(0, len(pixels), 1000):
            x = torch.from_numpy(pixels[start : start + 1000]).permute(0, 3, 1, 2).float() / 255
            x = (x - center) / width
            for kernel, bias in convolutions:
                x = functional.max_pool2d(functional.conv2d(x, kernel, bias).relu(), 3, stride=2)
            made.append(x.flatten(1) / 10)
        return torch.cat(made)

    return (
        features(images["x_train"]), torch.from_numpy(images["y_train"]).long().flatten(),
        features(images["x_test"]), torch.from_numpy(images["y_test"]).long().flatten(),
    )  # fmt: skip


def method_of(name: str, settings: Settings) -> pv.methods.ADPSGD:
    """Return the method by its name in the tables."""
    lr = settings["lr"]
    if name == "dp-sgd":
        return pv.methods.ADPSGD(lr, alpha=lambda t: 1.0, adaptive=True, denoised=True, clip=CLIP)
    if name == "fixed schedule":
        growth = settings["growth"]
        return pv.methods.ADPSGD(lr, adaptive=True, growth=growth, denoised=True, clip=CLIP)
    return pv.methods.ADPSGD(lr, alpha="adaptive", denoised=name == "on the fly", clip=CLIP)


def trial(
    dataset: str, steps: int, name: str, settings: Settings, seed: int, batch: int = BATCH
) -> float:
    """Return the test error in per cent."""
    x, y, x_test, y_test = data(dataset)
    model = nn.Linear(x.shape[1], 10)
    for each in model.parameters():
        nn.init.zeros_(each)
    trainer = pv.Trainer(
        model, nn.CrossEntropyLoss(), (x, y), method=method_of(name, settings),
        batch_size=batch, steps=steps, budget=BUDGET, seed=seed, ledger=pv.Ledger(None, BUDGET),
    ).fit()  # fmt: skip
    assert trainer.epsilon() <= BUDGET.epsilon
    with torch.no_grad():
        return 100 * float((model(x_test).argmax(1) != y_test).double().mean())


def longer(outcomes: list[Outcome], dataset: str, steps: int) -> list[Outcome]:
    """Return how the same settings do in runs of another length."""
    jobs = [(each.method, each.settings, seed) for each in outcomes for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count(), initializer=one_thread) as pool:
        figures = iter(list(pool.map(partial(trial, dataset, steps), *zip(*jobs, strict=True))))
    return [replace(o, figures=tuple(next(figures) for _ in SEEDS)) for o in outcomes]


def rows(outcomes: list[Outcome]) -> str:
    """Return a Markdown table of accuracies, and of their differences from the first of them.

    A difference has its standard error, that of the mean over as many pairs of seeds.
    """
    lines = [
        "| noise | mean accuracy | standard deviation | over dp-sgd | settings |",
        "|---|---:|---:|---:|---|",
    ]
    for each in outcomes:
        right = [100 - figure for figure in each.figures]
        over = [a - b for a, b in zip(outcomes[0].figures, each.figures, strict=True)]
        error = stdev(over) / math.sqrt(len(over))
        gained = "" if each is outcomes[0] else f"{mean(over):+.2f} ± {error:.2f}"
        words = ", ".join(f"{key} {value}" for key, value in each.settings.items())
        lines.append(
            f"| {each.method} | {mean(right):.2f} | {stdev(right):.2f} | {gained} | {words} |"
        )
    return "\n".join(lines)


def page(found: Mapping[str, list[Outcome]]) -> str:
    """Return the tables as a page."""
    tables = "\n\n".join(f"## {title}\n\n{rows(group)}" for title, group in found.items())
    return f"""# alpha_t on the fly

Test accuracy in per cent of logistic regression, mean and standard deviation over {len(SEEDS)}
seeds. Expected batches of {BATCH}, in the last table of {LARGE_BATCH:,}; clip norm {CLIP:g},
AdaGrad-norm steps; epsilon {BUDGET.epsilon:g} at delta {BUDGET.delta:g} in all, by the same Renyi
filter for all methods. Runs with the same seed share their noise, so that differences are between
pairs.

"on the fly" and the first two subtract the expected squared norm of the noise from that of a
release before it is added to b_t^2. Settings were chosen on another seed at {SHORT:,} steps, in
the last table at its own length, from learning rates {", ".join(f"{rate:g}" for rate in RATES)}
and two values of C, here growth, for the fixed schedule. That choice is not charged here: test
records made it, alike for all methods.

{tables}
"""


def main() -> None:
    """Tune on one seed at the shorter length, then run five further seeds at both."""
    found: dict[str, list[Outcome]] = {}
    for dataset in ("MNIST", "CIFAR-10 features"):
        short = compare(partial(trial, dataset, SHORT), GRIDS, TUNING_SEEDS, SEEDS)
        found[f"{dataset}, {SHORT:,} steps"] = short
        found[f"{dataset}, {LONG:,} steps"] = longer(short, dataset, LONG)
    few = partial(trial, "MNIST", FEW, batch=LARGE_BATCH)
    found[f"MNIST, {FEW:,} steps of {LARGE_BATCH:,}"] = compare(few, GRIDS, TUNING_SEEDS, SEEDS)
    write(Path(__file__).parent, "on_the_fly", page(found), found)


if __name__ == "__main__":
    main()
