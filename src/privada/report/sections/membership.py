"""What privacy bought: how well members are told from others, with and without it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privada.report import plots
from privada.report.components import Cell, Charts, section, table
from privada.report.entries import Entry
from privada.report.markup import Content, Markup, element

# Shares of others taken for members at which the table says what is found.
_SHARES = (0.01, 0.1)


def membership(entries: Sequence[Entry], charts: Charts) -> Markup | None:
    """Return the curves of membership inference of each run that was attacked."""
    attacked = [(place, entry) for place, entry in enumerate(entries) if entry.membership]
    parts: list[Content] = []
    for place, entry in attacked:
        found = entry.membership or {}
        of = f" of {entry.name}" if len(entries) > 1 else ""
        attacks = found["attacks"]
        parts.append(
            charts.figure(
                f"plot-membership-{place}",
                f"Members found{of}",
                plots.found_members(attacks),
                "What an attacker finds who has the model, knows how it was trained and trains "
                "others like it. A dotted line is the most that the promise allows any attacker.",
            )
        )
        parts.append(_figures(attacks))
    if not parts:
        return None
    runs = max(int((entry.membership or {})["runs"]) for _, entry in attacked)
    records = max(int((entry.membership or {})["records"]) for _, entry in attacked)
    note = (
        f"Membership inference by likelihood ratios: {runs} models of each kind on halves of "
        f"{records:,} records that may be looked at. An attack that finds little proves nothing; "
        "one that found more than the promise allows would disprove it."
    )
    return section("membership", "What privacy bought", element("p", note, class_="note"), *parts)


def _figures(attacks: Sequence[Mapping[str, Any]]) -> Markup:
    rows: list[list[Cell]] = []
    for attack in attacks:
        row: list[Cell] = [attack["name"], float(attack["auc"])]
        for share in _SHARES:
            row.append(_at(share, attack, "true_positives"))
            row.append(_at(share, attack, "limits") if attack.get("limits") else "no limit")
        rows.append(row)
    heads = ["model", "area under the curve"]
    for share in _SHARES:
        heads += [f"found, {share:.0%} of others wrong", "at most"]
    return table(heads, rows, numbers=range(1, len(heads)))


def _at(share: float, attack: Mapping[str, Any], curve: str) -> float:
    return float(np.interp(share, attack["false_positives"], attack[curve]))
