"""The model card: one page of Markdown beside the model, in the form that model hubs read."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from privada.core.formatting import number
from privada.report.checks import is_number
from privada.report.entries import Entry
from privada.report.json_files import read_json
from privada.report.page import save_whole
from privada.tables import schema_file
from privada.tables.columns import (
    COLUMN_TYPES,
    Category,
    ColumnType,
    Date,
    Hashed,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Person,
    Text,
)
from privada.tables.targets import Classes, Target

CARD = "model_card.md"
# What Markdown, or a hub's renderer, takes for more than text.
_SPECIAL = re.compile(r"[\\`*\[\]|<>~$&]|(?<![^\W_])_|_(?![^\W_])|^[#+=-]|(?<=^\d)[.)](?=\s)")


def write_model_card(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Write model_card.md into an output directory, in place of one that is there.

    Args:
        path: the output directory of `privada train` or `privada tune`.
        name: what the model is called; by default the name of the directory.

    Returns:
        The path of the card.

    Guarantee: as for `model_card`. The file is written whole or not at all.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> from privada.report import write_model_card
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> options = pv.workflows.TrainOptions(
        ...     epsilon=2.0, target="sick", classes=("no", "yes"), epochs=1
        ... )
        >>> _ = pv.workflows.train_table("patients.csv", options, "trained")
        >>> write_model_card("trained").name
        'model_card.md'
    """
    card = Path(path) / CARD
    save_whole(card, model_card(path, name))
    return card


def model_card(path: str | os.PathLike[str], name: str | None = None) -> str:
    """Return the card of the model in an output directory, as Markdown.

    It says what the model predicts and from which columns, what was promised to the people in the
    data, how it was trained, how it does on public rows, how to use it, and what is not covered.
    Its words about privacy are those of the statement.

    Args:
        path: the output directory of `privada train` or `privada tune`.
        name: what the model is called; by default the name of the directory.

    Returns:
        The card, with a header in YAML as model hubs read it.

    Guarantee: it reads the statement, the schema, the settings and the public metrics in the
    directory. All of these were released and charged, or are public.

    Edge cases: directories of earlier versions have a card too. What a file does not say is left
    out. Names are shown as text, whatever is in them.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> from privada.report import model_card
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> options = pv.workflows.TrainOptions(
        ...     epsilon=2.0, target="sick", classes=("no", "yes"), epochs=2
        ... )
        >>> _ = pv.workflows.train_table("patients.csv", options)
        >>> print(model_card("patients-private").split("---")[2].strip().split("\\n")[0])
        # patients-private
    """
    folder = Path(path)
    entry = Entry.of_folder(folder, name)
    facts = read_json(folder / "model.json")
    facts = facts if isinstance(facts, Mapping) else {}
    target, columns, _ = schema_file.load(folder / "schema.toml")
    parts = [
        _header(entry, target, columns),
        f"# {_plain(entry.name)}",
        _summary(facts, target, columns),
        *_privacy(entry),
        *_data(entry, facts, target, columns),
        *_training(entry),
        *_metrics(entry, target),
        *_use(entry, facts, target, columns),
        *_limits(entry, target),
    ]
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------- header


def _header(entry: Entry, target: Target, columns: Mapping[str, ColumnType]) -> str:
    kind = "text" if _only_text(columns) and isinstance(target, Classes) else "tabular"
    task = "classification" if isinstance(target, Classes) else "regression"
    header: dict[str, Any] = {
        "library_name": "privada",
        "pipeline_tag": f"{kind}-{task}",
        "tags": ["differential-privacy", kind],
    }
    results = [
        {"type": re.sub(r"\W+", "_", name).strip("_").lower(), "name": name, "value": value}
        for name, value in entry.metrics.items()
        if math.isfinite(value)
    ]
    if results:
        header["model-index"] = [
            {
                "name": entry.name,
                "results": [
                    {
                        "task": {"type": f"{kind}-{task}"},
                        "dataset": {"name": "public rows", "type": entry.stated.dataset},
                        "metrics": results,
                    }
                ],
            }
        ]
    # values as JSON are YAML too, whatever is in them
    lines = (f"{name}: {json.dumps(value)}" for name, value in header.items())
    return "\n".join(["---", *lines, "---"])


def _only_text(columns: Mapping[str, ColumnType]) -> bool:
    return all(isinstance(kind, (Text, Ignore, Person)) for kind in columns.values())


# ---------------------------------------------------------------------- sections


def _summary(facts: Mapping[str, Any], target: Target, columns: Mapping[str, ColumnType]) -> str:
    built = facts.get("architecture")
    kind = built.get("kind") if isinstance(built, Mapping) else None
    what = {"linear": "A linear model", "mlp": "A neural network"}.get(str(kind), "A torch model")
    used = sum(not isinstance(each, (Ignore, Person)) for each in columns.values())
    column = _plain(target.column)
    goal = f"the class of **{column}**" if isinstance(target, Classes) else f"**{column}**"
    several = "one column" if used == 1 else f"{used:,} columns"
    return (
        f"{what} that predicts {goal} from {several}, trained on private data with "
        "[differential privacy](https://en.wikipedia.org/wiki/Differential_privacy)."
    )


def _privacy(entry: Entry) -> Iterator[str]:
    stated = entry.stated
    yield "## Privacy"
    promise = stated.promise()
    if stated.private:
        yield f"> {_plain(promise)}"
    else:
        yield f"> **{_plain(promise[0].upper() + promise[1:])}**"
    yield _table(("", ""), stated.facts())
    for title, items in stated.sections()[:2]:
        yield f"{title}:"
        yield _list(items)


