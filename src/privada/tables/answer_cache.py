"""AnswerCache to charged queries, kept so that no question is paid for twice."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privada.accounting import Ledger, events
from privada.core.errors import LedgerError
from privada.core.validation import one_of
from privada.tables.files import Source, as_path, write_durably

WHEN_LOST = ("refuse", "pay-again", "defaults")


class AnswerCache:
    """A file with the answers to charged queries of one run: a question that has one costs nothing.

    An answer is a release, so it may be kept. A charge whose answer is not here was lost: the
    process ended between the two. It is not paid for again unless that is asked for.

    Args:
        path: the file; it is made when the first question is asked.
        when_lost: what becomes of a question that was charged and whose answer was lost:
            "refuse" it; "pay-again"; or take public "defaults", where there are any.

    Guarantee: what is in the file was computed from releases that are on the ledger. Which answer
    is given does not depend on private values in another way.

    Edge cases: a question is the same if it asks the same of the same columns, whatever the noise.
    A file that is damaged, or gone while the ledger holds its charges, is refused; so is a ledger,
    or a run, that does not hold the charges of the file.

    Example:
        >>> import numpy as np, tempfile, privada as pv
        >>> from privada.tables import AnswerCache, Classes, Number, Schema, Table, estimate_bounds
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
        >>> table = Table({"age": np.arange(4000) % 50 + 20, "sick": ["no", "yes"] * 2000})
        >>> ledger = pv.Ledger(None, pv.Budget(1.0, 1e-6), dataset="patients")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     answers = AnswerCache(f"{folder}/answers.json")
        ...     for _ in range(2):
        ...         found = estimate_bounds(
        ...             table, schema, ledger=ledger, noise_multiplier=20.0, answers=answers
        ...         )
        >>> sum(ledger.totals().values())
        1
    """

    def __init__(self, path: Source, *, when_lost: str = "refuse") -> None:
        self._path = as_path("path", path)
        self._when_lost = one_of("when_lost", when_lost, WHEN_LOST)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def ask(
        self,
        question: Mapping[str, Any],
        pay_and_look: Callable[[], Any],
        *,
        ledger: Ledger,
        run: str,
        default: Any = None,
    ) -> Any:
        """Return the answer that is kept, or pay for one and keep it.

        Args:
            question: what is asked, in plain values.
            pay_and_look: makes one charge for statistics under the run's name, and returns the
                answer in plain values.
            ledger: what is charged.
            run: the name under which it is charged.
            default: the answer to take for one that was lost, None if there is none.
        """
        former, asked = self._read(), self._read()
        entry = _entry(asked, question)
        self._check_paid(asked, ledger, run)
        if "answer" in entry:
            return entry["answer"]
        lost = self._is_lost(asked, entry, ledger, run, default)
        if lost and self._when_lost == "defaults":
            entry["answer"] = default  # stands for the one that was paid for
            self._write(asked)
            return default
        entry["lost"] += lost
        self._write(asked)
        before = _charged(ledger, run)
        try:
            entry["answer"] = pay_and_look()
        except BaseException:
            if _charged(ledger, run) == before:
                self._write(former)
            raise
        self._write(asked)
        return entry["answer"]

    def has(self, question: Mapping[str, Any]) -> bool:
        """Return whether there is an answer to a question, so that it costs nothing."""
        return "answer" in _entry(self._read(), question)

    def will_charge(
        self, question: Mapping[str, Any], *, ledger: Ledger, run: str, default: Any = None
    ) -> bool:
        """Return whether `ask` would charge for a question, and raise where it would refuse to."""
        asked = self._read()
        entry = _entry(asked, question)
        self._check_paid(asked, ledger, run)
        if "answer" in entry:
            return False
        return not (
            self._is_lost(asked, entry, ledger, run, default) and self._when_lost == "defaults"
        )

    def lost(self, *, ledger: Ledger, run: str) -> int:
        """Return how many charges of a run have no answer, and are not known as lost yet."""
        return max(0, _charged(ledger, run) - _known(self._read()))

    def check_paid(self, *, ledger: Ledger, run: str) -> None:
        """Raise if a ledger does not hold the charges that the answers were paid with."""
        self._check_paid(self._read(), ledger, run)

    def _check_paid(self, asked: list[dict[str, Any]], ledger: Ledger, run: str) -> None:
        """Raise if the answers are not all of this ledger: here they would be free."""
        known, charged = _known(asked), _charged(ledger, run)
        if known > charged:
            raise LedgerError(
                f"Expected ledger {ledger.name!r} to hold {known:,} charges for statistics of run "
                f"{run!r}, which the answers in {str(self._path)!r} were paid with, got "
                f"{charged:,}. Give the ledger that was charged and the run's own name; on another "
                "ledger, keep answers in another file. Nothing was charged."
            )

    def _is_lost(
        self,
        asked: list[dict[str, Any]],
        entry: dict[str, Any],
        ledger: Ledger,
        run: str,
        default: Any,
    ) -> bool:
        """Return whether a question was charged and has no answer; raise if that is refused."""
        others = sum("answer" not in each for each in asked if each is not entry)
        if _charged(ledger, run) - _known(asked) <= others:
            return False
        if self._when_lost == "pay-again" or (
            self._when_lost == "defaults" and default is not None
        ):
            return True
        if default is None:
            other = "or name the classes"
        else:
            other = 'or take public defaults with when_lost="defaults" (--when-lost defaults)'
        raise LedgerError(
            f"Expected an answer about {entry['question']['what']} in {str(self._path)!r}, which "
            f"run {run!r} was charged for, got none: the run ended before it was kept. Pay again "
            f'with when_lost="pay-again" (--when-lost pay-again), {other}. Nothing more was '
            "charged."
        )

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        try:
            held = json.loads(self._path.read_text(encoding="utf-8"))
            asked = [{**e, "question": dict(e["question"]), "lost": int(e["lost"])} for e in held]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LedgerError(
                f"Cannot read the answers in {str(self._path)!r}: {type(error).__name__}. Restore "
                "the file from a copy; its questions were paid for."
            ) from None
        return asked

    def _write(self, asked: list[dict[str, Any]]) -> None:
        write_durably(self._path, json.dumps(asked, indent=2) + "\n")


def _entry(asked: list[dict[str, Any]], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a question, put into the list if it is new."""
    for each in asked:
        if each["question"] == dict(question):
            return each
    asked.append({"question": dict(question), "lost": 0})
    return asked[-1]


def _known(asked: list[dict[str, Any]]) -> int:
    """Return how many charges are accounted for: by an answer, or as lost."""
    return sum(each["lost"] + ("answer" in each) for each in asked)


def _charged(ledger: Ledger, run: str) -> int:
    """Return how many queries for statistics a run was charged for."""
    return sum(
        charge.count
        for charge in ledger.charges()
        if (charge.run, charge.purpose) == (run, "statistics")
        and events.release_of(charge.event) is not None  # a probability of failing is beside one
    )
