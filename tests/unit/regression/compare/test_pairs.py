"""Only the same measurement is compared, and what stands in the way is named by its key."""

from __future__ import annotations

from typing import Any

import pytest

from suite.regression.compare.matching import pair
from tests.support.nights import CONFIG, MACHINE, record, samples


def differs(a: Any, b: Any) -> list[str]:
    [found] = pair(samples([a]).found, samples([b]).found).pairs
    return [str(one) for one in found.differs]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config": {"batch": {"size": 32, "microbatch": 2}}}, ["batch.size 16 -> 32"]),
        ({"config": {"seed": 1}}, ["seed 0 -> 1"]),
        ({"config": {"seed": 1, "reports": "x", "experiment": {"name": "single", "title": "y"}}}, ["seed 0 -> 1"]),
        ({"config": {"seed": 1, "extra": {"deep": {"er": 1}}}}, ["extra.deep.er absent -> 1", "seed 0 -> 1"]),
        ({"config": {"batch": 3}}, ["batch absent -> 3", "batch.microbatch 2 -> absent", "batch.size 16 -> absent"]),
        ({"provenance": {"machine": {**MACHINE, "cores": 4}}}, ["machine.cores 2 -> 4"]),
        ({"provenance": {"machine": {**MACHINE, "processor": "Xeon"}}}, ["machine.processor EPYC -> Xeon"]),
        ({"provenance": {"versions": {"torch": "2.12"}}}, ["versions.torch 2.11 -> 2.12"]),
        ({"provenance": {"split_file": "f0"}}, ["split_file absent -> f0"]),
        ({"provenance": {"data_files": [["a", 3, 99]]}}, ["data_files [] -> [['a', 3]]"]),
        ({"provenance": {"machine": {}}}, ["machine told -> absent"]),
    ],
)
def test_a_key_that_decides_is_named(changes: dict[str, Any], expected: list[str]) -> None:
    assert differs(record(), record(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": {"source": "1", "commit": {"hash": "b" * 40, "dirty": True}}},  # the code is what is compared
        {"provenance": {"started": "2026-12-01T00:00:00+00:00"}},
        {"config": {"reports": "elsewhere"}},
        {"config": {"experiment": {"name": "single", "title": "Another title"}}},
        {},
    ],
)
def test_what_decides_nothing_stands_in_no_way(changes: dict[str, Any]) -> None:
    assert differs(record(), record(**changes)) == []


def test_files_that_were_copied_are_the_same_data() -> None:
    a, b = (record(provenance={"data_files": [["text", 7, time]]}) for time in (1, 2))
    assert differs(a, b) == []


def test_runs_of_one_name_pair_with_the_config_that_is_theirs() -> None:
    one, other = record(), record(config={"seed": 1})
    found = pair(samples([one, other]).found, samples([other, one]).found)
    assert [(p.a[0].record.config["seed"], p.b[0].record.config["seed"], p.differs) for p in found.pairs] == [
        (0, 0, ()),
        (1, 1, ()),
    ]


def test_runs_on_one_side_are_listed() -> None:
    found = pair(samples([record(), record(label="gone")]).found, samples([record(), record(label="new")]).found)
    assert [str(name) for name in found.only_a] == ["single · gone"]
    assert [str(name) for name in found.only_b] == ["single · new"]


def test_repeats_stay_together_and_older_code_is_left_out() -> None:
    old = record(provenance={"source": "older", "started": "2026-10-01T00:00:00+00:00"})
    [found] = pair(samples([record(), old, record()]).found, samples([record()] * 3).found).pairs
    assert (len(found.a), len(found.b), found.spare) == (2, 3, 1)


def test_a_config_from_elsewhere_may_hold_anything() -> None:
    strange: dict[str, Any] = {"experiment": 3, "measure": [1], "launch": None, "batch": None, "a.b": {"c": 1}}
    one = record(experiment="single")
    other = record()
    object.__setattr__(other, "config", strange)
    assert differs(one, other)
    assert differs(other, other) == []
    assert CONFIG["seed"] == 0
