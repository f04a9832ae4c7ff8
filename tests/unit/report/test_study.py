"""Accuracy studies: grouping by seed and hand-computed scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from suite.claims import load
from suite.config.experiment import read_study
from suite.core.errors import InvalidRequest
from suite.core.record import Metric, Outcome, Record, Source
from suite.report import derive
from suite.report.page import page
from suite.report.panels import learning_curves, seed_study
from suite.report.plots.plots import PanelPlot
from tests.support.pages import site
from tests.support.refusals import refused
from tests.support.report_records import in_store, make, texts

MEASURE = {"batches": 29, "discard_first": 0, "validate": "every_round"}
ASKED = {"scores": ["top_1"], "ours": "pipeoptim", "like": "naive", "names": {"naive": "gpipe"}}
HIGH, LOW = (90.0, 91.0, 92.0, 93.0, 94.0), (80.0, 81.0, 82.0, 83.0, 84.0)


def run(
    system: str, seed: int, curve: Sequence[float], *, asked: Any = ASKED, experiment: str = "demo", **changes: Any
) -> Record:
    """A replayed run of a system from a seed with these top-1 accuracies by epoch.

    `changes` replace a part of its config, or a field of the record.
    """
    label = f"{system} 4x1 seed {seed}{changes.pop('label', '')}"
    base = make("x 4x1", system=system)
    plan = base.config["experiment"] | {"name": experiment, "expect": [], "study": asked}
    config = base.config | {
        "experiment": plan,
        "model": {"name": "alexnet_narrow"},
        "data": {"name": "digits"},
        "optimizer": {"_target_": "suite.engine.optim.optimizer.SGD", "lr": 0.01, "weight_decay": 0.0005},
        "batch": {"size": 56, "microbatch": 56},
        "measure": {"rounds": len(curve), **MEASURE},
        "seed": seed,
    }
    config |= {name: changes.pop(name) for name in list(changes) if name in config}
    fields = {"key": label.replace(" ", "-") + experiment, "label": label, "experiment": experiment, "config": config}
    fields |= {"metrics": {"top_1": Metric("percent", "higher", tuple(curve[-1:]))}, "series": {"top_1": list(curve)}}
    return replace(base, **fields | changes)


def groups(*records: Record) -> list[derive.ExperimentGroup]:
    return derive.groups(in_store(*records))


def tasks(*records: Record, asked: Mapping[str, Any] = ASKED) -> list[seed_study.StudyTask]:
    tasks_read, remarks = seed_study.tasks(read_study(asked), groups(*records))
    assert remarks == []
    return tasks_read


def read(*records: Record, name: str = "demo") -> tuple[dict[str, PanelPlot], list[tuple[str, str]]]:
    every = groups(*records)
    [task] = [one for one in every if one.name == name]
    panel, remarks, _ = learning_curves.read(task, every, load.settings(), {}, "s")
    assert len({one.title for one in panel}) == len(panel)
    return {one.title: one for one in panel}, remarks


def test_best_and_final_stand_apart_with_their_spread() -> None:
    panel, remarks = read(run("naive", 0, (50, 70, 60)), run("naive", 1, (40, 50, 80)), run("naive", 2, (10, 20, 30)))
    assert remarks == []
    [row] = panel["Best and final scores"].table.rows
    assert [cell.text for cell in row[:4]] == ["gpipe", "top-1 accuracy", "70.00", "60.00"]
    assert [cell.detail for cell in row[2:4]] == ["[30.00 … 80.00]", "[30.00 … 80.00]"]
    assert row[4].text == "3"


def test_learning_curve_is_median_and_ends_of_each_epoch() -> None:
    assert seed_study.seed_band([(1, 5, 9), (3, 4, 8), (2, 9, 1)]) == ([1, 4, 1], [2, 5, 8], [3, 9, 9])
    panel, _ = read(run("naive", 0, (50, 70, 60)), run("naive", 1, (40, 50, 80)))
    drawn = panel["Top-1 accuracy over epochs: alexnet_narrow on digits with SGD"]
    assert texts(drawn.table) == [["1", "45.00"], ["2", "60.00"], ["3", "70.00"]]
    assert drawn.table.rows[2][1].detail == "[60.00 … 80.00]"
    picture = drawn.picture.svg
    assert "<svg" in picture
    assert "GPipe ends at 70 after 3 epochs" in picture
    assert drawn.picture.legend[0][1].endswith(" GPipe")


def test_planted_seeds_are_decided_and_two_are_not() -> None:
    whole = [run("pipeoptim", n, (50, value)) for n, value in enumerate(HIGH)]
    whole += [run("pipedream", n, (95, value)) for n, value in enumerate(LOW)]  # best before, worse at the end
    whole += [run("naive", n, (50, value)) for n, value in enumerate(HIGH)]
    panel, _ = read(*whole)
    by = {(row[0], row[1]): row for row in texts(panel["Rank tests over seeds"].table)}
    final = by["pipeoptim / pipedream", "final top-1 accuracy"]
    assert final[2:7] == ["92.00", "82.00", "+10.00", "5 and 5", "0.0079"]
    assert final[7].startswith("better: ")
    assert by["pipeoptim / pipedream", "best top-1 accuracy"][7].startswith("worse: ")
    assert by["pipeoptim / gpipe", "final top-1 accuracy"][7].startswith("undecided: p 1")
    two, _ = read(*(record for record in whole if record.config["seed"] < 2))
    assert all(row[7].startswith("undecided: 2 and 2 seeds") for row in texts(two["Rank tests over seeds"].table))


def test_what_was_trained_otherwise_is_another_task() -> None:
    alike = tasks(run("naive", 0, (1, 2)), run("pipeoptim", 0, (1, 2), batch={"size": 56, "microbatch": 14}))
    assert [task.systems for task in alike] == [["gpipe", "pipeoptim"]]
    for changes in (
        {"batch": {"size": 28, "microbatch": 28}},
        {"model": {"name": "alexnet_narrow", "dropout": 0.5}},
        {"optimizer": {"_target_": "suite.engine.optim.optimizer.SGD", "lr": 0.02, "weight_decay": 0.0005}},
        {"measure": {"rounds": 2, **MEASURE, "batches": 30}},
    ):
        apart = tasks(run("naive", 0, (1, 2)), run("pipeoptim", 0, (1, 2), **changes))
        assert [task.systems for task in apart] == [["gpipe"], ["pipeoptim"]], changes


def test_milestones_count_updates_so_that_they_may_differ() -> None:
    rate = {"_target_": "suite.engine.optim.lr_schedule.Steps", "lr": 0.01, "factor": 0.1}
    records = [
        run(name, 0, (1, 2), optimizer={"_target_": "x.SGD", "lr": rate | {"milestones": at}})
        for name, at in (("naive", [40]), ("pipedream_2bw", [10]))
    ]
    [task] = tasks(*records)
    assert task.systems == ["gpipe", "pipedream_2bw"]
    slower = run(
        "pipeoptim", 0, (1, 2), optimizer={"_target_": "x.SGD", "lr": rate | {"lr": 0.001, "milestones": [40]}}
    )
    assert len(tasks(*records, slower)) == 2


def test_a_seed_that_ran_twice_counts_for_nothing() -> None:
    records = [run("naive", 0, (1, 2)), run("naive", 0, (3, 4), label=" again"), run("naive", 1, (5, 6))]
    tasks_read, remarks = seed_study.tasks(read_study(ASKED), groups(*records))
    assert [task.final("gpipe", "top_1") for task in tasks_read] == [[6]]
    [(title, remark)] = remarks
    assert (title, "gpipe has two runs of seed 0" in remark) == ("alexnet_narrow on digits with SGD", True)


def test_a_curve_with_a_hole_or_without_epochs_is_none() -> None:
    at_end = {"rounds": 2, **MEASURE, "validate": "end"}
    records = [run("naive", 0, (1, math.nan)), run("naive", 1, (7,), measure=at_end), run("naive", 2, (1, 3))]
    assert [task.final("gpipe", "top_1") for task in tasks(*records)] == [[3]]


def test_a_refused_run_has_a_row_with_its_reason() -> None:
    base = run("spectrain", 0, (), measure={"rounds": 2, **MEASURE})
    reason = "SpecTrain with Adam; rule: SGD alone\nmore"
    panel, _ = read(run("naive", 0, (1, 2)), replace(base, outcome=Outcome.UNSUPPORTED, reason=reason, series={}))
    last = panel["Best and final scores"].table.rows[-1]
    assert (last[0].text, last[4].detail) == ("spectrain", "unsupported: SpecTrain with Adam; rule: SGD alone")
    assert "Rank tests over seeds" not in panel


def test_task_is_tested_on_its_first_available_score() -> None:
    panel = ASKED | {"scores": ["top_1", "bleu"], "target": 1.0}
    model = {"name": "gnmt_narrow"}
    records = [run("naive", n, (1, 80 + n), asked=panel, model=model) for n in range(2)]
    records += [run("pipeoptim", n, (79.5, 79), asked=panel, model=model) for n in range(2)]
    records = [
        replace(r, series={"bleu": r.series["top_1"]}, metrics={"bleu": Metric("BLEU", "", (1.0,))}) for r in records
    ]
    tables, _ = read(*records)
    assert [row[1:4] for row in texts(tables["Rank tests over seeds"].table)] == [
        ["best BLEU", "79.50", "80.50"],
        ["final BLEU", "79.00", "80.50"],
    ]
    assert [row[1] for row in texts(tables["Epochs and time to the target"].table)] == ["79.50", "79.50"]
    assert [row[2] for row in texts(tables["Epochs and time to the target"].table)] == ["2 of 2", "2 of 2"]


def test_time_to_target_is_epochs_times_simulated_epoch_time() -> None:
    panel = ASKED | {"target": 2.0, "samples": 7200}
    metrics = {"samples_per_second": Metric("sample/s", "higher", (2.0,))}
    quick = {"samples_per_second": Metric("sample/s", "higher", (4.0,))}
    records = [
        *(run("naive", seed, (50, last, 80), asked=panel) for seed, last in enumerate((77.9, 78.0, 78.1))),
        *(run("pipeoptim", seed, (1, last, 2), asked=panel) for seed, last in enumerate((77.0, 77.5, 79.0))),
        run("gpipe", 9, (), asked=panel, source=Source.SIMULATED, metrics=metrics),
        run("pipeoptim", 9, (), asked=panel, source=Source.SIMULATED, metrics=quick),
    ]
    tables, _ = read(*records)
    gpipe, pipeoptim = tables["Epochs and time to the target"].table.rows
    assert [cell.text for cell in gpipe] == ["gpipe", "78.00", "3 of 3", "2", "1 h 00 min", "2.00 h"]
    assert gpipe[3].detail == "2, 2, 3"
    assert [cell.text for cell in pipeoptim[2:]] == ["1 of 3", "> 3", "30 min 00 s", "> 1.50 h"]
    timed = tables["Top-1 accuracy over simulated time: alexnet_narrow on digits with SGD"]
    assert [cell.text for cell in timed.table.rows[-1]] == ["time of all", "3.00 h", "1.50 h"]
    assert "Simulated time (hours)" in timed.picture.svg


def test_study_collects_experiments_and_names_missing_ones() -> None:
    panel = ASKED | {"of": ["one", "two", "three"], "curves": False, "stands_for": {"alexnet_narrow": "alexnet"}}
    lead = run("naive", 5, (), asked=panel, source=Source.SIMULATED)
    adam = {"_target_": "suite.engine.optim.optimizer.Adam", "lr": 0.001}
    records = [run("naive", 0, (1, 2), experiment="one"), run("naive", 0, (3, 4), experiment="two", optimizer=adam)]
    tables, remarks = read(lead, *records)
    assert [row[0] for row in texts(tables["Best and final scores"].table)] == [
        "alexnet_narrow on digits with SGD",
        "alexnet_narrow on digits with Adam",
    ]
    assert remarks == [("study", "not run here: three")]
    settings = tables["Settings"].table
    [sgd, _] = settings.rows
    names = [name.partition("\n")[0] for name in settings.frame]
    beside = {name: (cell.text, cell.detail) for name, cell in zip(names, sgd, strict=True)}
    assert beside["stands for"] == ("alexnet", "")
    assert beside["batch"] == ("56", "56")
    assert beside["epochs"] == ("2", "70")
    assert beside["learning rate"] == ("0.01", "0.01")
    assert beside["schedule"] == ("constant", "divide by 10 at epochs 40 and 60")


def test_what_is_published_is_that_of_the_same_optimizer() -> None:
    """Of the Residual LSTM a rate is printed with Adam, and none with AdamW."""
    panel = ASKED | {"curves": False, "tables": ["settings"], "stands_for": {"residual_lstm_narrow": "residual_lstm"}}
    rules = [{"_target_": f"suite.engine.optim.optimizer.{name}", "lr": 0.003} for name in ("Adam", "AdamW")]
    model = {"name": "residual_lstm_narrow"}
    records = [run("naive", n, (1, 2), asked=panel, model=model, optimizer=rule) for n, rule in enumerate(rules)]
    tables, _ = read(*records)
    assert list(tables) == ["Settings"]
    rates = tables["Settings"].table.frame["learning rate\nours; published"]
    assert [rate.detail for rate in rates] == ["0.001", ""]


MALFORMED = (
    ("text", "study"),
    ({}, "study.scores"),
    ({"scores": []}, "study.scores"),
    ({"scores": ["top_1"], "target": -1}, "study.target"),
    ({"scores": ["top_1"], "tables": ["rates"]}, "study.tables"),
)


def test_malformed_study_is_a_remark() -> None:
    for row, key in MALFORMED:
        with refused(InvalidRequest, key) as refusal:
            read_study(row)
        assert read(run("naive", 0, (1, 2), asked=row)) == ({}, [("study", str(refusal.value))])


def test_the_page_has_the_study() -> None:
    store = in_store(*(run(system, seed, (50, 60)) for system in ("naive", "pipeoptim") for seed in (0, 1)))
    assert 'aria-label="Rank tests over seeds"' in site(page.render(store, settings=load.settings()))
