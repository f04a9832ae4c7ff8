"""The page in a real browser: quiet, offline, sortable, filterable, on desktop and phone.

A parser in Python sees markup; only a browser sees a script that fails, a policy that bites, a request that leaves, a
page wider than its window, or text that turned into code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from suite.claims import claim_text, load
from suite.claims.claim import AnswerRow, Check, Claim, Evidence
from suite.core.record import Metric, Outcome
from suite.report import write_report
from tests.support.browser import Browser, Tab, started
from tests.support.drawn import cells, few
from tests.support.report_records import fill, make, store
from tests.support.tools import needs

DESK, PHONE = (1280, 900), (390, 844)
SEEN = "[...document.querySelectorAll('table.claims tbody tr')].filter((row) => row.getClientRects().length)"
Known = tuple[Claim, ...]
HOSTILE = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 2">',
    "javascript:window.hit=3",
    "../../../../etc/passwd",
    "' onmouseover='window.hit = 4' \"\\' `${window.hit = 5}`",
    "\u202e\u2066gnp.<b>exe</b>\u2069\u200f",
    "</script><svg onload=window.hit=6>",
    "w" * 600,
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(needs("chromium"), tmp_path_factory.mktemp("profile")) as running:
        yield running


def answer(claim: Claim, number: int) -> Metric | None:
    """Some value for a claim, of the evidence of its first answer: every fifth is missing, every third is far off."""
    row = next((row for row in claim.answers if not row.experiment), None)
    if row is None or number % 5 == 0:
        return None
    base = claim.value if isinstance(claim.value, float) else claim.value[0] if isinstance(claim.value, tuple) else 1.0
    values = tuple(base * (9 if number % 3 == 0 else 1) + place for place in range(len(claim_text.terms(claim))))
    return Metric(claim.unit, "", values, evidence=row.evidence.value)


@pytest.fixture(scope="module")
def all_claims() -> Known:
    """One in three of the published claims, and a table whose caption contradicts its cells."""
    return tuple(
        claim for number, claim in enumerate(load.claims()) if number % 3 == 0 or claim.id.startswith("samo.table1")
    )


@pytest.fixture(scope="module")
def page(all_claims: Known, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Claims, some answered; runs that went well, failed and were slow; and hostile text in all of them."""
    folder = tmp_path_factory.mktemp("page")
    fill(folder)
    evil = [
        Claim(
            **dict.fromkeys(("id", "paper", "where", "quantity", "system", "versus", "unit", "kind", "reach"), text),
            value=text,
            check=Check.EQUAL,
            terms=(text, text + "2"),
            setting={text: text},
            answers=(AnswerRow(Evidence.MEASURED, figure=text, function=text, stand_in=text),),
        )
        for text in HOSTILE
    ]
    answers = {claim.id: answer(claim, number) for number, claim in enumerate(all_claims)}
    answers |= {claim.id: Metric(claim.unit, "", (1.0, 1.0)) for claim in evil}
    metrics = {name: metric for name, metric in answers.items() if metric}
    store(folder, make("axonn 1x1", metrics=metrics, experiment="values"))
    for number, text in enumerate(HOSTILE):
        texts = dict.fromkeys(("title", "question", "paper", "paper_ref"), text)
        panels = [{"title": text, "axis": text, "key": "tag", "metric": text, "paper": {text: {text: text}}}, text]
        config = {"experiment": texts | {"panels": panels}, "tag": text, text: [text]}
        bad = {"label": text, "reason": text, "notes": (text,), "config": config, "experiment": f"bad {number}{text}"}
        store(folder, make("x", outcome=Outcome.FAILED, key=text, **bad), f"bad '\"<{number}.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "claims", lambda: (*all_claims, *evil))
        return write_report(folder).with_name("claims.html")


@contextmanager
def opened(browser: Browser, page: Path, size: tuple[int, int], fragment: str = "", **options: bool) -> Iterator[Tab]:
    """A tab with the page, which makes no trouble until it is closed."""
    tab = Tab(browser, page.as_uri()).open(*size, fragment=fragment, **options)
    yield tab
    shared = [f"request: {page.with_name(name).as_uri()}" for name in ("report.css", "report.js")]
    assert [trouble for trouble in tab.troubles() if trouble not in shared] == []
    tab.close()


@pytest.mark.parametrize(("size", "dark"), cells((DESK, PHONE), (False, True), n=1))
def test_the_page_is_quiet_and_stays_at_home(
    browser: Browser, page: Path, all_claims: Known, size: tuple[int, int], dark: bool
) -> None:
    with opened(browser, page, size, dark=dark) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
        assert tab.evaluate("window.hit") is None
        assert tab.evaluate(f"{SEEN}.length") == len(all_claims) + len(HOSTILE)
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert contrast(paper, tab.evaluate("getComputedStyle(document.body).color")) > 7
        faint = tab.evaluate("getComputedStyle(document.querySelector('.claims .faint')).color")
        assert contrast(paper, faint) > 4.5


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_every_page_is_quiet_and_fits_its_window(browser: Browser, page: Path, size: tuple[int, int]) -> None:
    files = sorted(page.parent.glob("*.html"))
    assert len(files) > 10
    for file in files:
        with opened(browser, file, size) as tab:
            assert tab.evaluate("getComputedStyle(document.querySelector('.site')).display") == "flex"  # styled


def test_claims_of_a_figure_are_cards_on_a_phone(browser: Browser, page: Path) -> None:
    """On a phone a cell is below its heading, and nothing is wider than the window; on a desktop they are tables."""
    script = """(() => {
        const table = [...document.querySelectorAll("table.KIND")].find((one) => one.tBodies[0].rows.length);
        for (let at = table; at; at = at.parentElement) if (at.matches("details")) at.open = true;
        const [row] = table.tBodies[0].rows;
        const cell = row.cells[row.cells.length - 1];
        const boxes = [...table.querySelectorAll("tbody *"), ...table.parentElement.parentElement.children];
        return {
            row: getComputedStyle(row).display,
            heading: getComputedStyle(cell, "::before").content,
            head: table.tHead.getBoundingClientRect().height > 1,
            wide: boxes.filter((one) => one.getBoundingClientRect().right > innerWidth).length,
            scrolls: [table.parentElement, table.closest("section")].some((one) => one.scrollWidth > one.clientWidth),
            last: table.tHead.rows[0].cells[row.cells.length - 1].querySelector("span").textContent,
        };
    })()"""
    paper = page.with_name("paper-samo.html")
    with opened(browser, paper, DESK) as desk, opened(browser, paper, PHONE) as phone:
        at_desk, at_hand = (tab.evaluate(script.replace("KIND", "beside")) for tab in (desk, phone))
        assert (at_desk["row"], at_desk["heading"], at_desk["head"]) == ("table-row", "none", True)
        last = at_desk["last"].removesuffix("↕")
        assert (at_hand["row"], at_hand["heading"], at_hand["head"]) == ("grid", f'"{last}"', False)
        assert (at_hand["wide"], at_hand["scrolls"]) == (0, False)


def contrast(one: str, other: str) -> float:
    """Of two 'rgb(r, g, b)' colours, as WCAG 2 defines it: 1 to 21."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def column(tab: Tab, number: int) -> list[Any]:
    """Sort values of the visible rows in a column, top to bottom."""
    cell = f"row.cells[{number}]"
    value = f"{cell}.dataset.value === undefined ? {cell}.textContent.trim() : Number({cell}.dataset.value)"
    return list(tab.evaluate(f"{SEEN}.map((row) => {value})"))


def test_every_column_sorts_up_and_down(browser: Browser, page: Path) -> None:
    with opened(browser, page, DESK) as tab:
        for number in range(tab.evaluate("document.querySelector('table.claims').tHead.rows[0].cells.length")):
            head = f"table.claims thead th:nth-child({number + 1})"
            before = column(tab, number)
            tab.click(f"{head} button")
            assert tab.evaluate(f"document.querySelector({json.dumps(head)}).getAttribute('aria-sort')") == "ascending"
            up = column(tab, number)
            assert sorted(map(str, up)) == sorted(map(str, before))
            numbers = [value for value in up if not isinstance(value, str)]
            assert numbers == sorted(numbers)
            if number in {4, 5}:  # values: the rows without a number stay last
                assert len(numbers) > 30
                assert up[: len(numbers)] == numbers
            tab.evaluate(f"document.querySelector({json.dumps(head + ' button')}).focus()")
            tab.enter()  # the keyboard sorts, too
            down = [value for value in column(tab, number) if not isinstance(value, str)]
            assert down == sorted(numbers, reverse=True)


def test_search_and_menus_narrow_the_table(browser: Browser, page: Path, all_claims: Known) -> None:
    """A link to a claim overrides the filter of the address."""
    expected = [claim.id for claim in all_claims if claim.paper == "samo"]
    whole = len(all_claims) + len(HOSTILE)
    with opened(browser, page, PHONE) as tab:
        tab.type("#claims-search", "samo Table")
        found = column(tab, 0)
        assert 0 < len(found) < len(expected)
        assert set(found) <= set(expected)
        assert tab.evaluate("document.querySelector('[data-shown]').textContent") == f"{len(found)} of {whole}"
        tab.choose("[name=verdict]", "matched by the model")
        narrowed = tab.evaluate(f"{SEEN}.map((row) => row.cells[9].textContent.trim())")
        assert 0 < len(narrowed) < len(found)
        assert {text.removesuffix(" turns") for text in narrowed} == {"∼\u00a0matched by the model"}
        tab.until("location.hash.includes('verdict=matched+by+the+model')")
        with opened(browser, page, DESK, tab.evaluate("location.hash")) as again:
            assert column(again, 0) == column(tab, 0)
    name = next(claim.id for claim in all_claims if claim.paper == "axonn")
    filtered = Tab(browser, page.as_uri()).open(*DESK, fragment="#claims?paper=SAMO")
    assert f"claim-{name}" not in filtered.evaluate(f"{SEEN}.map((row) => row.id)")
    filtered.evaluate(f"location.hash = {json.dumps(f'#claim-{name}')}")
    filtered.until(f"{SEEN}.length === {whole}")
    place = f"document.getElementById({json.dumps(f'claim-{name}')}).getBoundingClientRect().top"
    assert 0 <= filtered.evaluate(place) < filtered.evaluate("innerHeight")
    filtered.close()


def count_of(tab: Tab, paper: str, name: str) -> tuple[str, int]:
    """A count of the scorecard by its row and column: where its link is, and the number that it shows."""
    of = "document.querySelector('.score')"
    heads = tab.evaluate(f"[...{of}.tHead.rows[0].cells].map((cell) => cell.textContent.trim())")
    rows = tab.evaluate(f"[...{of}.tBodies[0].rows].map((row) => row.cells[0].textContent.trim())")
    cell = f".score tbody tr:nth-child({rows.index(paper) + 1}) :is(th, td):nth-child({heads.index(name) + 1})"
    return f"{cell} a", int(tab.evaluate(f"document.querySelector({json.dumps(cell)}).textContent"))


def test_counts_of_the_scorecard_lead_to_their_claims(browser: Browser, page: Path) -> None:
    """The claims have the paper, verdict and evidence of the count; other evidence has its own count."""
    with opened(browser, page, PHONE) as tab:
        assert count_of(tab, "SAMO", "≠ differs, measured")[1] > 0
        link, count = count_of(tab, "SAMO", "≠ differs, derived")
        whole = tab.evaluate(f"{SEEN}.length")
        tab.click(link)
        tab.until(f"{SEEN}.length < {whole}")
        rows = tab.evaluate(f"{SEEN}.map((row) => [1, 7, 9].map((place) => row.cells[place].textContent.trim()))")
        assert len(rows) == count > 0
        for paper, evidence, verdict in rows:
            assert paper.startswith("SAMO")
            assert (evidence, verdict) == ("derived", "≠\u00a0differs")
    with opened(browser, page.with_name("index.html"), DESK) as front:
        link = "document.querySelector('#missing ~ ul a[data-verdict]')"
        assert front.evaluate(f"{link}.href") == f"{page.as_uri()}#claims?verdict=not+run"


def test_without_script_the_claims_are_a_plain_table(browser: Browser, page: Path, all_claims: Known) -> None:
    with opened(browser, page, DESK, script=False) as tab:
        rows = tab.evaluate("document.querySelectorAll('table.claims tbody tr').length")
        assert rows == len(all_claims) + len(HOSTILE)
        assert tab.evaluate("document.querySelector('.filters').hidden")


def test_hostile_text_stays_text(browser: Browser, page: Path) -> None:
    with opened(browser, page, DESK) as tab:
        for cells_of in (".claims th", ".claims td:nth-child(5)"):
            texts = tab.evaluate(f"[...document.querySelectorAll('{cells_of}')].map((cell) => cell.textContent)")
            assert [texts.count(text) for text in HOSTILE] == [1] * len(HOSTILE)
        evil = "main script, main img, main b b, main svg[onload]"
        assert tab.evaluate(f"document.querySelectorAll('{evil}').length") == 0
        assert tab.evaluate("window.hit") is None
        links = tab.evaluate("[...document.querySelectorAll('a')].map((a) => a.href)")
        home = page.parent.as_uri() + "/"
        assert all(link.startswith(home) and ".." not in link.partition("#")[0] for link in links)


BROKEN = {
    "request": '<img src="http://127.0.0.1:9/x.png">',
    "log": '<meta http-equiv="Content-Security-Policy" content="img-src data:"><img src="http://127.0.0.1:9/x.png">',
    "console": "<script>console.warn('x')</script>",
    "exception": "<script>throw new Error('x')</script>",
    "overflow": '<div style="width: 2000px">x</div>',
    "request: file": '<img src="beside.png">',
    "dialog": "<script>setTimeout(() => alert(1))</script>",
    "navigated": '<iframe src="about:srcdoc"></iframe>',
}


@pytest.mark.slow("a browser for each kind of trouble")
def test_the_watch_reports_each_kind_of_trouble(browser: Browser, tmp_path: Path) -> None:
    """A test that finds nothing wrong is worth what it would have found; a page without a fault has no trouble."""
    start = '<!doctype html><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    for kind, body in [("", ""), *few(BROKEN.items(), 3, "troubles")]:
        path = tmp_path / "index.html"
        path.write_text(start + body, encoding="utf-8")
        tab = Tab(browser, path.as_uri()).open(*PHONE)
        problems = tab.troubles()
        tab.close()
        assert any(trouble.startswith(kind) for trouble in problems) if kind else not problems, (kind, problems)
