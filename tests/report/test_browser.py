"""The page in a real browser."""

import struct
import zlib

import numpy as np
import pytest

from privada.report import Entry, write
from tests.report.conftest import trained

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def path(world):
    return write(
        [world.first, world.second, world.search], world.folder / "many.html", ledger=world.ledger
    )


@pytest.fixture(scope="module")
def opened(browser):
    """Open a page; whatever it complains of or asks for is noted."""
    contexts = []

    def open_it(path, **options):
        context = browser.new_context(
            viewport={"width": 1200, "height": 900}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        context.set_default_timeout(60_000)  # milliseconds; machines are shared
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("requestfailed", lambda request: page.said.append(request.url))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def shared(opened, path):
    return opened(path)


@pytest.fixture
def page(shared):
    """The page as it is when it is opened on a light screen."""
    shared.set_viewport_size({"width": 1200, "height": 900})
    shared.emulate_media(media="screen", color_scheme="light")
    return shared


def pixels(png):
    """Return the pixels of a picture without its transparency, by the format's own rules."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    channels = {2: 3, 6: 4}[kind]
    place, packed = 8, b""
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            packed += png[place + 8 : place + 8 + length]
        place += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    before = np.zeros((width, channels), np.uint8)
    picture = np.empty((height, width, channels), np.uint8)
    for number, row in enumerate(rows):
        picture[number] = before = unfiltered(row[0], row[1:].reshape(width, channels), before)
    return picture[:, :, :3]


def unfiltered(kind, row, above):
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    if kind == 2:
        return row + above
    out = np.zeros((len(row) + 1, row.shape[1]), int)
    up = np.vstack([np.zeros_like(above[:1]), above]).astype(int)
    for n in range(1, len(out)):
        left, over, corner = out[n - 1], up[n], up[n - 1]
        if kind == 3:
            guess = (left + over) // 2
        else:
            p = left + over - corner
            a, b, c = abs(p - left), abs(p - over), abs(p - corner)
            guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, over, corner))
        out[n] = (row[n - 1] + guess) % 256
    return out[1:].astype(np.uint8)


def figures(page, name):
    return [
        float(each.get_attribute("data-value"))
        for each in page.locator(f"[data-figure={name}]").all()
    ]


def test_it_opens_without_a_complaint_or_a_request_and_draws(page, path):
    assert page.said == []
    assert page.asked == [path.as_uri()]
    places = page.locator(".chart").all()
    assert len(places) == 7  # epsilon, rate, noise, two metrics, comparison, prices
    for place in places:
        assert place.locator(".main-svg").count() > 0
        assert place.bounding_box()["height"] > 100
    lines = page.locator("#plot-epsilon .scatterlayer .trace").count()
    assert lines == 2


def test_the_figures_are_the_ledgers(page, world):
    ledger = world.ledger
    assert figures(page, "epsilon") == [ledger.epsilon()]
    assert figures(page, "delta") == [ledger.budget.delta]
    assert figures(page, "spent") == [ledger.epsilon()]
    assert figures(page, "left") == [ledger.budget.epsilon - ledger.epsilon()]
    assert figures(page, "releases") == [sum(each.count for each in ledger.charges())]
    assert figures(page, "own") == [
        each.statement["run_epsilon"] for each in (world.first, world.second, world.search)
    ]
    bar, filled = (
        page.locator(which).bounding_box()["width"] for which in (".bar", ".bar span")
    )  # fmt: skip
    assert filled / bar == pytest.approx(ledger.epsilon() / ledger.budget.epsilon, abs=0.01)


def test_light_and_dark_are_drawn_and_differ(page):
    page.set_viewport_size({"width": 400, "height": 700})
    light = pixels(page.screenshot())
    page.emulate_media(color_scheme="dark")
    dark = pixels(page.screenshot())
    for picture in (light, dark):
        assert picture.std() > 10
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50
    assert light.mean() > 200
    assert dark.mean() < 60


def test_a_chart_is_drawn_in_the_colours_of_the_theme(opened, path):
    page = opened(path, color_scheme="light")  # its own: the choice is kept
    stroke = "() => getComputedStyle(document.querySelector('#plot-epsilon .js-line')).stroke"
    before = page.evaluate(stroke)
    page.get_by_role("button", name="Use dark colours").click()
    page.wait_for_function(f"before => ({stroke})() !== before", arg=before)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 23)"
    page.get_by_role("button", name="Use light colours").click()
    page.wait_for_function(f"before => ({stroke})() === before", arg=before)
    assert page.said == []


def test_a_chart_answers_to_the_mouse(page):
    place = page.locator("#plot-epsilon .nsewdrag")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    for part in (0.4, 0.5):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_function(
        "() => document.querySelector('#plot-epsilon .hoverlayer').textContent.includes('plain')"
    )


def test_a_chart_says_what_its_table_says(page, world):
    cells = page.locator("#metrics tbody td").all_text_contents()
    bars = page.locator("#plot-metrics-0 .bartext").all_text_contents()
    assert {"0.75", "0.8125"} == set(bars) <= set(cells)
    priced = page.locator("#tuning table").first.locator("tbody td").all_text_contents()
    labels = page.locator("#plot-prices-2 .bartext").all_text_contents()
    assert sorted(priced) == sorted(labels)


def test_paper_is_white_and_has_no_button(page):
    page.emulate_media(color_scheme="dark")
    assert page.locator("#theme").is_visible()
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.said == []


@pytest.mark.parametrize("width", [320, 400, 1200])
def test_it_fits_its_width(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)


def test_tables_are_sorted_by_their_headings(page):
    table = page.locator("#tuning table.sortable")

    def scores():
        return [float(text) for text in table.locator("tbody td:last-child").all_text_contents()]

    table.get_by_role("button", name="score").click()
    assert scores() == sorted(scores())
    table.get_by_role("button", name="score").click()
    assert scores() == sorted(scores(), reverse=True)
    assert table.locator("th[aria-sort=descending]").text_content().startswith("score")


def test_without_scripts_the_tables_are_there(opened, path):
    page = opened(path, java_script_enabled=False)
    assert not page.locator(".chart").first.is_visible()
    assert not page.locator("#theme").is_visible()
    assert page.locator("#comparison table").is_visible()
    assert page.locator("[data-figure=epsilon]").is_visible()


def test_what_names_hold_does_not_run(opened, tmp_path):
    nasty = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    entries = [
        Entry.of_trainer(trained(), name=f"{nasty}{number}", metrics={nasty: 0.5 + number / 4})
        for number in range(2)
    ]
    page = opened(write(entries, tmp_path / "nasty.html", title=nasty))
    assert page.said == []
    assert len(page.asked) == 1
    assert page.locator("img").count() == 0
    assert page.locator("h1").text_content() == nasty
    assert "<img" in page.locator("#plot-epsilon .legendtext").first.text_content()


def test_a_page_that_was_tampered_with_runs_no_other_script(opened, world, tmp_path):
    path = write([world.first], tmp_path / "one.html")
    text = path.read_text().replace("</main>", "<script>window.ran = 1</script></main>")
    path.write_text(text)
    page = opened(path)
    assert page.evaluate("window.ran") is None
    assert page.locator(".main-svg").count() > 0
