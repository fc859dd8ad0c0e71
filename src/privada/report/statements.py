"""Statements read back from the plain values that they were written as."""

import json
from collections.abc import Mapping
from typing import Any

from privada.accounting import Budget, Statement, events
from privada.accounting.ledger import PLANNED, Charge
from privada.accounting.statement import ACCOUNTANTS_IN_WORDS, RELATIONS_IN_WORDS
from privada.core.errors import ArgumentError, EventError
from privada.report.checks import check_mapping, is_number

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


def statement_of(fields: Mapping[str, Any]) -> Statement:
    """Return the statement that was written as plain values.

    Example:
        >>> import privada as pv, torch
        >>> from privada.report.statements import statement_of
        >>> made = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... ).statement()
        >>> statement_of(made.to_dict()) == made
        True
    """
    check_mapping("statement", fields)
    for name in (*_WORDS, *_NUMBERS, "private", "assumptions", "not_covered", "charges"):
        if name not in fields:
            raise _not_a_statement(f"no {name!r}")
    wrong = [name for name in _WORDS if not isinstance(fields[name], str)]
    wrong += [name for name in _NUMBERS if not is_number(fields[name])]
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
            # statements of version 0.1 said it in the words for the noise alone
            seeded=bool(fields.get("seeded", fields["noise"].startswith("seeded"))),
            relation=fields["neighbouring_relation"],
            budget=None if budget is None else Budget(budget["epsilon"], budget["delta"]),
            charges=tuple(_charge(each) for each in fields["charges"]),
            assumptions=tuple(map(str, fields["assumptions"])),
            not_covered=tuple(map(str, fields["not_covered"])),
            # statements of before there were two kinds of ledger did not say it
            kind=str(fields.get("kind", PLANNED)),
            counting=str(fields.get("counting", "")),
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
