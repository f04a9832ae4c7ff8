"""Drawn exchange plans, and their round trip through a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.cli.draw import draw
from suite.core.errors import InvalidRequest
from suite.gnn.draw import chart, tables
from suite.gnn.plan import ExchangePlan, Placement


def test_chart_and_tables_of_a_small_plan() -> None:
    """Four parts of two vertices; the first needs rows of every other, which need none of it."""
    dense = np.eye(8)
    dense[0, [2, 4, 6]] = 1
    dense[1, 7] = 1
    matrix = csr_array(dense)
    plan = ExchangePlan.build(matrix, np.arange(8) // 2, Placement(4))
    assert chart(plan, 8).splitlines() == [
        "       H0|H1|H2|H3",
        "P0     @@|@.|@.|@@",
        "P1     ..|@@|..|..",
        "P2     ..|..|@@|..",
        "P3     ..|..|..|@@",
    ]
    text = tables(plan)
    assert "8 vertices, 12 entries, 4 parts x 1: 4 rows sent, 24 by the sparsity-oblivious exchange" in text
    assert "part 0            own       1       1       2" in text
    assert text.endswith("busiest sender 2 rows, mean 1.0 rows, imbalance 100.0 %")
    with_empty_part = ExchangePlan.build(matrix, np.zeros(8, int), Placement(2))
    assert chart(with_empty_part, 4).splitlines()[-1] == "P1     ....| "


def test_tables_of_a_grid_name_columns_and_stages() -> None:
    plan = ExchangePlan.build(csr_array(np.ones((4, 4))), np.arange(4), Placement(4, 2))
    lines = [" ".join(line.split()) for line in tables(plan).splitlines()]
    assert "part 0 own 1 by column 0 1 by column 1 1 by column 1" in lines
    assert "P3 1 2 0 2 2 3" in lines  # it multiplies two blocks of other parts, and no other process needs its rows


def test_drawn_plan_is_saved_and_read_again(tmp_path: Path) -> None:
    overrides = ["system=sparsity_aware", "graph=rmat", "graph.source.vertices=256", f"reports={tmp_path}"]
    grid, file = ["grid.data=4", "exchange.replication=2"], f"draw.plan={tmp_path / 'plan.npz'}"
    first = draw([*overrides, *grid, file])
    assert "P0-1" in first
    assert "256 vertices" in first
    from_file = draw(["system=cagnet", file])
    assert str(tmp_path / "plan.npz") in from_file
    assert from_file.endswith(f"\n\n{first}")
    for wrong in (["grid.data=8", "exchange.replication=2", file], ["grid.data=4", "exchange.replication=3"]):
        with pytest.raises(InvalidRequest):
            draw([*overrides, *wrong])
