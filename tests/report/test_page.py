"""The page as text: its figures, its words and what may not be in it."""

import html.parser
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

import privada as pv
from privada.accounting import events
from privada.accounting.filters import RenyiFilter
from privada.cli.ledger import show
from privada.core import formatting
from privada.core.errors import ArgumentError
from privada.report import Entry, write
from privada.report.style import DARK, LIGHT
from privada.workflows import ledger_contents
from tests.report.conftest import made, trained

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


# Rounded to the nearest, each would be shown below its value, or unlike d3 in a browser.
AWKWARD = {"epsilon": 1.23411, "run_epsilon": 0.98761, "noise": 1.2345678, "accuracy": 0.87655}
SHOWN = {"epsilon": "1.235", "run_epsilon": "0.9877", "noise": "1.235", "accuracy": "0.8766"}


def awkward(world, name, **changes):
    step = {"step": 12, "lr": 0.5, "noise_multiplier": AWKWARD["noise"]}
    said = {**world.first.statement, **{key: AWKWARD[key] for key in ("epsilon", "run_epsilon")}}
    fields = {
        "statement": said,
        "history": [{**step, "epsilon": AWKWARD["epsilon"]}],
        "metrics": {"accuracy on public records": AWKWARD["accuracy"]},
        "configuration": {"noise_multiplier": AWKWARD["noise"], "epsilon": AWKWARD["epsilon"]},
        "prices": {"compose-pld": AWKWARD["epsilon"], "liu-talwar": 1234.5},
        "tried": [{"settings": {"lr": 0.123456}, "score": AWKWARD["accuracy"]}],
    }
    return Entry(name, **{**fields, **changes})


def test_a_number_is_shown_alike_wherever_it_is_shown(read, world):
    one = awkward(world, "one")
    two = awkward(world, "two", metrics={"accuracy on public records": 0.5})
    step, other = two.history[0], {**two.history[0], "step": 13, "noise_multiplier": 2.5}
    two = replace(two, history=[step, other], statement={**two.statement, "run_epsilon": 0.5})
    page = read(one, two)
    plots = json.loads(page.scripts[0])

    def labels(name):
        return [each for trace in plots[name]["traces"] for each in trace["text"]]

    assert labels("plot-epsilon") == [SHOWN["epsilon"]] * 3
    assert labels("plot-noise-multiplier") == [SHOWN["noise"]] * 2 + ["2.5"]
    assert labels("plot-metrics-0") == ["0.5", SHOWN["accuracy"]]
    assert labels("plot-prices-0") == ["1,235", SHOWN["epsilon"]]
    assert labels("plot-comparison")[0] == f"epsilon {SHOWN['run_epsilon']}<br>{SHOWN['accuracy']}"
    # neither text nor chart has another rounding of any of them
    everywhere = page.text + json.dumps([each["layout"] for each in plots.values()])
    everywhere += json.dumps([trace.get("text") for p in plots.values() for trace in p["traces"]])
    for name, value in AWKWARD.items():
        stem = f"{value}"[:4]
        found = set(re.findall(rf"(?<![\d.,]){re.escape(stem)}\d*", everywhere))
        found |= set(re.findall(rf"(?<![\d.,]){re.escape(SHOWN[name][:4])}\d*", everywhere))
        assert found == {SHOWN[name]}, name
    # the browser is left no number of its own to round, but for steps
    templates = [t.get("hovertemplate", "") + t.get("texttemplate", "") for p in plots.values()
                 for t in p["traces"]]  # fmt: skip
    assert not any(re.search(r"%\{[xy]:", each) for each in templates)


def test_a_setting_that_never_changes_and_a_cost_that_all_share_have_no_chart(read, world):
    one, two = awkward(world, "one"), awkward(world, "two")
    plots = json.loads(read(one, two).scripts[0])
    assert "plot-epsilon" in plots
    assert not {"plot-noise-multiplier", "plot-lr", "plot-comparison"} & set(plots)
    dearer = replace(two, statement={**two.statement, "run_epsilon": 1.5})
    assert "plot-comparison" in json.loads(read(one, dearer).scripts[0])


