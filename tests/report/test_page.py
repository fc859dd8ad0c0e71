"""The page as text: its figures, its words and what may not be in it."""

import html.parser
import json
import re

import pytest

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.report import Entry, write
from privada.report.style import DARK, LIGHT
from tests.report.conftest import trained

NASTY = "</script><script>alert('1')</script>&<b>\u2028"
EMPTY = {"meta", "br"}


class Read(html.parser.HTMLParser):
    """Reads a page, and notes its words, figures and headings; every element must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.figures, self.headings = [], [], {}, []
        self.ids, self.tags, self.scripts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        if tag not in EMPTY:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if "data-figure" in attributes:
            name = attributes["data-figure"]
            self.figures.setdefault(name, []).append(float(attributes["data-value"]))
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def read(tmp_path):
    def written(*entries, **options):
        return Read(write(entries, tmp_path / "page.html", **options).read_text("utf-8"))

    return written


def test_one_run(read, world):
    page = read(world.first)
    said = world.first.statement
    assert page.figures["epsilon"] == [said["epsilon"]]
    assert page.figures["own"] == [said["run_epsilon"]]
    assert page.figures["left"] == [3.0 - said["epsilon"]]
    assert page.figures["releases"] == [12]
    for words in ("Privacy report: patients", "The trained model is", "leave any one record out",
                  "accuracy on public records", "It does not cover", "PRIVACY STATEMENT",
                  "12 of 12 steps", f"Privada {pv.__version__}"):  # fmt: skip
        assert words in page.text
    assert "Not a private release" not in page.text
    assert "Epsilons do not add up" not in page.text
    assert "comparison" not in page.ids
    assert "tuning" not in page.ids


def test_headings_are_in_order_and_identifiers_are_one_thing_each(read, world):
    page = read(world.first, world.second, world.search)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        assert after <= before + 1
    assert len(page.ids) == len(set(page.ids))
    assert {"header", "main", "nav", "footer"} <= set(page.tags)


def test_runs_on_one_ledger_have_the_newest_total(read, world):
    page = read(world.second, world.first)  # the first is older
    assert page.figures["epsilon"] == [world.second.statement["epsilon"]]
    assert "Everything charged to this ledger, taken together, is" in page.text
    assert "Epsilons do not add up" in page.text
    assert {"comparison", "training", "metrics"} <= set(page.ids)


def test_runs_on_other_ledgers_are_told_apart(read, world):
    other, third = Entry.of_trainer(trained()), Entry.of_trainer(trained(steps=3))
    page = read(world.first, other, third)
    assert len(page.figures["spent"]) == 3  # two ledgers in memory are not one
    assert "This page is about 3 ledgers" in page.text
    shared = pv.Ledger(None)
    both = [Entry.of_trainer(trained(shared)), Entry.of_trainer(trained(shared))]
    assert len(read(*both).figures["spent"]) == 1


def test_a_ledger_is_shown_as_it_is_now(read, world):
    ledger = pv.Ledger(None, pv.Budget(5.0, 1e-4))
    entry = Entry.of_trainer(trained(ledger))
    ledger.charge({events.gaussian(5.0): 2}, run="later", purpose="statistics")
    page = read(entry, ledger=ledger)
    assert page.figures["epsilon"] == [ledger.epsilon()]
    assert page.figures["epsilon"][0] > entry.statement["epsilon"]
    assert page.figures["releases"] == [14]
    assert "later" in page.text
    assert "not where the noise came from" in page.text
    with pytest.raises(ArgumentError, match="holds none of them"):
        read(world.first, ledger=ledger)


def test_a_ledger_alone(read, world):
    page = read(ledger=world.ledger)
    assert page.figures["epsilon"] == [world.ledger.epsilon()]
    assert "training" not in page.ids
    with pytest.raises(ArgumentError, match="has none and so no delta"):
        read(ledger=pv.Ledger(None))


def test_what_is_left_is_at_the_budgets_delta(read):
    ledger = pv.Ledger(None, pv.Budget(5.0, 1e-6))
    entry = Entry.of_trainer(trained(ledger, delta=1e-3))
    page = read(entry)
    assert page.figures["epsilon"] == [ledger.epsilon(1e-3)]
    assert page.figures["spent"] == [ledger.epsilon()]
    assert page.figures["spent"][0] > page.figures["epsilon"][0]


def test_without_a_budget_nothing_is_left_to_be_said(read):
    page = read(Entry.of_trainer(trained()))
    assert "No budget was set" in page.text
    assert "left" not in page.figures


def test_a_seeded_run_is_marked_first_of_all(read):
    page = read(Entry.of_trainer(trained(seed=1)))
    assert page.text.index("Not a private release") < page.text.index("No promise")
    assert "The trained model is" not in page.text
    mixed = read(Entry.of_trainer(trained()), Entry.of_trainer(trained(seed=1), name="odd one"))
    assert "odd one: for experiments alone" in mixed.text


def test_a_search_has_prices_and_candidates(read, world):
    page = read(world.search)
    assert {"tuning", "plot-prices-0"} <= set(page.ids)
    for how in pv.selection.WAYS:
        assert how in page.text
    assert "The candidates" in page.text
    assert world.search.chosen == "compose-pld"
    assert world.search.prices["compose-pld"] <= 1.0


def test_whatever_names_hold_is_text(read):
    ledger = pv.Ledger(None, dataset="<i>data & co</i>")
    entry = Entry.of_trainer(
        trained(ledger, unit="<u>person</u>"),
        name=NASTY,
        metrics={NASTY: 0.5, f"{NASTY} loss": 2.0},
        configuration={NASTY: {NASTY: NASTY}, "list": [NASTY]},
    )
    other = Entry(
        "'\" onload=alert(1) x='",
        entry.statement,
        metrics=entry.metrics,
        configuration={"list": NASTY},
        prices={NASTY: 1.0, "cheap": 0.1},
        chosen=NASTY,
        tried=[{"settings": {NASTY: NASTY}, "score": 0.1}],
    )
    page = read(entry, other, title=NASTY)
    assert page.tags.count("script") == 3  # the charts, plotly, the page's own
    assert not {"i", "u", "img"} & set(page.tags)
    assert "<i>data & co</i>" in page.text
    assert "<u>person</u>" in page.text
    plots = json.loads(page.scripts[0])
    assert plots["plot-prices-1"]["traces"][0]["x"] == [1.0, 0.1]
    shown = json.dumps(plots)
    assert "<script" not in shown
    assert "<b>" not in shown


def test_a_long_history_makes_a_small_page(read, world):
    steps = 100_000
    history = [
        {"step": n + 1, "lr": 1 / (n + 1), "noise_multiplier": 1.0, "epsilon": n**0.5 / 100}
        for n in range(steps)
    ]
    history[5000]["lr"] = 7.0
    page = read(Entry("long", world.first.statement, history=history))
    plots = json.loads(page.scripts[0])
    assert len(json.dumps(plots)) < 60_000
    rate = plots["plot-lr"]["traces"][0]
    assert (rate["x"][0], rate["x"][-1], max(rate["y"])) == (1, steps, 7.0)


def test_many_kinds_of_charges_are_listed_together(read, world):
    page = read(world.second)
    assert "12 kinds, of which the first: Gaussian noise" in page.text


def test_figures_that_are_not_finite_are_said_in_words(read, world):
    said = {**world.first.statement, "epsilon": float("inf"), "run_epsilon": float("inf")}
    history = [{"step": 1, "lr": float("nan"), "noise_multiplier": 1, "epsilon": float("inf")}]
    page = read(Entry("odd", said, history=history, metrics={"loss": float("nan")}))
    assert "infinite" in page.text
    assert page.figures["epsilon"] == [float("inf")]


def test_it_is_written_whole_or_not_at_all(world, tmp_path, monkeypatch):
    path = write([world.first], tmp_path / "page.html")
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(ArgumentError, match="No space left"):
        write([world.second], path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("entries", "name", "says"),
    [
        ([], "page.html", "at least one entry"),
        (["run"], "page.html", "Entry.of_trainer"),
        ("world", "page.pdf", r"end in \.html"),
        ("world", "none/page.html", "Check that the folder exists"),
    ],
)
def test_mistakes(world, tmp_path, entries, name, says):
    with pytest.raises(ArgumentError, match=says):
        write([world.first] if entries == "world" else entries, tmp_path / name)


def contrast(one, other):
    """Return the ratio of WCAG 2.1."""

    def light(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_can_be_read_and_lines_told_from_the_page(theme):
    for words in ("text", "soft", "accent"):
        for ground in ("page", "surface"):
            assert contrast(theme[words], theme[ground]) >= 4.5
    assert contrast(theme["text"], theme["accent-soft"]) >= 4.5
    assert contrast(theme["on-alarm"], theme["alarm"]) >= 4.5
    for number in range(7):
        assert contrast(theme[f"series-{number}"], theme["page"]) >= 3
