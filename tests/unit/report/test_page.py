"""The page: complete, reproducible, offline, with hostile records, claims and figures as text."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from suite.claims import load
from suite.claims.claim import AnswerRow, Cases, Check, Claim, Decision, Evidence
from suite.cli import artifact
from suite.cli.report import main
from suite.config.panels import WinnerMap
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import FORWARD, Trace
from suite.report import write_report
from tests.support import accuracy
from tests.support.drawn import drawn
from tests.support.pages import Page, site
from tests.support.refusals import refused
from tests.support.report_records import fill, make, store, store_trace

SCRIPTS = ("table.js", "claims.js")


def build(folder: Path) -> Page:
    return Page(site(write_report(folder)))


class Built(NamedTuple):
    """The page of the realistic store."""

    folder: Path
    page: Page


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    fill(folder)
    return Built(folder, build(folder))


def test_the_page_holds_every_part(built):
    words = built.page.words()
    for text in (
        "A pipeline of two stages",
        "axonn 4x1: oversubscribed: 4 ranks on 2 cores",
        "RuntimeError: rank 1: <bad shape>",
        "rank 1 not done after 60 s",
        "records/cut.json",
        "suite run experiment=demo system=gpipe grid.inter=2 grid.data=1",
        "Weak scaling, simulated",
        "a quiet processor",
        "float32 product of 1024 x 1024 matrices, 2 threads",
    ):
        assert text in words
    pictures = built.page.all("svg")
    assert len(pictures) == 1 + 4 + 4 + 2 + 2  # a panel; curves and bars, gantts, twice
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    for attributes in built.page.all("a"):
        address = attributes["href"] or ""
        assert address.startswith("#") or (built.folder / address).is_file()


def test_ids_are_unique_and_references_lead_to_them(built):
    page = built.page
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        address = attributes.get("href") or ""
        if tag in {"use", "a"} and address.startswith("#"):
            assert address[1:] in ids
        if "url(#" in (clip := attributes.get("clip-path") or ""):
            assert clip[5:-1] in ids


def test_an_experiment_has_a_page_of_its_own(built, tmp_path, capsys):
    folder = shutil.copytree(built.folder / "records", tmp_path / "records").parent
    assert main([f"reports={folder}", "experiment=demo"]) == Exit.OK
    page = Path(capsys.readouterr().out.strip())
    assert page == folder / "experiment-demo.html"
    assert {path.name for path in folder.glob("*.*")} == {page.name, "report.css", "report.js"}
    alone = Page(page.read_text(encoding="utf-8"))
    assert "A pipeline of two stages" in alone.words()
    assert all(link.startswith(("./", "#")) for link in alone.values("a", "href"))
    with pytest.raises(UnknownName, match="demon"):
        write_report(folder, experiment="demon")


def test_nothing_is_fetched(built):
    page = built.page
    policy = page.all("meta")[1]["content"] or ""
    assert policy.startswith("default-src 'none'")
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        for name, value in attributes.items():
            assert name != "src" or value == "report.js"
            assert "//" not in (value or "") or name in {"aria-label", "content"}, (tag, name, value)


def test_two_builds_are_equal_and_leave_no_state_behind(built):
    """Over the first, with matplotlib as it comes."""

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in built.folder.rglob("*") if path.is_file()}

    first = content()
    with mpl.rc_context():
        mpl.rcdefaults()
        before = dict(mpl.rcParams)
        write_report(built.folder)
        assert dict(mpl.rcParams) == before
    assert content() == first
    assert pyplot.get_fignums() == []


def test_an_empty_store_makes_a_page_without_pictures(tmp_path):
    assert not build(tmp_path / "new").all("svg")
    assert (tmp_path / "new" / "records.csv").read_text().startswith("key,experiment,system,label")


EVIL = (
    '"><img src=x onerror=alert(2)>',
    "' autofocus onfocus=alert(3) x='",
    "</pre></td></tr></table></style></svg><script>alert(4)</script>{{ 7 * 7 }}{% raw %}$\\frac{$ _x",
    "javascript:alert(5)",
    "../../../../etc/passwd",
    '=HYPERLINK("http://elsewhere","x")',
    "@SUM(1+1)",
    "\u202e\u2066evil\u2069 \x00 \ud800 漢",
)
OURS = """lang charset http-equiv content name rel href class id style role tabindex aria-label aria-labelledby
    aria-hidden aria-current src scope open data-sortable data-value data-is data-filter data-to data-verdict
    data-sensitivity data-evidence data-order data-clear data-shown hidden type name value autocomplete spellcheck
    data-column viewbox d clip-path x y cx cy r x1 x2 y1 y2 width height fill stroke stroke-width text-anchor transform
    title"""


def hostile_records(evil: str) -> list[Record]:
    """A failed run, a run of a sweep, a published figure and a map of winners, all of whose texts are `evil`."""
    plan = dict.fromkeys(("title", "question", "paper", "paper_ref", "reference"), evil)
    plan["expect"] = [{"what": evil, "kind": evil, "system": evil, "versus": evil, "at_most": 1}, evil]
    sweep = {"title": evil, "unit": evil, "axis": evil, "key": "tag", "metric": evil, "names": {evil: evil}}
    parts = {"title": evil, "metrics": {evil: evil, "b": evil}, "share": True, "paper": {evil: {evil: evil, "b": 4}}}
    lines = {evil: [1.0, 2.0]}
    panel = {"title": evil, "unit": evil, "x": [evil, "2"], "axis": evil, "ours": lines, "paper": lines, "null": lines}
    texts = dict.fromkeys(("title", "group", "case", "axis", "y_axis", "quantity"), evil)
    winners = (
        WinnerMap(title="t", x=["4", "8"], y=["2"], values={evil: [1.0, 2.0]}).to_record() | texts | {"x": [evil, "b"]}
    )
    base = {
        "system": evil,
        "label": evil,
        "experiment": evil,
        "notes": (evil,),
        "metrics": make("x").metrics | {evil: Metric(evil, evil, (1.0, 1.0, 2.0, 3.0), evil)},
        "config": {
            "system": {"name": evil},
            "experiment": plan | {"panels": [sweep, parts, {evil: evil}, evil]},
            "grid": evil,
            "tag": evil,
            evil: {evil: [evil]},
        },
        "provenance": {"machine": {evil: [evil]}, "command": evil, "started": evil, "seconds": evil, evil: evil},
    }
    failed = {"outcome": Outcome.FAILED, "reason": evil, "trace": "t.gz", "loss": [2.0, 1.0]}
    memory = {"predicted": {evil: [1, 2]}, "measured": {}}
    fitted = base["provenance"] | {"calibrated_on": [evil, {evil: evil}, None]}
    figure = {"panels": [panel | {"calibrated": [[evil, 0]]}, winners], "source": Source.SIMULATED, "metrics": {}}
    return [
        make("x", **base | failed, key=evil, memory=memory),
        make("x", **base | {"label": evil + "2"}, key="run"),
        make("x", **base | {"label": evil + "3"} | figure | {"provenance": fitted}, key="figure"),
    ]


@pytest.mark.parametrize("evil", drawn(EVIL, n=2, always=EVIL[2:3]))
def test_hostile_text_is_text_and_nothing_is_written_outside(tmp_path, monkeypatch, evil):
    folder = tmp_path / "a" / "reports"
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    trace.add(0, evil, 1.0, 2.0)
    for number, record in enumerate(hostile_records(evil)):
        store(folder, record, f"a{number}\"onclick=alert(6) x='.json")
    (folder / "t.gz").write_bytes(
        gzip.compress(json.dumps({"grid": {}, "spans": [span.row() for span in trace]}).encode())
    )
    elsewhere = folder / "measured" / "".join(filter(str.isprintable, evil)).replace("/", "_").replace("..", "__")
    elsewhere.mkdir(parents=True)
    (elsewhere / "<b>.json").write_text("<script>")
    encodable = evil.replace("\ud800", "?")
    accuracy.write(folder, {"group": encodable, "family": encodable})
    names = ("id", "paper", "where", "quantity", "system", "versus", "unit", "kind", "value", "hedge")
    row = AnswerRow(Evidence.MEASURED, figure=evil, function=evil, stand_in=evil, identity=True, turned_by=(evil,))
    by_runs = AnswerRow(Evidence.DERIVED, experiment=evil, labels=(evil,), metric=evil)
    claim = Claim(
        **dict.fromkeys(names, evil), reach="cpu", setting={evil: evil}, terms=(evil, evil + "2"), check=Check.EQUAL
    )
    claim = replace(claim, answers=(row, by_runs), cases=Cases.SOME)
    decision = Decision(evil, evil, evil, evil, evil, evil, claims=(evil, evil + "3"))
    monkeypatch.setattr(load, "claims", lambda: (claim, replace(claim, id=evil + "4", answers=())))
    monkeypatch.setattr(load, "decisions", lambda: (decision,))
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("index.html", "records.csv", "claims.csv"):  # a link in a file's place is replaced, not followed
        (folder / name).symlink_to(outside)
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    page = build(folder)

    templates = files("suite.report") / "templates"
    script = "".join((templates / name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert (page.scripts, (folder / "report.js").read_text(encoding="utf-8")) == ([], script)
    assert not page.all("img")
    for _, attributes in page.tags:
        assert attributes.keys() <= set(OURS.split()), attributes
    ids = [attributes["id"] or "" for _, attributes in page.tags if "id" in attributes]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in ids)
    links = page.values("a", "href")
    assert all(link.startswith(("./", "#")) or re.fullmatch(r"[\w-]+\.html", link) for link in links)
    assert {link[1:] for link in links if link.startswith("#") and "?" not in link} <= set(ids)
    cleaned = evil.replace("\ud800", "?").replace("\x00", "\ufffd").split()[-1]
    assert page.words(" ").count(cleaned) >= 60
    for name in ("records.csv", "claims.csv"):
        with (folder / name).open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert not [cell for each in rows for cell in each.values() if cell.startswith(("=", "@"))]
    assert rows[0]["verdict"] == "reproduced"
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before
    assert outside.read_text() == "mine"


def test_numbers_and_text_at_the_edge_of_their_types(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "claims", tuple)  # no claims
    store(tmp_path, make("x", label="\ud800 \x00 \u202e 漢", times=(1e308, 1e-320, -1e308), loss=[1e308, -1e308, 0.0]))
    store(tmp_path, make("", (0.0,), loss=[float("nan")], memory={"measured": {"weights": []}, "predicted": {}}))
    store(tmp_path, make("many", (float("inf"),), provenance={"seconds": 10**400, "started": 3}))
    for number, end in enumerate((0.0, 1e-320, 1e8)):
        trace = Trace()
        trace.add(0, FORWARD, 0.0, end, Op.parse("0F0"))
        name = store_trace(tmp_path, f"t{number}", trace, Grid())
        store(tmp_path, make(f"t{number}", (1e-320,), trace=name))
    assert "漢" in build(tmp_path).words()


def test_a_traces_folder_that_leads_out_is_refused(tmp_path):
    folder, outside = tmp_path / "reports", tmp_path / "outside"
    fill(folder)
    outside.mkdir()
    (folder / "measured" / "m").mkdir(parents=True)
    for path in (folder / "traces").iterdir():
        path.rename(folder / path.name)
    (folder / "traces").rmdir()
    (folder / "traces").symlink_to(outside)
    for path in (folder / "records").glob("*.json"):
        path.write_text(path.read_text().replace('"traces/', '"'))
    with refused(InvalidRequest, rule="inside their folder"):
        write_report(folder)
    assert list(outside.iterdir()) == []


def test_the_command_prints_the_path_and_refuses_folders_without_records(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "damaged.json").write_text("no record")
    assert main([f"reports={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"
    (tmp_path / "empty" / "records").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    (tmp_path / "records is a file").mkdir()
    (tmp_path / "records is a file" / "records").touch()
    (tmp_path / "closed" / "records").mkdir(parents=True, mode=0)
    before = sorted(tmp_path.rglob("*"))
    for command in (main, artifact.main):
        for where in ("nowhere", "empty", "file", "file/below", "ring", "records is a file", "closed/records"):
            assert command([f"reports={tmp_path / where}"]) == Exit.NOTHING, where
            written = capsys.readouterr()
            assert str(tmp_path / where) in written.err
            assert not written.out
    assert sorted(tmp_path.rglob("*")) == before
