"""Early stopping by private scores, each charged before it is asked for."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from privada import data as private_data
from privada.accounting import events
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.core.randomness import make_source
from privada.core.validation import flag, integer, not_negative, positive, shown
from privada.mechanism import Independent
from privada.query.account import Account
from privada.query.scores import NoisyScore, Score, Scorer, accuracy
from privada.train.run import Run
from privada.train.state import TrainState


@dataclass(frozen=True)
class EarlyStopping:
    """Asks for a private score every so many steps, and ends the run when it no longer improves.

    Args:
        data: private records to score the model on, as `Trainer` takes them, that it is not
            trained on.
        noise_multiplier: the noise of each score, in units of what one record can do to the sum.
        every: how many steps lie between two scores.
        patience: after how many scores without improvement the run ends.
        least: by how much a score must be better than the best so far; by default by the standard
            deviation of its noise.
        score: `pv.selection.accuracy()` by default, `bounded_loss(loss, bound)` or a `Score`.
        restore_best: whether the model then gets the parameters that had the best score.
        groups, rows_per_unit: whose records they are, as for `Trainer`; needed where the promise is
            for persons.

    Guarantee: each score is a Gaussian release that is charged to the ledger of the run, for the
    purpose "validation", before a record is read. The noise of the steps is calibrated so that all
    scores of a whole run fit the budget with them. What is left when the run ends stays on the
    ledger, which must be an adaptive one.

    Edge cases: without enough records the noise hides every improvement, and the run ends after
    `patience` scores; the noise of a score is its multiplier over the number of records. Steps that
    are taken again from an old checkpoint have their scores asked for and charged again.

    Example:
        >>> import privada as pv, torch
        >>> x = torch.rand(600, 2)
        >>> y = (x.sum(dim=1) > 1).long()
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), (x[:400], y[:400]),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=40, steps=100,
        ...     budget=pv.Budget(4.0, 1e-4), ledger=pv.Ledger(None, pv.Budget(5.0, 1e-4)),
        ...     stopping=pv.EarlyStopping((x[400:], y[400:]), noise_multiplier=10.0, every=10),
        ... ).fit()
        >>> trainer.steps_done <= 100 and trainer.epsilon() <= 5.0
        True

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, for the
    release; docs/filters.md for what stopping by it costs.
    """

    data: Any
    noise_multiplier: float
    every: int
    patience: int = 3
    least: float | None = None
    score: Score | None = None
    restore_best: bool = False
    groups: Any = None
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        integer("every", self.every)
        integer("patience", self.patience)
        flag("restore_best", self.restore_best)
        if self.least is not None:
            not_negative("least", self.least)
        if self.score is not None and not isinstance(self.score, Score):
            raise ArgumentError(
                f"Expected score to be a Score, got score={shown(self.score)}. Use "
                "pv.selection.accuracy()."
            )

    def charges(self, start: int, end: int) -> Tally:
        """Return what the scores after steps `start` + 1 to `end` are charged as."""
        count = end // self.every - start // self.every
        event = events.gaussian(float(self.noise_multiplier))
        return Counter({event: count}) if count > 0 else Counter()

    def describe(self) -> str:
        """Return the settings in words, which a resumed run must have too."""
        score = (self.score or accuracy()).name
        return (
            f"{score} with noise multiplier {self.noise_multiplier:g} every {self.every} steps, "
            f"patience {self.patience}, least improvement "
            f"{'the noise' if self.least is None else format(self.least, 'g')}"
            f"{', the best restored' if self.restore_best else ''}"
        )


class StoppingScores:
    """The private scores of a run, and whether they still improve.

    Args:
        run: the run, put together.
        asked: what was asked for.

    Raises:
        ArgumentError: the records cannot be scored, or are not of the run's units.
    """

    def __init__(self, run: Run, asked: EarlyStopping) -> None:
        self._run, self._asked = run, asked
        parameters, settings = run.parameters, run.settings
        records = private_data.load(
            asked.data, parameters.dtype, parameters.device, collate=settings.collate
        )
        units = private_data.units_of(records.size, asked.groups, asked.rows_per_unit)
        if units.grouped != run.units.grouped:
            raise ArgumentError(
                f"Expected groups for the records to score as for those to train on, got groups="
                f"{shown(asked.groups)}. Both must protect the same: a row, or a person."
            )
        self._score = asked.score or accuracy()
        self._score.check(run.model, private_data.dummy_batch(records).dense())
        account = Account(
            run.ledger,
            run=run.charges.run,
            purpose="validation",
            limit=settings.budget,
            unit=run.charged_unit,
            adaptive=run.mechanism.follows,
            on_any_rank=settings.executor is not None,
        )
        self._scorer = Scorer(
            records,
            self._score,
            population=units.size,
            account=account,
            noise=Independent().start(make_source(settings.seed, "scores")),
            model_rng=make_source(settings.seed, "scored model"),
            units=units,
            sampling_rng=make_source(settings.seed, "scored rows"),
        )
        self.count = units.size

    def judge(self, state: TrainState) -> TrainState:
        """Return the state after a step, with a score if one is due.

        Raises:
            BudgetExceeded: the ledger cannot pay for the score.
        """
        if state.step % self._asked.every:
            return state
        found = self._scorer.query(self._run.model, float(self._asked.noise_multiplier))
        kept = self._compared(found, state)
        return replace(state, stopping={**kept, "ended": kept["worse"] >= self._asked.patience})

    def _compared(self, found: NoisyScore, state: TrainState) -> dict[str, Any]:
        before, least = state.stopping, self._asked.least
        sign = 1 if self._score.greater else -1
        gain = sign * (found.value - before["best"]) if before else float("inf")
        scores = [*before.get("scores", ()), found.value]
        if not gain > (found.std if least is None else least):
            return {**before, "worse": before["worse"] + 1, "scores": scores}
        kept = {"best": found.value, "worse": 0, "scores": scores}
        if self._asked.restore_best:
            kept["parameters"] = self._run.parameters.read()
        return kept
