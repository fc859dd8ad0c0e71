"""Li et al. (2022), Section 6.2: AdaDPS in federated learning, on posts by their users.

    PRIVADA_DATA=folder python -m papers.adadps.federated

A stand-in for Figure 6, whose Stack Overflow data are not to be had: 7,967 posts by 2,161 users of
six Stack Exchange sites; the task is to say which site a post is from. A client is a user, with one
to 172 posts. The model is logistic regression on the presence of 5,000 words, rows of norm 1.
Test accuracy is over the posts of a fifth of the users, who take no part in training.

As in the paper: one local epoch, local batches of 100, clip norm and local learning rate tuned, a
learning rate of 1 at the server with momentum 0.9, noise at the server. DP-FedAdam has Adam there,
and its learning rate is tuned in place of the clip norm. Side information A is the root of the
frequency of words in public text, 104 articles of Wikipedia. The vocabulary was chosen from the
posts themselves, which is not private, and is the same for all.
"""

import gzip
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import privada as pv
from papers.rounds import Line, Search, Settings, chart, compare, follow, over, read, table, write

EPSILONS = (4.0, 16.0)
DELTA, BATCH, ROUNDS, EVERY = 1e-4, 150, 60, 3
LOCAL_BATCH, MOMENTUM, SITES = 100, 0.9, 6
TUNING_SEED, SEEDS = 100, (0, 1, 2)
FACTOR = 10**0.5

FEDAVG, FEDADAM, DEVICE = "DP-FedAvg", "DP-FedAdam", "AdaDPS on the device"
SERVER = "AdaDPS at the server"
ROOT, WHOLE = "DP-FedAvg, words weighed by A^(-1/2)", "DP-FedAvg, words weighed by 1/A"
CORRELATED, DEVICE_CORRELATED = "DP-FedAvg, correlated noise", "AdaDPS, correlated noise"
FREE, FREE_ADAM, FREE_DEVICE = (
    "FedAvg without privacy", "FedAdam without privacy", "AdaDPS without privacy",
)  # fmt: skip
DIVIDED = (DEVICE, DEVICE_CORRELATED, FREE_DEVICE)
WEIGHED = {ROOT: 0.5, WHOLE: 1.0}
WITH_CLIP = {"local": FACTOR, "clip": FACTOR}
WITH_RATE = {"local": FACTOR, "lr": FACTOR}
PRIVATE = {
    FEDAVG: Search({"local": 30.0, "clip": 3.0}, WITH_CLIP),
    FEDADAM: Search({"local": 30.0, "lr": 0.3}, WITH_RATE),
    DEVICE: Search({"local": 10.0, "clip": 3.0}, WITH_CLIP),
    SERVER: Search({"local": 10.0, "clip": 30.0}, WITH_CLIP),
    ROOT: Search({"local": 10.0, "clip": 3.0}, WITH_CLIP),
    WHOLE: Search({"local": 10.0, "clip": 3.0}, WITH_CLIP),
}
# which is compared at the larger epsilon alone
TAKEN_BACK = {
    CORRELATED: Search({"local": 30.0, "clip": 3.0}, WITH_CLIP),
    DEVICE_CORRELATED: Search({"local": 10.0, "clip": 3.0}, WITH_CLIP),
}
WITHOUT = {
    FREE: Search({"local": 30.0}, {"local": FACTOR}),
    FREE_ADAM: Search({"local": 30.0, "lr": 0.1}, WITH_RATE),
    FREE_DEVICE: Search({"local": 3.0}, {"local": FACTOR}),
}
Records = tuple[Tensor, Tensor]


@lru_cache(maxsize=2)
def posts(power: float = 0.0) -> tuple[list[Records], Records, Tensor]:
    """Return the records of each training user, those of the test, and A for words.

    Words are weighed by A^-power before rows are scaled to norm 1.
    """
    folder = Path(os.environ["PRIVADA_DATA"])
    with np.load(folder / "stackexchange_users.npz") as z:
        words = z["vocab"].tobytes().decode().split("\n")
        starts, places = z["indptr"].astype(np.int64), z["indices"].astype(np.int64)
        site, user = z["site"].astype(np.int64), z["user"].astype(np.int64)
    text = gzip.decompress((folder / "enwiki_sample.txt.gz").read_bytes()).decode()
    counts = Counter(re.findall(r"[a-z]+", text.lower()))
    public = torch.tensor([float(counts[word]) for word in words])
    a = ((public + 1) / (public.max() + 1)).sqrt()
    inputs = torch.zeros(len(site), len(words))
    inputs[np.repeat(np.arange(len(site)), np.diff(starts)), places] = 1.0
    inputs *= a**-power
    inputs /= inputs.norm(dim=1, keepdim=True).clamp(min=1.0)
    targets = torch.from_numpy(site)
    everyone = np.random.default_rng(0).permutation(np.unique(user))
    held_out = len(everyone) // 5

    def of(some: np.ndarray) -> Records:
        rows = torch.from_numpy(np.flatnonzero(np.isin(user, some)))
        return inputs[rows], targets[rows]

    return [of(np.array([u])) for u in everyone[held_out:]], of(everyone[:held_out]), a


