"""Settings that need no tuning: from the number of records and the budget, both public."""

import math
from dataclasses import dataclass, fields
from typing import Any

from privada.accounting import Budget
from privada.accounting.calibration import noise_multiplier
from privada.core.errors import ArgumentError
from privada.core.public_examples import Public
from privada.core.validation import integer, positive
from privada.methods import PAGAN, PASAN, AdaDPS, DPAdamWOSM, Method, PrivateNewton, get
from privada.preconditioning import (
    private_feature_moments,
    public_gradients,
    public_moments,
)
from privada.updates import falling

EPOCHS = 30.0
# How far noise alone moves a weight over a run at a constant rate; where a rate that falls begins,
# times the root of the number of steps; and where gradients are clipped.
_DRIFT, _FIRST, CLIP = 0.3, 0.6, 0.5
# The latter for a target that is a number: a squared error does not level off as a class does that
# is predicted well, and a rate that is too high adds noise to each prediction.
_FIRST_OF_NUMBERS = 0.1
# The first two where a charged look has found the scales of a linear model's features, from so many
# records on, and the share of the budget that the look takes.
_FIRST_SCALED, CLIP_SCALED, _LOOKED_AT = 1.5, 0.12, 1000
LOOK_SHARE = 0.03
# How many bins a number of a table has, from so many records for each column of numbers on.
_BINS = ((500, 16), (20, 8))
# How many steps Newton's method takes, and its clip norm for classes and for numbers: how much of
# what the noise of a run lets it be, and the most that it is.
_NEWTON_STEPS, _NEWTON_CLIP = 40, {False: (0.05, 8.0), True: (0.014, 5.7)}
# How many public examples a step looks at.
_PUBLIC_BATCH = 256


