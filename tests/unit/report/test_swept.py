"""Sweep panels: hand-computed points, and reasons for runs left out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.config.experiment import read_panel
from suite.core.errors import InvalidRequest
from suite.core.record import Metric, Outcome, Record, Source
from suite.report import derive
from suite.report.page import page
from suite.report.panels import sweep_panels
from suite.report.panels.figure_panels import OURS, ShownPanel
from suite.report.panels.sweep_panels import conversion_factor
from tests.support.drawn import generator
from tests.support.pages import Page, site
from tests.support.refusals import refused
from tests.support.report_records import in_store, make

NAN = math.nan
KEY = "optimizer.buckets_per_reduction"
K = {
    "title": "Update against k",
    "unit": "s",
    "axis": "k",
    "key": KEY,
    "names": {"null": "no overlap"},
    "metric": "update_time",
}
PHASES = {"title": "Phases", "metrics": {"pipeline": "pipeline_time", "update": "update_time"}, "share": True}
FIGURE = {"title": "Fig", "unit": "s", "x": ["1", "2"], "ours": {"axonn": [1.0, 2.0]}}
CROWDED = "oversubscribed: 16 ranks on 2 cores, not comparable"


def run(
    k: Any, times: Sequence[float], *, system: str = "axonn", tag: str = "", panels: Any = (K,), **changes: Any
) -> Record:
    """A run of `optimizer.buckets_per_reduction`=k with these times of its update.

    `more` are further metrics by name, `config` is merged, `figure` holds published panels; the rest replaces fields.
    """
    label = f"{system} 2x1 {k} {tag}".strip()
    base = make("x 2x1", system=system)
    plan = base.config["experiment"] | {"expect": [], "panels": list(panels)}
    config = base.config | {"experiment": plan, "optimizer": {"buckets_per_reduction": k}, "tag": tag}
    metrics = base.metrics | {"update_time": Metric("s", "lower", tuple(times))}
    metrics |= {name: Metric(unit, "", values) for name, (unit, values) in changes.pop("more", {}).items()}
    config |= changes.pop("config", {})
    fields = {"key": label, "label": label, "config": config, "metrics": metrics, "panels": changes.pop("figure", ())}
    return replace(base, **fields | changes)


def group(*records: Record) -> derive.ExperimentGroup:
    [group_of] = derive.groups(in_store(*records))
    return group_of


def read(*records: Record) -> tuple[list[ShownPanel], list[tuple[str, str]]]:
    groups = group(*records)
    runs = {entry.file: f"r{number}" for number, entry in enumerate(groups.entries)}
    return sweep_panels.read(groups, runs)


def only(*records: Record) -> ShownPanel:
    [drawn], remarks = read(*records)
    assert remarks == []
    return drawn


def rows(drawn: ShownPanel) -> list[list[str]]:
    """Each row's cells as text: links by their words, badges and details behind them."""
    return [
        [" ".join(filter(None, (c.text, *(text for _, text in c.links), c.badge, c.detail.strip()))) for c in row]
        for row in drawn.table.rows
    ]


def curve(drawn: ShownPanel, name: str, side: str = OURS) -> tuple[float, ...]:
    return drawn.panel.curves[side][name]


def lone(panel: dict[str, Any], *times: float, **changes: Any) -> ShownPanel:
    """A panel with one run."""
    return only(run(1, times or [1.0] * 3, panels=[panel], **changes))


# values


def test_curve_is_the_medians_of_its_runs():
    drawn = only(run(10, [0.5, 0.1, 0.3]), run(2, [0.2, 0.4, 0.6, 0.8]), run(None, [3.0, 1.0, 2.0]))
    panel = drawn.panel
    assert panel.caption.startswith("Medians of measured")
    assert (panel.title, panel.unit, panel.axis, panel.x) == ("Update against k", "s", "k", ("no overlap", "2", "10"))
    assert curve(drawn, "axonn") == pytest.approx((2.0, 0.5, 0.3))
    assert list(drawn.table.frame)[:2] == ["curve", "k"]
    assert drawn.table.rows[0][3].links == (("#r2", "axonn 2x1 None"),)
    assert rows(drawn) == [
        ["axonn", "no overlap", "2", "axonn 2x1 None measured", "3 [1 … 3]"],
        ["axonn", "2", "0.5", "axonn 2x1 2 measured", "4 [0.2 … 0.8]"],
        ["axonn", "10", "0.3", "axonn 2x1 10 measured", "3 [0.1 … 0.5]"],
    ]


