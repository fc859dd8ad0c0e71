"""Membership inference: who was in the data, told from the model, with few shadow models."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privada.core.errors import ArgumentError, DataError
from privada.core.randomness import RandomSource, make_source, uniforms
from privada.core.validation import integer, shown
from privada.train.trainer import Trainer

# The deltas at which the promise is asked for its epsilon: it holds at all of them at once.
_DELTAS = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.4)
_MOST_POINTS = 200
# How many records go through a model at a time.
_CHUNK = 1024

Train = Callable[[tuple[Tensor, Tensor], int], "nn.Module | Trainer"]
RecordScore = Callable[[nn.Module, Tensor, Tensor], Tensor]
Numbers = NDArray[np.float64]


def confidence(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return how sure a classifier is of each record's class: log p - log(1 - p) of that class.

    Args:
        model: returns one logit for each class.
        inputs, targets: records, and the numbers of their classes.

    Returns:
        One number for each record. It is about normal over models, which LiRA makes use of.

    Example:
        >>> import torch
        >>> from privada.audit import confidence
        >>> model = torch.nn.Linear(1, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.zero_(), model.bias.zero_()
        >>> confidence(model, torch.zeros(1, 1), torch.tensor([1])).tolist()
        [0.0]

    Reference: Carlini et al. (2022), Membership Inference Attacks From First Principles,
    arXiv 2112.03570, equation 5.
    """
    logits: Tensor = model(inputs)
    own = logits.gather(1, targets[:, None])
    others = logits.scatter(1, targets[:, None], -math.inf)
    return (own - others.logsumexp(1, keepdim=True))[:, 0]


@dataclass(frozen=True)
class Attack:
    """How well an attacker tells the members of one kind of model from others.

    Attributes:
        name: what was attacked.
        false_positives: shares of others that are taken for members, from 0 to 1.
        true_positives: the share of members that is found at each of them.
        auc: the area under this curve: the chance to tell a member from another; 0.5 is guessing.
        bounds: pairs of epsilon and delta that the training promises, all at once; none for
            training without privacy.

    Example: see `membership`.
    """

    name: str
    false_positives: tuple[float, ...]
    true_positives: tuple[float, ...]
    auc: float
    bounds: tuple[tuple[float, float], ...] = ()

    def found(self, false_positives: float) -> float:
        """Return the share of members that is found where so many others are taken for members."""
        return float(np.interp(false_positives, self.false_positives, self.true_positives))

    def limit(self, false_positives: float) -> float:
        """Return the most that any attack finds, by the promise: 1 without one.

        With (epsilon, delta), that is the least of e^epsilon f + delta and
        1 - e^-epsilon (1 - delta - f), where f are the false positives.

        Example:
            >>> from privada.audit import Attack
            >>> one = Attack("private", (0.0, 1.0), (0.0, 1.0), 0.5, bounds=((0.5, 1e-5),))
            >>> round(one.limit(0.1), 3), round(one.limit(0.9), 3)
            (0.165, 0.939)

        Reference: Kairouz, Oh and Viswanath (2015), The Composition Theorem for Differential
        Privacy, arXiv 1311.0776, Theorem 2.1.
        """
        least = 1.0
        for epsilon, delta in self.bounds:
            least = min(
                least,
                math.exp(min(epsilon, 700.0)) * false_positives + delta,
                1 - math.exp(-epsilon) * (1 - delta - false_positives),
            )
        return least

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the limit at each point of the curve."""
        shares = self.false_positives
        return {
            "name": self.name,
            "false_positives": list(shares),
            "true_positives": list(self.true_positives),
            "limits": [self.limit(share) for share in shares] if self.bounds else None,
            "auc": self.auc,
            "bounds": [list(pair) for pair in self.bounds],
        }


@dataclass(frozen=True)
class MembershipAudit:
    """What membership inference finds in several kinds of models.

    Attributes:
        attacks: one for each kind of training.
        records: how many records there were.
        runs: how many models of each kind were trained.

    Example: see `membership`.
    """

    attacks: tuple[Attack, ...]
    records: int
    runs: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for a report or a file."""
        return {
            "attacks": [attack.to_dict() for attack in self.attacks],
            "records": self.records,
            "runs": self.runs,
        }

    def __str__(self) -> str:
        lines = [
            f"Membership inference on {self.records:,} records, {self.runs} models of each kind. "
            "Members found where 1 in 100 others is taken for one:"
        ]
        for attack in self.attacks:
            most = f", at most {attack.limit(0.01):.3f} by its promise" if attack.bounds else ""
            lines.append(
                f"  {attack.name}: {attack.found(0.01):.3f}{most}; area under the curve "
                f"{attack.auc:.3f}"
            )
        return "\n".join(lines)


