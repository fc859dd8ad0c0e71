"""Early stopping: by private scores, each charged before it is asked for, or by public ones."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from privada import data as private_data
from privada.accounting import events
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.core.randomness import make_source
from privada.core.tensors import Parameters
from privada.core.validation import flag, integer, not_negative, positive, shown
from privada.core.values import State
from privada.mechanism import Independent
from privada.query.account import Account
from privada.query.scores import NoisyScore, Score, Scorer, accuracy
from privada.train.public_scores import Validates
from privada.train.run import Run
from privada.train.state import TrainState

_PUBLIC = "For scores on public records, which cost nothing, give a pv.Validation as data."


@dataclass(frozen=True)
class EarlyStopping:
    """Asks for a score every so many steps, and ends the run when it no longer improves.

    Args:
        data: what the model is scored on: a `pv.Validation`, whose records are public and whose
            first metric is the score; or private records, as `Trainer` takes them, that it is not
            trained on.
        noise_multiplier: the noise of each private score, in units of what one record can do to the
            sum.
        every: how many steps lie between two private scores.
        patience: after how many scores without improvement the run ends.
        least: by how much a score must be better than the best so far; by default by the standard
            deviation of its noise, and for public ones by anything.
        score: the private score: `pv.selection.accuracy()` by default, `bounded_loss(loss, bound)`
            or a `Score`.
        restore_best: whether the model then gets the parameters that had the best score.
        groups, rows_per_unit: whose records they are, as for `Trainer`; needed where the promise is
            for persons.

    Guarantee: public scores cost nothing. Each private score is a Gaussian release that is charged
    to the ledger of the run, for the purpose "validation", before a record is read. The noise of
    the steps is calibrated so that all scores of a whole run fit the budget with them. What is left
    when the run ends stays on the ledger, which must be an adaptive one. By public scores a run may
    end on any ledger; on a planned one it then costs what its whole plan does.

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

        Records that are public are scored for nothing, on any ledger:

        >>> public = pv.Validation((x[400:], y[400:]), every=10)
        >>> stopping = pv.EarlyStopping(public, patience=2, restore_best=True)

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, for the
    release; docs/filters.md for what stopping by it costs.
    """

    data: Any
    noise_multiplier: float | None = None
    every: int | None = None
    patience: int = 3
    least: float | None = None
    score: Score | None = None
    restore_best: bool = False
    groups: Any = None
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        if self.private:
            positive("noise_multiplier", self.noise_multiplier, _PUBLIC)
            integer("every", self.every)
        else:
            self._refuse_private_settings()
        integer("patience", self.patience)
        flag("restore_best", self.restore_best)
        if self.least is not None:
            not_negative("least", self.least)
        if self.score is not None and not isinstance(self.score, Score):
            raise ArgumentError(
                f"Expected score to be a Score, got score={shown(self.score)}. Use "
                "pv.selection.accuracy()."
            )

    @property
    def validation(self) -> Any:
        """The public records that the scores are of, None where they are private."""
        return None if self.private else self.data

    @property
    def private(self) -> bool:
        """Whether the scores are of private records, and are charged."""
        return isinstance(self.data, type) or not isinstance(self.data, Validates)

    def _refuse_private_settings(self) -> None:
        """Raise if something is given that says how private scores are asked for."""
        for name in ("noise_multiplier", "every", "score", "groups", "rows_per_unit"):
            value = getattr(self, name)
            if value is not None:
                raise ArgumentError(
                    f"Expected {name} to be left out beside a pv.Validation, whose records are "
                    f"public, got {name}={shown(value)}. Say in the validation how often and by "
                    "what it scores."
                )

    def charges(self, start: int, end: int) -> Tally:
        """Return what the scores after steps `start` + 1 to `end` are charged as."""
        if self.every is None or self.noise_multiplier is None:
            return Counter()
        count = end // self.every - start // self.every
        event = events.gaussian(float(self.noise_multiplier))
        return Counter({event: count}) if count > 0 else Counter()

    def describe(self) -> str:
        """Return the settings in words, which a resumed run must have too."""
        if self.private:
            score = (self.score or accuracy()).name
            by = f"{score} with noise multiplier {self.noise_multiplier:g} every {self.every} steps"
        else:
            by = self.data.describe()
        usual = "the noise" if self.private else "any"
        return (
            f"{by}, patience {self.patience}, least improvement "
            f"{usual if self.least is None else format(self.least, 'g')}"
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
        self.name = self._score.name
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
        assert asked.noise_multiplier is not None
        assert asked.every is not None
        self._noise_multiplier, self._every = float(asked.noise_multiplier), asked.every

    def judge(self, state: TrainState) -> TrainState:
        """Return the state after a step, with a score if one is due.

        Raises:
            BudgetExceeded: the ledger cannot pay for the score.
        """
        if state.step % self._every:
            return state
        found = self._scorer.query(self._run.model, self._noise_multiplier)
        return _judged(self._asked, state, found, self._score.greater, self._run.parameters)


def judge_public(
    asked: EarlyStopping, state: TrainState, value: float, greater: bool, parameters: Parameters
) -> TrainState:
    """Return the state after a public score, at which the model has the parameters to restore."""
    return _judged(asked, state, NoisyScore(value, 0.0), greater, parameters)


def _judged(
    asked: EarlyStopping,
    state: TrainState,
    found: NoisyScore,
    greater: bool,
    parameters: Parameters,
) -> TrainState:
    """Return the state with what a score says of the run's end."""
    kept = _compared(asked, state.stopping, found, 1 if greater else -1, parameters)
    return replace(state, stopping={**kept, "ended": kept["worse"] >= asked.patience})


def _compared(
    asked: EarlyStopping, before: State, found: NoisyScore, sign: int, parameters: Parameters
) -> dict[str, Any]:
    scores = [*before.get("scores", ()), found.value]
    first = "best" not in before
    if first and math.isnan(found.value):  # nothing is the best yet
        return {"worse": before.get("worse", 0) + 1, "scores": scores}
    gain = math.inf if first else sign * (found.value - before["best"])
    if not gain > (found.std if asked.least is None else asked.least):
        return {**before, "worse": before["worse"] + 1, "scores": scores}
    kept = {"best": found.value, "worse": 0, "scores": scores}
    if asked.restore_best:
        kept["parameters"] = parameters.read()
    return kept
