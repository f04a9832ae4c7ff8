"""Law 4: layout bytes equal allocated bytes, and the predicted peak is within 5 % of the live bytes counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ranks import ROOT, run_ranks

from suite.bench.experiment import groups, resolve
from suite.bench.predict import budgets
from suite.core.grid import Grid

PROGRAM = ROOT / "tests" / "distributed" / "program_memory.py"
SMALL_TEXT = "data.source.limit_bytes=400000"


def systems() -> list[str]:
    return [name for name in groups()["system"] if resolve([f"system={name}"])["system"]["budget"]]


def configs(ranks: int) -> list[list[str]]:
    """Every system on two ranks; on one, other shapes, vocabularies, widths and precisions."""
    if ranks == 1:
        return [
            [],
            ["model.dtype=float64", "batch.microbatch=4"],
            ["model.shape.vocabulary=1000", "model.shape.layers=2"],
            ["model.shape.hidden=96", "model.shape.heads=3", "model.shape.sequence=100", "batch.microbatch=1"],
            ["model=gpt_overhead", "batch.size=8", "batch.microbatch=1"],
            ["model.shape.tied=false", "optimizer=sgd"],
            ["weights.graph=recompute", "batch.microbatch=4"],
            ["model.shape.attention_bias=true", "model.shape.layers=1"],
        ]
    if ranks == 4:
        return [["grid.inter=4"], ["system=one_f_one_b", "grid.inter=4"], ["grid.inter=2", "grid.data=2"]]
    rows = [[f"system={name}", "grid.inter=2"] for name in systems()]
    rows += [["system=axonn", "grid.data=2"], ["grid.inter=2", "weights.graph=recompute"]]
    return [*rows, ["system=gpipe", "model=gpt_overhead", "grid.inter=2", "batch.microbatch=1"]]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_predicted_and_counted(tmp_path: Path, ranks: int) -> None:
    rows = configs(ranks)
    resolved = [resolve([SMALL_TEXT, *row]) for row in rows]
    job = tmp_path / "job.json"
    job.write_text(json.dumps(resolved))
    run_ranks(ranks, PROGRAM, str(job))
    for rank in range(ranks):
        found = json.loads(job.with_name(f"rank{rank}.json").read_text())
        for row, config, got in zip(rows, resolved, found, strict=True):
            budget = budgets(config)[rank]
            where = f"{' '.join(row)} on rank {rank} of {Grid(**config['grid'])}"
            layout = budget.layout.by_kind()
            assert got["allocated"] == layout, f"{where}: {got['allocated']} for {layout}"
            counted = sum(got["held"].values())
            off = budget.peak / counted - 1
            assert got["in_flight"] <= budget.in_flight, where
            if got["in_flight"] < budget.in_flight:  # short of a core, a message-driven stage holds less than it may
                least = replace(budget, in_flight=got["in_flight"], waiting=0).peak
                assert 0.95 * least <= counted <= 1.05 * budget.peak, where
                continue
            assert abs(off) <= 0.05, f"{where}: predicted {budget.by_kind()}, counted {got['held']}: {off:+.1%}"
