"""Cluster view of the what-if page: equal to `suite plan` and `suite run`, and what it says about memory and errors."""

from __future__ import annotations

import shlex
from functools import cache
from math import fsum
from pathlib import Path
from typing import Any

import pytest

from suite.cli import plan
from suite.config.executor import SimulatedExecutor
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.runner.runs import expand
from suite.simulate.executor import Simulated
from suite.simulate.nearest import COUNT
from suite.simulate.validation.calibrate import constants, shares
from suite.simulate.validation.cells import CELLS, load_cells
from suite.whatif import cluster_view, export
from suite.whatif.answer import AnswerPart
from suite.whatif.catalogue import Catalogue
from suite.whatif.question import ViewQuestion, read
from tests.support.refusals import refused

SMALL = "machine=h100 devices=8 batch=16"


@cache
def catalogue() -> Catalogue:
    return export.catalogue()


def question(line: str) -> ViewQuestion:
    return read(cluster_view.keys(catalogue()), line.split())


def answer(line: str) -> AnswerPart:
    return cluster_view.answer(question(line), catalogue())


def fact(found: AnswerPart, name: str) -> Any:
    return next(one.value for one in found.facts if one.name == name)


def table(found: AnswerPart, title: str) -> Any:
    return next(one.rows for one in found.tables if one.title == title)


@pytest.mark.parametrize("line", [SMALL, f"model=gpt3_xl generation=flash {SMALL} sequence=1024"])
def test_a_search_equals_suite_plan(line: str) -> None:
    found = answer(line)
    words = shlex.split(found.command)
    assert words[:2] == ["suite", "plan"]
    base, devices = plan.setup_of(plan.main.read(words[2:]), shares(constants()))
    ranked = plan.search(base, devices, 5)
    rows = table(found, "Fastest layouts")
    assert [row[1] for row in rows] == [step.seconds for step in ranked.steps]
    assert [row[3] for row in rows] == pytest.approx([100 * step.utilization for step in ranked.steps])
    assert [row[4] for row in rows] == [step.peak_memory / 1e9 for step in ranked.steps]
    assert fact(found, "time of a step") == ranked.steps[0].seconds
    assert f"{ranked.fit} of {ranked.tried}" in [one.text for one in found.facts]


GPT = "model=gpt3_2_7b machine=summit efficiency=summit"


@pytest.mark.parametrize(
    "line",
    [
        f"{GPT} system=axonn_samo devices=16 batch=64",
        f"{GPT} system=megatron_lm sequence=1024 devices=16 batch=64 layout=given tensor=2 machine.memory=3e10",
        f"{GPT} system=sputnik sparsity=0.8 devices=16 batch=32 layout=given pipeline=8 microbatch=2 model.layers=16",
        "model=gpt3_xl system=pipeline schedule=interleaved schedule.chunks=3 layout=given pipeline=4 batch=256",
    ],
)
def test_a_system_of_the_papers_equals_suite_run(line: str) -> None:
    found = answer(line)
    words = shlex.split(found.command)
    assert words[:2] == ["suite", "run"]
    (run,) = expand(words[2:])
    assert run.refusal is None
    assert isinstance(run.config.executor, SimulatedExecutor)
    executor = run.config.executor
    result = Simulated(
        machine=executor.machine.build(), efficiency=executor.efficiency.build(), plan=executor.plan
    ).run(run.config)
    metrics = {name: metric.values[0] for name, metric in result.metrics.items()}
    assert fact(found, "time of a step") == metrics["batch_time"]
    percent = 100 * metrics["flops_per_batch"] / metrics["batch_time"] / metrics["peak_flops"]
    assert fact(found, "percent of peak") == pytest.approx(percent)
    ranks = zip(*result.memory["predicted"].values(), strict=True)
    assert fact(found, "memory of the fullest device") == max(sum(kinds) for kinds in ranks)
    parts = {row[0].replace(" ", "_"): row[1] for row in table(found, "Breakdown of the step")}
    assert parts == {name: metrics[f"time_{name}"] for name in parts}


def test_the_link_of_each_layout_gives_its_row() -> None:
    rows = table(answer(f"model=gpt3_xl schedule.chunks=4 {SMALL}"), "Fastest layouts")
    for layout, seconds, *_, gigabytes in rows:
        view, *words = layout.href.split("&")
        assert view == "#view=cluster"
        found = answer(" ".join(words))
        assert fact(found, "time of a step") == seconds
        assert fact(found, "memory of the fullest device") == pytest.approx(gigabytes * 1e9)
        assert fsum(row[1] for row in table(found, "Breakdown of the step")) == pytest.approx(seconds)
        assert not found.command