def test_text_command_and_page_agree(read, world, capsys):
    ledger = world.ledger
    page = read(world.first, world.second, world.search, ledger=ledger)
    show(ledger_contents(world.folder / "patients.ledger"), Console())
    said = capsys.readouterr().out
    epsilon = formatting.epsilon(ledger.epsilon())
    assert f"epsilon {epsilon} of 3 spent" in said
    assert f"{epsilon} spent" in page.text
    left = formatting.left(3.0, ledger.epsilon())
    assert f"Left: about {left}." in said
    assert f"{left} left" in page.text
    assert "valid at any time, also one chosen after looking" in said
    assert "valid at any time, also one chosen after looking" in page.text
    assert "as it was planned" in page.text
    assert "has what it was planned to cost" in said
    for entry in (world.first, world.second, world.search):
        own = formatting.epsilon(entry.stated.run_epsilon)
        assert f"{own} for this run alone" in str(entry.stated)
        assert f"{own} for this run alone" in page.text
        counted = ledger.run_epsilon(entry.stated.run)
        assert f"Run {entry.stated.run}: epsilon {formatting.epsilon(counted)} alone" in said
        assert counted > entry.stated.run_epsilon


@pytest.mark.parametrize("ended", [False, True])
def test_text_command_and_page_agree_on_what_was_declared(ended, read, tmp_path, capsys):
    """Whether it was all used or not."""
    ledger = pv.Ledger(tmp_path / "l.db", pv.Budget(3.0, 1e-4), kind="planned")
    trainer = made(ledger)
    if ended:
        trainer.step().finish()
    entry = Entry.of_trainer(trainer if ended else trainer.fit())
    declared = ledger.declared(entry.stated.run)
    epsilon = formatting.epsilon(pv.accounting.epsilon_of(declared, 1e-4))
    page = read(entry, ledger=ledger)
    show(ledger_contents(tmp_path / "l.db"), Console())
    said = capsys.readouterr().out
    assert f"epsilon {epsilon} of 3 spent" in said
    assert f"Run {entry.stated.run}: epsilon {epsilon} alone" in said
    assert f"{epsilon} spent" in page.text
    assert f"{epsilon} for this run alone" in page.text
    assert page.figures["epsilon"] == page.figures["spent"] == page.figures["own"]
    for words in (said, page.text):
        assert "planned: everything was declared" in words.replace("Planned", "planned")
        assert "that of everything declared, whether used or not" in words
        assert "valid at any time" not in words
    assert "counts from the first step on" in page.text
    assert (sum(ledger.totals().values()) < sum(declared.values())) == ended


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_the_bar_is_as_long_as_the_text_says(kind, read, tmp_path):
    ledger = pv.Ledger(None, pv.Budget(2.0, 1e-4), kind=kind)
    entry = Entry.of_trainer(trained(ledger))
    text = write([entry], tmp_path / "bar.html", ledger=ledger).read_text()
    share = 100 * ledger.epsilon() / 2.0
    assert f'style="width:{share:.2f}%"' in text
    assert f"{share:.0f} % of the budget is spent" in text
    assert read(entry, ledger=ledger).figures["spent"] == [ledger.epsilon()]


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
    # the headline is the whole bill: no less than any ledger's, and all charges together, which
    # nobody declared together
    totals = Counter()
    for entry in (world.first, other, third):
        for charge in entry.stated.charges:
            totals[charge.event] += charge.count
    assert page.figures["epsilon"] == [RenyiFilter.for_budget(None).epsilon(totals, 1e-4)]
    assert page.figures["epsilon"][0] > pv.accounting.epsilon_of(totals, 1e-4)
    assert "valid at any time" in page.text
    assert page.figures["epsilon"][0] > max(page.figures["spent"])
    assert "Everything charged to these 3 ledgers, taken together, is" in page.text
    shared = pv.Ledger(None)
    both = [Entry.of_trainer(trained(shared)), Entry.of_trainer(trained(shared))]
    assert len(read(*both).figures["spent"]) == 1