@pytest.mark.parametrize(("rival", "badge"), [(0.2, "quickest"), (0.1, "")])
def test_quickest_run_of_a_point_has_a_badge(rival: float, badge: str):
    def timed(system: str, seconds: float) -> Record:
        rounds = {"measure": {"rounds": 5}}
        return run(1, [1.0], system=system, panels=panels, more={"batch_time": ("s", (seconds,) * 5)}, config=rounds)

    panels = [K | {"metric": "batch_time"}]
    drawn = only(timed("axonn", 0.1), timed("gpipe", rival))
    assert [row[2].badge for row in drawn.table.rows] == [badge, ""]


def test_relative_curve_is_divided_by_its_value_at_a_point():
    panels = [K | {"relative": "no overlap", "unit": "day"}]
    mine = [run(k, [t] * 3, panels=panels) for k, t in ((None, 4.0), (1, 5.0), (2, 1.0))]
    theirs = [run(k, [t] * 3, system="gpipe", panels=panels) for k, t in ((None, 2.0), (1, 4.0))]
    drawn = only(*mine, *theirs)
    assert drawn.panel.unit == "ratio"
    assert curve(drawn, "axonn") == (1.0, 1.25, 0.25)
    assert curve(drawn, "gpipe")[:2] == (1.0, 2.0)
    assert rows(drawn)[1] == ["axonn", "1", "1.25", "axonn 2x1 1 measured", "3 5 [5 … 5]"]
    assert list(drawn.table.frame)[4].startswith("samples\nseconds, median")
    assert read_panel(K | {"relative": "null"}).divisor == "no overlap"
    panels = [K | {"relative": "1"}]
    drawn = only(run(2, [1.0] * 3, panels=panels), run(4, [0.0] * 3, panels=panels))
    assert not drawn.panel.systems
    assert ["nothing at 1 to divide by" in row[3] for row in rows(drawn)] == [True, True]
    assert not only(*(run(k, [0.0] * 3, panels=panels) for k in (1, 2))).panel.systems


def test_shares_are_parts_of_a_curves_own_sum():
    def phases(system, pipeline, update, panel=PHASES):
        return run(1, [update], system=system, panels=[panel], more={"pipeline_time": ("s", (pipeline,))})

    drawn = only(phases("axonn", 6.0, 2.0), phases("gpipe", 9.0, 1.0))
    assert (drawn.panel.unit, drawn.panel.x) == ("percent", ("pipeline", "update"))
    assert (curve(drawn, "axonn"), curve(drawn, "gpipe")) == ((75.0, 25.0), (90.0, 10.0))
    assert rows(drawn)[0] == ["axonn", "pipeline", "75", "axonn 2x1 1 measured", "1 few 6 [6 … 6]"]
    plain = only(phases("axonn", 6.0, 2.0, PHASES | {"share": False}))
    assert (plain.panel.unit, curve(plain, "axonn")) == ("s", (6.0, 2.0))
    drawn = lone(PHASES)
    assert not drawn.panel.systems
    assert ["pipeline" in row[3] for row in rows(drawn)] == [True, True]
    metrics = {"update_time": Metric("s", "", ()), "pipeline_time": Metric("s", "", (1.0,))}
    split = only(run(1, [2.0] * 3, panels=[PHASES]), run(2, [], panels=[PHASES], metrics=metrics))
    assert not split.panel.systems
    assert sum("several runs" in row[3] for row in rows(split)) == 2


def replace_panels(record: Record, panels: list[Any]) -> Record:
    plan = record.config["experiment"] | {"panels": panels}
    return replace(record, config=record.config | {"experiment": plan})


TOKENS = {"batch": {"size": 1000}, "model": {"shape": {"sequence": 3000}}}
FLOPS = {"useful_flops_per_batch": ("flop", (3e8,)), "flops_per_batch_6nd": ("flop", (1.6e9,))}
DERIVED: list[tuple[str, dict[str, Any], float, float]] = [  # metric, configuration, seconds of a batch, value
    ("percent_of_peak", {}, 0.1, 50.0),  # 2e9 flop as dense products, of 4e10 flop/s
    ("useful_percent_of_peak", {}, 0.1, 7.5),  # 3e8 flop of kept weights
    ("percent_of_vendor_peak", {"experiment": {"vendor_peak": 2e11}}, 0.1, 10.0),
    ("percent_of_vendor_peak", {"experiment": {"vendor_peak": "much"}}, 0.1, NAN),
    ("percent_of_vendor_peak", {"experiment": {"vendor_peak": None}}, 0.1, NAN),
    ("percent_of_vendor_peak_6nd", {"experiment": {"vendor_peak": 2e11}}, 0.1, 8.0),  # 1.6e9 flop as 6 N D
    ("training_days", TOKENS, 86.4, 100.0),  # 3e11 tokens at 3e6 a batch
    ("training_days", {}, 86.4, NAN),
    ("training_days", {"batch": {"size": 0}, "model": {"shape": {"sequence": 8}}}, 86.4, NAN),
    ("training_days", {"batch": {"size": 10**400}, "model": {"shape": {"sequence": "8"}}}, 86.4, NAN),
    ("training_days", {"batch": 3, "model": [3]}, 86.4, NAN),
]


