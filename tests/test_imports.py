"""The order of the folders, and what may be made where."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import PATIENCE

SOURCE = Path(__file__).parent.parent / "src" / "privada"
# Each may import only what stands before it. Those in one group may import each other.
ORDER = [
    {"core"},
    {"image_export"},
    {"charts"},
    {"accounting"},
    {"data"},
    {"participation"},
    {"sampling"},
    {"objective"},
    {"preconditioning"},
    {"geometry"},
    {"clipping"},
    {"features"},
    {"noise"},
    {"mechanism"},
    {"query"},
    {"metrics"},
    {"updates"},
    {"methods"},
    {"defaults"},
    {"tables"},
    {"train"},
    {"loggers"},
    {"huggingface"},
    {"execute"},
    {"selection"},
    {"models"},
    {"federated"},
    {"inference"},
    {"audit"},
    {"scikit_learn"},
    {"report"},
    {"workflows"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}


def part_of(path):
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def files():
    """Return the library's own files: a template is code of the user's, on public names."""
    template = SOURCE / "federated" / "template"
    found = (path for path in sorted(SOURCE.rglob("*.py")) if path.parent != template)
    return [path for path in found if part_of(path) != "__init__"]


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_folder_imports_only_what_stands_before_it(path):
    own = part_of(path)
    assert own in RANK, f"{own} has no place in the order of DESIGN.md"
    for name in imported(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "privada":
            continue
        if len(parts) == 1 or parts[1] not in RANK:
            assert own == "cli", f"{path} uses the whole package"
            continue
        assert RANK[parts[1]] <= RANK[own], f"{own} imports {parts[1]}"


def test_the_order_test_can_fail():
    assert list(imported(ast.parse("from privada.cli import main"))) == ["privada.cli.main"]
    assert RANK["core"] < RANK["cli"]


@pytest.mark.parametrize(("made", "where"), [("ClippedSum", "clipping"), ("Release", "noise")])
def test_the_values_that_carry_the_guarantee_are_made_in_one_place(made, where):
    makers = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == made:
                makers.add(part_of(path))
    assert makers == {where}


def test_receipts_are_issued_for_reservations_alone():
    issuers = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "issue_receipt":
                issuers.add(path.relative_to(SOURCE).as_posix())
    assert issuers == {"accounting/reservations.py"}


def test_looks_are_charged_by_the_account_alone():
    """The others move charges: to a ledger from an account of its own, and to a copy in memory."""
    moving = {
        "scikit_learn/fit_registry.py",
        "workflows/table_runs.py",
    }
    sites = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(node, "func", None)
            if isinstance(called, ast.Attribute) and called.attr == "charge":
                maker = getattr(getattr(called.value, "func", None), "id", "")
                if maker in ("Account", "super"):  # an account that is made there; a ledger's own
                    continue
                sites.add(path.relative_to(SOURCE).as_posix())
    assert sites - moving == {"query/account.py"}


def test_only_the_noise_folder_touches_generators_of_random_numbers():
    banned = {"randn", "normal", "normal_", "manual_seed", "default_rng", "rand", "bernoulli_"}
    hidden = SOURCE / "core" / "hidden_streams.py"  # hides the generators of others' code
    for path in (path for path in files() if part_of(path) != "noise" and path != hidden):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in banned, f"{path}: {node.func.attr}"


def modules_after(statement):
    program = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    return set(subprocess.check_output(command, text=True, timeout=PATIENCE).split())


def test_importing_the_package_is_light():
    loaded = modules_after("import privada")
    assert not loaded & {"torch", "numpy", "scipy", "dp_accounting", "sklearn", "rich", "typer"}


def test_accounting_needs_no_torch():
    loaded = modules_after("import privada; privada.accounting.Ledger; privada.Budget(1, 1e-5)")
    assert "torch" not in loaded
    assert "dp_accounting" in loaded


def test_prices_need_no_torch():
    loaded = modules_after("import privada; privada.selection.price; privada.selection.WAYS")
    assert not loaded & {"torch", "plotly", "joblib"}


def test_training_loads_no_optional_part():
    loaded = modules_after("import privada; privada.Trainer")
    optional = {"sklearn", "plotly", "flwr", "ray", "opacus", "typer", "rich", "matplotlib"}
    assert not loaded & optional


def test_every_public_name_exists():
    import privada

    for name in privada.__all__:
        assert getattr(privada, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        privada.nothing  # noqa: B018
    assert set(privada.__all__) <= set(dir(privada))
