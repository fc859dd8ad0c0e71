"""Draw the picture of docs/architecture.md from the imports of the source.

python docs/import_graph.py          write docs/architecture.svg
python docs/import_graph.py --check  exit with 1 if it is out of date
"""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "privada"
PICTURE = Path(__file__).parent / "architecture.svg"
# Other names of folders, and what serves pictures alone.
LEFT_OUT = {"__init__", "__main__", "geometry", "sampling", "image_export", "charts"}
WHAT = {
    "core": "values, parameters, randomness, errors",
    "accounting": "budgets, events, accountants, ledger",
    "data": "records, units, batches",
    "participation": "who takes part in a step",
    "objective": "what is added to the loss",
    "preconditioning": "scales, and where they come from",
    "clipping": "the engine, clips",
    "features": "images, public encoders",
    "noise": "sources, schedules",
    "mechanism": "all of these, priced",
    "query": "account, one file for each look",
    "metrics": "figures on public records",
    "updates": "rules, controllers",
    "methods": "one file for each method",
    "defaults": "settings without tuning",
    "tables": "from files to features",
    "train": "state, step, trainer, loop",
    "huggingface": "models of transformers",
    "loggers": "for TensorBoard and others",
    "execute": "where sums are computed",
    "selection": "the price of tuning",
    "models": "architectures by name",
    "federated": "clients, Flower",
    "audit": "what an attacker finds",
    "scikit_learn": "estimators",
    "report": "the page for people",
    "workflows": "what the commands do",
    "cli": "parse and print",
}
BOX, GAP, ROW = (172, 46), 18, 92


def part_of(path: Path) -> str:
    """Return the folder, or the single file, that a module belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports() -> dict[str, set[str]]:
    """Return which folders each folder imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        own = part_of(path)
        if own in LEFT_OUT:
            continue
        found.setdefault(own, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "privada":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            parts = [name.split(".") for name in names]
            found[own] |= {part[1] for part in parts if part[0] == "privada" and len(part) > 1}
    return {
        own: {each for each in others if each in found and each != own}
        for own, others in found.items()
    }


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return how far above the ground each folder stands."""
    found: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((level(each) for each in graph[name]), default=-1)
        return found[name]

    for name in graph:
        level(name)
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that no chain of others implies."""
    reach: dict[str, set[str]] = {}

    def below(name: str) -> set[str]:
        if name not in reach:
            reach[name] = set().union(*({each} | below(each) for each in graph[name]), set())
        return reach[name]

    return {
        name: {each for each in others if not any(each in below(o) for o in others - {each})}
        for name, others in graph.items()
    }


def draw() -> str:
    """Return the picture."""
    graph = imports()
    height = levels(graph)
    rows: dict[int, list[str]] = {}
    for name in (each for each in WHAT if each in graph):
        rows.setdefault(height[name], []).append(name)
    widest = max(len(row) for row in rows.values())
    width = widest * (BOX[0] + GAP) + GAP
    total = (max(rows) + 1) * ROW + GAP
    places: dict[str, tuple[float, float]] = {}
    for level, row in rows.items():
        start = (width - len(row) * (BOX[0] + GAP) + GAP) / 2
        for place, name in enumerate(row):
            x = start + place * (BOX[0] + GAP)
            places[name] = x, total - (level + 1) * ROW + (ROW - BOX[1]) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {total:g}" '
        'font-family="sans-serif" role="img">',
        "<title>The folders of Privada; each imports only what stands below it</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for name, others in sorted(reduced(graph).items()):
        for other in sorted(others):
            (x, y), (u, v) = places[name], places[other]
            a, b = (x + BOX[0] / 2, y + BOX[1]), (u + BOX[0] / 2, v)
            bend = (b[1] - a[1]) / 2
            parts.append(
                f'<path d="M{a[0]:g} {a[1]:g} C{a[0]:g} {a[1] + bend:g} {b[0]:g} {b[1] - bend:g} '
                f'{b[0]:g} {b[1]:g}" fill="none" stroke="#9aa5b1" stroke-width="1.2"/>'
            )
    for name, (x, y) in sorted(places.items()):
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="6" fill="#eef4fb" '
            'stroke="#3c6e9f"/>',
            f'<text x="{x + BOX[0] / 2:g}" y="{y + 19:g}" text-anchor="middle" font-size="13" '
            f'font-weight="bold" fill="#16324f">{name}</text>',
            f'<text x="{x + BOX[0] / 2:g}" y="{y + 35:g}" text-anchor="middle" font-size="9.5" '
            f'fill="#33475b">{WHAT[name]}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Write the picture, or compare it with what is there."""
    made = draw()
    if "--check" in sys.argv:
        return int(PICTURE.read_text(encoding="utf-8") != made)
    PICTURE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
