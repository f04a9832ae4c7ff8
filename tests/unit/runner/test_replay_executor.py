"""Executor `replay`: one process runs all ranks of a system, from the command line to the record."""

from __future__ import annotations

from itertools import product

import pytest

from suite.runner import interleave
from suite.runner.runs import expand

SMALL = ["grid.inter=2", "model.shape.tied=false", "model.shape.layers=2", "measure.warm_up=0", "measure.rounds=1"]
SMALL += ["measure.discard_first=0", "measure.batches=2", "measure.eval_batches=0"]


@pytest.mark.parametrize(
    ("overrides", "at_once"),
    [
        (["executor=replay,replay"], 4),
        (["executor=replay,real"], 1),
        (["executor=replay", "launch.threads=1,3"], 1),
        (["executor=replay", "launch.threads=2"], 2),
    ],
)
def test_replays_take_steps_at_once(monkeypatch: pytest.MonkeyPatch, overrides: list[str], at_once: int) -> None:
    monkeypatch.setattr(interleave, "cores", lambda: 4)
    values = [[f"{o.partition('=')[0]}={value}" for value in o.partition("=")[2].split(",")] for o in overrides]
    runs = [run for words in product(*values) for run in expand(["system=pipeoptim", *SMALL, *words])]
    assert interleave._runs_at_once(runs) == at_once