def _data(
    entry: Entry,
    facts: Mapping[str, Any],
    target: Target,
    columns: Mapping[str, ColumnType],
) -> Iterator[str]:
    yield "## Data"
    units = facts.get("units")
    if isinstance(units, int):
        unit = _plain(entry.stated.unit)
        yield (
            f"{_plain(entry.stated.dataset)}, with a {unit} as the unit that is protected. How "
            f"many there are is public: {units:,}."
        )
    rows = [(name, _name_of(kind), _use_of(kind)) for name, kind in columns.items()]
    rows.append((target.column, "target", _goal(target)))
    yield _table(("column", "kind", "use"), rows)


def _name_of(kind: ColumnType) -> str:
    return next(name for name, made in COLUMN_TYPES.items() if isinstance(kind, made))


_FOUND = {
    "estimated": ", which a charged query has found",
    "default": ", by default, since no query has found any",
}


def _use_of(kind: ColumnType) -> str:
    match kind:
        case Number():
            found = _FOUND.get(kind.bounds, "")
            logs = " on the log scale" if kind.scale == "log" else ""
            bins = f", shared between {kind.bins} bins" if kind.bins else ""
            return f"clipped to {_short(kind.low)} to {_short(kind.high)}{logs}{found}{bins}"
        case Mixed():
            found = _FOUND.get(kind.bounds, "")
            return (
                f"a number clipped to {_short(kind.low)} to {_short(kind.high)}{found}; other text "
                f"hashed to {kind.buckets:,} buckets"
            )
        case Date():
            cycles = f", with its {', '.join(kind.parts)}" if kind.parts else ""
            return f"its place between {kind.low} and {kind.high}{cycles}"
        case Category():
            return f"{len(kind.values):,} values" + (", or another one" if kind.other else "")
        case Hashed():
            return f"hashed to {kind.buckets:,} buckets"
        case Text():
            words = "a vocabulary" if kind.vocabulary else "hashed"
            return f"a bag of words, {words}, as {kind.weighting}"
        case Matrix():
            return f"{kind.width:,} numbers, clipped to {_short(kind.low)} to {_short(kind.high)}"
        case Person():
            return "says whose a row is; not predicted from"
        case Ignore():
            return "not used"


def _goal(target: Target) -> str:
    if isinstance(target, Classes):
        return f"one of {', '.join(map(str, target.classes))}"
    found = _FOUND.get(target.bounds, "")
    return f"a number between {_short(target.low)} and {_short(target.high)}{found}"


def _training(entry: Entry) -> Iterator[str]:
    shown = {
        name.replace("_", " "): value
        for name, value in entry.configuration.items()
        if value is not None and name not in ("table", "classes", "text", "schema", "target")
    }
    if not shown:
        return
    yield "## Training"
    yield _table(("setting", "value"), [(name, _short(value)) for name, value in shown.items()])


def _metrics(entry: Entry, target: Target) -> Iterator[str]:
    yield "## Metrics"
    if not entry.metrics:
        yield (
            "None: there were no public rows, and a metric on private ones would have to be paid "
            "for. On public rows with the target, `privada predict FOLDER rows.csv --score "
            "--public` shows metrics beside a baseline."
        )
        return
    if not entry.baselines:
        yield _table(
            ("metric", "value"), [(name, _short(value)) for name, value in entry.metrics.items()]
        )
        return
    beside = {name: _short(value) for name, value in entry.baselines.items()}
    yield _table(
        ("metric", "value", "baseline"),
        [(name, _short(value), beside.get(name, "")) for name, value in entry.metrics.items()],
    )
    yield "The baseline is what a model reaches that gives every row the same output."


def _use(
    entry: Entry,
    facts: Mapping[str, Any],
    target: Target,
    columns: Mapping[str, ColumnType],
) -> Iterator[str]:
    built = facts.get("architecture")
    kind = str(built.get("kind")) if isinstance(built, Mapping) else ""
    place = json.dumps(entry.name)
    trust = f", trust={json.dumps(kind)}" if ":" in kind else ""
    chances = "\nmodel.predict_proba(rows)" if isinstance(target, Classes) else ""
    code = (
        f"import privada as pv\n\nmodel = pv.load({place}{trust})\n"
        f'rows = "new.csv"  # or a data frame, or a dict\nmodel.predict(rows){chances}'
    )
    yield "## Use"
    yield f"{_fenced(code, 'python')}"
    yield (
        "Rows need the columns above that are used; others are ignored. `schema.toml` says how "
        "they become features, `model.safetensors` and `model.json` hold the model, and "
        "`statement.txt` is the whole statement."
    )


def _limits(entry: Entry, target: Target) -> Iterator[str]:
    yield "## Limits"
    known = (
        "A class that is not listed is never predicted."
        if isinstance(target, Classes)
        else "No number beyond the bounds of the target is predicted."
    )
    yield _list(
        (
            known,
            "Values beyond the bounds of a column count as the bound that they pass.",
            "The noise that protects people in the data costs accuracy, most of all for small "
            "groups. Check the model on public rows of each group that it is used for.",
            "The rows that are predicted are not protected: no promise was made to the people in "
            "them.",
        )
    )
    title, items = entry.stated.sections()[2]
    yield f"{title}:"
    yield _list(items)


# ---------------------------------------------------------------------- Markdown


def _plain(words: str) -> str:
    """Return words as Markdown that shows them as they are, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(str(words).split()))


def _short(value: Any) -> str:
    if is_number(value):
        return number(float(value)) if isinstance(value, float) else str(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(item)}" for item in items)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(code: str, language: str) -> str:
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}{language}\n{code}\n{fence}"