def test_percent_of_peak_and_days_are_derived_from_batch_times():
    for metric, changes, seconds, expected in DERIVED:
        panel = {"title": metric, "key": KEY, "metric": metric}
        plan = {"expect": [], "panels": [panel]} | changes.get("experiment", {})
        times = {"batch_time": ("s", (seconds, 2 * seconds, seconds / 2))}
        drawn = lone(panel, more=times | FLOPS, config=changes | {"experiment": plan})
        assert drawn.panel.curves[OURS].get("axonn", (NAN,)) == pytest.approx((expected,), nan_ok=True), metric
        if not math.isnan(expected):
            assert drawn.panel.unit == ("day" if metric == "training_days" else "percent")
    peak = {"title": "Peak", "key": KEY, "metric": "percent_of_peak"}
    drawn = lone(peak, more={"batch_time": ("s", (0.1, 0.2, 0.05))})
    assert rows(drawn)[0][4] == "3 [25 … 100]"
    assert not lone(peak | {"metric": "useful_percent_of_peak"}, more={"batch_time": ("s", (0.1,))}).panel.systems


OVER_BATCHES = {"title": "Perplexity", "key": "batches", "metric": "perplexity", "curve": "tag"}
LAST = {"title": "Last", "key": KEY, "metric": "perplexity"}


def test_perplexity_has_a_point_per_validation():
    """A round is 1 batch that is not timed and 4 that are, after 2 of warming up."""
    measure = {"validate": "every_round", "warm_up": 2, "discard_first": 1, "batches": 4}

    def scored(panel, *scores, **changes):
        series = {"loss": [1.0] * 12, "validation_loss": list(scores)}
        config = {"measure": measure | changes.pop("measure", {})}
        return lone(panel, tag="mine", series=series, config=config, **changes)

    drawn = scored(OVER_BATCHES, math.log(80), math.log(20))
    assert (drawn.panel.unit, drawn.panel.x) == ("perplexity", ("7", "12"))
    assert curve(drawn, "mine") == pytest.approx((80, 20))
    assert curve(scored(LAST, math.log(80), math.log(20)), "axonn") == pytest.approx((20,))
    assert scored(OVER_BATCHES, math.log(20), measure={"validate": "end"}).panel.x == ("12",)
    for panel in (OVER_BATCHES, LAST):
        for scores in ([], [NAN], [math.inf], [1e6]):
            assert not scored(panel, *scores).panel.systems
    assert not scored(OVER_BATCHES, math.log(20), source=Source.SIMULATED).panel.systems
    _, remarks = read(run(1, [1.0], panels=[OVER_BATCHES | {"metric": "update_time"}]))
    assert remarks[0][0] == "panel 1"


def test_units_are_those_that_the_panel_asks_for():
    for unit, asked, factor in (
        ("s", "day", 1 / 86400),
        ("B", "gigabyte", 1e-9),
        ("x", "x", 1.0),
        ("hour", "second", 3600.0),
        ("s", "gigabyte", NAN),
    ):
        assert conversion_factor(unit, asked) == pytest.approx(factor, nan_ok=True)
    drawn = only(
        run(1, [86400.0] * 3, panels=[K | {"unit": "day"}], label="z"),
        run(2, [], panels=[K | {"unit": "day"}], more={"update_time": ("B", (1.0,))}, label="b"),
    )
    assert curve(drawn, "axonn") == (1.0,)
    assert rows(drawn)[1][3] == "b update_time is in 'B', the panel in 'day'"


# points and curves


