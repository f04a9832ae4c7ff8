"""Drawn systems: weight versions, and Table II at their depth."""

from __future__ import annotations

import pytest

from suite.cli.draw import draw
from suite.core.errors import InvalidRequest, Unsupported
from suite.schedule.draw import columns
from tests.support.refusals import fault, refused


def test_flushing_schedule_is_drawn_without_versions() -> None:
    lines = draw(["system=one_f_one_b", "grid.inter=2", "draw.microbatches=2"]).splitlines()
    assert len(lines) == 4
    assert lines[-1] == "activations alive per stage at most 2, 1"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns([["a", "10", "x"], ["bcd", "2", ""]]) == "a    10  x\nbcd   2"


def test_pipeoptim_reads_ahead_and_table_2_stands_below() -> None:
    grid, versions, table = draw(["system=pipeoptim", "grid.inter=3", "draw.microbatches=4"]).split("\n\n")
    assert len(grid.splitlines()) == 5
    assert [line.split() for line in versions.splitlines()] == [
        ["weights", "read", "by", "microbatch", "0", "1", "2", "3", "copies"],
        ["stage", "0", "forward", "0+2", "0+2", "0+2", "1+2", "2"],
        ["stage", "0", "backward", "0", "1", "2", "3"],
        ["stage", "1", "forward", "0+1", "0+1", "1+1", "2+1", "2"],
        ["stage", "1", "backward", "0", "1", "2", "3"],
        ["stage", "2", "forward", "0", "1", "2", "3", "1"],
        ["stage", "2", "backward", "0", "1", "2", "3"],
    ]
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["pipedream", *"210", *"210", *"000", *"000", *"321"],
        ["pipedream_2bw", *"111", *"111", *"000", *"000", *"222"],
        ["spectrain", "0", "0", "-1", "0", "0", "-1", *"211", *"001", *"222"],
        ["pipeoptim", *"000", *"000", *"210", *"000", *"221"],
    ]


def test_stream_of_a_v_is_drawn_with_the_versions_of_every_stage() -> None:
    grid, versions = draw(["system=zbv", "grid.inter=2", "update_interval=4", "draw.microbatches=8"]).split("\n\n")
    assert "makespan 49, idle per rank 1, 1" in grid
    forward = [line.split() for line in versions.splitlines()[1:] if "forward" in line]
    assert forward == [["stage", str(stage), "forward", *"00001111", "1"] for stage in range(4)]


def test_asynchronous_policy_of_a_v_is_not_drawn() -> None:
    with refused(Unsupported, "weights", "Stash"):
        draw(["system=pipedream", "grid.inter=2", "schedule=zbv"])


def test_saved_graph_is_read_once() -> None:
    _, versions, table = draw(["system=pipedream", "grid.inter=2", "weights.graph=keep"]).split("\n\n")
    assert versions.count("kept") == 16
    assert table.splitlines()[1].split() == ["pipedream", "1", "0", "1", "0", "0", "0", "0", "0", "2", "1"]


def test_schedule_illegal_for_the_policy_is_not_drawn() -> None:
    with refused(
        InvalidRequest,
        subject="2BW on 4 stages with update_interval=2",
        rule="an update sums at least as many microbatches as there",
    ):
        draw(["system=pipedream_2bw", "grid.inter=4", "update_interval=2"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("update_interval=often", fault("update_interval", "often", rule="a whole number")),
        ("system.name=5", fault("system.name", 5, rule="text")),
        ("draw.microbatches=many", fault("draw.microbatches", "many", rule="a whole number")),
        ("draw.forward=0", fault("draw.forward", 0, rule="at least 1")),
        ("draw=5", fault("draw", 5, rule="a group of keys")),
        ("draw.plan=5", fault("draw.plan", 5, rule="text")),
        ("grid.inter=2000", fault(subject="2000 stages", rule="2 * microbatches")),
    ],
)
def test_unread_key_of_a_drawing_is_refused(override: str, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        draw(["system=pipeoptim", override])


def test_deep_pipeline_is_drawn_without_the_table() -> None:
    *_, table = draw(["system=pipeoptim", "grid.inter=33", "draw.microbatches=1"]).split("\n\n")
    assert table == "Table II is printed for at most 32 stages"
