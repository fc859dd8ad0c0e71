"""Evaluations of a run: scores on public records, and private ones that were charged."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.utils._pytree import tree_leaves

from privada import data as private_data
from privada.core.errors import ArgumentError
from privada.train.public_scores import PublicScores, Validates
from privada.train.run import Run
from privada.train.state import TrainState
from privada.train.stopping import StoppingScores, judge_public

# How many there are in a run where nothing else is said.
_USUAL = 10


@dataclass(frozen=True)
class Evaluation:
    """What a model has reached after a step. All of it is public.

    Attributes:
        step: after which step.
        values: figures by name, on public records, or released with noise and charged.
        baselines: what a model reaches that gives every record the same output, by the same names;
            a figure without one is left out.
        charged: whether the figures are of private records, and were released with noise.

    Example: see `pv.Validation`.
    """

    step: int
    values: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    charged: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return {
            "step": self.step,
            "values": dict(self.values),
            "baselines": dict(self.baselines),
            "charged": self.charged,
        }


class Evaluator:
    """Evaluates the model of a run as often as was asked for, and says when it is to end.

    Args:
        run: the run, put together.
        loss: its loss.
        private: the data of the run, None where they are elsewhere.

    Raises:
        ArgumentError: what was asked for cannot be done.
        DataError: the public records are the private ones.

    Guarantee: public scores look at the model alone, which is made of releases. What is scored is
    the model as it would be if the run were finished now.
    """

    def __init__(self, run: Run, loss: Any, private: Any) -> None:
        settings = run.settings
        self._run, self._asked = run, settings.stopping
        charged, validation = settings.charged_stopping, settings.validation
        self._private = None if charged is None else StoppingScores(run, charged)
        self._loss, self._known = loss, [private, charged and charged.data]
        self._public: PublicScores | None = None
        self.every = 0
        if validation is None:
            return
        self.every = validation.every or -(-run.steps // _USUAL)
        self._public = self._on(validation)

    def _on(self, validation: Validates) -> PublicScores:
        """Return what evaluates the model on public records, which must not be the private ones."""
        first = self._run.parameters

        def load(data: Any) -> private_data.Records:
            collate = self._run.settings.collate
            found = private_data.load(data, first.dtype, first.device, collate=collate, public=True)
            if not self._run.elsewhere:
                _warn_of_other_shapes(found, self._run.records)
            return found

        known = [each for each in self._known if each is not None]
        return validation.on(self._run.model, self._loss, known, load)

    def after_step(self, state: TrainState) -> tuple[TrainState, list[Evaluation]]:
        """Return the state after a step with the scores that are due, and these.

        Raises:
            BudgetExceeded: the ledger cannot pay for a private score.
        """
        found = []
        if self._private is not None:
            before = len(state.stopping.get("scores", ()))
            state = self._private.judge(state)
            scores = state.stopping.get("scores", ())
            if len(scores) > before:
                found.append(Evaluation(state.step, {self._private.name: scores[-1]}, charged=True))
        if self._public is not None and state.step % self.every == 0:
            found.append(self.now(state))
            state = self._judged(found[-1], state)
        return state, found

    def at_end(self, state: TrainState, so_far: Sequence[Evaluation]) -> list[Evaluation]:
        """Return the evaluation of a finished run, if its last step had none."""
        if self._public is None or not state.step:
            return []
        if any(each.step == state.step and not each.charged for each in so_far[-2:]):
            return []
        return [self.now(state)]

    def now(self, state: TrainState, validation: Validates | None = None) -> Evaluation:
        """Return the public scores of the model as it would be if the run were finished now."""
        scores = self._public if validation is None else self._on(validation)
        if scores is None:
            raise ArgumentError(
                "Expected a trainer with public records to evaluate on, got one without. Give it "
                "validation=pv.Validation(data)."
            )
        with self._as_finished(state):
            values = scores.values()
        return Evaluation(state.step, values, dict(scores.baselines))

    def _judged(self, found: Evaluation, state: TrainState) -> TrainState:
        """Return the state with what early stopping by public scores makes of them."""
        if self._asked is None or self._asked.private or self._public is None:
            return state
        by = self._public.metrics[0]
        with self._as_finished(state):
            return judge_public(
                self._asked, state, found.values[by.name], by.greater, self._run.parameters
            )

    @contextmanager
    def _as_finished(self, state: TrainState) -> Iterator[None]:
        """Give the model meanwhile the parameters that it would have at the end."""
        final = None if state.finished else self._run.parts.rule.final_parameters(state.rule)
        if final is None:
            yield
            return
        now = self._run.parameters.read()
        self._run.parameters.write_(final)
        try:
            yield
        finally:
            self._run.parameters.write_(now)


def _warn_of_other_shapes(public: private_data.Records, private: private_data.Records) -> None:
    """Warn if public records have other shapes than the first private one: all of it is public."""
    if not isinstance(private, private_data.DatasetRecords):
        return
    theirs, ours = (_shapes(each.example.dense().inputs) for each in (public, private))
    if theirs != ours:
        warnings.warn(
            f"The public records of the validation have inputs of shape {theirs}, the first "
            f"private one has {ours}. A private record of another shape than the first counts as "
            "zero, and nothing may say so. If they have several lengths, give "
            "collate=pv.pad_to(length); pv.usable_records asks how many fit.",
            stacklevel=2,
        )


def _shapes(inputs: Any) -> str:
    return ", ".join(str(tuple(each.shape[1:])) for each in tree_leaves(inputs))
