"""Runs match by config, machine, libraries and data; differences are named by their keys."""

from __future__ import annotations

from typing import Any

from suite.regression.matching import match_runs
from tests.support.nights import CONFIG, MACHINE, record, samples


def differences(a: Any, b: Any) -> list[str]:
    [pair] = match_runs(samples([a]).samples, samples([b]).samples).pairs
    return [str(difference) for difference in pair.differences]


DIFFERENT: list[tuple[dict[str, Any], list[str]]] = [
    ({"config": {"batch": {"size": 32, "microbatch": 2}}}, ["batch.size 16 -> 32"]),
    ({"config": {"seed": 1}}, ["seed 0 -> 1"]),
    ({"config": {"seed": 1, "reports": "x", "experiment": {"name": "single", "title": "y"}}}, ["seed 0 -> 1"]),
    ({"config": {"seed": 1, "extra": {"deep": {"er": 1}}}}, ["extra.deep.er absent -> 1", "seed 0 -> 1"]),
    ({"config": {"batch": 3}}, ["batch absent -> 3"]),
    ({"provenance": {"machine": {**MACHINE, "cores": 4}}}, ["machine.cores 2 -> 4"]),
    ({"provenance": {"machine": {**MACHINE, "processor": "Xeon"}}}, ["machine.processor EPYC -> Xeon"]),
    ({"provenance": {"versions": {"torch": "2.12"}}}, ["versions.torch 2.11 -> 2.12"]),
    ({"provenance": {"schedule_file": "f0"}}, ["schedule_file absent -> f0"]),
    ({"provenance": {"schedule_file": "f0"}}, ["schedule_file absent -> f0"]),
    ({"provenance": {"data_files": [["a", 3, 99]]}}, ["data_files [] -> [['a', 3]]"]),
    ({"provenance": {"machine": {}}}, ["machine recorded -> absent"]),
]
EQUAL: list[dict[str, Any]] = [
    {"provenance": {"source": "1", "commit": {"hash": "b" * 40, "dirty": True}}},  # only the code differs
    {"provenance": {"started": "2026-12-01T00:00:00+00:00"}},
    {"config": {"reports": "elsewhere"}},
    {"config": {"experiment": {"name": "single", "title": "Another title"}}},
    {},
]


def test_differing_keys_are_named_and_others_do_not_differ() -> None:
    for changes, expected in [*DIFFERENT, *((changes, []) for changes in EQUAL)]:
        assert differences(record(), record(**changes)) == expected, changes
    a, b = (record(provenance={"data_files": [["text", 7, time]]}) for time in (1, 2))
    assert differences(a, b) == []


def test_runs_of_one_name_match_by_config() -> None:
    one, other = record(), record(config={"seed": 1})
    matches = match_runs(samples([one, other]).samples, samples([other, one]).samples)
    assert [(p.a[0].record.config["seed"], p.b[0].record.config["seed"], p.differences) for p in matches.pairs] == [
        (0, 0, ()),
        (1, 1, ()),
    ]


def test_runs_of_one_side_are_listed() -> None:
    matches = match_runs(
        samples([record(), record(label="gone")]).samples, samples([record(), record(label="new")]).samples
    )
    assert [str(name) for name in matches.only_a] == ["single · gone"]
    assert [str(name) for name in matches.only_b] == ["single · new"]


def test_records_of_older_code_are_left_out() -> None:
    old = record(provenance={"source": "older", "started": "2026-10-01T00:00:00+00:00"})
    [pair] = match_runs(samples([record(), old, record()]).samples, samples([record()] * 3).samples).pairs
    assert (len(pair.a), len(pair.b), pair.older) == (2, 3, 1)


def test_malformed_config_is_compared() -> None:
    strange: dict[str, Any] = {"experiment": 3, "measure": [1], "launch": None, "batch": None, "a.b": {"c": 1}}
    one = record(experiment="single")
    other = record()
    object.__setattr__(other, "config", strange)
    assert differences(one, other)
    assert differences(other, other) == []
    assert CONFIG["seed"] == 0