def membership(
    trainings: Mapping[str, Train],
    records: tuple[Any, Any],
    *,
    runs: int = 16,
    score: RecordScore = confidence,
    seed: int | None = None,
) -> MembershipAudit:
    """Attack models of one's own training: how well does a model tell who was in its data?

    Each of `runs` models of each kind is trained on some of the records, each of which is in by
    a fair coin. The attack on one model takes the others for shadow models: it compares a record's
    score with its scores by models that had it and by models that had not, as normal variables.

    Args:
        trainings: by name, functions of (records, population) that train a model on some records
            and return it, or the `Trainer` that trained it. `population` is the expected number of
            these records, for `Trainer(population=...)`: the number itself would tell whether a
            record is among them.
        records: inputs and targets that may be looked at, see below.
        runs: how many models of each kind; at least 8.
        score: one number for each record, by a model: greater for those that it knows.
        seed: makes the coins, which say who is in which model, repeatable.

    Returns:
        The curve of each kind of training, beside what its promise allows.

    Guarantee: none. The figures are computed from the records without noise, and nothing is
    charged: use public records of the same form, such as last year's, or keep the result with the
    data. For each kind, the promise bounds every attack; an attack that finds little proves
    nothing.

    Edge cases: records on which all shadow models agree whether they were in are left out of that
    model's attack. Scores that are not finite count as 0. Models are put in evaluation mode.

    Example:
        >>> import privada as pv, torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> records = torch.randn(40, 20, generator=generator), torch.arange(40) % 2
        >>> def plain(data, population):
        ...     model = torch.nn.Linear(20, 2)
        ...     optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        ...     for _ in range(60):
        ...         optimizer.zero_grad()
        ...         torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        ...         optimizer.step()
        ...     return model
        >>> def private(data, population):
        ...     return pv.Trainer(
        ...         torch.nn.Linear(20, 2), torch.nn.CrossEntropyLoss(), data,
        ...         method=pv.methods.DPSGD(lr=1.0), batch_size=10, steps=20,
        ...         budget=pv.Budget(1.0, 1e-3), population=population,
        ...     ).fit()
        >>> found = pv.audit.membership({"plain": plain, "private": private}, records, seed=1)
        >>> found.attacks[0].auc > 0.7, found.attacks[1].limit(0.01) < 0.2
        (True, True)

    Reference: Carlini et al. (2022), Membership Inference Attacks From First Principles,
    arXiv 2112.03570, Algorithm 1, with one variance for all records, as its section VI-C advises
    for few shadow models.
    """
    integer("runs", runs, least=8)
    if not trainings:
        raise ArgumentError("Expected at least one kind of training in trainings, got none.")
    inputs, targets = _as_records(records)
    rng = make_source(seed, "membership")
    attacks = []
    for name, train in trainings.items():
        members, scores, bounds = _trained(name, train, inputs, targets, runs, score, rng)
        guesses, truth = _likelihood_ratios(members, scores)
        attacks.append(_attack(name, guesses, truth, bounds))
    return MembershipAudit(tuple(attacks), len(inputs), runs)


def _as_records(records: Any) -> tuple[Tensor, Tensor]:
    try:
        inputs, targets = (torch.as_tensor(each) for each in records)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"Expected records to be a pair of inputs and targets, got {shown(records)}."
        ) from error
    if inputs.is_floating_point():
        inputs = inputs.to(torch.get_default_dtype())
    if len(inputs) != len(targets):
        raise DataError(
            f"Expected as many targets as inputs in records, got {len(targets)} and {len(inputs)}."
        )
    if len(inputs) < 4:
        raise DataError(f"Expected at least 4 records, got {len(inputs)}.")
    return inputs, targets


