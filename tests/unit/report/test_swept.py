"""Sweep panels: hand-computed points, and reasons for runs left out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.core.claim import Check, Claim, Judged, Verdict
from suite.core.errors import InvalidRequest
from suite.core.experiment import read_panel
from suite.core.record import Metric, Outcome, Record, Source
from suite.papers.common import claims
from suite.report import derive
from suite.report.load import ReportStore, StoredRecord, read_store
from suite.report.page import page
from suite.report.panels import sweep_panels
from suite.report.panels.figure_panels import OURS, PAPER, ShownPanel
from suite.report.panels.published_values import conversion_factor
from tests.support.pages import Page

NAN = math.nan
CONF = Path(__file__).parents[3] / "conf"
K = {
    "title": "Update against k",
    "unit": "s",
    "axis": "k",
    "key": "optimizer.buckets_per_reduction",
    "names": {"null": "no overlap"},
    "metric": "update_time",
}
PHASES = {
    "title": "Phases",
    "metrics": {"pipeline": "pipeline_time", "update": "update_time"},
    "share": True,
}
CROWDED = "oversubscribed: 16 ranks on 2 cores, not comparable"
Make = Callable[..., Record]
Save = Callable[..., Path]


@pytest.fixture
def run(make: Make) -> Callable[..., Record]:
    """A run of `optimizer.buckets_per_reduction`=k with these times of its update; `more`: metrics by name and unit."""

    def build(
        k: Any, times: Sequence[float], *, system: str = "axonn", tag: str = "", panels: Any = (K,), **changes: Any
    ) -> Record:
        label = changes.pop("label", f"{system} 2x1 {k} {tag}".strip())
        base = make("x 2x1", system=system)
        more = {name.replace("_in_", " "): Metric(unit, "", v) for name, (unit, v) in changes.pop("more", {}).items()}
        plan = base.config["experiment"] | {"expect": [], "panels": panels if isinstance(panels, str) else list(panels)}
        config = (
            base.config
            | {"experiment": plan, "optimizer": {"buckets_per_reduction": k}, "tag": tag}
            | changes.pop("config", {})
        )
        metrics = base.metrics | {"update_time": Metric("s", "lower", tuple(times))} | more
        if "panels_of_figure" in changes:
            changes["panels"] = changes.pop("panels_of_figure")
        return replace(base, **{"key": label, "label": label, "config": config, "metrics": metrics} | changes)

    return build


def claim(name: str, value: Any, unit: str = "second") -> Claim:
    return Claim(name, "axonn", "Figure 8", "time", "axonn", value, unit, "number", "cluster")


def group(*records: Record) -> derive.ExperimentGroup:
    [group_of] = derive.groups(ReportStore(Path(), tuple(StoredRecord(r, f"{n}.json") for n, r in enumerate(records))))
    return group_of


def read(*records: Record, known: Sequence[Claim] = ()) -> tuple[list[ShownPanel], list[tuple[str, str]]]:
    groups = group(*records)
    runs = {entry.file: f"r{number}" for number, entry in enumerate(groups.entries)}
    return sweep_panels.read(groups, {item.id: item for item in known}, runs)


def only(*records: Record, known: Sequence[Claim] = ()) -> ShownPanel:
    [drawn], remarks = read(*records, known=known)
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


# values


def test_curve_is_the_medians_of_its_runs(run):
    drawn = only(run(10, [0.5, 0.1, 0.3]), run(2, [0.2, 0.4, 0.6, 0.8]), run(None, [3.0, 1.0, 2.0]))
    panel = drawn.panel
    assert (panel.title, panel.unit, panel.axis, panel.x) == ("Update against k", "s", "k", ("no overlap", "2", "10"))
    assert curve(drawn, "axonn") == pytest.approx((2.0, 0.5, 0.3))
    assert panel.caption == "Medians of measured runs, in seconds."
    assert [(column.name, column.detail) for column in drawn.table.columns] == [
        ("curve", ""),
        ("k", ""),
        ("median", "seconds"),
        ("run", "source, or why it is not drawn"),
        ("samples", "[least … greatest]"),
    ]
    assert drawn.table.rows[0][3].links == (("#r2", "axonn 2x1 None"),)
    assert rows(drawn) == [
        ["axonn", "no overlap", "2", "axonn 2x1 None measured", "3 [1 … 3]"],
        ["axonn", "2", "0.5", "axonn 2x1 2 measured", "4 [0.2 … 0.8]"],
        ["axonn", "10", "0.3", "axonn 2x1 10 measured", "3 [0.1 … 0.5]"],
    ]


def test_relative_curve_is_divided_by_its_value_at_a_point(run):
    panels = [K | {"relative": "no overlap", "unit": "day"}]
    mine = [run(k, [t] * 3, panels=panels) for k, t in ((None, 4.0), (1, 5.0), (2, 1.0))]
    theirs = [run(k, [t] * 3, system="gpipe", panels=panels) for k, t in ((None, 2.0), (1, 4.0))]
    drawn = only(*mine, *theirs)
    assert drawn.panel.unit == "ratio"
    assert curve(drawn, "axonn") == (1.0, 1.25, 0.25)
    assert curve(drawn, "gpipe")[:2] == (1.0, 2.0)
    assert drawn.panel.caption == "Medians of measured runs. Each curve is divided by its own value at no overlap."
    assert rows(drawn)[1] == ["axonn", "1", "1.25", "axonn 2x1 1 measured", "3 5 [5 … 5]"]
    assert drawn.table.columns[4].detail == "seconds, median [least … greatest]"


@pytest.mark.parametrize("relative", [None, "null", "no overlap"])
def test_the_point_to_divide_by_may_be_spelled_either_way(run, relative):
    spec = read_panel(K | {"relative": relative})
    assert spec.divisor == ("no overlap" if relative else "")


def test_without_its_own_point_a_curve_is_not_drawn(run):
    panels = [K | {"relative": "1"}]
    drawn = only(run(2, [1.0] * 3, panels=panels), run(4, [0.0] * 3, panels=panels))
    assert not drawn.panel.systems
    assert {row[3].partition(" 2x1 ")[2] for row in rows(drawn)} == {
        "2 nothing at 1 to divide by",
        "4 nothing at 1 to divide by",
    }
    zero = only(*(run(k, [0.0] * 3, panels=panels) for k in (1, 2)))
    assert not zero.panel.systems


def test_shares_are_parts_of_a_curves_own_sum(run):
    def phases(system, pipeline, update):
        return run(1, [update], system=system, panels=[PHASES], more={"pipeline_time": ("s", (pipeline,))})

    drawn = only(phases("axonn", 6.0, 2.0), phases("gpipe", 9.0, 1.0))
    assert (drawn.panel.unit, drawn.panel.x) == ("percent", ("pipeline", "update"))
    assert curve(drawn, "axonn") == (75.0, 25.0)
    assert curve(drawn, "gpipe") == (90.0, 10.0)
    assert "In percent of the sum of pipeline, update, curve by curve." in drawn.panel.caption
    assert rows(drawn)[0] == ["axonn", "pipeline", "75", "axonn 2x1 1 measured", "1 few 6 [6 … 6]"]
    plain = only(replace_panels(phases("axonn", 6.0, 2.0), [PHASES | {"share": False}]))
    assert (plain.panel.unit, curve(plain, "axonn")) == ("s", (6.0, 2.0))


def replace_panels(record: Record, panels: list[Any]) -> Record:
    plan = record.config["experiment"] | {"panels": panels}
    return replace(record, config=record.config | {"experiment": plan})


def test_without_all_its_parts_a_curve_has_no_shares(run):
    drawn = only(run(1, [2.0] * 3, panels=[PHASES]))
    assert not drawn.panel.systems
    assert [row[3] for row in rows(drawn)] == [
        "axonn 2x1 1 no pipeline_time",
        "axonn 2x1 1 no share of the sum without pipeline",
    ]
    metrics = {"update_time": Metric("s", "", ()), "pipeline_time": Metric("s", "", (1.0,))}
    split = only(run(1, [2.0] * 3, panels=[PHASES]), run(2, [], panels=[PHASES], metrics=metrics))
    assert not split.panel.systems
    assert sum("its parts are of several runs" in row[3] for row in rows(split)) == 2


def test_percent_of_peak_and_days_are_derived_from_batch_times(run):
    """2e9 flop in 0.1 s of 4e10 flop/s are 50 percent; 3e11 tokens at 3e6 a batch of 86.4 s are 100 days."""
    panels = [
        {"title": "Peak", "key": "optimizer.buckets_per_reduction", "metric": "percent_of_peak"},
        {"title": "Days", "key": "optimizer.buckets_per_reduction", "metric": "training_days", "unit": "day"},
    ]
    config = {"batch": {"size": 1000}, "model": {"shape": {"sequence": 3000}}}
    quick = run(1, [], panels=panels, config=config, more={"batch_time": ("s", (0.1, 0.2, 0.05))})
    slow = run(2, [], panels=panels, config=config, more={"batch_time": ("s", (86.4, 86.4, 172.8))})
    [peak, days], remarks = read(quick, slow)
    assert remarks == []
    assert peak.panel.unit == "percent"
    assert curve(peak, "axonn")[0] == pytest.approx(50)
    assert rows(peak)[0][4] == "3 [25 … 100]"
    assert days.panel.unit == "day"
    assert curve(days, "axonn")[1] == pytest.approx(100)
    assert rows(days)[1][4] == "3 [100 … 200]"


def test_flops_of_sparse_products_are_shown_apart(run):
    """2e9 flop as dense products and 3e8 of kept weights in 0.1 s of 4e10 flop/s: 50 percent, and 7.5."""
    names = ("percent_of_peak", "useful_percent_of_peak")
    panels = [{"title": name, "key": "optimizer.buckets_per_reduction", "metric": name} for name in names]
    time = {"batch_time": ("s", (0.1,))}
    sparse = run(1, [], panels=panels, more=time | {"useful_flops_per_batch": ("flop", (3e8,))})
    dense = run(1, [], panels=panels, system="gpipe", more=time)
    [both, useful], remarks = read(sparse, dense)
    assert remarks == []
    assert (curve(both, "axonn"), curve(both, "gpipe")) == (pytest.approx((50,)), pytest.approx((50,)))
    assert useful.panel.unit == "percent"
    assert useful.panel.curves[OURS] == {"axonn": pytest.approx((7.5,))}
    assert rows(useful)[1][3] == "gpipe 2x1 1 no useful_percent_of_peak"


@pytest.mark.parametrize(("promised", "percent"), [(2e11, 10.0), ("much", NAN), (None, NAN)])
def test_percent_of_vendor_peak_reads_the_experiment(run, promised, percent):
    """2e9 flop in 0.1 s of 2e11 flop/s; without a promise there is no percent of it."""
    panels = [{"title": "Vendor", "key": "optimizer.buckets_per_reduction", "metric": "percent_of_vendor_peak"}]
    base = run(1, [], panels=panels, more={"batch_time": ("s", (0.1,))})
    config = {"experiment": base.config["experiment"] | {"vendor_peak": promised}}
    drawn = only(run(1, [], panels=panels, more={"batch_time": ("s", (0.1,))}, config=config))
    assert drawn.panel.curves[OURS].get("axonn", (NAN,)) == pytest.approx((percent,), nan_ok=True)


SCORES = {"loss": [1.0] * 12, "validation_loss": [math.log(80), math.log(20)]}
OVER_BATCHES = {"title": "Perplexity", "key": "batches", "metric": "perplexity", "curve": "tag"}
LAST = {"title": "Last", "key": "optimizer.buckets_per_reduction", "metric": "perplexity"}


def test_perplexity_has_a_point_per_validation(run):
    """A turn is 1 batch that is not timed and 4 that are, after 2 of warming up."""
    turns = {"measure": {"validate": "every_round", "warm_up": 2, "discard_first": 1, "batches": 4}}
    drawn, remarks = read(run(1, [], panels=[OVER_BATCHES, LAST], tag="mine", series=SCORES, config=turns))
    assert remarks == []
    assert (drawn[0].panel.unit, drawn[0].panel.x) == ("perplexity", ("7", "12"))
    assert curve(drawn[0], "mine") == pytest.approx((80, 20))
    assert curve(drawn[1], "axonn") == pytest.approx((20,))


def test_final_perplexity_comes_after_all_batches(run):
    config = {"measure": {"validate": "end", "warm_up": 2, "discard_first": 1, "batches": 4}}
    series = {"loss": [1.0] * 12, "validation_loss": [math.log(20)]}
    drawn = only(run(1, [], panels=[OVER_BATCHES], tag="mine", series=series, config=config))
    assert drawn.panel.x == ("12",)


@pytest.mark.parametrize("scores", [[], [NAN], [math.inf], [1e6]])
@pytest.mark.parametrize("panel", [OVER_BATCHES, LAST], ids=["over batches", "last"])
def test_without_a_validation_loss_there_is_no_perplexity(run, panel, scores):
    series = {"loss": [1.0], "validation_loss": scores}
    turns = {"measure": {"validate": "every_round", "warm_up": 2, "discard_first": 1, "batches": 4}}
    drawn = only(run(1, [], panels=[panel], tag="mine", series=series, config=turns))
    assert not drawn.panel.systems
    assert rows(drawn)[0][3].endswith(("no single value at batches", "no perplexity"))


def test_perplexity_of_what_no_clock_measured_is_not_drawn(run):
    drawn = only(run(1, [], panels=[OVER_BATCHES], tag="mine", series=SCORES, source=Source.SIMULATED))
    assert not drawn.panel.systems


def test_nothing_but_perplexity_has_a_point_a_validation(run):
    _, remarks = read(run(1, [1.0], panels=[OVER_BATCHES | {"metric": "update_time"}]))
    assert remarks[0][0] == "panel 1"
    assert "rule: key=batches has one value per validation" in remarks[0][1]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"batch": {"size": 0}, "model": {"shape": {"sequence": 8}}},
        {"batch": {"size": 10**400}, "model": {"shape": {"sequence": "8"}}},
        {"batch": 3, "model": [3]},
    ],
)
def test_no_days_without_the_tokens_of_a_batch(run, config):
    panels = [{"title": "Days", "key": "optimizer.buckets_per_reduction", "metric": "training_days"}]
    drawn = only(run(1, [1.0], panels=panels, config=config))
    assert not drawn.panel.systems
    assert rows(drawn)[0][3].endswith("no training_days")


def test_units_are_those_that_the_panel_asks_for(run):
    assert (
        conversion_factor("s", "day") * 86400
        == conversion_factor("B", "gigabyte") * 1e9
        == conversion_factor("x", "x")
        == 1.0
    )
    assert conversion_factor("hour", "second") == 3600
    assert math.isnan(conversion_factor("s", "gigabyte"))
    drawn = only(
        run(1, [86400.0] * 3, panels=[K | {"unit": "day"}], label="z"),
        run(2, [], panels=[K | {"unit": "day"}], more={"update_time": ("B", (1.0,))}, label="b"),
    )
    assert curve(drawn, "axonn") == (1.0,)
    assert rows(drawn)[1][3] == "b update_time is in 'B', the panel in 'day'"


# points and curves


@pytest.mark.parametrize(
    ("key", "point"),
    [
        ("ranks", "12"),
        ("grid", "3x2x2"),
        ("optimizer.buckets_per_reduction", "4"),
        ("deep.flag", "true"),
        ("deep.text", "two words"),
        ("deep.share", "0.25"),
        ("deep.nothing", "none"),
        ("tag", "none"),
        ("deep", ""),
        ("deep.list", ""),
        ("deep.nan", ""),
        ("deep.huge", ""),
        ("deep.missing", ""),
        ("optimizer.buckets_per_reduction.more", ""),
        ("...", ""),
    ],
)
def test_a_point_is_what_a_runs_config_says(run, key, point):
    deep = {"flag": True, "text": " two words ", "share": 0.25, "nothing": None, "list": [1], "nan": NAN}
    config = {"deep": deep | {"huge": 10**400}, "grid": {"data": 2, "inter": 3, "tensor": 2}}
    drawn = only(run(4, [1.0] * 3, panels=[{"title": "t", "key": key, "metric": "update_time"}], config=config))
    assert drawn.panel.x == ((point,) if point else ())
    assert rows(drawn)[0][1] == (point or "–")
    assert ("no single value at" in rows(drawn)[0][3]) == (not point)


def test_a_name_that_is_also_a_value_is_the_values(run):
    drawn = only(*(run(k, [1.0] * 3, panels=[K | {"names": {"a": "b", "b": "c"}}]) for k in "ab"))
    assert drawn.panel.x == ("b", "c")


def test_points_come_in_their_natural_order(run):
    values = [32, 4, 0.5, None, "b10", "b9", -1, "10", True]
    drawn = only(*(run(k, [1.0] * 3, panels=[K | {"names": {"True": "on"}}], label=f"l{k!r}") for k in values))
    assert drawn.panel.x == ("none", "-1", "0.5", "4", "10", "32", "b9", "b10", "on")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("system", ["axonn", "gpipe"]),
        ("tag", ["none", "mine"]),
        ("precision.name", ["bf16", "full"]),
    ],
)
def test_a_curve_is_named_by_what_is_asked_for(run, path, names):
    panels = [K | {"curve": path}]
    one = run(1, [1.0] * 3, panels=panels, config={"precision": {"name": "bf16"}})
    two = run(1, [2.0] * 3, panels=panels, system="gpipe", tag="mine", config={"precision": {"name": "full"}})
    assert list(only(one, two).panel.curves[OURS]) == names


def test_a_curve_may_be_a_system_on_its_grid(run):
    panels = [K | {"curve": "grid"}]
    grids = [{"data": 1, "inter": 2, "tensor": 1}, {"data": 2, "inter": 1, "tensor": 1}, {"data": 0}]
    records = [run(1, [1.0 + n], panels=panels, tag=str(n), config={"grid": grid}) for n, grid in enumerate(grids)]
    drawn = only(*records)
    assert list(drawn.panel.curves[OURS]) == ["axonn 2x1", "axonn 1x2"]
    assert [row[3] for row in rows(drawn)] == ["axonn 2x1 1 0 measured", "axonn 2x1 1 1 measured", rows(drawn)[2][3]]
    assert "no single value at grid" in rows(drawn)[2][3]


@pytest.mark.parametrize("precision", [{"name": [1]}, {}, "full"])
def test_a_run_without_a_curve_has_a_row(run, precision):
    drawn = only(run(1, [1.0] * 3, panels=[K | {"curve": "precision.name"}], config={"precision": precision}))
    assert rows(drawn) == [["axonn", "1", "–", "axonn 2x1 1 no single value at precision.name", "–"]]


def test_two_runs_at_one_point_are_listed_and_not_drawn(run):
    drawn = only(run(1, [1.0] * 3), run(1, [3.0] * 3, tag="again"), run(2, [1.0] * 3))
    assert curve(drawn, "axonn")[1] == 1.0
    assert math.isnan(curve(drawn, "axonn")[0])
    remark = "twice 2 runs fall on this point, and none of them is drawn"
    assert [row[3] for row in rows(drawn)[:2]] == [f"axonn 2x1 1 {remark}", f"axonn 2x1 1 again {remark}"]
    assert [row[2] for row in rows(drawn)] == ["1", "3", "1"]
    assert "Where several runs fall on one point of a curve, none of them is drawn." in drawn.panel.caption


def test_excluded_run_does_not_hide_a_drawn_one(run):
    failed = run(1, [9.0] * 3, tag="again", outcome=Outcome.FAILED, reason="it broke")
    crowded = run(1, [9.0] * 3, tag="wide", more={"batch_time": ("s", (1.0,))})
    crowded.metrics["batch_time"] = Metric("s", "", (1.0,), CROWDED)
    assert curve(only(run(1, [1.0] * 3), failed, crowded), "axonn") == (1.0,)


def test_a_label_that_two_points_share_is_remarked(run):
    early = run(1, [1.0] * 3, label="axonn 2x1", key="a")
    late = run(2, [1.0] * 3, label="axonn 2x1", key="b")
    late.provenance["started"] = "2026-01-01"
    [drawn], [(title, remark)] = read(early, late)
    assert drawn.panel.x == ("2",)
    assert title == "Update against k"
    assert remark.startswith("axonn 2x1: a newer run at another point has the same label")
    again = run(1, [2.0] * 3, label="axonn 2x1 k1")
    assert read(early, late, again)[1] == []


# what may be compared


def test_more_ranks_than_cores_are_marked_and_not_drawn(run):
    crowded = run(4, [5.0] * 3)
    crowded.metrics["batch_time"] = Metric("s", "", (1.0,), CROWDED)
    drawn = only(run(1, [1.0] * 3), crowded, run(8, [1.0] * 3, notes=("oversubscribed: 4 ranks on 2 cores",)))
    assert [v for v in curve(drawn, "axonn") if not math.isnan(v)] == [1.0]
    assert rows(drawn)[1] == ["axonn", "4", "5", f"axonn 2x1 4 not comparable {CROWDED}", "3 [5 … 5]"]
    assert drawn.table.rows[1][2].tone == "faint"
    assert "Not drawn, as their times are not comparable: 2 of the runs." in drawn.panel.caption
    sizes = [{"title": "Bytes", "key": "optimizer.buckets_per_reduction", "metric": "sent"}]
    wide = replace_panels(crowded, sizes)
    wide.metrics["sent"] = Metric("B", "", (7.0,))
    assert curve(only(wide), "axonn") == (7.0,)  # more ranks than cores send no other bytes
    peak = replace_panels(
        crowded, [{"title": "p", "key": "optimizer.buckets_per_reduction", "metric": "percent_of_peak"}]
    )
    assert not only(peak).panel.systems


def test_runs_without_interleaved_rounds_have_a_warning(run):
    def at(k, turns, panels):
        record = run(k, [2.0] * 3, panels=panels)
        return replace(record, provenance=record.provenance | {"turns": turns})

    panels = [K | {"relative": "no overlap"}]
    drawn = only(at(None, "a", panels), at(1, "a", panels), at(2, "b", panels))
    assert curve(drawn, "axonn")[:2] == (1.0, 1.0)
    assert math.isnan(curve(drawn, "axonn")[2])
    assert "not comparable axonn 2x1 2 and axonn 2x1 None were not interleaved" in rows(drawn)[2][3]
    assert "were not interleaved" not in drawn.panel.caption
    assert (
        "Beware: axonn 2x1 1 and axonn 2x1 2 were not interleaved"
        in only(at(1, "a", [K]), at(2, "b", [K])).panel.caption
    )


def test_a_source_is_named_and_divided_by_no_other(run):
    emulated = run(2, [1.0] * 3, source=Source.EMULATED)
    drawn = only(run(1, [1.0] * 3), emulated)
    assert drawn.source == "measured and emulated"
    assert drawn.panel.caption == "Medians of measured and emulated runs, in seconds."
    assert [row[3].split()[-1] for row in rows(drawn)] == ["measured", "emulated"]
    panels = [K | {"relative": "1"}]
    drawn = only(run(1, [1.0] * 3, panels=panels), replace_panels(emulated, panels))
    assert "not comparable the run at 1 is of another source" in rows(drawn)[1][3]
    assert drawn.source == "measured"


@pytest.mark.parametrize("source", [Source.SIMULATED, Source.ANALYTIC])
def test_what_no_clock_measured_is_not_drawn(run, source):
    drawn = only(run(1, [1.0] * 3), run(2, [1.0] * 3, source=source))
    assert drawn.panel.x == ("1",)
    assert rows(drawn)[1][3] == f"axonn 2x1 2 {source.value}: only what a clock measured is drawn"


def test_published_figure_is_not_a_run_of_the_experiment(run):
    figure = {
        "source": Source.SIMULATED,
        "metrics": {},
        "panels_of_figure": [{"title": "Fig", "unit": "s", "x": ["1", "2"], "ours": {"axonn": [1.0, 2.0]}}],
    }
    assert len(rows(only(run(1, [1.0] * 3), run(None, [], tag="fig", **figure)))) == 1
    failed = run(None, [], tag="fig", **figure, outcome=Outcome.FAILED, reason="it broke")
    assert "it broke" in rows(only(run(1, [1.0] * 3), failed))[0][3]


def test_failed_runs_have_a_row_and_an_empty_point(run):
    refused = {"outcome": Outcome.UNSUPPORTED, "source": Source.ANALYTIC, "metrics": {}}
    trace = "rank 0: Traceback (most recent call last):\n  File x\nRuntimeError: rank 1\n"
    records = [
        run(1, [1.0] * 3),
        run(2, [], **refused, reason="chunk=2; rule: 1\nmore"),
        run(4, [1.0] * 3, outcome=Outcome.FAILED, reason=trace),
        run(8, [1.0] * 3, outcome=Outcome.OOM),
        run(1, [], system="samo", **refused, reason="no"),
    ]
    drawn = only(*records)
    assert drawn.panel.x == ("1", "2", "4", "8")
    assert drawn.panel.systems == ["axonn"]
    assert [row[3] for row in rows(drawn)][1:] == [
        "axonn 2x1 2 unsupported chunk=2; rule: 1",
        "axonn 2x1 4 failed rank 0: RuntimeError: rank 1",
        "axonn 2x1 8 oom no reason was recorded",
        "samo 2x1 1 unsupported no",
    ]
    phases = only(*(replace_panels(record, [PHASES]) for record in records[1:3]))
    assert [row[1:4:2] for row in rows(phases)] == [
        ["–", "axonn 2x1 2 unsupported chunk=2; rule: 1"],
        ["–", "axonn 2x1 4 failed rank 0: RuntimeError: rank 1"],
    ]


def test_run_without_the_metric_is_only_in_the_table(run, make):
    drawn = only(run(1, [1.0] * 3), run(64, [], system="pytorch", metrics=make("pytorch").metrics))
    assert drawn.panel.x == ("1",)
    assert [row[:4] for row in rows(drawn)] == [
        ["axonn", "1", "1", "axonn 2x1 1 measured"],
        ["pytorch", "64", "–", "pytorch 2x1 64 no update_time"],
    ]


@pytest.mark.parametrize(
    ("values", "median", "note"),
    [
        ([1.0, NAN, 3.0, math.inf, 2.0], 2.0, "3 [1 … 3]"),
        ([4.0, NAN], 4.0, "1 few [4 … 4]"),
        ([1.0, 3.0], 2.0, "2 few [1 … 3]"),
        ([NAN, math.inf, -math.inf], NAN, "–"),
        ([], NAN, "–"),
        ([1.7e308, 1.7e308], NAN, "–"),
    ],
)
def test_only_finite_samples_count_and_few_are_marked(run, values, median, note):
    drawn = only(run(1, values))
    assert curve(drawn, "axonn") == (median,) if math.isfinite(median) else not drawn.panel.systems
    assert rows(drawn)[0][4] == note


# the paper


def test_published_values_stand_beside_ours_by_their_claims(run):
    paper = {"axonn": {"1": "c.one", "null": "c.none"}, "deepspeed_3d": {"2": "c.other"}}
    panels = [K | {"paper": paper}]
    printed = [claim("c.one", 4.0), claim("c.none", 0.5, "hour"), claim("c.other", 8.0)]
    drawn = only(run(1, [5.0] * 3, panels=panels), run(2, [7.0] * 3, panels=panels), known=printed)
    assert drawn.panel.x == ("no overlap", "1", "2")
    assert curve(drawn, "axonn", PAPER)[:2] == (1800.0, 4.0)
    assert curve(drawn, "deepspeed_3d", PAPER)[2] == 8.0
    assert drawn.panel.caption == "Printed values and medians of measured runs, in seconds."
    assert [row[:6] for row in rows(drawn)] == [
        ["axonn", "no overlap", "1\u202f800", "–", "–", "no run"],
        ["axonn", "1", "4", "5", "+25.0 %", "axonn 2x1 1 measured"],
        ["axonn", "2", "–", "7", "–", "axonn 2x1 2 measured"],
        ["deepspeed_3d", "2", "8", "–", "–", "no run"],
    ]
    assert drawn.table.rows[1][2].links == (("#claim-c.one", "4"),)


def test_published_values_are_divided_as_ours_are(run):
    panels = [K | {"relative": "no overlap", "paper": {"axonn": {"no overlap": "base", "1": "a", "2": "told"}}}]
    printed = [claim("base", 4.0), claim("a", 5.0), claim("told", 0.75, "ratio")]
    drawn = only(*(run(k, [1.0] * 3, panels=panels) for k in (None, 1, 2)), known=printed)
    assert curve(drawn, "axonn", PAPER) == (1.0, 1.25, 0.75)  # what is printed as a ratio is one already
    parts = {"axonn": {"pipeline": "p", "update": "u"}, "gpipe": {"pipeline": "p"}}
    record = run(1, [1.0], panels=[PHASES | {"paper": parts}], more={"pipeline_time": ("s", (3.0,))})
    [drawn], [(_, remark)] = read(record, known=[claim("p", 46.08), claim("u", 0.62)])
    assert curve(drawn, "axonn", PAPER) == pytest.approx((98.672, 1.3276), rel=1e-4)
    assert rows(drawn)[0][2] == "98.67"
    assert rows(drawn)[0][4] == "-24.0 % -23.7 pt"
    assert remark == "paper, gpipe: there is nothing to divide by"


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("c.nowhere", "there is no claim 'c.nowhere'"),
        ("c.text", "claim c.text is no number"),
        ("c.range", "claim c.range is no number"),
        ("c.bytes", "claim c.bytes is in 'gigabyte', the panel in 's'"),
    ],
)
def test_claim_without_a_number_is_a_remark(run, name, remark):
    printed = [claim("c.text", "t(1) > t(2)"), claim("c.range", (1.0, 2.0)), claim("c.bytes", 1.0, "gigabyte")]
    paper = {"axonn": {"1": name, "2": "c.fine"}}
    [drawn], remarks = read(run(1, [1.0] * 3, panels=[K | {"paper": paper}]), known=[*printed, claim("c.fine", 3.0)])
    assert remarks == [("Update against k", f"paper, axonn at 1: {remark}")]
    assert curve(drawn, "axonn")[0] == 1.0
    assert curve(drawn, "axonn", PAPER)[1] == 3.0


def test_one_point_has_one_claim(run):
    paper = {"axonn": {"null": "a", "no overlap": "b"}}
    [drawn], [(_, remark)] = read(
        run(1, [1.0] * 3, panels=[K | {"paper": paper}]), known=[claim("a", 1.0), claim("b", 2.0)]
    )
    assert remark == "paper, axonn at no overlap: the point has a claim already"
    assert curve(drawn, "axonn", PAPER)[0] == 1.0


@pytest.fixture(scope="module")
def published() -> dict[str, Claim]:
    return {each_claim.id: each_claim for each_claim in claims.load()}


@pytest.mark.parametrize("choice", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_panels_of_all_experiments_name_existing_claims(choice, published):
    plan = yaml.safe_load(choice.read_text(encoding="utf-8")) or {}
    for row in plan.get("experiment", {}).get("panels") or ():
        for points in read_panel(row).paper.values():
            for name in points.values():
                assert isinstance(published[name].value, float)


# malformed and far too much


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"title": None}, "panel.title"),
        ({"title": " "}, "panel.title"),
        ({"title": 7}, "panel.title"),
        ({"titel": "x"}, "key of panel"),
        ({"key": None}, "panel.metric"),
        ({"metric": None}, "panel.metric"),
        ({"metrics": {"a": "b"}}, "panel.metric"),
        ({"metrics": ["a"]}, "panel.metrics"),
        ({"metrics": {str(n): "m" for n in range(99)}, "key": None, "metric": None}, "panel.metrics"),
        ({"names": {"null": 3}}, "panel.names.null"),
        ({"names": {"null": " "}}, "panel.names"),
        ({"names": "x"}, "panel.names"),
        ({"share": True}, "panel.share"),
        ({"share": "yes"}, "panel.share"),
        ({"relative": [1]}, "panel.relative"),
        ({"relative": 1}, "panel.relative"),
        (PHASES | {"key": None, "metric": None, "relative": "update"}, "panel.relative"),
        ({"paper": 4.5}, "panel.paper"),
        ({"paper": {"axonn": 4.5}}, "panel.paper.axonn"),
        ({"paper": {"axonn": {"1": 4.5}}}, "panel.paper.axonn.1"),
        ({"curve": {"a": 1}}, "panel.curve"),
    ],
)
def test_malformed_panel_is_a_remark_and_costs_no_other(run, change, key):
    with pytest.raises(InvalidRequest) as refused:
        read_panel(K | change)
    assert refused.value.key == key
    assert refused.value.rule
    drawn, [(title, remark)] = read(run(1, [1.0] * 3, panels=[K | change, K]))
    assert len(drawn) == 1
    assert (title, remark) == ("panel 1", str(refused.value))


@pytest.mark.parametrize("panels", ["text", 7, {"title": "x"}, True])
def test_panels_that_are_no_list_are_a_remark(run, panels):
    [], [(who, remark)] = read(replace_panels(run(1, [1.0]), panels))
    assert who == "panels"
    assert "a list of mappings" in remark


def test_older_records_ask_for_no_panels(make):
    assert read(make("axonn 2x1")) == ([], [])
    assert read(replace(make("axonn 2x1"), config={"experiment": "text"})) == ([], [])
    assert read(replace(make("axonn 2x1"), config={})) == ([], [])


def anything(rng: random.Random, depth: int = 3) -> Any:
    plain = [
        None,
        True,
        0,
        -1,
        4.5,
        NAN,
        math.inf,
        10**400,
        "",
        "x" * 500,
        "null",
        "no overlap",
        "optimizer.buckets_per_reduction",
        "ranks",
    ]
    plain += ["update_time", "training_days", "axonn", "c.one", "\ud800", "…", ".", "1e999"]
    if depth and rng.random() < 0.5:
        size = rng.randrange(3)
        if rng.random() < 0.5:
            return [anything(rng, depth - 1) for _ in range(size)]
        return {str(rng.choice(plain)): anything(rng, depth - 1) for _ in range(size)}
    return rng.choice(plain)


def test_whatever_an_experiment_holds_a_page_comes_out(run):
    """Rows of which one field, or two, are anything at all; and configs of runs that are."""
    rng = random.Random(11)
    printed = [claim("c.one", 4.0), claim("c.zero", 0.0)]
    for number in range(300):
        row: Any = dict(
            rng.choice([K, PHASES, K | {"relative": "1", "paper": {"axonn": {"1": "c.one", "2": "c.zero"}}}])
        )
        for _ in range(rng.randrange(3)):
            row[
                rng.choice(
                    [
                        "title",
                        "unit",
                        "axis",
                        "key",
                        "names",
                        "metric",
                        "metrics",
                        "curve",
                        "relative",
                        "share",
                        "paper",
                    ]
                )
            ] = anything(rng)
        panels = [row, anything(rng)]
        records = [
            run(k, [1.0, 2.0], panels=panels, label=f"l{k}", config={"tag": anything(rng), "grid": anything(rng)})
            for k in (1, 2)
        ]
        records.append(run(anything(rng), [NAN, 1.0], panels=panels, label="odd"))
        read(*records, known=printed)
        if number % 30 == 0:
            judged = [Judged(each_claim, Verdict.NOT_RUN, "") for each_claim in printed]
            assert "</html>" in page.render(ReportStore(Path(), group(*records).entries), judged=judged)


def test_far_too_much_is_cut_and_says_so(run):
    panels = [K, *({"title": f"p{n}", "key": "tag", "metric": "update_time"} for n in range(60))]
    records = [run(k, [1.0] * 3, panels=panels, label=f"a{k}") for k in range(100)]
    records += [run(0, [1.0] * 3, system=f"s{n}", panels=panels, label=f"s{n}") for n in range(400)]
    drawn, remarks = read(*records)
    assert len(drawn) == 40
    assert ("panels", "21 more are requested than the 40 that are drawn") in remarks
    assert ("Update against k", "100 runs more than the table holds") in remarks
    panel = drawn[0].panel
    assert (len(panel.x), len(panel.systems), len(drawn[0].table.rows)) == (64, 12, 400)
    assert panel.caption.endswith("There are more curves or points than are drawn.")


# the page


def rendered(folder: Path, *known: Claim) -> Page:
    judged = [Judged(item, Verdict.NOT_RUN, "") for item in known]
    return Page(page.render(read_store(folder), judged=judged))


def test_section_has_panel_table_remarks_and_links(run, store: Save, tmp_path):
    panels = [K | {"paper": {"axonn": {"1": "c.one"}}}, {"title": "Oops"}]
    store(tmp_path, run(1, [1.0] * 3, panels=panels), "a.json")
    store(tmp_path, run(None, [2.0] * 3, panels=panels), "b.json")
    fact = replace(claim("c.one", 4.0), check=Check.NUMBER)
    seen = rendered(tmp_path, fact)
    caption = "Printed values and medians of measured runs"
    for words in ("Sweeps, one run per point", "Update against k", caption, "● axonn"):
        assert words in seen.words(" ")
    assert "panel 2 : panel.metric=" in seen.words(" ")
    assert "Update against k: run by run" in seen.values("table", "aria-label")
    targets, ids = seen.values("a", "href"), [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert "#claim-c.one" in targets
    assert {link[1:] for link in targets if link.startswith("#")} <= set(ids)
    [label_of] = [label for label in seen.values("svg", "aria-label") if label.startswith("Update against k.")]
    assert "axonn, measured, no overlap: 2, 1: 1; axonn, paper, 1: 4." in label_of


def test_a_panel_without_anything_to_draw_has_its_table(run, store: Save, tmp_path):
    store(tmp_path, run(1, [], metrics={}, outcome=Outcome.FAILED, reason="it broke", series={}))
    seen = rendered(tmp_path)
    assert not seen.all("svg")
    assert "it broke" in seen.words(" ")
    assert "Update against k: run by run" in seen.values("table", "aria-label")


def test_what_only_the_paper_has_is_drawn_too(run, store: Save, tmp_path):
    panels = [K | {"paper": {"axonn": {"1": "c.one"}}}]
    store(tmp_path, run(1, [], panels=panels, metrics={}, outcome=Outcome.FAILED, reason="x", series={}))
    seen = rendered(tmp_path, claim("c.one", 4.0))
    assert len(seen.all("svg")) == 1
    assert "Printed values and no run, in seconds." in seen.words(" ")


def test_a_page_without_such_panels_says_nothing_of_them(make, store: Save, tmp_path):
    store(tmp_path, make("axonn 2x1"))
    assert "Sweeps, one run per point" not in rendered(tmp_path).words(" ")


EVIL = ('<script>alert(1)</script>"><img src=x onerror=alert(2)>', "$\\frac{$ {{ 7 * 7 }}", "\ud800 \x00 \u202e 漢")


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_text_is_text(run, store: Save, tmp_path, evil):
    panels = [
        {
            "title": evil,
            "unit": evil,
            "axis": evil,
            "key": "tag",
            "metric": evil,
            "curve": "evil",
            "names": {evil: evil},
        },
        {"title": evil, "metrics": {evil: evil, "b": evil}, "share": True, "paper": {evil: {evil: evil, "b": 4}}},
        {evil: evil},
        evil,
    ]
    for number, outcome in enumerate((Outcome.OK, Outcome.FAILED)):
        record = run(
            1, [], system=evil, tag=evil, panels=panels, label=evil + str(number), more={evil: (evil, (1.0, 2.0))}
        )
        changed = replace(
            record, config=record.config | {"evil": evil}, outcome=outcome, reason=evil, key=str(number), series={}
        )
        store(tmp_path, changed, f"{number}.json")
    seen = rendered(tmp_path)
    assert not seen.all("img")
    assert len(seen.all("script")) == 1
    assert not [name for _, attributes in seen.tags for name in attributes if name.startswith("on")]
    cleaned = evil.replace("\ud800", "?").replace("\x00", "\ufffd").split()[-1]
    assert seen.words(" ").count(cleaned) >= 12