def test_a_point_is_what_a_runs_config_says():
    deep = {"flag": True, "text": " two words ", "share": 0.25, "nothing": None, "list": [1], "nan": NAN}
    config = {"deep": deep | {"huge": 10**400}, "grid": {"data": 2, "inter": 3, "tensor": 2}}
    points = {"ranks": "12", "grid": "3x2x2", KEY: "4", "deep.flag": "true", "deep.text": "two words"}
    points |= {"deep.share": "0.25", "deep.nothing": "none", "tag": "none"}
    nowhere = ("deep", "deep.list", "deep.nan", "deep.huge", "deep.missing", f"{KEY}.more", "...")
    for key, point in (points | dict.fromkeys(nowhere, "")).items():
        panel = {"title": "t", "key": key, "metric": "update_time"}
        drawn = only(run(4, [1.0] * 3, panels=[panel], config=config))
        assert drawn.panel.x == ((point,) if point else ()), key
        assert rows(drawn)[0][1] == (point or "–")
        assert ("no single value at" in rows(drawn)[0][3]) == (not point)


def test_a_name_that_is_also_a_value_is_the_values():
    drawn = only(*(run(k, [1.0] * 3, panels=[K | {"names": {"a": "b", "b": "c"}}]) for k in "ab"))
    assert drawn.panel.x == ("b", "c")


def test_points_come_in_their_natural_order():
    values = [32, 4, 0.5, None, "b10", "b9", -1, "10", True]
    drawn = only(*(run(k, [1.0] * 3, panels=[K | {"names": {"True": "on"}}], label=f"l{k!r}") for k in values))
    assert drawn.panel.x == ("none", "-1", "0.5", "4", "10", "32", "b9", "b10", "on")


def test_a_curve_is_named_by_what_is_asked_for():
    for path, names in (
        ("system", ["axonn", "gpipe"]),
        ("tag", ["none", "mine"]),
        ("precision.name", ["bf16", "full"]),
    ):
        panels = [K | {"curve": path}]
        one = run(1, [1.0] * 3, panels=panels, config={"precision": {"name": "bf16"}})
        two = run(1, [2.0] * 3, panels=panels, system="gpipe", tag="mine", config={"precision": {"name": "full"}})
        assert list(only(one, two).panel.curves[OURS]) == names
    for precision in ({"name": [1]}, {}, "full"):
        drawn = lone(K | {"curve": "precision.name"}, config={"precision": precision})
        assert rows(drawn) == [["axonn", "1", "–", "axonn 2x1 1 no single value at precision.name", "–"]]


def test_a_curve_may_be_a_system_on_its_grid():
    panels = [K | {"curve": "grid"}]
    grids = [{"data": 1, "inter": 2, "tensor": 1}, {"data": 2, "inter": 1, "tensor": 1}, {"data": 0}]
    records = [run(1, [1.0 + n], panels=panels, tag=str(n), config={"grid": grid}) for n, grid in enumerate(grids)]
    drawn = only(*records)
    assert list(drawn.panel.curves[OURS]) == ["axonn 2x1", "axonn 1x2"]
    assert "no single value at grid" in rows(drawn)[2][3]


def test_two_runs_at_one_point_are_listed_and_not_drawn():
    drawn = only(run(1, [1.0] * 3), run(1, [3.0] * 3, tag="again"), run(2, [1.0] * 3))
    assert curve(drawn, "axonn")[1] == 1.0
    assert math.isnan(curve(drawn, "axonn")[0])
    assert ["twice 2 runs" in row[3] for row in rows(drawn)] == [True, True, False]
    assert [row[2] for row in rows(drawn)] == ["1", "3", "1"]
    failed = run(1, [9.0] * 3, tag="again", outcome=Outcome.FAILED, reason="it broke")
    assert curve(only(run(1, [1.0] * 3), failed), "axonn") == (1.0,)


def test_a_label_that_two_points_share_is_remarked():
    early = run(1, [1.0] * 3, label="axonn 2x1", key="a")
    late = run(2, [1.0] * 3, label="axonn 2x1", key="b")
    late.provenance["started"] = "2026-01-01"
    [drawn], [(title, remark)] = read(early, late)
    assert drawn.panel.x == ("2",)
    assert (title, remark.partition(":")[0]) == ("Update against k", "axonn 2x1")
    again = run(1, [2.0] * 3, label="axonn 2x1 k1")
    assert read(early, late, again)[1] == []


# what may be compared