def _trained(
    name: str,
    train: Train,
    inputs: Tensor,
    targets: Tensor,
    runs: int,
    score: RecordScore,
    rng: RandomSource,
) -> tuple[NDArray[np.bool_], Numbers, tuple[tuple[float, float], ...]]:
    """Return who was in each model, each record's score by it, and what all of them promise."""
    size = len(inputs)
    members = (uniforms(rng, runs * size) < 0.5).reshape(runs, size)
    scores = np.empty((runs, size))
    promises: list[tuple[tuple[float, float], ...]] = []
    for run in range(runs):
        own = torch.from_numpy(np.flatnonzero(members[run]))
        made = train((inputs[own], targets[own]), size // 2)
        model = made.model if isinstance(made, Trainer) else made
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"Expected the training {name!r} to return a torch module or a Trainer, got "
                f"{shown(made)}."
            )
        promises.append(_promise(made) if isinstance(made, Trainer) else ())
        scores[run] = _scored(name, model, inputs, targets, score)
    # what holds for all of these models is the weakest of their promises
    bounds = tuple(
        (max(promise[place][0] for promise in promises), delta)
        for place, delta in enumerate(_DELTAS)
        if all(promises)
    )
    return members, scores, bounds


def _promise(trainer: Trainer) -> tuple[tuple[float, float], ...]:
    """Return what a run promises at several deltas; nothing if whoever knows the seed knows all."""
    if trainer.statement().seeded:
        return ()
    return tuple((trainer.epsilon(delta), delta) for delta in _DELTAS)


def _scored(
    name: str, model: nn.Module, inputs: Tensor, targets: Tensor, score: RecordScore
) -> Numbers:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [
                score(model, inputs[start : start + _CHUNK], targets[start : start + _CHUNK])
                for start in range(0, len(inputs), _CHUNK)
            ]
    finally:
        model.train(training)
    found = torch.cat(parts).double().cpu().numpy()
    if found.shape != (len(inputs),):
        raise ArgumentError(
            f"Expected score to return one number for each of {len(inputs)} records, got an array "
            f"of shape {found.shape} for {name!r}."
        )
    return np.where(np.isfinite(found), found, 0.0)


def _likelihood_ratios(
    members: NDArray[np.bool_], scores: Numbers
) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return a guess for each record by each model, greater for likely members, and the truth.

    The model that is attacked is not among its own shadow models.
    """
    guesses, truth = [], []
    for run in range(len(members)):
        shadows, of_shadows = np.delete(members, run, 0), np.delete(scores, run, 0)
        counts = shadows.sum(0), (~shadows).sum(0)
        known = (counts[0] > 0) & (counts[1] > 0)
        if not known.any():
            continue
        logs = []
        for there, count in zip((shadows, ~shadows), counts, strict=True):
            mean = np.where(there, of_shadows, 0).sum(0) / np.maximum(count, 1)
            squares = np.where(there, (of_shadows - mean) ** 2, 0)[:, known].sum()
            degrees = max(1, int(np.maximum(count - 1, 0)[known].sum()))
            variance = max(squares / degrees, 1e-12)
            logs.append(-((scores[run] - mean) ** 2) / (2 * variance) - 0.5 * math.log(variance))
        guesses.append((logs[0] - logs[1])[known])
        truth.append(members[run][known])
    return np.concatenate(guesses), np.concatenate(truth)


def _attack(
    name: str,
    guesses: Numbers,
    truth: NDArray[np.bool_],
    bounds: tuple[tuple[float, float], ...],
) -> Attack:
    """Return the curve over all thresholds, and the area under it."""
    from sklearn.metrics import auc, roc_curve

    wrong, found, _ = roc_curve(truth, guesses, drop_intermediate=False)
    # some points for a chart, closer where few are wrong
    near = np.geomspace(1e-4, 1, _MOST_POINTS // 2)
    shares = np.unique(np.concatenate([near, np.linspace(0, 1, _MOST_POINTS // 2)]))
    # the best threshold with at most so many wrong
    places = np.searchsorted(wrong, shares, side="right") - 1
    return Attack(
        name,
        tuple(shares.tolist()),
        tuple(found[places].tolist()),
        float(auc(wrong, found)),
        bounds,
    )