def side_information(a: Tensor) -> pv.preconditioning.DiagonalScaling:
    """Return A for the model: that of words for its weights, 1 for its biases."""
    values = {"weight": a.expand(SITES, -1).clone(), "bias": torch.ones(SITES)}
    return pv.preconditioning.diagonal(values, source="word counts of Wikipedia articles")


def rule_of(method: str, settings: Settings, a: Tensor) -> pv.methods.Method:
    """Return what the server does."""
    clip = settings.get("clip", 1000.0 if method in WITHOUT else 1.0)
    if method in (FEDADAM, FREE_ADAM):
        return pv.methods.DPAdam(lr=settings["lr"], clip=clip)
    if method == SERVER:
        return pv.methods.AdaDPS(lr=1.0, preconditioner=side_information(a), clip=clip)
    return pv.methods.DPMomentum(lr=1.0, decay=MOMENTUM, clip=clip)


def trial(
    epsilon: float, method: str, settings: Settings, seed: int, rounds: int = ROUNDS
) -> list[float]:
    """Return the test accuracy of a method against rounds, in per cent."""
    clients, (inputs, targets), a = posts(WEIGHED.get(method, 0.0))
    torch.manual_seed(seed)
    model, own = (nn.Linear(inputs.shape[1], SITES) for _ in range(2))
    for each in model.parameters():
        nn.init.zeros_(each)
    local = pv.federated.LocalSGD(
        lr=settings["local"],
        batch_size=LOCAL_BATCH,
        preconditioner=side_information(a) if method in DIVIDED else None,
    )
    loss = nn.CrossEntropyLoss()

    def train(client: int, start: Tensor) -> Tensor:
        vector_to_parameters(start, own.parameters())
        local.train_(own, loss, clients[client])
        return parameters_to_vector(own.parameters()).detach()

    private = method not in WITHOUT
    noise: dict[str, Any] = {"noise_multiplier": 1e-9, "delta": DELTA}
    if private:
        noise = {"budget": pv.Budget(epsilon, DELTA)}
    if method in TAKEN_BACK:
        best = pv.mechanism.compare_bands(
            units=len(clients), batch_size=BATCH, steps=rounds, budget=noise["budget"],
            momentum=MOMENTUM,
        )[0]  # fmt: skip
        noise |= {"noise": best.noise, "sampling": best.sampling}
    trainer = pv.federated.FederatedTrainer(
        model,
        pv.federated.InProcess(train, len(clients)),
        method=rule_of(method, settings, a),
        batch_size=BATCH,
        rounds=rounds,
        seed=seed,
        unit="user",
        **noise,
    )

    @torch.no_grad()
    def accuracy() -> float:
        return 100 * float((model(inputs).argmax(1) == targets).double().mean())

    found = follow(trainer, accuracy, EVERY)
    assert not private or trainer.epsilon() <= epsilon
    return found


def title(epsilon: float) -> str:
    """Return the title of a table."""
    return f"User-level epsilon {epsilon:g}"


NO_PRIVACY = "Without privacy"


def run() -> dict[str, list[Line]]:
    """Return what each method reaches at each epsilon, and without privacy."""
    found = {NO_PRIVACY: compare(partial(trial, 0.0), WITHOUT, TUNING_SEED, SEEDS)}
    for epsilon in EPSILONS:
        searches = PRIVATE | (TAKEN_BACK if epsilon == max(EPSILONS) else {})
        found[title(epsilon)] = compare(partial(trial, epsilon), searches, TUNING_SEED, SEEDS)
    return found


def drawing(found: Mapping[str, Sequence[Line]]) -> str:
    """Return the chart."""
    ceiling = max(found[NO_PRIVACY], key=lambda line: line.median)
    return chart({title(e): [*found[title(e)], ceiling] for e in EPSILONS}, EVERY)


def page(found: Mapping[str, Sequence[Line]]) -> str:
    """Return the page with the tables."""
    parts = [WORDS]
    for epsilon in EPSILONS:
        lines = found[title(epsilon)]
        parts += [f"## {title(epsilon)}, delta {DELTA:g}\n\n{table(lines, EVERY)}\n", gains(lines)]
    parts.append(f"## {NO_PRIVACY}\n\n{table(found[NO_PRIVACY], EVERY)}\n\n{CEILING}")
    return "\n".join([*parts, RELATION])


