"""The page that says, in words, what was promised and what it rests on."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privada.accounting import events
from privada.accounting.accountants import IN_WORDS
from privada.accounting.budget import Budget
from privada.accounting.filters import FILTER
from privada.accounting.ledger import Charge
from privada.core import formatting

_WIDTH = 88
ACCOUNTANTS_IN_WORDS = {**IN_WORDS, FILTER: "a Renyi filter over several orders"}
RELATIONS_IN_WORDS = {
    events.ADD_OR_REMOVE: "data sets that differ by adding or removing one {unit}",
    events.REPLACE: "data sets of equal size that differ by replacing one {unit}",
}
# What a statement calls a ledger that no file holds.
IN_MEMORY = "in memory: gone with this process"
NOT_COVERED = (
    "The privacy of anything computed from the data outside this ledger, such as looking at it, "
    "choosing features from it, or tuning on it elsewhere.",
    "Facts about the whole population that the model rightly learns, and what can be inferred "
    "about a person from those.",
    "Groups: k of those that are protected together, such as a family, or several records of one "
    "person where a record is protected, have a weaker protection, about k times the epsilon.",
    "The security of the machine that holds the data, and timing or memory side channels there.",
)


@dataclass(frozen=True)
class Statement:
    """What was promised to the people in the data, what it cost, and what it rests on.

    `str()` gives a page for people, `to_dict()` and `to_json()` the same for machines.

    Guarantee: `epsilon` is that of everything on the ledger, earlier runs included;
    `run_epsilon` is the share of the run that the statement is about.

    Edge cases: `private` is False, and the page says so first, when the noise was seeded.

    Example:
        >>> import privada as pv
        >>> from sklearn.datasets import load_iris
        >>> import torch
        >>> x, y = load_iris(return_X_y=True)
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss(), (x.astype("float32"), y),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=15, steps=5,
        ...     budget=pv.Budget(1.0, 1e-3),
        ... ).fit()
        >>> trainer.statement().epsilon <= 1.0
        True
    """

    private: bool
    dataset: str
    unit: str
    relation: str
    epsilon: float
    delta: float
    run: str
    run_epsilon: float
    accountant: str
    budget: Budget | None
    ledger: str
    method: str
    sampling: str
    noise: str
    progress: str
    charges: tuple[Charge, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...] = NOT_COVERED
    seeded: bool = False
    kind: str = "planned"
    counting: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values."""
        return {
            "private": self.private,
            "dataset": self.dataset,
            "unit": self.unit,
            "neighbouring_relation": self.relation,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "run": self.run,
            "run_epsilon": self.run_epsilon,
            "accountant": self.accountant,
            "budget": None
            if self.budget is None
            else {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "ledger": self.ledger,
            "method": self.method,
            "sampling": self.sampling,
            "noise": self.noise,
            "progress": self.progress,
            "charges": [
                {
                    "run": charge.run,
                    "purpose": charge.purpose,
                    "event": json.loads(events.encode(charge.event)),
                    "count": charge.count,
                    "first": charge.first,
                    "last": charge.last,
                }
                for charge in self.charges
            ],
            "assumptions": list(self.assumptions),
            "not_covered": list(self.not_covered),
            "seeded": self.seeded,
            "kind": self.kind,
            "counting": self.counting,
        }

    def to_json(self) -> str:
        """Return the statement as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=True)

    def promise(self) -> str:
        """Return what was promised, in words, or that nothing was."""
        if not self.private and not self.seeded:
            return (
                "not a private release. What gradients were clipped in was computed from the "
                "private records themselves, without noise, as said below. The figures are what "
                "the same run would guarantee with side information that is public."
            )
        if not self.private:
            return (
                "seeded: not a private release. The noise follows from a seed, so whoever knows "
                "the seed can remove it. The figures below are what the same run would guarantee "
                "with its noise from the secure source, which is the default."
            )
        epsilon, delta = formatting.epsilon(self.epsilon), formatting.delta(self.delta)
        change = (
            f"leave any one {self.unit} out"
            if self.relation == events.ADD_OR_REMOVE
            else f"exchange any one {self.unit} for another"
        )
        return (
            f"The trained model is ({epsilon}, {delta})-differentially "
            f"private. In words: {change}, and every possible outcome becomes at most "
            f"{formatting.factor(self.epsilon)} more or less likely, but for a chance of about "
            f"{delta} that this fails. A smaller epsilon reveals less about any one "
            f"{self.unit}, whatever else is known."
        )

    def _spent(self) -> list[str]:
        """Return one line for each run and purpose, alike events counted together."""
        lines = []
        groups: dict[tuple[str, str], list[Charge]] = {}
        for charge in self.charges:
            groups.setdefault((charge.run, charge.purpose), []).append(charge)
        for (run, purpose), members in groups.items():
            failing = [m.event for m in members if not events.release_count({m.event: 1})]
            members = [m for m in members if m.event not in failing] or members
            count = events.release_count({m.event: m.count for m in members})
            what = events.describe(members[0].event)
            if len(members) > 1:
                what += f", and {len(members) - 1} other settings"
            what = "; ".join([what, *map(events.describe, failing)])
            mark = " (this run)" if run == self.run else ""
            releases = "one release" if count == 1 else f"{count:,} releases"
            lines.append(f"{purpose}, run {run}{mark}: {releases}; {what}.")
        return lines or ["nothing"]

    def facts(self) -> list[tuple[str, str]]:
        """Return what was protected, spent and done, as names and values in their order."""
        relation = RELATIONS_IN_WORDS[self.relation].format(unit=self.unit)
        budget = (
            "none was set"
            if self.budget is None
            else f"epsilon {formatting.epsilon(self.budget.epsilon)} at delta "
            f"{formatting.delta(self.budget.delta)}"
        )
        return [
            ("Data set", self.dataset),
            ("Protects", f"each {self.unit}: {relation}"),
            ("Epsilon", f"{formatting.epsilon(self.epsilon)} for everything on the ledger"),
            ("", f"{formatting.epsilon(self.run_epsilon)} for this run alone"),
            ("Delta", formatting.delta(self.delta)),
            ("Budget", budget),
            ("Computed by", ACCOUNTANTS_IN_WORDS[self.accountant]),
            ("Method", self.method),
            ("Progress", self.progress),
            ("Sampling", self.sampling),
            ("Noise", self.noise),
            ("Ledger", f"{self.ledger}; {self.counting}" if self.counting else self.ledger),
        ]

    def sections(self) -> list[tuple[str, Sequence[str]]]:
        """Return the lists below the facts, each with its title."""
        return [
            ("Charged so far", self._spent()),
            ("This rests on", self.assumptions),
            ("This does not cover", self.not_covered),
        ]

    def __str__(self) -> str:
        parts = ["PRIVACY STATEMENT", "", _wrap(self.promise()), ""]
        parts += [_wrap(value, f"{name:<12} ") for name, value in self.facts()]
        for title, items in self.sections():
            parts += ["", f"{title}:"] + [_wrap(item, "  - ") for item in items]
        return "\n".join(parts)


def _wrap(text: str, lead: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_long_words=False
    )
