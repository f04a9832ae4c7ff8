"""Drawn exchange plans, and their round trip through a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.cli.draw import draw
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest
from suite.gnn import partition_data
from suite.gnn.draw import chart, tables
from suite.gnn.plan import ExchangePlan, Placement


def test_a_plan_by_hand() -> None:
    """Four parts of two vertices; the first needs one row of each other, which need nothing of it."""
    matrix = np.eye(8)
    matrix[0, [2, 4, 6]] = 1
    matrix[1, 7] = 1
    plan = ExchangePlan.of(csr_array(matrix), np.arange(8) // 2, Placement(4))
    assert chart(plan, 8).splitlines() == [
        "       H0|H1|H2|H3",
        "P0     @@|@.|@.|@@",
        "P1     ..|@@|..|..",
        "P2     ..|..|@@|..",
        "P3     ..|..|..|@@",
    ]
    told = tables(plan)
    assert "8 vertices, 12 entries, 4 parts x 1: 4 rows travel, 24 by an exchange that does not look" in told
    assert "part 0            own       1       1       2" in told
    assert told.endswith("sends at most 2 rows, 1.0 on average: 100.0 % more")
    assert (
        chart(ExchangePlan.of(csr_array(matrix), np.zeros(8, int), Placement(2)), 4).splitlines()[-1] == "P1     ....| "
    )


def test_a_grid_says_who_multiplies_what() -> None:
    matrix = csr_array(np.ones((4, 4)))
    lines = [
        " ".join(line.split()) for line in tables(ExchangePlan.of(matrix, np.arange(4), Placement(4, 2))).splitlines()
    ]
    assert "part 0 own 1 by column 0 1 by column 1 1 by column 1" in lines
    assert "P3 1 2 0 2 2 3" in lines  # of its two blocks neither is its own part's, which nobody asks of it


def test_a_plan_is_drawn_from_the_command_line_and_kept(tmp_path: Path) -> None:
    asked = ["system=sparsity_aware", "graph=rmat", "graph.source.vertices=256", f"reports={tmp_path}"]
    file = f"draw.plan={tmp_path / 'plan.npz'}"
    first = draw([*asked, "grid.data=4", "exchange.replication=2", file])
    assert "P0-1" in first
    assert "256 vertices" in first
    assert (
        draw(["system=cagnet", file])
        == f"plan read from {tmp_path / 'plan.npz'}, whose graph and parts are drawn\n\n{first}"
    )
    assert draw([*asked, "grid.data=4", "exchange.replication=2", file]).endswith(first)
    with pytest.raises(InvalidRequest, match=r"of 4 processes, replication 2.* with 8 processes"):
        draw([*asked, "grid.data=8", "exchange.replication=2", file])
    with pytest.raises(Exception, match="c divides P"):
        draw([*asked, "grid.data=4", "exchange.replication=3"])


def test_a_directed_graph_is_drawn_as_it_is_trained(tmp_path: Path) -> None:
    """On the partition of a run, the one of the forward product."""
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "edges.txt", np.stack([rng.integers(0, 400, 4000), rng.integers(0, 40, 4000)], 1), fmt="%d")
    overrides = [
        *("system=sparsity_aware_gvb", "graph=edge_list", f"graph.source.file={tmp_path / 'edges.txt'}"),
        *("grid.data=8", f"reports={tmp_path}"),
    ]
    draw([*overrides, f"draw.plan={tmp_path / 'plan.npz'}"])
    found = ExchangePlan.load(tmp_path / "plan.npz").volumes
    made = partition_data.Prepared(resolve(overrides), tmp_path / "own").metrics
    assert (found.total, found.send.max()) == (made["rows_sent"].values[0], made["max_send"].values[0])
