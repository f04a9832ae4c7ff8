"""Drawings of systems: the order that runs, weight versions, and what cannot be drawn."""

from __future__ import annotations

from typing import Any

from suite.cli.draw import draw
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused

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
