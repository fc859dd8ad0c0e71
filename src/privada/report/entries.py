"""What the report is about: runs, each with its statement and what may be shown beside it."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.accounting import Budget, Statement, events
from privada.accounting.ledger import Charge
from privada.accounting.statement import ACCOUNTANTS_IN_WORDS, RELATIONS_IN_WORDS
from privada.core.errors import ArgumentError, EventError

if TYPE_CHECKING:
    from privada.selection.search import Selection
    from privada.train.trainer import Trainer

SERIES = ("epsilon", "lr", "noise_multiplier")
_WORDS = (
    "dataset",
    "unit",
    "neighbouring_relation",
    "run",
    "accountant",
    "ledger",
    "method",
    "sampling",
    "noise",
    "progress",
)
_NUMBERS = ("epsilon", "delta", "run_epsilon")
_CHOSEN_FROM = {"accountant": ACCOUNTANTS_IN_WORDS, "neighbouring_relation": RELATIONS_IN_WORDS}


@dataclass(frozen=True)
class Entry:
    """One run on the report. All of it is public.

    Args:
        name: what the page calls the run.
        statement: its statement, as `Statement.to_dict` gives it.
        history: what is known of each step: step, lr, noise_multiplier and epsilon.
        metrics: figures by name, such as "accuracy on public records".
        configuration: settings by name, as plain values.
        prices: for a search, its epsilon in each way of choosing.
        chosen: the way that was taken.
        tried: for a search whose candidates are all released, their settings and scores.

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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ArgumentError(f"Expected name to be a string with words, got name={self.name!r}.")
        _check_history(self.history)
        _check_figures("metrics", self.metrics)
        _check_figures("prices", {} if self.prices is None else self.prices)
        _check_mapping("configuration", self.configuration)
        _check_tried(self.tried)
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

        Without a name it has the method's; without a configuration, the method, the noise and the
        number of steps.
        """
        method = trainer.method
        return cls(
            name=method.name if name is None else name,
            statement=trainer.statement().to_dict(),
            history=[asdict(step) for step in trainer.history],
            metrics={} if metrics is None else metrics,
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

        Its score is among the metrics: it was released, with noise, and charged. Without a
        configuration it has the settings that were chosen.
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

        It reads statement.json and, where they are there, history.json, metrics.json, config.json
        and tuning.json.

        Raises:
            ArgumentError: the folder has no statement, or a file in it is damaged.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ArgumentError(
                f"Expected a folder of results, got {str(folder)!r}, which is "
                f"{'a file' if folder.exists() else 'not there'}. Give the --output of a run."
            )
        statement = _read(folder / "statement.json")
        if statement is None:
            raise ArgumentError(
                f"Expected a folder of results, got {str(folder)!r}, which has no statement.json. "
                "Give the --output of a run."
            )
        tuning = _read(folder / "tuning.json")
        tuned = {} if tuning is None else _check_mapping("tuning.json", tuning)
        history, metrics = _read(folder / "history.json"), _read(folder / "metrics.json")
        configuration = _read(folder / "config.json")
        try:
            return cls(
                name=(folder.resolve().name or str(folder)) if name is None else name,
                statement=statement,
                history=() if history is None else history,
                metrics=_score(tuned.get("score")) if metrics is None else metrics,
                configuration=_settings(tuned) if configuration is None else configuration,
                prices=tuned.get("prices"),
                chosen=tuned.get("how"),
                tried=tuned.get("tried") or None,
            )
        except ArgumentError as error:
            raise ArgumentError(f"Cannot use the folder {str(folder)!r}: {error}") from error


def statement_of(fields: Mapping[str, Any]) -> Statement:
    """Return the statement that was written as plain values.

    Example:
        >>> import privada as pv, torch
        >>> from privada.report.entries import statement_of
        >>> made = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... ).statement()
        >>> statement_of(made.to_dict()) == made
        True
    """
    _check_mapping("statement", fields)
    for name in (*_WORDS, *_NUMBERS, "private", "assumptions", "not_covered", "charges"):
        if name not in fields:
            raise _not_a_statement(f"no {name!r}")
    wrong = [name for name in _WORDS if not isinstance(fields[name], str)]
    wrong += [name for name in _NUMBERS if not _is_number(fields[name])]
    wrong += [name for name, known in _CHOSEN_FROM.items() if fields[name] not in known]
    wrong += [] if isinstance(fields["private"], bool) else ["private"]
    if wrong:
        raise _not_a_statement(f"{wrong[0]!r} as {fields[wrong[0]]!r}")
    budget = fields.get("budget")
    rest: dict[str, Any] = {name: fields[name] for name in _WORDS}
    del rest["neighbouring_relation"]
    rest.update({name: float(fields[name]) for name in _NUMBERS})
    try:
        return Statement(
            private=fields["private"],
            relation=fields["neighbouring_relation"],
            budget=None if budget is None else Budget(budget["epsilon"], budget["delta"]),
            charges=tuple(_charge(each) for each in fields["charges"]),
            assumptions=tuple(map(str, fields["assumptions"])),
            not_covered=tuple(map(str, fields["not_covered"])),
            **rest,
        )
    except (KeyError, TypeError, ValueError, AttributeError, EventError) as error:
        raise _not_a_statement(f"a fault in it, {error}") from error


def _charge(fields: Mapping[str, Any]) -> Charge:
    return Charge(
        run=str(fields["run"]),
        purpose=str(fields["purpose"]),
        event=events.decode(json.dumps(fields["event"])),
        count=int(fields["count"]),
        first=str(fields["first"]),
        last=str(fields["last"]),
    )


def _not_a_statement(found: str) -> ArgumentError:
    return ArgumentError(
        f"Expected a statement as Statement.to_dict() gives it, got {found}. Use one that this "
        "version of Privada wrote."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"Expected {name} to map names to values, got {_short(value)}.")
    return value


def _check_figures(name: str, figures: Any) -> None:
    for key, value in _check_mapping(name, figures).items():
        if not _is_number(value):
            raise ArgumentError(f"Expected {name} to be numbers, got {key}={_short(value)}.")


def _check_history(history: Any) -> None:
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise ArgumentError(f"Expected history to be a list of steps, got {_short(history)}.")
    for step in history:
        fields = step if isinstance(step, Mapping) else {}
        if not all(_is_number(fields.get(name)) for name in ("step", *SERIES)):
            raise ArgumentError(
                f"Expected each step of the history to have the numbers step, {', '.join(SERIES)}, "
                f"got {_short(step)}."
            )


def _check_tried(tried: Any) -> None:
    for each in () if tried is None else tried:
        fields = each if isinstance(each, Mapping) else {}
        if not isinstance(fields.get("settings"), Mapping) or not _is_number(fields.get("score")):
            raise ArgumentError(
                f"Expected each candidate tried to have settings and a score, got {_short(each)}."
            )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 80 else f"{shown[:76]}..."


def _score(score: Any) -> dict[str, float]:
    if not _is_number(score) or not math.isfinite(score):
        return {}
    return {"score on records set apart, with noise": float(score)}


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


def _read(path: Path) -> Any:
    """Return what a file of JSON holds, None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArgumentError(
            f"Cannot read {str(path)!r}: {error.strerror}. Check the permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"Expected JSON in {str(path)!r}, got something that is damaged or of another format."
        ) from error
