"""What the report shows: runs, each with its statement, history, metrics and settings."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.accounting import Statement
from privada.core.errors import ArgumentError
from privada.report.checks import (
    check_candidates,
    check_evaluations,
    check_figures,
    check_history,
    check_mapping,
    check_membership,
    is_number,
)
from privada.report.json_files import read_json
from privada.report.statements import statement_of

if TYPE_CHECKING:
    from privada.selection.search import Selection
    from privada.train.evaluations import Evaluation
    from privada.train.trainer import Trainer


# Evaluations while training, in a folder of results; and what the baseline of a figure is called.
EVALUATIONS = "evaluations.json"
_BASELINE = ", baseline"


@dataclass(frozen=True)
class Entry:
    """One run on the report. All of it is public.

    Args:
        name: what the page calls the run.
        statement: its statement, as `Statement.to_dict` gives it.
        history: one mapping for each step: step, lr, noise_multiplier and epsilon.
        metrics: figures by name, such as "accuracy on public records".
        configuration: settings by name, as plain values.
        prices: for a search, its epsilon by each way of choosing.
        chosen: the way that was taken.
        tried: for a search whose candidates are all released, their settings and scores.
        spent: what the ledger says was spent, at its budget's delta. Of use where the statement is
            at another one.
        membership: what membership inference found, as `MembershipAudit.to_dict` gives it.
        baselines: what a model without inputs reaches, by the names of metrics.
        evaluations: such figures while training, one mapping for each: "step", and figures by name.

    Guarantee: the page shows what is given here and nothing else. Whoever gives metrics and a
    configuration vouches that they are public, or were released and charged.

    Edge cases: a history, metrics or settings that are not there leave out their section.

    Example:
        >>> import privada as pv, torch
        >>> from privada.report import Entry
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... ).fit()
        >>> entry = Entry.of_trainer(trainer, metrics={"loss on public records": 0.25})
        >>> entry.name, len(entry.history)
        ('dp-sgd', 3)
    """

    name: str
    statement: Mapping[str, Any]
    history: Sequence[Mapping[str, float]] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, float] | None = None
    chosen: str | None = None
    tried: Sequence[Mapping[str, Any]] | None = None
    spent: float | None = field(default=None, compare=False)
    membership: Mapping[str, Any] | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, float]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ArgumentError(f"Expected name to be a string with words, got name={self.name!r}.")
        check_history(self.history)
        check_figures("metrics", self.metrics)
        check_figures("baselines", self.baselines)
        check_evaluations(self.evaluations)
        check_figures("prices", {} if self.prices is None else self.prices)
        check_mapping("configuration", self.configuration)
        check_candidates(self.tried)
        check_membership(self.membership)
        check_figures("spent", {} if self.spent is None else {"spent": self.spent})
        _ = self.stated  # which checks it

    @cached_property
    def stated(self) -> Statement:
        """The statement itself."""
        return statement_of(self.statement)

    @classmethod
    def of_trainer(
        cls,
        trainer: "Trainer",
        name: str | None = None,
        metrics: Mapping[str, float] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> "Entry":
        """Return the entry of a trainer as it stands.

        Args:
            trainer: trained or in the middle of it.
            name: what the page calls the run; by default the method's name.
            metrics: public figures by name; by default what the model reaches on the trainer's
                public records, if it has some, with the baselines.
            configuration: settings by name; by default the method, the noise multiplier and the
                number of steps.

        Returns:
            The entry, with the trainer's statement and history.
        """
        method, ledger = trainer.method, trainer.ledger
        reached: dict[str, dict[str, float]] = {"metrics": {}, "baselines": {}}
        if metrics is None and trainer.validation is not None:
            reached = figures_of(trainer.evaluate())
        return cls(
            name=method.name if name is None else name,
            statement=trainer.statement().to_dict(),
            spent=None if ledger.budget is None else ledger.epsilon(),
            history=[asdict(step) for step in trainer.history],
            metrics=reached["metrics"] if metrics is None else metrics,
            baselines=reached["baselines"],
            evaluations=[
                {"step": each.step, **figures_of(each)["metrics"]} for each in trainer.evaluations
            ]
            or (),
            configuration={
                "method": method.describe(),
                "noise multiplier": trainer.noise_multiplier,
                "steps": trainer.steps,
            }
            if configuration is None
            else configuration,
        )

    @classmethod
    def of_selection(
        cls,
        selection: "Selection",
        name: str | None = None,
        metrics: Mapping[str, float] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> "Entry":
        """Return the entry of a search.

        Args:
            selection: what `pv.selection.select` returned.
            name: what the page calls the search; by default "search".
            metrics: public figures by name, besides the score.
            configuration: settings by name; by default those that were chosen.

        Returns:
            The entry. Its score is among the metrics: it was released, with noise, and charged.
        """
        from privada.selection.prices import in_each_way

        price, tried = selection.price, selection.tried
        prices = in_each_way(selection.run_charges, price.runs, price.delta)
        return cls(
            name="search" if name is None else name,
            statement=selection.statement.to_dict(),
            metrics={**_score(selection.score), **(metrics or {})},
            configuration={
                **selection.settings,
                "noise multiplier": selection.noise_multiplier,
                "chosen by": price.how,
                "candidates": selection.candidates,
            }
            if configuration is None
            else configuration,
            prices={**prices, price.how: prices.get(price.how, price.epsilon)},
            chosen=price.how,
            tried=[{"settings": each.settings, "score": each.score} for each in tried] or None,
        )

    @classmethod
    def of_folder(cls, path: str | os.PathLike[str], name: str | None = None) -> "Entry":
        """Return the entry of a folder of results, named after the folder.

        It reads statement.json and, where they are there, history.json, metrics.json,
        evaluations.json, config.json, tuning.json and membership.json.

        Args:
            path: the output directory of `privada train` or `privada tune`.
            name: what the page calls the run; by default the name of the folder.

        Returns:
            The entry.

        Raises:
            ArgumentError: the folder has no statement, or a file in it is damaged.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ArgumentError(
                f"Expected a folder of results, got {str(folder)!r}, which is "
                f"{'a file' if folder.exists() else 'not there'}. Give the --output of a run."
            )
        statement = read_json(folder / "statement.json")
        if statement is None:
            raise ArgumentError(
                f"Expected a folder of results, got {str(folder)!r}, which has no statement.json. "
                "Give the --output of a run."
            )
        tuning = read_json(folder / "tuning.json")
        tuned = {} if tuning is None else check_mapping("tuning.json", tuning)
        history, metrics = read_json(folder / "history.json"), read_json(folder / "metrics.json")
        configuration, evaluations = (
            read_json(folder / "config.json"),
            read_json(folder / EVALUATIONS),
        )
        reached, beside = split_baselines(
            _score(tuned.get("score")) if metrics is None else metrics
        )
        try:
            return cls(
                name=(folder.resolve().name or str(folder)) if name is None else name,
                statement=statement,
                history=() if history is None else history,
                metrics=reached,
                baselines=beside,
                evaluations=() if evaluations is None else evaluations,
                configuration={
                    **_used({} if configuration is None else configuration),
                    **_settings(tuned),
                },
                prices=tuned.get("prices"),
                chosen=tuned.get("how"),
                tried=tuned.get("tried") or None,
                membership=read_json(folder / "membership.json"),
            )
        except ArgumentError as error:
            raise ArgumentError(f"Cannot use the folder {str(folder)!r}: {error}") from error


