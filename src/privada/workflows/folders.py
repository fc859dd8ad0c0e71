"""Output folders: written whole, or not at all; what they hold of a run, and of its ledger."""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from privada.accounting import Budget, Ledger
from privada.accounting.ledger import (
    PLANNED,
    Place,
    exists,
    file_of,
    in_words,
    remove_unused,
    trial_copy,
)
from privada.core.errors import ArgumentError, CheckpointError, LedgerError
from privada.tables.files import write_durably
from privada.workflows.charges import count_charges, has_ledger, holds_charges
from privada.workflows.options import TableOptions
from privada.workflows.table_source import source_name

if TYPE_CHECKING:
    from privada.tables.query_plan import QueryPlan

LEDGER = "ledger"
_CHECKPOINT, _CONFIG, _SCHEMA, _ANSWERS = "checkpoint", "config.json", "schema.toml", "answers.json"
_STATEMENT = "statement.json"
_QUERIES, _LOOKS = "queries", "looks"


def default_output(table: Any, ending: str = "private") -> Path:
    """Return the output folder for a table where none is named: its name and -private, here.

    For a search it ends in -tuned.

    Example:
        >>> from privada.workflows.folders import default_output
        >>> print(default_output("data/patients.csv.gz"))
        patients-private
    """
    return Path(f"{source_name(table).split('.')[0]}-{ending}")


def refuse_existing(folder: Path) -> None:
    """Raise if an output folder exists already, or cannot be made."""
    if folder.exists():
        advice = "Give another --output."
        if holds_charges(folder / LEDGER):
            path = folder / LEDGER
            other = f"give another --output and --ledger {path}, which adds up."
            if _is_planned(path):
                other = (
                    "give another --output, and a ledger for several runs on the same records: "
                    "this one is for its run alone. Make it by privada ledger FILE --new EPSILON "
                    "--delta DELTA, and name it with --ledger in each."
                )
            advice = (
                "Keep it: its ledger says what was spent on these records. Go on with a stopped "
                f"run by --resume, or {other}"
            )
        raise ArgumentError(f"Expected a new folder, got {str(folder)!r}, which exists. {advice}")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}."):
            pass
    except OSError as error:
        raise ArgumentError(
            f"Cannot write to {str(folder)!r}: {error.strerror}. Check that the folder around it "
            "exists and may be written."
        ) from error