TRACEBACK = "rank 0: Traceback (most recent call last):\n  File x\nRuntimeError: rank 1\n"
CROWDED_TIMES = {"update_time": Metric("s", "", (5.0,) * 3), "batch_time": Metric("s", "", (1.0,), CROWDED)}
REFUSED = {"outcome": Outcome.UNSUPPORTED, "source": Source.ANALYTIC, "metrics": {}}
NOT_DRAWN: list[tuple[dict[str, Any], str, bool]] = [  # run, reason, whether it has a point without a value
    ({"metrics": CROWDED_TIMES}, f"not comparable {CROWDED}", True),
    ({"notes": ("oversubscribed: 4 ranks on 2 cores",)}, "not comparable", True),
    ({"source": Source.SIMULATED}, "simulated: ", False),
    ({"source": Source.ANALYTIC}, "analytic: ", False),
    ({"metrics": {}}, "no update_time", False),
    (REFUSED | {"reason": "chunk=2; rule: 1\nmore"}, "unsupported chunk=2; rule: 1", True),
    ({"outcome": Outcome.FAILED, "reason": TRACEBACK}, "failed rank 0: RuntimeError: rank 1", True),
    ({"outcome": Outcome.OOM}, "oom", True),
    ({"tag": "fig", "figure": [FIGURE], "outcome": Outcome.FAILED, "reason": "it broke"}, "it broke", True),
]


def test_what_is_not_drawn_has_a_row_and_a_reason():
    for changes, reason, has_point in NOT_DRAWN:
        drawn = only(run(1, [1.0] * 3), run(4, [5.0] * 3, **changes))
        assert drawn.panel.x == (("1", "4") if has_point else ("1",)), reason
        assert [value for value in curve(drawn, "axonn") if not math.isnan(value)] == [1.0]
        assert reason in rows(drawn)[1][3]
        assert ("1 of the runs" in drawn.panel.caption) is ("not comparable" in reason)
    failed = run(4, [5.0] * 3, outcome=Outcome.FAILED, reason="it broke", panels=[PHASES])
    assert [row[1:4:2] for row in rows(only(failed))] == [["–", "axonn 2x1 4 failed it broke"]]
    crowded = run(4, [], metrics=CROWDED_TIMES | {"sent": Metric("B", "", (7.0,))})
    assert rows(only(crowded))[0] == ["axonn", "4", "5", f"axonn 2x1 4 not comparable {CROWDED}", "3 [5 … 5]"]
    sizes, peak = ({"title": "t", "key": KEY, "metric": metric} for metric in ("sent", "percent_of_peak"))
    assert curve(only(replace_panels(crowded, [sizes])), "axonn") == (7.0,)  # more ranks than cores send no other bytes
    assert not only(replace_panels(crowded, [peak])).panel.systems
    figure = run(None, [], tag="fig", figure=[FIGURE], source=Source.SIMULATED, metrics={})
    assert len(rows(only(run(1, [1.0] * 3), figure))) == 1  # a published figure is no run


def test_runs_without_interleaved_rounds_have_a_warning():
    def at(k, turns, panels):
        record = run(k, [2.0] * 3, panels=panels)
        return replace(record, provenance=record.provenance | {"turns": turns})

    panels = [K | {"relative": "no overlap"}]
    drawn = only(at(None, "a", panels), at(1, "a", panels), at(2, "b", panels))
    assert curve(drawn, "axonn")[:2] == (1.0, 1.0)
    assert math.isnan(curve(drawn, "axonn")[2])
    assert "not comparable axonn 2x1 2 and axonn 2x1 None were not interleaved" in rows(drawn)[2][3]
    assert "were not interleaved" not in drawn.panel.caption
    assert "were not interleaved" in only(at(1, "a", [K]), at(2, "b", [K])).panel.caption


def test_a_source_is_named_and_divided_by_no_other():
    emulated = run(2, [1.0] * 3, source=Source.EMULATED)
    drawn = only(run(1, [1.0] * 3), emulated)
    assert drawn.source == "measured and emulated"
    assert [row[3].split()[-1] for row in rows(drawn)] == ["measured", "emulated"]
    panels = [K | {"relative": "1"}]
    drawn = only(run(1, [1.0] * 3, panels=panels), replace_panels(emulated, panels))
    assert "not comparable the run at 1 is of another source" in rows(drawn)[1][3]
    assert drawn.source == "measured"


def test_only_finite_samples_count_and_few_are_marked():
    for values, median, note in (
        ([1.0, NAN, 3.0, math.inf, 2.0], 2.0, "3 [1 … 3]"),
        ([4.0, NAN], 4.0, "1 few [4 … 4]"),
        ([1.0, 3.0], 2.0, "2 few [1 … 3]"),
        ([NAN, math.inf, -math.inf], NAN, "–"),
        ([], NAN, "–"),
        ([1.7e308, 1.7e308], NAN, "–"),
    ):
        drawn = only(run(1, values))
        assert curve(drawn, "axonn") == (median,) if math.isfinite(median) else not drawn.panel.systems
        assert rows(drawn)[0][4] == note