def figures_of(
    evaluation: "Evaluation", records: str = "public records"
) -> dict[str, dict[str, float]]:
    """Return the finite figures of an evaluation, and their baselines, by the names of a report."""
    on = "records set apart, with noise" if evaluation.charged else records
    found = {"metrics": evaluation.values, "baselines": evaluation.baselines}
    return {
        kind: {f"{name} on {on}": value for name, value in some.items() if math.isfinite(value)}
        for kind, some in found.items()
    }


def with_baselines(
    metrics: Mapping[str, float], baselines: Mapping[str, float]
) -> dict[str, float]:
    """Return figures with their baselines beside them, as metrics.json has them."""
    found = {}
    for name, value in metrics.items():
        found[name] = value
        if name in baselines:
            found[f"{name}{_BASELINE}"] = baselines[name]
    return found


def split_baselines(metrics: Any) -> tuple[Any, dict[str, float]]:
    """Return figures and baselines apart, of what `with_baselines` has put together.

    Example:
        >>> from privada.report.entries import split_baselines, with_baselines
        >>> split_baselines(with_baselines({"accuracy": 0.9}, {"accuracy": 0.6}))
        ({'accuracy': 0.9}, {'accuracy': 0.6})
    """
    if not isinstance(metrics, Mapping):
        return metrics, {}
    found = {
        name: metrics[f"{name}{_BASELINE}"] for name in metrics if f"{name}{_BASELINE}" in metrics
    }
    beside = {f"{name}{_BASELINE}" for name in found}
    return {name: value for name, value in metrics.items() if name not in beside}, found


def _score(score: Any) -> dict[str, float]:
    if not is_number(score) or not math.isfinite(score):
        return {}
    return {"score on records set apart, with noise": float(score)}


def _used(configuration: Any) -> dict[str, Any]:
    """Return the settings that a run used, without those that the statement has as well."""
    unused = {"run", "assumptions", "command", "space"}
    given = check_mapping("config.json", configuration)
    if given.get("model") == "linear":
        unused.add("hidden")
    if given.get("when_lost") == "refuse":
        unused.add("when_lost")
    return {name: value for name, value in given.items() if name not in unused}


def _settings(tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a folder of tuning says about its settings."""
    chosen = tuned.get("settings")
    found = dict(chosen) if isinstance(chosen, Mapping) else {}
    labels = {
        "noise_multiplier": "noise multiplier",
        "how": "chosen by",
        "candidates": "candidates",
        "expected_runs": "expected runs",
        "grid": "chosen among",
        "model": "model",
    }
    found.update({words: tuned[name] for name, words in labels.items() if name in tuned})
    return found
