"""Secure noise against torch's own generator."""

import torch

from benchmarks.measure import interleaved, row
from privada.core.randomness import SecureSource
from privada.noise.gaussian import add_noise_


def run() -> list[dict[str, object]]:
    rows, rng = [], SecureSource()
    for size, rounds in ((10_000, 400), (100_000, 200), (1_000_000, 60), (5_000_000, 40)):
        value = torch.zeros(size)
        measured = interleaved(
            {
                "torch: draw": lambda size=size: torch.empty(size).normal_(),
                "torch: draw and add": lambda value=value: value.add_(
                    torch.empty_like(value).normal_(), alpha=1.3
                ),
                "privada: draw, add and round": lambda value=value: add_noise_(value, 1.3, rng),
            },
            rounds,
        )
        rows.append(row(f"noise on {size:,} coordinates", measured, "torch: draw"))
    return rows
