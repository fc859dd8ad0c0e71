"""The data of the examples: real where PRIVADA_DATA has it, else small data made here."""

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

LETTERS = "abcdefghijklmnopqrstuvwxyz'- "
# Endings of made-up names, by the made-up language that they are from.
ENDINGS = {
    "north": ["sson", "gaard", "holm", "vik", "strand"],
    "south": ["ello", "ucci", "ardo", "ini", "etta"],
    "east": ["ovsky", "enko", "itsa", "ov", "ich"],
    "west": ["ton", "field", "worth", "ley", "ford"],
}
FEELINGS = {
    0: ["a dull film", "no story at all", "slow and cold", "the jokes are stale"],
    1: ["a warm film", "a clever story", "funny and bright", "the cast is a joy"],
}
THINGS = ["cast", "ending", "music", "scenes", "first half", "dialogue"]


def folder_with(file: str) -> Path | None:
    """Return the folder of real data if it has a file."""
    folder = Path(os.environ.get("PRIVADA_DATA", ""))
    return folder if os.environ.get("PRIVADA_DATA") and (folder / file).exists() else None


def images(rows: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test images of digits, 28 by 28: MNIST, or scikit-learn's digits."""
    folder = folder_with("mnist.npz")
    if folder is not None:
        with np.load(folder / "mnist.npz") as found:
            parts = {name: torch.from_numpy(found[name]) for name in found.files}
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        small = torch.from_numpy(pixels).view(-1, 8, 8) * (255 / 16)
        large = torch.nn.functional.pad(torch.kron(small, torch.ones(1, 3, 3)), (2, 2, 2, 2))
        first, then = slice(0, 1440), slice(1440, None)
        parts = {"x_train": large[first], "x_test": large[then]}
        parts |= {
            "y_train": torch.from_numpy(labels[first]),
            "y_test": torch.from_numpy(labels[then]),
        }

    def made(part: str) -> TensorDataset:
        pixels = (parts[f"x_{part}"].float() / 255 - 0.1307) / 0.3081  # published figures of MNIST
        return TensorDataset(pixels[:rows, None], parts[f"y_{part}"].long()[:rows])

    return made("train"), made("test")


class Names(Dataset):
    """Made-up names and the language that each is from, as numbers of letters of one length."""

    length = 12
    languages = tuple(ENDINGS)

    def __init__(self, count: int, seed: int) -> None:
        draw = random.Random(seed)
        self.samples = []
        for _ in range(count):
            language = draw.randrange(len(ENDINGS))
            start = "".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2))
            name = start + draw.choice(ENDINGS[self.languages[language]])
            self.samples.append((self.encoded(name), torch.tensor(language)))

    def encoded(self, name: str) -> torch.Tensor:
        """Return the letters' numbers; zeros stand in front of a short name."""
        found = [1 + LETTERS.index(letter) for letter in name.lower()][: self.length]
        return torch.tensor([0] * (self.length - len(found)) + found)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


def feelings(rows: int | None = None) -> tuple[list[dict], list[dict]]:
    """Return sentences with a label, private and public: SST-2, or made-up ones."""
    folder = folder_with("sst2_train.tsv.gz")
    if folder is None:
        draw = random.Random(0)

        def made(count: int) -> list[dict]:
            labels = [draw.randrange(2) for _ in range(count)]
            return [
                {
                    "sentence": f"{draw.choice(FEELINGS[n])} , says the {draw.choice(THINGS)}",
                    "label": n,
                }
                for n in labels
            ]

        return made(rows or 1500), made(300)

    def read(file: str) -> list[dict]:
        with gzip.open(folder / file, "rt", encoding="utf-8") as lines:
            pairs = (line.rstrip("\n").rsplit("\t", 1) for line in lines)
            return [
                {"sentence": pair[0], "label": int(pair[1])}
                for pair in pairs
                if len(pair) == 2 and pair[1] in ("0", "1")
            ]

    return read("sst2_train.tsv.gz")[:rows], read("sst2_dev.tsv.gz")


def roles(plays: int | None = None) -> tuple[list[dict], list[dict]]:
    """Return speeches with their role, of private plays and of public ones: Shakespeare's, or ours.

    `plays` is how many plays are private; the ones after them are public.
    """
    folder = folder_with("shakespeare_roles.jsonl.gz")
    if folder is None:
        draw = random.Random(1)
        words = [
            "the",
            "sea",
            "is",
            "wide",
            "and",
            "cold",
            "we",
            "sail",
            "at",
            "dawn",
            "old",
            "king",
        ]
        found = [
            {
                "play": f"play {p}",
                "role": f"role {r}",
                "speeches": [" ".join(draw.choices(words, k=12)) for _ in range(8)],
            }
            for p in range(6)
            for r in range(30)
        ]
    else:
        with gzip.open(folder / "shakespeare_roles.jsonl.gz", "rt", encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines]
    titles = list(dict.fromkeys(each["play"] for each in found))
    count = max(1, len(titles) - 2) if plays is None else plays

    def of(some: list[str]) -> list[dict]:
        return [
            {"role": f"{each['role']} in {each['play']}", "text": speech}
            for each in found
            if each["play"] in some
            for speech in each["speeches"]
        ]

    return of(titles[:count]), of(titles[count : count + 2])
