"""How many private records a run can use: a query of its own, with noise and charged."""

from typing import Any

import torch
from torch import Tensor

from privada.accounting.ledger import ADAPTIVE
from privada.clipping.losses import example_losses
from privada.core.errors import ArgumentError
from privada.core.randomness import make_source
from privada.core.validation import positive, shown
from privada.mechanism import Independent
from privada.query.account import Account
from privada.query.scores import NoisyScore, Score, Scorer
from privada.train.loop import PrivateLoop
from privada.train.trainer import Trainer


def usable_records(run: Trainer | PrivateLoop, noise_multiplier: float) -> NoisyScore:
    """Return the share of records that a run can use, with noise, and charge for it.

    A record that cannot be read, that has another shape or type than the first, or on which the
    model fails, counts as zero in training, and nothing may say so: that it does is private. This
    asks how many do not, in one release. Ask it before the first step where records may be faulty,
    or have several lengths.

    Args:
        run: a trainer or a loop, of which no step need be taken.
        noise_multiplier: the noise, as a multiple of what one record, or one person, can do to the
            count; the share then is off by about this over the number of records.

    Returns:
        `value`, the share, and `std`, the standard deviation of the noise in it.

    Guarantee: one Gaussian release of a count that a unit moves by at most 1. It is charged to the
    ledger, under a run of its own, before a record is read.

    Edge cases: the answer may lie a little below 0 or above 1. A person counts by the share of
    their rows that can be used. What is done with the answer depends on it, so that the ledger must
    be an adaptive one, with room beside the budget of the run. A gradient that is not finite while
    its loss is, is not noticed.

    Raises:
        ArgumentError: the records are not in this process, or the ledger is a planned one.
        BudgetExceeded: before any record is read.

    Example:
        >>> import privada as pv, torch
        >>> rows = [{"input": torch.ones(3 if i % 2 else 4), "label": 1} for i in range(400)]
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), rows,
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=40, steps=10,
        ...     budget=pv.Budget(4.0, 1e-5), ledger=pv.Ledger(None, pv.Budget(5.0, 1e-5)),
        ... )
        >>> found = pv.usable_records(trainer, noise_multiplier=10.0)
        >>> abs(found.value - 0.5) < 6 * found.std, found.std
        (True, 0.025)

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, Section
    3.3 and Appendix A, for the noisy count; docs/decisions/0027 for why it is asked for.
    """
    if not isinstance(run, (Trainer, PrivateLoop)):
        raise ArgumentError(
            f"Expected run to be a pv.Trainer or a pv.PrivateLoop, got run={shown(run)}. Of a "
            "trainer of another kind, give its .trainer."
        )
    sigma, made, loss = positive("noise_multiplier", noise_multiplier), run._run, run._loss
    settings = made.settings
    if made.elsewhere or settings.executor is not None:
        raise ArgumentError(
            "Expected a run whose records are in this process, got one with clients or an "
            "executor. Make a pv.Trainer of one process to ask, of which no step need be taken."
        )
    if made.ledger.kind != ADAPTIVE:
        raise ArgumentError(
            "Expected an adaptive ledger, since what is done with the answer depends on it, got "
            f"the {made.ledger.kind} one of this run. Give ledger=pv.Ledger(path, budget), with a "
            "budget a little above that of the run."
        )

    def finite(outputs: Any, targets: Any) -> Tensor:
        return torch.isfinite(example_losses(loss, outputs, targets)).double()

    scorer = Scorer(
        made.records,
        Score("share of usable records", finite),
        population=made.population,
        account=Account(
            made.ledger,
            run=f"{made.charges.run}, usable records",
            purpose="statistics",
            unit=made.charged_unit,
        ),
        noise=Independent().start(make_source(settings.seed, "usable records")),
        model_rng=make_source(settings.seed, "usable records, model"),
        units=made.units,
        sampling_rng=make_source(settings.seed, "usable records, rows"),
    )
    return scorer.query(made.model, sigma)
