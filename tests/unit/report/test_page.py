"""The page: complete, reproducible, offline, with hostile records as text."""

from __future__ import annotations

import csv
import gzip
import json
import os
import time
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from suite.cli.report import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Metric, Outcome
from suite.core.trace import FORWARD, Span, Trace
from suite.report import write_report
from suite.report.plots.perfetto import events
from tests.support import chrome
from tests.support.pages import Page
from tests.support.refusals import refused


def build(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


class Built(NamedTuple):
    """The page of the realistic store, and the seconds of work that it took."""

    folder: Path
    page: Page
    work: float


@pytest.fixture(scope="module")
def built(fill, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    fill(folder)
    begun = time.process_time()
    return Built(folder, build(folder), time.process_time() - begun)


def test_the_page_holds_every_part(built):
    page = built.page
    assert built.work < 8  # however busy the machine
    words = page.words()
    for text in (
        "A pipeline of two stages",
        "AxoNN, Figure 6",
        "✓ met",
        "○ not comparable",
        "axonn 4x1: oversubscribed: 4 ranks on 2 cores",
        "RuntimeError: rank 1: <bad shape>",
        "rank 1 not done after 60 s",
        "records/cut.json",
        "other schema version",
        "suite run experiment=demo system=gpipe grid.inter=2 grid.data=1",
        "Weak scaling, simulated",
        "a quiet processor",
        "float32 product of 1024 x 1024 matrices, 2 threads",
        "Idle time of filling and draining the pipeline",
    ):
        assert text in words
    pictures = page.all("svg")
    assert len(pictures) == 1 + 4 + 5 + 2 + 2  # a panel; curves and bars, gantts, twice
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    for attributes in page.all("a"):
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


def test_nothing_is_fetched(built):
    page = built.page
    policy = page.all("meta")[1]["content"] or ""
    assert policy.startswith("default-src 'none'")
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        for name, value in attributes.items():
            assert name != "src"
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


def test_an_empty_store_says_what_to_run(tmp_path):
    page = build(tmp_path / "new")
    assert "No records yet" in page.words()
    assert "make reproduce" in page.words()
    assert (tmp_path / "new" / "records.csv").read_text().startswith("key,experiment,system,label")


HOSTILE = (
    '"><img src=x onerror=alert(2)>',
    "' autofocus onfocus=alert(3) x='",
    "</pre></style></svg><script>alert(4)</script>{{ 7 * 7 }}{% raw %}$\\frac{$ _x",
    "javascript:alert(5)",
    "../../../../etc/passwd",
    '=HYPERLINK("http://elsewhere","x")',
)
# parts of those, or like one
RARER = ("<script>alert(1)</script>", "{{ 7 * 7 }}{% raw %}", "$\\frac{$ _x", "@SUM(1+1)")


@pytest.mark.parametrize("evil", [*HOSTILE, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in RARER)])
def test_hostile_fields_are_text(tmp_path, make, store, evil):
    folder = tmp_path / "a" / "reports"
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    trace.add(0, evil, 1.0, 2.0)
    plain = make("x", label=evil)
    record = make(
        "x",
        label=evil,
        loss=[2.0, 1.0],
        key=evil,
        experiment=evil,
        outcome=Outcome.FAILED,
        reason=evil,
        notes=(evil,),
        trace="t.gz",
        memory={"predicted": {evil: [1, 2]}, "measured": {}},
        metrics=plain.metrics | {evil: Metric(evil, evil, (1.0,), evil)},
        config={
            "system": {"name": evil},
            "experiment": dict.fromkeys(("title", "question", "paper", "paper_ref", "reference"), evil)
            | {"expect": [{"what": evil, "kind": evil, "system": evil, "versus": evil, "at_most": 1}, evil]},
            "grid": evil,
        },
        provenance={"machine": {evil: [evil]}, "command": evil, "started": evil, "seconds": evil, evil: evil},
    )
    store(folder, record, "a\"onclick=alert(6) x='.json")
    elsewhere = folder / "measured" / evil.replace("/", "_").replace("..", "__")
    elsewhere.mkdir(parents=True)
    (elsewhere / "<b>.json").write_text("<script>")
    (elsewhere / "good.json").write_text(plain.to_json())
    spans = [span.row() for span in trace]
    (folder / "t.gz").write_bytes(gzip.compress(json.dumps({"grid": {}, "spans": spans}).encode()))
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    page = build(folder)

    templates = files("suite.report") / "templates"
    script = "".join((templates / name).read_text(encoding="utf-8") for name in ("table.js", "claims.js"))
    assert page.scripts == [script]
    for tag, attributes in page.tags:
        assert tag != "img"
        assert not [name for name in attributes if name.startswith("on") or name == "autofocus"]
        if tag == "a":
            assert (attributes["href"] or "").startswith(("./", "#"))
    for _, attributes in page.tags:
        assert attributes.keys() <= set(OURS.split()), attributes
    words = " ".join(evil.split())
    assert page.words().count(words) >= 15
    for name in ("records.csv", "claims.csv"):
        with (folder / name).open(newline="", encoding="utf-8") as stream:
            assert not [cell for row in csv.reader(stream) for cell in row if cell.startswith(("=", "@"))]
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before


OURS = """lang charset http-equiv content name rel href class id style role tabindex aria-label aria-labelledby
    aria-hidden scope open data-sortable data-value data-is data-filter data-to data-verdict
    data-evidence data-order data-clear data-shown hidden type name value autocomplete spellcheck
    viewbox d clip-path x y x1 x2 y1 y2 width height fill text-anchor transform"""


def test_numbers_and_text_at_the_edge_of_their_types(tmp_path, make, store, store_trace):
    store(tmp_path, make("x", label="\ud800 \x00 \u202e 漢", times=(1e308, 1e-320, -1e308), loss=[1e308, -1e308, 0.0]))
    store(tmp_path, make("", (0.0,), loss=[float("nan")], memory={"measured": {"weights": []}, "predicted": {}}))
    store(tmp_path, make("many", (float("inf"),), provenance={"seconds": 10**400, "started": 3}))
    for number, end in enumerate((0.0, 1e-320, 1e8)):
        trace = Trace()
        trace.add(0, FORWARD, 0.0, end, Op.parse("0F0"))
        name = store_trace(tmp_path, f"t{number}", trace, Grid())
        store(tmp_path, make(f"t{number}", (1e-320,), trace=name))
    assert "漢" in build(tmp_path).words()


def test_a_traces_folder_that_leads_out_is_refused(filled, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    inside = filled / "measured" / "m"
    inside.mkdir(parents=True)
    for path in (filled / "traces").iterdir():
        path.rename(filled / path.name)
    (filled / "traces").rmdir()
    (filled / "traces").symlink_to(outside)
    for path in (filled / "records").glob("*.json"):
        path.write_text(path.read_text().replace('"traces/', '"'))
    with refused(InvalidRequest, rule="inside their folder"):
        write_report(filled)
    assert list(outside.iterdir()) == []


def test_arrows_lead_from_an_op_to_its_consumer():
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"), 64)
    trace.add(1, FORWARD, 1.5, 2.5, Op.parse("1F0"))
    parts = Trace([*trace, Span(0, "tensor_reduce", 0.5, 0.75, Op.parse("0F0"))])  # of a pass: no arrow leads from it
    arrows = [event for event in events(trace, Grid(inter=2)) if event["ph"] in "sf"]
    assert [event for event in events(parts, Grid(inter=2)) if event["ph"] in "sf"] == arrows
    chrome_events = events(trace, Grid(inter=2))
    assert [event["ts"] for event in chrome_events if event["ph"] == "X"] == [0.0, 1.5e6]
    assert [event["dur"] for event in chrome_events if event["ph"] == "X"] == [1e6, 1e6]
    start, finish = [event for event in chrome_events if event["ph"] in "sf"]
    assert (start["ph"], start["tid"], start["ts"]) == ("s", 1, pytest.approx(1e6, abs=0.2))
    assert (finish["ph"], finish["tid"], finish["ts"]) == ("f", 2, 1.5e6)
    assert start["id"] == finish["id"]
    assert [event["args"]["name"] for event in chrome_events if event["ph"] == "M" and "name" in event["args"]] == [
        "replica 0",
        "rank 0, stage 0",
        "rank 1, stage 1",
    ]


def test_the_exported_trace_is_readable(built):
    with gzip.open(built.folder / "traces" / "axonn-2x1.perfetto.json.gz") as stream:
        chrome_events = json.load(stream)["traceEvents"]
    assert not chrome.faults(chrome_events)
    arrows = [event for event in chrome_events if event["ph"] == "s"]
    assert len(arrows) == 16  # 8 microbatches forward, 8 back


def test_the_command_prints_the_path(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "damaged.json").write_text("no record")
    assert main([f"reports={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"


@pytest.mark.parametrize("where", ["nowhere", "empty", "file", "file/below", "ring", "records is a file"])
@pytest.mark.parametrize("command", ["suite.cli.report", "suite.cli.artifact"])
def test_a_folder_without_records_is_refused(command, where, tmp_path, capsys):
    (tmp_path / "empty" / "records").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    (tmp_path / "records is a file").mkdir()
    (tmp_path / "records is a file" / "records").touch()
    before = sorted(tmp_path.rglob("*"))
    assert import_module(command).main([f"reports={tmp_path / where}"]) == Exit.NOTHING
    said = capsys.readouterr()
    assert said.err.startswith("refused: ")
    assert str(tmp_path / where) in said.err
    assert not said.out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_may_not_be_read_is_refused(tmp_path):
    (tmp_path / "records").mkdir(mode=0)
    assert main([f"reports={tmp_path}"]) == Exit.NOTHING
