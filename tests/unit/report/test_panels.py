"""Panels of published figures: read, drawn, tabulated, marked and escaped."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from suite.config.panels import FigurePanel
from suite.core.errors import InvalidRequest
from suite.core.record import Outcome, Record, Source
from suite.report.page import page
from suite.report.panels import figure_panels
from suite.report.panels.figure_panels import NULL, OURS, PAPER, PlottedPanel
from suite.report.plots import curves, plots
from tests.support.pages import Page, site
from tests.support.refusals import refused
from tests.support.report_records import in_store, make

NAN = math.nan
Row = dict[str, Any]
PEAK: Row = {
    "title": "Percent of peak",
    "unit": "percent",
    "x": ["64", "128", "256"],
    "ours": {"axonn": [50.0, 42.0, 30.0], "gpipe": [40.0, 30.0, 20.0]},
    "paper": {"axonn": [40.0, NAN, 32.0]},
    "null": {"axonn": [40.0, 36.0, 24.0]},
    "calibrated": [["axonn", 0]],
}


def row(x: str = "1,2", unit: str = "s", title: str = "a", **fields: Any) -> Row:
    """A panel as a record holds it; without curves it has one of ours."""
    x_names = x.split(",")
    return {"title": title, "unit": unit, "x": x_names, "ours": {"x": [1.0 + n for n in range(len(x_names))]}} | fields


def figure(*panels: Row, label: str = "fig_1", **changes: Any) -> Record:
    """A record of a simulated figure: no batch time, no loss, no memory."""
    return make(label, **{"panels": list(panels), "metrics": {}, "source": Source.SIMULATED} | changes)


def only(panel: Row) -> PlottedPanel:
    [plotted] = figure_panels.read(figure(panel))
    return plotted


def rows(table: Any) -> list[list[str]]:
    return [[" ".join(filter(None, (c.text, c.detail, c.badge))) for c in row] for row in table.rows]


def drawn(panel: PlottedPanel) -> tuple[ElementTree.Element, dict[str, ElementTree.Element]]:
    """The picture, and its lines by 'curve-system-point'."""
    looks = {name: place for place, name in enumerate(panel.systems)}
    root = ElementTree.fromstring(curves.picture(panel, looks, "simulated", "s"))
    groups = {group.get("id", "").removeprefix("s-"): group for group in root.iter("g")}
    return root, {
        name: group for name, group in groups.items() if name.startswith((*figure_panels.CURVES, "calibrated"))
    }


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


def marks(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in line.iter("use")]


def style(line: ElementTree.Element, tag: str) -> str:
    """The style of its first such element, or of the group around it."""
    around = {child: parent for parent in line.iter() for child in parent}
    element = next(line.iter(tag))
    while "style" not in element.attrib:
        element = around[element]
    return element.attrib["style"]


def build(*records: Record) -> Page:
    return Page(site(page.render(in_store(*records))))


# reading


def test_a_panel_is_read_from_its_record():
    panel = only(PEAK)
    assert (panel.title, panel.unit, panel.axis, panel.x) == ("Percent of peak", "percent", "", ("64", "128", "256"))
    assert panel.systems == ["axonn", "gpipe"]
    assert [panel.at(curve, "axonn", 0) for curve in (OURS, PAPER, NULL)] == [50.0, 40.0, 40.0]
    assert math.isnan(panel.at(PAPER, "axonn", 1))
    assert math.isnan(panel.at(PAPER, "gpipe", 0))
    assert panel.calibrated == {("axonn", 0)}


def test_panels_come_in_the_order_of_their_numbers():
    panels = [row(title=f"size {size}") for size in (13, 2, 6)]
    assert [panel.title for panel in figure_panels.read(figure(*panels))] == ["size 2", "size 6", "size 13"]


MALFORMED = [
    ({"title": " "}, "panel.title"),
    ({"x": ["1", " ", "2"]}, "panel.x"),
    ({"ours": {" ": [1.0, 2.0]}}, "panel.ours"),
    ({"ours": {"x": [1.0]}}, "panel"),
    ({"printed": {"x": ["a"]}}, "panel"),
    ({"figure": "Figure 6"}, "panel"),
]


def test_malformed_panel_is_a_remark():
    for change, key in MALFORMED:
        with refused(InvalidRequest, key) as refusal:
            FigurePanel.read(row() | change)
        record = figure(row() | change, PEAK)
        assert [panel.title for panel in figure_panels.read(record)] == ["Percent of peak"]
        assert figure_panels.faults(record) == [f"panel 1 is not drawn: {refusal.value}"]
    for empty in ({"ours": {"x": [NAN, math.inf]}}, {"ours": {}, "null": {"x": [1.0, 2.0]}}, {"ours": {}}):
        assert figure_panels.read(figure(row(**empty))) == []


def test_printed_values_come_from_the_claims_and_open_ends_are_bounds():
    """A record holds names of claims. AxoNN prints at least 30 days for 12b, and 22 for 100b."""
    ids = [f"axonn.fig9.days_saved.{size}" for size in ("12b", "100b")]
    panel = only(
        row(
            "12b,100b,1t", "day", ours={"x": [26.0, 12.0, 1.0]}, paper={"x": [NAN, NAN, 2.0]}, printed={"x": [*ids, ""]}
        )
    )
    assert panel.curves[PAPER] == {"x": (30.0, 22.0, 2.0)}
    assert panel.bounds == {("x", 0): 1}
    table = figure_panels.compared(panel, "simulated")
    assert [cells[2] for cells in rows(table)] == ["at least 30", "22", "2"]
    titles = [title.text for title in drawn(panel)[0].iter("title")]
    assert "x, printed, 12b: at least 30 days" in titles
    within = only(row("12b", "day", ours={"x": [31.0]}, printed={"x": ids[:1]}))
    assert rows(figure_panels.compared(within, "simulated"))[0][4] == "–"


def test_marks_of_unknown_points_are_dropped():
    marks = [["axonn", -1], ["axonn", 3], ["axonn", 2], ["z", 0]]
    assert only(PEAK | {"calibrated": marks}).calibrated == {("axonn", 2)}


# tables


def test_errors_are_the_hand_computed_ones():
    # 50 / 40 - 1 = 25 %, 10 points; the null model starts at the paper's value; 30 / 32 - 1 = -6.25 %
    panel = only(PEAK)
    table = figure_panels.compared(panel, "simulated")
    assert rows(table) == [
        ["axonn", "64 calibrated", "40", "50", "+25.0 % +10.0 pt", "40", "+0.0 % +0.0 pt"],
        ["axonn", "256", "32", "30", "-6.2 % -2.0 pt", "24", "-25.0 % -8.0 pt"],
    ]
    assert table.rows[0][4].value == pytest.approx(25.0)
    assert figure_panels.rest(panel)
    assert rows(figure_panels.values(panel, "simulated")) == [
        ["64", "50 null model 40 calibrated", "40"],
        ["128", "42 null model 36", "30"],
        ["256", "30 null model 24", "20"],
    ]


def test_only_percentages_show_points_and_only_null_models_a_column():
    table = figure_panels.compared(only(row("1", ours={"x": [0.6411]}, paper={"x": [0.62]})), "simulated")
    assert rows(table) == [["x", "1", "0.62", "0.6411", "+3.4 %"]]
    assert list(table.frame)[2] == "paper\nseconds"


def test_a_panel_without_printed_values_has_no_comparison():
    panel = only(row("1", "day"))
    assert figure_panels.compared(panel, "simulated") is None
    assert not figure_panels.rest(only(row("1", paper={"x": [3.0]})))
    of_figure = only(row("1", "day", figure="Figure 9", publication="AxoNN"))
    captions = [
        figure_panels.caption(*arguments, printed=printed)
        for arguments, printed in (
            ((panel, "simulated"), False),
            ((of_figure, "simulated"), False),
            ((of_figure, "simulated", "on a model of summit"), True),
        )
    ]
    assert len(set(captions)) == 3
    assert captions[2].startswith("Values simulated on a model of summit, in days.")


def test_errors_at_the_edge():
    for ours, paper, unit, text in (
        (3.0, 0.0, "percent", ("–", "+3.0 pt")),
        (3.0, 0.0, "s", ("–", "")),
        (NAN, 4.0, "percent", ("–", "")),
        (-4.0, -5.0, "percent", ("+20.0 %", "+1.0 pt")),
        (9.996, 10.0, "s", ("+0.0 %", "")),
        (1e300, 1e-300, "s", ("–", "")),
        (1e30, 1.0, "s", ("+1e+32 %", "")),
    ):
        cell = figure_panels.error(ours, paper, unit)
        assert (cell.text, cell.detail) == text
        assert cell.value is None or math.isfinite(cell.value)


# the picture


def test_figure_draws_our_line_printed_points_and_null_model():
    root, lines = drawn(only(PEAK))
    assert set(lines) == {"ours-0", "ours-1", "null-0", "paper-0", "calibrated-0-0"}
    ours, paper = lines["ours-0"], lines["paper-0"]
    assert (len(marks(ours)), next(ours.iter("path")).attrib["d"].count("L")) == (3, 2)
    colour = re.search("fill:(#[0-9a-f]+)", style(ours, "use"))
    assert colour is not None
    assert f"stroke:{colour[1]}" in style(ours, "path")
    assert f"stroke:{colour[1]}" in style(paper, "use")
    assert re.search("fill:none|fill-opacity:0", style(paper, "use"))
    assert "stroke-dasharray" in style(lines["null-0"], "path")
    assert [x for x, _ in marks(paper)] == [marks(ours)[0][0], marks(ours)[2][0]]  # the paper prints nothing between
    assert marks(paper)[0][1] > marks(ours)[0][1]  # 40 is below 50
    assert marks(lines["calibrated-0-0"]) == marks(paper)[:1]
    for text in ("simulated", "printed in the paper", "null model", "calibrated", "64", "128", "256"):
        assert text in texts(root)


def test_the_picture_names_its_numbers_and_what_is_calibrated():
    panel = only(PEAK)
    label = drawn(panel)[0].attrib["aria-label"]
    assert "AxoNN at 64" in label
    assert "AxoNN, simulated, 64: 50, 128: 42, 256: 30; GPipe, simulated, 64: 40" in label
    assert "AxoNN, paper, 64: 40, 256: 32; AxoNN, null model, 64: 40, 128: 36, 256: 24." in label
    assert [text for _, text in curves.legend(panel, {"axonn": 0, "gpipe": 1})] == ["● AxoNN", "■ GPipe"]
    root, lines = drawn(only(row()))
    assert set(lines) == {"ours-0"}
    assert not {"printed in the paper", "null model", "calibrated"} & set(texts(root))


def test_phases_are_not_joined_and_stand_side_by_side():
    panel = only(row("pipeline,data parallel", ours={name: [2.0, 1.0] for name in ("before", "after")}))
    _, lines = drawn(panel)
    before, after = marks(lines["ours-0"]), marks(lines["ours-1"])
    assert before[0][0] < after[0][0] < before[1][0] < after[1][0]
    assert not any(line.findall("path") for line in lines.values())


def test_only_rising_numbers_are_a_numeric_axis():
    for x, numbers in (
        ("64,128,256", [64.0, 128.0, 256.0]),
        ("0.5,0.8", [0.5, 0.8]),
        *((x, None) for x in ("256,128,64", "12b,24b,100b", "k=1,k=2", "1,2,2,3", "٣,٤", "9" * 400 + ",1")),
    ):
        assert curves.numbers(x.split(",")) == numbers, x


def test_no_line_joins_networks_systems_or_stages():
    lines_of_side = {name: [2.0, 3.0] for name in ("one", "two")}
    for x, joined in (("gnmt_8,gnmt_16", 0), ("12b,24b", 0), ("axonn,gpipe", 0), ("stage 0,stage 1", 0), ("8,16", 1)):
        _, lines = drawn(only(row(x, ours=lines_of_side, paper=lines_of_side, null=lines_of_side)))
        assert len(lines) == 6
        assert [len(line.findall("path")) for name, line in lines.items() if "paper" not in name] == [joined] * 4, x


def test_points_at_one_number_stand_at_one_x():
    ours = {name: [3.0, 2.0, 1.0] for name in ("axonn", "gpipe", "other")}
    _, lines = drawn(only(row("12,48,96", axis="GPUs", ours=ours)))
    assert len({tuple(x for x, _ in marks(lines[f"ours-{place}"])) for place in range(3)}) == 1


def test_every_axis_has_its_quantity_and_unit():
    attributes = {"quantity": "batch time", "scale": "log-log", "evidence": "derived"}
    panel = only(row("64,128,512", axis="GPUs", figure="Figure 6", publication="SAMO", **attributes))
    assert (panel.quantity, panel.scale, panel.evidence) == ("batch time", "log-log", "derived")
    seen = texts(drawn(panel)[0])
    assert "Batch time (s), log scale" in seen
    assert "GPUs, log scale" in seen
    unnamed = texts(drawn(only(row("a,b", "sample", "Largest batch per GPU")))[0])
    assert "Largest batch (sample)" in unnamed
    assert "Point" in unnamed


def test_panels_of_one_figure_share_their_scale():
    display = {"figure": "Figure 6", "publication": "SAMO", "quantity": "batch time", "axis": "GPUs"}
    curves_by_title = {"small": [1.0, 2.0], "large": [40.0, 90.0]}
    panels = [row("64,128", title=title, ours={"x": times}, **display) for title, times in curves_by_title.items()]
    assert build(figure(*panels)).texts.count("Batch time (s), log scale") == 2
    ends = curves.frame(figure_panels.read(figure(*panels)))
    assert (ends.low, ends.high, ends.log) == (1.0, 90.0, True)


def test_a_table_of_times_says_which_is_the_quickest():
    times = {"axonn": [2.0, 1.0], "gpipe": [1.0, 1.0]}
    panel = only(row("8,16", ours=times, quantity="batch time"))
    assert rows(figure_panels.values(panel, "simulated")) == [["8", "2", "1 quickest"], ["16", "1", "1"]]
    rates = only(row("8,16", "sample/s", ours=times, quantity="batch time"))
    assert "quickest" not in str(rows(figure_panels.values(rates, "simulated")))


def test_wide_ranges_have_a_log_scale_except_shares():
    for unit, values, log in (
        ("s", [1.0, 4.0, 16.0], True),
        ("s", [1.0, 3.0, 9.0], False),
        ("percent", [1.0, 10.0, 90.0], False),
        ("s", [0.0, 10.0, 90.0], False),
    ):
        root, lines = drawn(only(row("1,2,3", unit, ours={"x": values})))
        assert any(text.startswith("A (") and "log scale" in text for text in texts(root)) is log
        low, middle, high = (y for _, y in marks(lines["ours-0"]))
        assert ((low - middle) == pytest.approx(middle - high)) is log


# the page


def test_the_page_shows_panels_tables_notes_and_refused_runs():
    """A simulated figure is no system: it has no row beside the runs, and no loss or batch time is drawn for it."""
    fitted = {"calibrated_on": ["axonn.fig6.before", 7, "axonn.fig6.after"]}
    base = figure(PEAK, notes=("plans: reconstructed",))
    figures = [
        replace(base, provenance=base.provenance | fitted),
        figure(row(title="Alone"), label="fig_2"),
        make("nccl", (), outcome=Outcome.UNSUPPORTED, source=Source.ANALYTIC, reason="no device"),
    ]
    seen = build(*figures)
    assert len(seen.all("svg")) == 2
    assert seen.values("table", "aria-label")[:3] == [
        "Percent of peak: the paper's values and ours",
        "Percent of peak: simulated values",
        "Alone: simulated values",
    ]
    assert "Systems side by side" not in seen.values("table", "aria-label")
    for text in ("fig_1: plans: reconstructed", "axonn.fig6.before, axonn.fig6.after", "● AxoNN", "no device"):
        assert text in seen.words()
    runs = [
        make("axonn 2x1", loss=[2.0, 1.0]),
        make("gpipe 2x1", (), outcome=Outcome.FAILED, reason="it broke"),
        make("sim 48x1", (3.0,), source=Source.SIMULATED),
    ]
    html = site(page.render(in_store(*figures, *runs)))
    beside = html.partition('aria-label="Systems side by side"')[2].partition("</table>")[0]
    assert [name in beside for name in ("axonn 2x1", "gpipe 2x1", "sim 48x1", "fig_1")] == [True, True, True, False]
    assert len(Page(html).all("svg")) == 2 + 2  # the panels, losses and batch times


def test_any_numbers_make_a_picture():
    for values in ([1e308, -1e308], [1e-320, 1e308], [0.0, 0.0], [-5.0, -5.0], [NAN, 1.0], [1e30, -1e30], [5e-324] * 2):
        panel = only(row("1,2", "percent", ours={"x": values}, paper={"x": values}, null={"x": values}))
        root, _ = drawn(panel)
        assert "nan" not in "".join(path.attrib.get("d", "") for path in root.iter("path"))
        assert rows(figure_panels.compared(panel, "simulated"))


def test_far_too_much_is_cut_and_says_so(monkeypatch):
    many = ",".join(map(str, range(5000)))
    lines = {f"x{n}": [1.0 + n] * 5000 for n in range(40)}
    panel = only(row(many, ours=lines, paper=lines))
    assert len(panel.x) == 64
    assert len(panel.systems) == 12
    root, _ = drawn(panel)
    assert len([text for text in texts(root) if text.isdecimal()]) < 40  # names that do not run into each other
    monkeypatch.setattr(plots, "MOST_PANELS", 3)
    seen = build(figure(*(row("1", title=f"p{n}") for n in range(5))))
    assert len(seen.all("svg")) == 3
    assert "2 more panels are in the records" in seen.words()


def test_null_in_the_file_is_a_point_without_a_value():
    data = json.loads(figure(PEAK).to_json())
    assert data["panels"][0]["paper"]["axonn"] == [40.0, None, 32.0]
    [panel] = figure_panels.read(Record.from_json(json.dumps(data)))
    assert math.isnan(panel.at(PAPER, "axonn", 1))
