"""What commands load: as little as they need, so that they answer at once. No time is asserted."""

import subprocess
import sys

import pytest

import privada as pv
from privada.accounting import events
from privada.core import formatting
from tests.forks import PATIENCE

TORCH = {"torch", "sklearn", "plotly", "joblib", "opacus"}
NUMBERS = {"numpy", "scipy", "dp_accounting.pld", "cryptography", "pandas"}
STATISTICS = {"scipy.stats", "scipy.signal", "dp_accounting.pld"}
COMMANDS = (
    "demo", "plan", "schema", "train", "tune", "ledger", "report", "papers", "federated",
    "predict", "ledger copy", "ledger grant", "ledger accept", "federated new",
)  # fmt: skip
PROGRAM = """
import sys
sys.argv = ["privada", *sys.argv[1:]]
from privada.cli import main
try:
    main()
except SystemExit as stopped:
    code = stopped.code or 0
print("\\n--", code, *sys.modules)
"""


def run(*arguments, folder=None, program=PROGRAM):
    """Return exit code, output and the modules that a command in a fresh process has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    output, _, listed = done.stdout.rpartition("\n-- ")
    code, *modules = listed.split()
    return int(code), output + done.stderr, set(modules)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_loads_no_library(name):
    code, output, loaded = run(*name.split(), "--help")
    assert (code, "Usage: privada" in output) == (0, True)
    assert not loaded & (TORCH | NUMBERS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("trian",),
        ("train",),
        ("plan", "--records", "1000"),
        ("train", "a.csv", "--epsilon", "much"),
        ("--version",),
    ],
)
def test_wrong_words_load_no_library(arguments):
    _, _, loaded = run(*arguments)
    assert not loaded & (TORCH | NUMBERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("startup")
    (made / "visits.csv").write_text("age,sick\n39,no\n50,yes\n")
    (made / "taken").mkdir()
    kinds = {events.poisson(0.1, 2.0): 100, events.gaussian(30.0): 1}
    for kind in ("planned", "adaptive"):
        with pv.Ledger(made / kind, pv.Budget(3.0, 1e-5), kind=kind) as ledger:
            ledger.charge(kinds, run="first")
    return made


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_ledger_is_shown_without_torch_and_statistics(folder, kind):
    code, output, loaded = run("ledger", str(folder / kind))
    assert (code, "Run first: epsilon" in output) == (0, True)
    assert not loaded & (TORCH | STATISTICS)
    with pv.Ledger(folder / kind) as ledger:  # here with all of dp_accounting
        assert f"epsilon {formatting.epsilon(ledger.epsilon(1e-5))} of 3 spent" in output


@pytest.mark.parametrize("command", ["train", "tune"])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nothing.csv", "--target", "sick", "--epsilon", "1"), "nothing.csv"),
        (("visits.csv", "--target", "ill", "--epsilon", "1"), "'ill'"),
        (("visits.csv", "--epsilon", "1"), "--target"),
        (("visits.csv", "--target", "sick"), "--epsilon"),
        (("visits.csv", "--target", "sick", "--epsilon", "1", "--output", "taken"), "taken"),
        (("visits.csv", "--schema", "no.toml", "--epsilon", "1"), "no.toml"),
        (("visits.csv", "--target", "sick", "--epsilon", "1", "--text", "age"), "--text"),
        (("visits.csv", "--target", "sick", "--epsilon", "1", "--config", "no.toml"), "no.toml"),
    ],
)
def test_what_is_wrong_with_names_is_said_without_torch(folder, command, arguments, named):
    code, output, loaded = run(command, *arguments, folder=folder)
    assert (code, named in output) == (2, True)
    assert not loaded & (TORCH | STATISTICS)


def test_planning_needs_no_torch():
    code, output, loaded = run(
        "plan", "--records", "1000", "--epsilon", "1", "--batch-size", "64", "--epochs", "1",
        "--candidates", "4", "--json",
    )  # fmt: skip
    assert (code, '"settings"' in output) == (0, True)
    assert not loaded & TORCH


@pytest.mark.parametrize(
    "arguments", [("papers",), ("schema", "visits.csv", "--target", "sick"), ("report", "nowhere")]
)
def test_other_short_commands_need_no_torch(folder, arguments):
    _, _, loaded = run(*arguments, folder=folder)
    assert not loaded & {"torch", "sklearn"}
    assert not loaded & STATISTICS


DEFERRED = """
import sys
from privada.cli.deferred import defer_accountants
defer_accountants()
import dp_accounting
from dp_accounting import DpEvent, GaussianDpEvent, dp_event
assert DpEvent is dp_event.DpEvent
assert GaussianDpEvent(1.0) == dp_event.GaussianDpEvent(1.0)
assert "scipy" not in sys.modules and "dp_accounting.pld" not in sys.modules
accountant = dp_accounting.pld.PLDAccountant()
accountant.compose(GaussianDpEvent(1.0))
assert dp_accounting.get_epsilon_gaussian(1.0, 1e-5) > 4
assert type(dp_accounting).__name__ == "module"
assert dp_accounting.NeighboringRelation is dp_accounting.privacy_accountant.NeighboringRelation
try:
    dp_accounting.nothing
except AttributeError:
    pass
else:
    raise AssertionError("a name that is not there was found")
code = 0
print("\\n--", code, *sys.modules)
"""


def test_what_was_put_off_is_the_same_library():
    code, _, loaded = run(program=DEFERRED)
    assert code == 0
    assert "scipy.stats" in loaded


THREADS = """
import sys, threading
from privada.cli.deferred import defer_accountants
defer_accountants()
import dp_accounting
start, found = threading.Barrier(8), []
def ask():
    start.wait()
    found.append(dp_accounting.get_epsilon_gaussian(1.0, 1e-5))
threads = [threading.Thread(target=ask) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert len(set(found)) == 1 and len(found) == 8
code = 0
print("\\n--", code, *sys.modules)
"""


def test_threads_that_ask_at_once_get_the_same():
    assert run(program=THREADS)[0] == 0


def test_python_dash_m_runs_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "privada", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, f"privada {pv.__version__}\n")