def test_a_model_that_does_not_fit_tells_what_is_missing_and_what_would_fit() -> None:
    found = answer("model=gpt3_13b machine=summit devices=4 batch=64")
    rows = dict(table(found, "Memory of a device"))
    assert f"{rows['all'] - rows['limit']:.1f} GB are missing" in found.words[1]
    fewest = fewest_devices("model=gpt3_13b machine=summit devices=4 batch=64")
    assert fewest > 4
    for devices in (fewest // 2, fewest):
        fits = answer(f"model=gpt3_13b machine=summit devices={devices} batch=64")
        assert bool(fits.facts) is (devices == fewest)


def fewest_devices(line: str) -> float:
    """The fewest devices for a question."""
    *_, found = [part for part in cluster_view.more(question(line), catalogue()) if part.slot == "fewest"]
    return fact(found, "fewest devices")


def test_a_pruned_model_needs_fewer_devices() -> None:
    line = f"{GPT} devices=16 batch=64 system="
    assert fewest_devices(f"{line}axonn_samo") < fewest_devices(f"{line}axonn_no_memopt")


def test_constants_that_matter_are_sorted_and_the_others_counted() -> None:
    for line in (f"model=gpt3_xl layout=given {SMALL}", f"{GPT} system=axonn devices=16 batch=64"):
        *_, sensitivity = cluster_view.more(question(line), catalogue())
        (found,) = sensitivity.tables
        widest = [row[found.bars] for row in found.rows]
        assert widest == sorted(widest, reverse=True)
        assert min(widest) >= cluster_view.SMALL
        low, high = next(row[3:5] for row in found.rows if row[0] == "products")
        assert low > 0 > high
        assert not found.note.startswith("0 ")


def error_of(line: str, own: Catalogue) -> AnswerPart:
    given = f"model=gpt3_2_7b layout=given batch=64 {line}"
    return next(found for found in cluster_view.more(question(given), own) if found.slot == "error")


def test_the_known_error_is_that_of_the_nearest_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "suite accuracy" in error_of("", catalogue()).words[0]
    ids = [f"megatron_a100_weak.gpt_{size}" for size in ("1.7b", "3.6b", "7.5b", "18b", "39b", "76b", "145b")]
    errors = {name: 0.01 * number for number, name in enumerate(ids)}
    fitted = constants()[0].cell
    lines = [f"{name},{error}" for name, error in [*errors.items(), (fitted, 0.5)]]
    public = [
        line for line in CELLS.read_text().splitlines() if line.startswith(tuple(f"- {{id: {one}," for one in ids))
    ]
    (tmp_path / "cells.yaml").write_text("\n".join(public))
    monkeypatch.setattr(export, "load_cells", lambda: load_cells(tmp_path / "cells.yaml"))
    (tmp_path / "accuracy.csv").write_text("\n".join(["id,error", *lines]))
    cells = export.cells(tmp_path)
    assert {cell[0]: cell[7] for cell in cells} == errors
    own = {**catalogue(), "cells": cells}
    shown = error_of("machine=a100 devices=64", own)
    rows = table(shown, "Known error")
    assert len(rows) == COUNT
    assert rows[0][0] == ids[1]
    mean = fsum(abs(row[4]) for row in rows) / COUNT
    assert f"{mean:.1f} %" in shown.words[0]


def test_wrong_questions_are_refused_with_the_key_of_the_view() -> None:
    with refused(InvalidRequest, "model.layers", 40.5, legal="model.layers=32"):
        answer("model.layers=40.5")
    with refused(UnknownName, "model.layer", legal="'model.layers'"):
        answer("model.layer=40")
    with refused(InvalidRequest, "devices", 64, legal="devices=63"):
        answer("layout=given tensor=3")
    with refused(InvalidRequest, "tensor", legal="tensor=1"):
        answer("layout=given tensor=16")
    with refused(InvalidRequest, "batch", legal="batch=128"):
        answer("layout=given microbatch=2 batch=130")  # 64 replicas
    with refused(Unsupported, legal="model=gpt3_xl"):
        answer("system=axonn")
    with refused(InvalidRequest, "model.hidden", "0", legal="model.hidden=1"):
        answer("model.hidden=0")
    with refused(InvalidRequest, "machine.within", 4):
        answer("machine.within=4")


def test_words_that_are_not_read_are_named() -> None:
    assert answer(f"model=gpt3_xl tensor=2 {SMALL}").words == ["layout=search does not read tensor=2."]
    assert answer(f"{GPT} system=axonn devices=8 batch=64 sparsity=0.5").words == ["axonn does not read sparsity=0.5."]