def test_ledgers_that_protect_other_things_have_no_common_headline(read):
    one = Entry.of_trainer(trained())
    for options in ({"unit": "person"}, {"sampling": "fixed-size"}):
        page = read(one, Entry.of_trainer(trained(**options)))
        assert page.figures["epsilon"] == [one.statement["epsilon"]]
        assert "do not protect the same thing" in page.text


def test_a_headline_of_several_ledgers_is_at_the_least_delta(read):
    page = read(Entry.of_trainer(trained()), Entry.of_trainer(trained(delta=1e-6)))
    assert page.figures["delta"] == [1e-6]
    assert page.figures["epsilon"][0] > max(page.figures["spent"])


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


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_what_is_left_is_at_the_budgets_delta(kind, read):
    ledger = pv.Ledger(None, pv.Budget(5.0, 1e-6), kind=kind)
    trainer = made(ledger, delta=1e-3)
    trainer.step().finish()  # so that less is charged than was declared
    entry = Entry.of_trainer(trainer)
    page = read(entry)
    assert page.figures["epsilon"] == [ledger.epsilon(1e-3)]
    assert page.figures["spent"] == [ledger.epsilon()]
    assert page.figures["spent"][0] > page.figures["epsilon"][0]
    # a statement alone has neither what was declared nor the orders of the ledger's filter
    (alone,) = read(Entry(name="a", statement=entry.statement)).figures["spent"]
    filter = RenyiFilter.for_budget(ledger.budget)
    assert alone == (5.0 if kind == "planned" else filter.epsilon(ledger.totals(), 1e-6))


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


def test_members_found_are_drawn_beside_the_most_that_the_promise_allows(read, world):
    shares, found, most = [0.0, 0.05, 1.0], [0.0, 0.15, 1.0], [0.01, 0.35, 1.0]
    plain = {"name": "plain", "auc": 0.75, "limits": None}
    private = {"name": "private", "auc": 0.525, "limits": most}
    attacks = [
        each | {"false_positives": shares, "true_positives": found} for each in (plain, private)
    ]
    audited = replace(world.first, membership={"attacks": attacks, "records": 1200, "runs": 16})
    page = read(audited, world.second)
    assert "What privacy bought" in page.text
    assert "Members found of plain" in page.text
    assert "16 models of each kind on halves of 1,200 records" in page.text
    assert "no limit" in page.text
    drawn = json.loads(page.scripts[0])["plot-membership-0"]
    curves = {trace["name"]: trace["y"] for trace in drawn["traces"]}
    assert curves == {
        "plain": found,
        "private": found,
        "private: the most possible": most,
        "guessing": [0.0, 1.0],
    }
    assert "What privacy bought" not in read(world.first).text


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


def test_public_figures_are_drawn_against_the_steps_with_their_baseline(tmp_path):
    statement = trained().statement().to_dict()
    name = "accuracy on public rows"
    entry = Entry(
        "run", statement, metrics={name: 0.9}, baselines={name: 0.6},
        evaluations=[{"step": 5, name: 0.7}, {"step": 10, name: 0.9}],
    )  # fmt: skip
    text = write([entry], tmp_path / "a.html").read_text()
    page = Read(text)
    assert "plot-score-0" in page.ids
    assert "baseline 0.6" in text
    assert "A baseline is what a model reaches" in " ".join(page.words)
    assert page.words.count("baseline") == 1  # its row in the table
    bare = write([replace(entry, baselines={}, evaluations=())], tmp_path / "b.html").read_text()
    assert "plot-score" not in bare
    assert "A baseline" not in bare