def gains(lines: Sequence[Line]) -> str:
    """Return in words whether AdaDPS wins, and by how much."""
    by = {line.method: line for line in lines}
    device, baseline = by[DEVICE], max(by[FEDAVG].median, by[FEDADAM].median)
    weighed = max(by[ROOT], by[WHOLE], key=lambda line: line.median)
    said = (
        f"AdaDPS {'wins' if device.median > baseline else 'does not win'} over the paper's "
        f"baselines. On the device it is:\n\n"
        f"- {over(device, [by[FEDAVG], by[FEDADAM]])}, the better of the two baselines;\n"
        f"- {over(device, [weighed])}, which itself is {over(weighed, [by[FEDAVG]])};\n"
        f"- {over(device, [by[SERVER]])}.\n"
    )
    if CORRELATED not in by:
        return said
    return said + (
        "\nWith noise that is correlated between rounds, which is not of the paper:\n\n"
        f"- DP-FedAvg is {over(by[CORRELATED], [by[FEDAVG]])};\n"
        f"- AdaDPS is {over(by[DEVICE_CORRELATED], [device])}.\n"
    )


WORDS = f"""# AdaDPS in federated learning: the site of a post, by users

`python -m papers.adadps.federated` makes this page. It stands in for Figure 6 of
[Li et al. (2022)](https://arxiv.org/abs/2202.05963), whose Stack Overflow data are not to be had:
the paper has 400 users, 20 of them in a round, 500 tags, 10,000 words and epsilon 34, and reports
about 5 points. Here the task is to say from which of six Stack Exchange sites a post is. 1,729
users train; accuracy is over the posts of 432 others. {ROUNDS} rounds, {BATCH} users in each on
average.

![Test accuracy against rounds](federated.svg)

Lines are medians over three seeds, bands go from the lowest to the highest. Accuracies are in per
cent.

- **As in the paper**: logistic regression, one local epoch in batches of {LOCAL_BATCH}, momentum of
  {MOMENTUM:g} and a learning rate of 1 at the server, clip norm and local learning rate tuned.
  DP-FedAdam has Adam at the server, whose rate is tuned in place of the clip norm.
  `pv.methods.AdaDPS` has no momentum.
- **Correlated noise** (`pv.noise.Banded`, clients in turns by `CyclicPoisson`) is compared at
  epsilon {max(EPSILONS):g} alone; the number of bands is that of `pv.mechanism.compare_bands`.
- **Side information** A is the root of how often a word occurs in 104 Wikipedia articles, plus one,
  relative to the most frequent word. It is public.
- **Privacy** is for a user with all posts, of whom 1,729 is a public number: users are drawn by
  Poisson sampling, and a trusted server adds the noise. All private methods have the same epsilon.
  Noise is seeded, so that nothing here is a private release.
- **Not in epsilon**: settings were chosen by test accuracy, on a seed that is not reported, alike
  for all methods. Each setting was multiplied or divided by the root of 10 until neither helped, so
  that none is at the end of a grid; "tried" says how many pairs that took. And the 5,000 words of
  the vocabulary were chosen from the posts themselves.
"""

CEILING = """The ceiling, which the chart shows, is the best of these. FedAvg without privacy is
still rising after so few rounds.
"""

RELATION = """## What AdaDPS does beyond weighing words

In a linear model the two are close relatives. Without clipping and noise, dividing gradients by A
is the same as training on features multiplied by A^(-1/2): rare words learn faster. The rows with
weighed words are DP-FedAvg on such features, with rows of norm 1 again after that. They differ from
AdaDPS in what is clipped, and in the noise: AdaDPS adds the same noise to all weights, while noise
for the weight of a weighed feature is multiplied by that feature, so that rare words get more of
it. The tables say how much of the gain is had by weighing alone: most of it. What AdaDPS adds to
that is of the size of the differences between seeds.

On the device and at the server AdaDPS is nearly the same thing here: all but four of the 2,161
users have at most 100 posts, so that they take one local step, and an update divided by A is an
update from a gradient divided by A. What is left is the server's momentum. So this cannot confirm
the paper's finding that the device is the better place.
"""


def main() -> None:
    """Run all, and write the page, the figures and the chart; "page" redoes these from figures."""
    folder = Path(__file__).parent
    found = read(folder / "federated.json") if sys.argv[1:] == ["page"] else run()
    write(folder, "federated", page(found), found)
    (folder / "federated.svg").write_text(drawing(found))


if __name__ == "__main__":
    main()
