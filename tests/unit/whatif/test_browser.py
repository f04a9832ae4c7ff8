"""The what-if page in a real browser: the numbers of the command line, no request elsewhere, phone, keyboard, links."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from suite.core.errors import MissingDependency
from suite.report.whatif_links import FOLDER
from suite.whatif.export import catalogue
from suite.whatif.page import Page
from suite.whatif.site import server, write_site
from tests.support.browser import Browser, Tab, started
from tests.support.drawn import EXHAUSTIVE, generator
from tests.support.tools import needs

DESK, PHONE = (1440, 900), (390, 844)
DRAWN = 25  # settings in one run; a thousand in the exhaustive one
ASK = """new Promise((done) => {
    const usual = worker.onmessage;
    words = WORDS;
    worker.onmessage = (event) => {
        if (event.data.kind !== "answer" || event.data.id !== asked) return;
        worker.onmessage = usual;
        const { numbers, id, kind, ...rest } = event.data;
        done([rest, [...numbers]]);
    };
    ask();
})"""
choices = cache(catalogue)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the served reports folder."""
    needs("pyodide")
    folder = tmp_path_factory.mktemp("reports")
    write_site(folder)
    with server(folder, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(needs("chromium"), tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def desk(browser: Browser, home: str) -> Iterator[Tab]:
    """The page on a desktop; Pyodide starts once for all tests of this module."""
    tab = opened(browser, home, DESK)
    yield tab
    assert tab.troubles() == []


def opened(browser: Browser, home: str, size: tuple[int, int], fragment: str = "") -> Tab:
    tab = Tab(browser, f"{home}{FOLDER}/", home=home).open(*size, fragment=fragment)
    tab.until("document.body.dataset.answered")
    return tab


def show(tab: Tab, *words: str) -> None:
    """Go to the link of these words, and wait for the whole answer."""
    tab.evaluate(f"words = {json.dumps(words)}; delete document.body.dataset.done; ask()")
    tab.until("document.body.dataset.done === String(asked)")


def setting(draw: random.Random) -> list[str]:
    """Words of any schedule view, of which some are refused."""
    schedules = [*choices()["schedules"]]
    words = [f"schedule={draw.choice(schedules)}", f"ranks={draw.randint(1, 10)}"]
    words += [f"microbatches={draw.choice([draw.randint(1, 30), 4 * draw.randint(1, 10)])}"]
    for key in ("forward", "input", "weight", "link", "step"):
        if draw.random() < 0.5:
            words.append(f"{key}={draw.choice([0, 1, 2, round(3 * draw.random(), 3), draw.random()])}")
    others = {
        "versus": draw.choice(schedules),
        "jitter": round(0.99 * draw.random(), 2),
        "seed": draw.randint(0, 99),
        "replicas": draw.randint(1, 4),
        "weights": draw.choice([*choices()["weights"]]),
        "update": draw.choice([0, 1, 2, 4]),
    }
    return words + [f"{key}={value}" for key, value in others.items() if draw.random() < 0.3]


def cluster(draw: random.Random) -> list[str]:
    """Words of a cluster view that is answered in a moment."""
    system = draw.choice(["", "axonn", "axonn_samo", "megatron_lm"])
    words = [f"model={draw.choice(['gpt3_xl', 'gpt3_2_7b'])}", f"machine={draw.choice(['a100', 'h100', 'summit'])}"]
    words += [f"devices={draw.choice([4, 8, 12])}", "batch=24", f"layout={draw.choice(['search', 'given'])}"]
    return ["view=cluster", *words, *([f"system={system}"] if system else []), f"pipeline={draw.choice([1, 2, 4])}"]


def test_numbers_equal_those_of_the_command_line_op_for_op(desk: Tab) -> None:
    draw, page = generator("settings"), Page(json.loads(json.dumps(choices())))
    refused = 0
    for _ in range(1000 if EXHAUSTIVE in os.environ else DRAWN):
        words = setting(draw) if draw.random() < 0.9 else cluster(draw)
        theirs, numbers = desk.evaluate(ASK.replace("WORDS", json.dumps(words)))
        text, mine = page.reply(words)
        assert (theirs, numbers) == (json.loads(text), [*mine]), words
        refused += bool(theirs["error"])
    assert refused < 500


def test_a_change_in_the_form_redraws_and_a_link_holds_the_state(browser: Browser, home: str, desk: Tab) -> None:
    show(desk, "schedule=zb_h1", "ranks=4")
    desk.choose("[name=schedule]", "zbv")
    desk.until("document.body.dataset.answered === String(asked)")
    desk.evaluate("byId('form').elements.link.value = ''")
    desk.type("[name=link]", "0.5")
    desk.until("location.hash.includes('link=0.5')")
    assert desk.evaluate("[words, byId('command').textContent]") == [
        ["schedule=zbv", "link=0.5"],
        "suite whatif schedule=zbv link=0.5",
    ]
    other = opened(browser, home, PHONE, desk.evaluate("location.hash"))
    same = "[byId('words').textContent, byId('tables').textContent, byId('title').textContent]"
    assert other.evaluate(same) == desk.evaluate(same)
    assert other.troubles() == []  # it fits a phone too
    other.close()


def test_an_op_is_chosen_by_keys_and_explained(desk: Tab) -> None:
    show(desk, "schedule=gpipe", "ranks=2", "microbatches=2", "link=0.5")
    desk.evaluate("pictures[0].canvas.focus(); byId('explained').textContent = ''")
    for key in ("ArrowRight", "ArrowDown"):
        desk.evaluate(f"pictures[0].canvas.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
    desk.until("byId('explained').textContent.startsWith('1F0')")
    assert desk.evaluate("byId('explained').textContent") == (
        "1F0 on rank 1, from 1.5 to 2.5. It needs the output of 0F0, which arrives at 1.5. "
        "The rank is idle for 1.5 before it."
    )
    desk.evaluate("document.querySelector('.timeline details').open = true")
    desk.until("document.querySelector('.timeline details table') !== null")
    ops = desk.evaluate("document.querySelector('.timeline table').tBodies[0].rows.length")
    assert ops == 2 * 2 * 2 + 2


def test_ticks_play_one_after_the_other(desk: Tab) -> None:
    show(desk, "schedule=gpipe", "ranks=2", "microbatches=1")
    seen = desk.evaluate("Array.from({length: 6}, () => (step(), axis.cursor))")
    assert seen[:5] == [0, 1, 2, 4, 6]


def test_pasted_text_is_checked_as_it_is_typed_and_python_runs_after_a_press(desk: Tab) -> None:
    show(desk, "schedule=pasted")
    desk.type("[name=pasted]", "0F0,0B0\n1B0,1F0")
    desk.until("byId('error').textContent.includes('1B0 (row 2, column 1): 1B0 comes before its forward')")
    desk.evaluate("byId('form').elements.pasted.value = ''")
    desk.type("[name=pasted]", "0F0,0B0\n1F0,1B0")
    desk.until("byId('error').hidden && byId('title').textContent === 'pasted, 2 ranks, 1 microbatches'")
    passes = "(kind, place.stage, n) for kind in 'FB' for n in range(microbatches)"
    desk.evaluate("byId('form').elements.pasted.value = ''")
    desk.type("[name=pasted]", f"def order(place, microbatches):\n  yield from ({passes})")
    desk.until("byId('error').textContent.includes('press of Run')")
    desk.click("#error button")
    desk.until("byId('error').hidden && byId('words').textContent.startsWith('pasted takes 33;')")


def test_pasted_python_reaches_no_other_origin(desk: Tab) -> None:
    """The policy of the page holds in its worker: the socket of another port sees no connection."""
    before = len(desk.browser.events)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(1.0)
        address = f"http://127.0.0.1:{other.getsockname()[1]}/"
        request = f"request = js.XMLHttpRequest.new()\nrequest.open('GET', '{address}', False)\nrequest.send()"
        text = f"import js\n{request}\ndef order(place, microbatches):\n  pass"
        desk.evaluate(f"words = {json.dumps(['schedule=pasted', f'pasted={text}'])}; ask(true)")
        desk.until("document.body.dataset.answered === String(asked)")
        with pytest.raises(TimeoutError):
            other.accept()
    del desk.browser.events[before:]  # the refusal is logged


def test_a_word_that_no_field_has_is_forgotten_after_an_edit(desk: Tab) -> None:
    for wrong in ("rank=8", "view=foo"):
        desk.evaluate(f"words = {json.dumps([wrong])}; ask()")
        desk.until("document.body.dataset.answered === String(asked) && !byId('error').hidden")
        desk.evaluate("byId('form').elements.ranks.value = ''")
        desk.type("[name=ranks]", "6")
        desk.until("byId('error').hidden && byId('title').textContent.startsWith('one_f_one_b, 6 ranks')")


def test_a_saved_view_loads(desk: Tab) -> None:
    script = """(() => {
        const file = new File([JSON.stringify({whatif: ["schedule=zb_h2", "ranks=3"]})], "whatif.json");
        const held = new DataTransfer();
        held.items.add(file);
        byId("file").files = held.files;
        byId("file").dispatchEvent(new Event("change"));
    })()"""
    desk.evaluate(script)
    desk.until("byId('title').textContent.startsWith('zb_h2, 3 ranks')")


def test_from_a_file_the_page_names_the_command_that_serves_it(browser: Browser, tmp_path: Path) -> None:
    needs("pyodide")
    page = write_site(tmp_path)
    tab = Tab(browser, page.as_uri(), home=page.parent.as_uri()).open(*PHONE, fragment="#schedule=zbv&link=0.1")
    assert "suite whatif --serve schedule=zbv link=0.1" in tab.evaluate("byId('status').textContent")
    assert tab.troubles() == []
    tab.close()


def test_the_page_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(MissingDependency, match="npm install --prefix"):
        write_site(tmp_path)