def _is_planned(place: Place) -> bool:
    """Return whether a ledger allows what was declared alone."""
    try:
        if not has_ledger(place):
            return False
        with Ledger(place) as ledger:
            return ledger.declared("") is not None
    except LedgerError:
        return False


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft that becomes the folder at the end, and is removed if something fails."""
    refuse_existing(folder)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield draft
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _back_up(path: Path, copy: Path) -> None:
    """Copy a ledger's file through SQLite: another process may be half-way through a charge."""
    place = f"file:{quote(str(path.resolve()))}?mode=ro"
    with (
        closing(sqlite3.connect(place, uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in words that a file of a folder cannot be written."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        words = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"Cannot write to {str(folder)!r}: {words}. Make room, or check that it may be written."
        ) from error


@dataclass(frozen=True)
class RunFolder:
    """The output folder of one run on a table, and the ledger that the run is charged to."""

    path: Path
    options: TableOptions

    @classmethod
    def create(cls, path: Path, options: TableOptions) -> "RunFolder":
        """Make a new folder."""
        refuse_existing(path)
        with writing(path):
            path.mkdir()
        return cls(path, options)

    @classmethod
    def reopen(cls, path: Path, options: TableOptions) -> "RunFolder":
        """Return the folder of a run that was stopped."""
        if not cls.unfinished(path):
            raise CheckpointError(
                f"Expected an unfinished run in {str(path)!r}, got none. Start one without "
                "--resume, in another folder if this one exists."
            )
        folder = cls(path, options)
        command = folder.facts().get("command", "train")
        if command != options.workflow:
            raise ArgumentError(
                f"Expected the run in {str(path)!r} to go on by privada {command}, which began it, "
                f"got privada {options.workflow}. Give that command, or another --output."
            )
        began = folder.facts().get("person")
        if began != options.person:
            how = "without --person" if began is None else f"with --person {began}"
            raise ArgumentError(
                f"Expected the run in {str(path)!r} to go on {how}, as it was begun, got "
                f"{options.person!r}: what is protected stays the same. Start another run instead."
            )
        return folder

    @staticmethod
    def unfinished(path: Path) -> bool:
        """Return whether a folder has a run that was begun and is not done."""
        done = (path / _STATEMENT).exists() and not (path / _CHECKPOINT).exists()
        return (path / _CONFIG).exists() and not done

    # ------------------------------------------------------------------ files

    @property
    def checkpoint(self) -> Path:
        """Where training goes on from."""
        return self.path / _CHECKPOINT

    @property
    def schema(self) -> Path:
        """What the columns are, once that is known."""
        return self.path / _SCHEMA

    @property
    def answers(self) -> Path:
        """What charged queries have found."""
        return self.path / _ANSWERS

    @property
    def may_be_charged(self) -> bool:
        """Whether something may have been charged: before either file, nothing was."""
        return self.answers.exists() or self.checkpoint.exists()

    def remove_if_unpaid(self) -> None:
        """Remove the folder, unless its ledger holds charges."""
        if not holds_charges(self.path / LEDGER):
            shutil.rmtree(self.path)

    def facts(self, **kinds: type) -> dict[str, Any]:
        """Return what the folder says of its run, which must have parts of the given types."""
        path = self.path / _CONFIG
        try:
            facts = dict(json.loads(path.read_text(encoding="utf-8")))
            if not all(isinstance(facts[name], kind) for name, kind in kinds.items()):
                raise TypeError
            return facts
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"Cannot read {str(path)!r}, which says how the run was begun: "
                f"{type(error).__name__}. Restore it from a copy, and keep the folder: its "
                "ledger says what was spent."
            ) from None

    def keep_facts(self, facts: dict[str, Any]) -> None:
        """Write what is known of the run, durably."""
        write_durably(self.path / _CONFIG, json.dumps(facts, indent=2, default=repr) + "\n")

    @property
    def queries(self) -> "QueryPlan | None":
        """How the charged queries of the run were declared, None if they were not."""
        from privada.tables.query_plan import QueryPlan  # which loads torch

        kept = self.facts().get(_QUERIES)
        if kept is None:
            return None
        lists = {name: tuple(kept[name]) for name in ("bounds", "defaults")}
        return QueryPlan(**{**kept, **lists})

    def keep_queries(self, queries: "QueryPlan") -> None:
        """Keep how charged queries are declared: a run that goes on asks them in the same way."""
        self.keep_facts({**self.facts(), _QUERIES: asdict(queries)})

    @property
    def looks(self) -> bool:
        """Whether the run may begin with a look at its features, as it was begun."""
        return bool(self.facts().get(_LOOKS, False))

    def keep_looks(self, looks: bool) -> None:
        """Keep whether the run may begin with a look: a run that goes on does the same."""
        self.keep_facts({**self.facts(), _LOOKS: looks})

    def settings(self) -> dict[str, Any]:
        """Return what was asked for and found, without what a stopped run alone needs."""
        own = (_QUERIES, _LOOKS)
        return {name: value for name, value in self.facts().items() if name not in own}

    def run_name(self, table: Any) -> str:
        """Return the name that all of it is charged under, kept in the folder."""
        if (self.path / _CONFIG).exists():
            return str(self.facts(run=str)["run"])
        options = self.options
        name = f"{options.run_prefix}-{os.urandom(4).hex()}"
        facts = {
            "command": options.workflow,
            "run": name,
            "table": source_name(table),
            **asdict(options),
        }
        if self.options.ledger is not None:  # no password is written down
            facts["ledger"] = in_words(self.options.ledger)
        self.keep_facts(facts)
        return name

    # ------------------------------------------------------------------ the ledger

    @property
    def ledger_place(self) -> Place:
        """The ledger's path or URL: the one that was given, or a file in the folder."""
        given = self.options.ledger
        return self.path / LEDGER if given is None else given

    def check_ledger(self) -> None:
        """Raise if the ledger is not that of the run, or holds charges for another unit.

        Nothing is read of the table before that.
        """
        place = self.ledger_place
        if exists(place):
            with Ledger(place) as ledger:
                ledger.check_unit(self.options.charged_unit)
        elif self.may_be_charged:
            began = self.facts().get("ledger") or self.path / LEDGER
            raise LedgerError(
                f"Expected the ledger of the run in {str(self.path)!r}, got {in_words(place)!r}, "
                f"which does not exist. Give the one it was begun with, --ledger {began}, or "
                "restore that from a copy. A new one would forget what was spent."
            )

    def open_ledger(self, budget: Budget, dataset: str, kind: str = PLANNED) -> Ledger:
        """Return the ledger, a new one of a kind with a budget if there is none."""
        place = self.ledger_place
        if exists(place):
            return Ledger(place)
        return Ledger(place, budget, dataset=dataset, kind=kind)

    @property
    def declares(self) -> bool:
        """Whether there is a ledger already on which runs have to be declared."""
        return _is_planned(self.ledger_place)

    @contextmanager
    def copied_ledger(self) -> Iterator[Ledger | None]:
        """Yield a copy of the ledger that may be charged for a trial; None where there is none.

        It has all that the ledger has: charges, declarations and how they are counted.
        """
        place = self.ledger_place
        if not exists(place):
            yield None
            return
        path = file_of(place)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / (LEDGER if path is None else path.name)
            if path is None:
                trial_copy(place, copy)
            else:
                _back_up(path, copy)
            with Ledger(copy) as ledger:
                yield ledger

    def remove_new_ledger(self) -> None:
        """Remove a ledger that was made for the run, unless it holds charges."""
        if not holds_charges(self.ledger_place):
            remove_unused(self.ledger_place)

    def charged_in_words(self, run: str) -> str:
        """Return in words what a run was charged, nothing if the ledger holds none of it.

        Once training has begun, its settings are fixed.
        """
        try:
            charged = count_charges(self.ledger_place, run)
        except LedgerError:
            return (
                f"What run {run!r} was charged cannot be read now. It stays charged: keep the "
                "folder, and go on with --resume."
            )
        if not charged:
            return ""
        many = "release" if charged == 1 else "releases"
        other = ""
        if not self.checkpoint.exists():
            costs = " that cost the same" if self.declares else ""
            other = f", which takes other options{costs} too"
        return (
            f"What run {run!r} was charged before stays charged, {charged:,} {many} on the ledger "
            f"{in_words(self.ledger_place)!r}: keep the folder, and go on with --resume{other}."
        )