def batch_size(records: int) -> int:
    """Return a default batch size: about 5 sqrt(records), as a power of two.

    With some thirty epochs, the noise of a run is then close to the least that any batch size has.

    Edge cases: at most a third of the records, so that sampling still hides who is in a batch.

    Example:
        >>> from privada import defaults
        >>> defaults.batch_size(60_000), defaults.batch_size(100)
        (1024, 33)
    """
    records = integer("records", records)
    return int(max(1, min(records // 3, 2 ** round(math.log2(5 * math.sqrt(records))))))


def bins(records: int, columns: int) -> int:
    """Return how many bins each of some columns of numbers has, for a linear model.

    They are 16, 8 or none, by how many records there are for each column: noise adds to every
    feature, and few records cannot make up for many.

    Example:
        >>> from privada import defaults
        >>> defaults.bins(39_000, 6), defaults.bins(4000, 15), defaults.bins(500, 30)
        (16, 8, 0)
    """
    each = integer("records", records, least=0) / max(1, integer("columns", columns, least=0))
    return next((found for least, found in _BINS if each >= least), 0)


def learning_rate(steps: int) -> float:
    """Return the learning rate of DPAdamWOSM for a number of steps, if it is to be constant.

    Each step moves a weight by the learning rate times noise of unit size, and by the gradient's
    part of it. Noise adds up to lr sqrt(steps) over the run; this is held at 0.3, whatever the
    number of steps, the batch size, the clip norm and the noise.

    Example:
        >>> from privada import defaults
        >>> defaults.learning_rate(900)
        0.01
    """
    return _DRIFT / math.sqrt(integer("steps", steps))


def look(budget: Budget) -> float:
    """Return the noise multiplier of a look at all records that takes 3% of a budget.

    Example:
        >>> import privada as pv
        >>> from privada import defaults
        >>> round(defaults.look(pv.Budget(1.0, 1e-5)), 1)
        21.5
    """
    alone = noise_multiplier(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1)
    return float(f"{alone / math.sqrt(LOOK_SHARE):.4g}")


def named(name: str, public: Any = None, **settings: Any) -> Method:
    """Return a method by its name, with some settings; those left out or None are its own.

    Args:
        name: as in `pv.methods.names()`.
        public: public examples, as (inputs, targets). Methods that need them take a few hundred at
            a time; AdaDPS scales by their gradients, PASAN and PAGAN by their moments. Others do
            without.
        settings: those of the method.

    Edge cases: a setting that it does not have, and a method that lacks its public examples, are
    refused in words.

    Example:
        >>> from privada import defaults
        >>> defaults.named("dp-sgd", lr=0.5, clip=None).describe()
        'dp-sgd (clip=1.0, lr=0.5)'
    """
    kind: Any = get(name)
    given = {key: value for key, value in settings.items() if value is not None}
    given |= {} if public is None else _side_information(kind, Public(public, _PUBLIC_BATCH))
    known = sorted(each.name for each in fields(kind))
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ArgumentError(
            f"Expected settings of {name} ({', '.join(known)}), got {', '.join(unknown)}."
        )
    try:
        method: Method = kind(**given)
    except TypeError as error:
        raise ArgumentError(
            f"Expected all that {name} needs, but {error}. Give a learning rate as lr, and public "
            "examples where it uses them; for other side information, make it in Python."
        ) from error
    return method


def _side_information(kind: Any, public: Public) -> dict[str, Any]:
    """Return what a method makes of public examples, as its settings."""
    if kind in (PASAN, PAGAN):
        return {"preconditioner": public_moments(public)}
    if kind is AdaDPS:
        return {"preconditioner": public_gradients(public)}
    return {"public": public} if "public" in {each.name for each in fields(kind)} else {}


@dataclass(frozen=True)
class Defaults:
    """A method, and how long and in which batches to train with it."""

    method: Method
    batch_size: float
    epochs: float
    sampling: str = "poisson"

    def steps_on(self, records: int) -> int:
        """Return the number of steps on so many records."""
        return math.ceil(self.epochs * records / self.batch_size)


def settings(
    records: int,
    *,
    batch: float | None = None,
    epochs: float | None = None,
    clip: float | None = None,
    lr: float | None = None,
    numbers: bool = False,
    linear: bool = False,
    budget: Budget | None = None,
) -> Defaults:
    """Return what to train with where nothing, or not all, is said.

    The learning rate begins at 0.6 / sqrt(steps) and falls evenly towards zero: noise moves a
    weight by about 0.35 over the run, and little in the last steps. With `numbers`, for a target
    that is a number and the squared error, it begins at 0.1 / sqrt(steps).

    With `linear`, for a linear model of classes, a `budget` and at least 1,000 records, 3% of the
    budget go to a look at the features (`pv.preconditioning.private_feature_moments`). Gradients
    are then clipped and noised in scales of the features, at a norm of 0.12, and the rate begins at
    1.5 / sqrt(steps |x|), where |x| is the typical norm of a row. A clip norm or a learning rate
    that is said is that of training without such a look.

    Guarantee: it depends on the number of records and on what is said alone, all of it public. The
    look is charged when the run is.

    Example:
        >>> from privada import defaults
        >>> defaults.settings(60_000).method.describe()
        'dp-adam-wosm (clip=0.5, lr=0.01431 falling to 0 over 1,758 steps, beta1=0.9, eps=1e-08)'

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 6, for a method whose step size follows from
    the noise.
    """
    size = float(batch_size(records)) if batch is None else positive("batch_size", batch)
    length = EPOCHS if epochs is None else positive("epochs", epochs)
    steps = math.ceil(length * records / size)
    said = clip is not None or lr is not None
    if linear and budget is not None and not (numbers or said) and records >= _LOOKED_AT:
        begun = falling(float(f"{_FIRST_SCALED / math.sqrt(steps):.4g}"), steps)
        scales = private_feature_moments(look(budget))
        method = DPAdamWOSM(lr=begun, beta1=0.0, clip=CLIP_SCALED, preconditioner=scales)
        return Defaults(method, size, length)
    first = float(f"{(_FIRST_OF_NUMBERS if numbers else _FIRST) / math.sqrt(steps):.4g}")
    rate = falling(first, steps) if lr is None else positive("lr", lr)
    bound = CLIP if clip is None else positive("clip", clip)
    return Defaults(DPAdamWOSM(lr=rate, clip=bound), size, length)


def newton(
    records: int,
    features: int,
    outputs: int,
    budget: Budget,
    *,
    batch: float | None = None,
    epochs: float | None = None,
    clip: float | None = None,
    lr: float | None = None,
) -> Defaults:
    """Return what to train a linear model with by `pv.methods.PrivateNewton`.

    The clip norm is as large as lets the noise of the run move a score by no more than a fixed
    amount: it grows with the number of records and with epsilon, and falls with the root of the
    number of features.

    Guarantee: it depends on the numbers of records, features and outputs, on the budget and on what
    is said alone, all of it public.

    Example:
        >>> import privada as pv
        >>> from privada import defaults
        >>> found = defaults.newton(39_000, 358, outputs=2, budget=pv.Budget(1.0, 1e-6))
        >>> found.method.describe(), found.steps_on(39_000), found.sampling
        ('newton (clip=8.0, lr=1.0, share=0.15, floor=0.1)', 40, 'everyone')

    Reference: Ganesh, Haghifam, Steinke and Thakurta (2023), Faster Differentially Private Convex
    Optimization via Second-Order Methods, arXiv 2305.13209, for the method.
    """
    if clip is None:
        sigma = noise_multiplier(
            epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1
        )
        weight, most = _NEWTON_CLIP[outputs == 1]
        width = 2 * (features + 1) * max(1, outputs - 1)
        clip = float(f"{min(most, weight * records / (sigma * math.sqrt(width))):.4g}")
    method = PrivateNewton(clip=clip) if lr is None else PrivateNewton(clip=clip, lr=lr)
    size = float(integer("records", records)) if batch is None else positive("batch_size", batch)
    length = float(_NEWTON_STEPS) if epochs is None else positive("epochs", epochs)
    return Defaults(method, size, length, "everyone")
