"""Checks of what an entry of the report is given."""

from collections.abc import Mapping, Sequence
from typing import Any

from privada.core.errors import ArgumentError

SERIES = ("epsilon", "lr", "noise_multiplier")


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Return a value that maps names to values; raise ArgumentError for another."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"Expected {name} to map names to values, got {_short(value)}.")
    return value


def check_figures(name: str, figures: Any) -> None:
    """Raise ArgumentError unless the values are numbers by name."""
    for key, value in check_mapping(name, figures).items():
        if not is_number(value):
            raise ArgumentError(f"Expected {name} to be numbers, got {key}={_short(value)}.")


def check_history(history: Any) -> None:
    """Raise ArgumentError unless a history is a list of steps with all their numbers."""
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise ArgumentError(f"Expected history to be a list of steps, got {_short(history)}.")
    for step in history:
        fields = step if isinstance(step, Mapping) else {}
        if not all(is_number(fields.get(name)) for name in ("step", *SERIES)):
            raise ArgumentError(
                f"Expected each step of the history to have the numbers step, {', '.join(SERIES)}, "
                f"got {_short(step)}."
            )


def check_evaluations(evaluations: Any) -> None:
    """Raise ArgumentError unless evaluations are a list of figures by name, each with its step."""
    if not isinstance(evaluations, Sequence) or isinstance(evaluations, str):
        raise ArgumentError(
            f"Expected evaluations to be a list of figures, got {_short(evaluations)}."
        )
    for each in evaluations:
        check_figures("evaluations", each)
        if "step" not in each:
            raise ArgumentError(f"Expected each evaluation to have a step, got {_short(each)}.")


def check_candidates(tried: Any) -> None:
    """Raise ArgumentError unless each candidate has settings and a score."""
    for each in () if tried is None else tried:
        fields = each if isinstance(each, Mapping) else {}
        if not isinstance(fields.get("settings"), Mapping) or not is_number(fields.get("score")):
            raise ArgumentError(
                f"Expected each candidate tried to have settings and a score, got {_short(each)}."
            )


def check_membership(found: Any) -> None:
    """Raise ArgumentError unless each attack has a name, a curve and the area under it."""
    if found is None:
        return
    attacks = check_mapping("membership", found).get("attacks")
    if not isinstance(attacks, Sequence) or isinstance(attacks, str):
        raise ArgumentError(
            f"Expected membership to have a list of attacks, got {_short(attacks)}."
        )
    check_figures("membership", {name: found.get(name) for name in ("records", "runs")})
    for each in attacks:
        fields = each if isinstance(each, Mapping) else {}
        wrong = _numbers(fields.get("false_positives"))
        curves = [fields.get("true_positives"), fields.get("limits") or wrong]
        if not (
            isinstance(fields.get("name"), str)
            and is_number(fields.get("auc"))
            and len(wrong) > 1
            and all(len(_numbers(curve)) == len(wrong) for curve in curves)
        ):
            raise ArgumentError(
                "Expected each attack of membership to have name, auc, false_positives, "
                f"true_positives and limits, got {_short(each)}."
            )


def _numbers(values: Any) -> Sequence[float]:
    """Return a list of numbers, an empty one for anything else."""
    if isinstance(values, (list, tuple)) and all(is_number(value) for value in values):
        return values
    return ()


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 80 else f"{shown[:76]}..."
