"""Drawings of systems: the order that runs, weight versions, and what cannot be drawn."""

from __future__ import annotations

from typing import Any

from suite.cli.draw import draw
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused

THIRD_PARTY = {
    "system=torch_pipelining": "one_f_one_b",
    "system=torch_pipelining schedule=zbv": "zbv",
    "system=deepspeed_3d": "one_f_one_b",
}


def grid_of(*overrides: str) -> str:
    return draw([*overrides]).partition("\nmakespan")[0]


def test_third_party_pipeline_is_drawn_in_its_own_order() -> None:
    size = ("grid.inter=3", "batch.size=10")
    for system, schedule in THIRD_PARTY.items():
        same = grid_of("system=pipeline", f"schedule={schedule}", *size)
        assert grid_of(*system.split(), *size) == same != grid_of("system=axonn", *size)


REFUSED: list[tuple[list[str], str, Any]] = [  # overrides, key, value
    (["system=pytorch", "grid.inter=3"], "system", "pytorch"),
    (["system=torch_pipelining", "schedule=message_driven"], "schedule", "suite.schedule.MessageDriven"),
    (["system=torch_pipelining", "~system.orders"], "system.orders", None),
    (["system=cagnet", "grid.data=2"], "system", "cagnet"),
    (["system=pipedream", "grid.inter=2", "schedule=zbv"], "weights", "Stash"),
    (["system=pipeoptim", "update_interval=often"], "update_interval", "often"),
    (["executor.ticks.forward=0"], "executor.ticks.forward", 0),
    (["executor=simulated"], "executor", "simulated"),
    (["grid.inter=2000"], "", None),
    (["system=gpipe", "weights=stash"], "update_interval", None),
    # keys that do not change a drawing
    (["model=gpt_tiny"], "model", "gpt_tiny"),
    (["system=axonn", "grid.tensor=2"], "grid.tensor", "2"),
]


def test_illegal_run_is_not_drawn() -> None:
    for overrides, key, value in REFUSED:
        with refused(InvalidRequest, key, value):
            draw(overrides)


def test_chunks_are_drawn_on_the_row_of_their_rank() -> None:
    drawing = draw(["schedule=zbv", "grid.inter=2", "batch.size=6"])
    assert drawing.splitlines() == [
        "rank 0 | F0  F1  F2  F0' I0' W0' F1' I1' W1' I0  W0  F2' I2' W2' I1  W1  I2  W2  .",
        "rank 1 | .   F0  F0' F1  F1' I0' W0' F2  I0  W0  F2' I1' W1' I1  I2' I2  W1  W2' W2",
        "makespan 19, idle per rank 1, 1",
        "activations alive per rank at most 4, 4",
        "weight gradients owed per rank at most 1, 3",
    ]


def test_pipeoptim_reads_ahead() -> None:
    grid, versions = draw(["system=pipeoptim", "grid.inter=3"]).split("\n\n")
    assert len(grid.splitlines()) == 5
    assert versions.splitlines()[0].split()[-7:] == [*"012345", "copies"]
    assert [line.split() for line in versions.splitlines()[1:]] == [
        ["stage", "0", "forward", "0+2", "0+2", "0+2", "1+2", "2+2", "3+2", "2"],
        ["stage", "0", "backward", *"012345"],
        ["stage", "1", "forward", "0+1", "0+1", "1+1", "2+1", "3+1", "4+1", "2"],
        ["stage", "1", "backward", *"012345"],
        ["stage", "2", "forward", *"012345", "1"],
        ["stage", "2", "backward", *"012345"],
    ]
