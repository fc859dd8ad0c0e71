"""Images with the settings that nobody tuned: pixels, scattering and a public encoder.

    PRIVADA_DATA=folder python -m benchmarks.images [name of a data set ...]

Linear models, `PrivateClassifier(epsilon, features=...)` and nothing else. It goes on where it was
stopped: each run is kept as soon as it is done. CIFAR-10 is measured if the folder PRIVADA_DATA or
CIFAR10 has `cifar10.npz`. Test images are taken as public.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privada as pv

SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results"


class Standardised(nn.Module):
    """Rows in [-1, 1] as images, with the means and deviations that the public encoder had."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1))

    def forward(self, rows: Tensor) -> Tensor:
        images = (rows.view(-1, 3, 32, 32) + 1) / 2
        return (images - self.get_buffer("mean")) / self.get_buffer("deviation")


def folder() -> Path:
    return Path(os.environ["PRIVADA_DATA"])


def convolutions() -> nn.Module:
    """Return two layers that were trained on CIFAR-100, which is public here."""
    layers = []
    with np.load(folder() / "cifar100_conv_layers.npz") as held:
        for name, inputs in (("conv1", 3), ("conv2", 64)):
            layer = nn.Conv2d(inputs, 64, 3)
            layer.weight.data = torch.from_numpy(held[f"{name}_weight"]).float()
            layer.bias.data = torch.from_numpy(held[f"{name}_bias"]).float()
            layers += [layer, nn.ReLU(), nn.MaxPool2d(3, 2)]
    return nn.Sequential(Standardised(), *layers, nn.Flatten())


@dataclass(frozen=True)
class Case:
    """Images, what is made of them, and at which budgets."""

    data: str
    features: str
    make: Callable[[], nn.Module | None]
    epsilons: tuple[float, ...]


CASES = (
    Case("MNIST", "scattering", lambda: pv.features.Scattering2D((28, 28)), (1.0, 3.0)),
    Case("CIFAR-10", "scattering", lambda: pv.features.Scattering2D((3, 32, 32)), (8.0,)),
    Case("CIFAR-10", "two layers trained on CIFAR-100", convolutions, (8.0,)),
)


def images(data: str) -> tuple[Any, ...] | None:
    """Return private rows and labels, and public ones; None if the file is not there."""
    place = folder() / "mnist.npz"
    if data == "CIFAR-10":
        place = Path(os.environ.get("CIFAR10", folder())) / "cifar10.npz"
    if not place.is_file():
        return None
    with np.load(place) as held:
        found = []
        for part in ("train", "test"):
            pixels = held[f"x_{part}"]
            pixels = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels
            found += [np.ascontiguousarray(pixels).reshape(len(pixels), -1)]
            found += [held[f"y_{part}"].astype(int).ravel()]
    return tuple(found)


def runs(cases: Iterator[Case], known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the runs that are not known yet."""
    done = {(each["data"], each["features"], each["epsilon"], each["seed"]) for each in known}
    for case in cases:
        left = [
            (epsilon, seed)
            for epsilon in case.epsilons
            for seed in SEEDS
            if (case.data, case.features, epsilon, seed) not in done
        ]
        held = images(case.data) if left else None
        if held is None:
            continue
        x, y, x_test, y_test = held
        with tempfile.TemporaryDirectory() as kept:
            for epsilon, seed in left:
                found = pv.PrivateClassifier(
                    epsilon, bounds=(0, 255), features=case.make(), cache=kept, seed=seed
                ).fit(x, y)
                yield {
                    "data": case.data, "features": case.features, "epsilon": epsilon,
                    "seed": seed, "accuracy": float(found.score(x_test, y_test)),
                }  # fmt: skip


def page(known: list[dict[str, Any]]) -> str:
    lines = ["| data | features | epsilon | accuracy |", "|---|---|---:|---:|"]
    for case in CASES:
        for epsilon in case.epsilons:
            key = (case.data, case.features, epsilon)
            some = [
                each["accuracy"]
                for each in known
                if (each["data"], each["features"], each["epsilon"]) == key
            ]
            if some:
                figure = f"{statistics.median(some):.4f} ({min(some):.4f} to {max(some):.4f})"
                lines.append(
                    f"| {case.data} | {case.features} | {epsilon:g} | {figure}, {len(some)} runs |"
                )
    return f"""# Images, with settings that nobody tuned

Written by `python -m benchmarks.images`. Test accuracy of linear models on features, delta the
largest power of ten not above n^-1.1; medians of seeds, minimum and maximum in brackets.

{chr(10).join(lines)}
"""


def main() -> None:
    torch.set_num_threads(1)
    place = RESULTS / "images.json"
    known = json.loads(place.read_text()) if place.is_file() else []
    names = sys.argv[1:]
    for found in runs((case for case in CASES if not names or case.data in names), known):
        known.append(found)
        place.write_text(json.dumps(known, indent=1) + "\n")
        print(json.dumps(found), flush=True)
    (RESULTS / "images.md").write_text(page(known))
    print(page(known))


if __name__ == "__main__":
    main()
