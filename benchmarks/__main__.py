"""`make bench`: run everything and write benchmarks/results/.

`python -m benchmarks engine` runs one part, `python -m benchmarks engine CNN` one model of it.
"""

import json
import os
import platform
import sys
import warnings
from pathlib import Path

import torch

from benchmarks import (
    accounting,
    engine,
    federated,
    filters,
    imports,
    ledger,
    noise,
    tables,
    team_ledger,
)

RESULTS = Path(__file__).parent / "results"


def table(rows: list[dict[str, object]]) -> str:
    lines = ["| what | contender | ms | ratio |", "|---|---|---:|---:|"]
    for entry in rows:
        for name, value in entry["milliseconds"].items():
            ratio = entry["ratio"].get(name)
            shown = "1 (reference)" if ratio is None else f"{ratio:.2f}"
            lines.append(f"| {entry['what']} | {name} | {value:.3f} | {shown} |")
    return "\n".join(lines)


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def foundation() -> None:
    rows = [line for part in (noise, ledger, accounting, imports) for line in part.run()]
    text = json.dumps({"machine": machine(), "rows": rows}, indent=2)
    (RESULTS / "foundation.json").write_text(text + "\n")
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    page = (
        "# Foundation: what the spine costs\n\n"
        "Written by `make bench`. Contenders are measured in turns within one run; figures are "
        f"medians unless they say mean. Machine: {facts}.\n\n{table(rows)}\n"
    )
    (RESULTS / "foundation.md").write_text(page)
    print(page)


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    part, *models = sys.argv[1:] or ["all"]
    if part in ("all", "foundation"):
        foundation()
    if part in ("all", "filters"):
        filters.write(RESULTS, table, machine())
    if part in ("all", "team_ledger"):
        team_ledger.write(RESULTS, table, machine())
    if part in ("all", "federated"):
        federated.write(RESULTS, table, machine())
    if part in ("all", "tables"):
        tables.write(RESULTS, machine(), tuple(models))
    if part in ("all", "engine"):
        engine.write(RESULTS, machine(), tuple(models))


if __name__ == "__main__":
    main()