# malformed and far too much


MALFORMED = [
    ({"title": " "}, "panel.title"),
    ({"key": None}, "panel"),
    ({"metric": None}, "panel"),
    ({"metrics": {"a": "b"}}, "panel"),
    ({"metrics": {str(n): "m" for n in range(99)}, "key": None, "metric": None}, "panel.metrics"),
    ({"names": {"null": " "}}, "panel.names"),
    ({"share": True}, "panel"),
    (PHASES | {"key": None, "metric": None, "relative": "update"}, "panel"),
]


def test_malformed_panel_is_a_remark_and_costs_no_other():
    for change, key in MALFORMED:
        with refused(InvalidRequest, key) as refusal:
            read_panel(K | change)
        assert refusal.value.rule
        drawn, remarks = read(run(1, [1.0] * 3, panels=[K | change, K]))
        assert (len(drawn), remarks) == (1, [("panel 1", str(refusal.value))])
    for config in (run(1, [1.0], panels=()).config, {"experiment": "text"}, {}):
        assert read(replace(run(1, [1.0]), config=config)) == ([], [])
    for panels in ("text", 7, {"title": "x"}, True):
        [], [(who, _)] = read(replace_panels(run(1, [1.0]), panels))
        assert who == "panels"


ODD = (None, True, 0, -1, 4.5, NAN, math.inf, 10**400, "", "x" * 500, "null", "no overlap", KEY, "ranks", "update_time")
ODD += ("training_days", "axonn", "c.one", "\ud800", "…", ".", "1e999")
FIELDS = ("title", "unit", "axis", "key", "names", "metric", "metrics", "curve", "relative", "share")


def anything(rng: random.Random, depth: int = 3) -> Any:
    if depth and rng.random() < 0.5:
        size = rng.randrange(3)
        if rng.random() < 0.5:
            return [anything(rng, depth - 1) for _ in range(size)]
        return {str(rng.choice(ODD)): anything(rng, depth - 1) for _ in range(size)}
    return rng.choice(ODD)


def test_whatever_an_experiment_holds_a_page_comes_out():
    """Rows of which one field, or two, are anything at all; and configs of runs that are."""
    rng = generator("sweep panels")
    divided = K | {"relative": "1"}
    for number in range(80):
        row: Any = dict(rng.choice([K, PHASES, divided]))
        for _ in range(rng.randrange(3)):
            row[rng.choice(FIELDS)] = anything(rng)
        panels = [row, anything(rng)]
        odd = {"tag": anything(rng), "grid": anything(rng)}
        records = [run(k, [1.0, 2.0], panels=panels, label=f"l{k}", config=odd) for k in (1, 2)]
        records.append(run(anything(rng), [NAN, 1.0], panels=panels, label="odd"))
        read(*records)
        if number % 40 == 0:
            assert "</html>" in site(page.render(in_store(*records)))


def test_far_too_much_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(sweep_panels, "MAX_PANELS", 3)
    panels = [K, *({"title": f"p{n}", "key": "tag", "metric": "update_time"} for n in range(4))]
    records = [run(k, [1.0] * 3, panels=panels, label=f"a{k}") for k in range(100)]
    records += [run(0, [1.0] * 3, system=f"s{n}", panels=panels, label=f"s{n}") for n in range(400)]
    drawn, remarks = read(*records)
    assert len(drawn) == 3
    assert [(title, text.split()[0]) for title, text in remarks if title in {"panels", "Update against k"}] == [
        ("Update against k", "100"),
        ("panels", "2"),
    ]
    panel = drawn[0].panel
    assert (len(panel.x), len(panel.systems), len(drawn[0].table.rows)) == (64, 12, 400)


# the page


def rendered(*records: Record) -> Page:
    return Page(site(page.render(in_store(*records))))


def test_section_has_panel_table_remarks_and_links():
    panels = [K, {"title": "Oops"}]
    seen = rendered(run(1, [1.0] * 3, panels=panels), run(None, [2.0] * 3, panels=panels))
    assert "panel 2 : panel={" in seen.words(" ")
    assert "Update against k: run by run" in seen.values("table", "aria-label")
    [label_of] = [label for label in seen.values("svg", "aria-label") if label.startswith("Update against k.")]
    assert "AxoNN, measured, no overlap: 2, 1: 1." in label_of
