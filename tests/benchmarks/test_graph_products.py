"""Time of a local product over compact columns, compared with one scipy product of the same block.

A process multiplies its rows over [own columns | received columns]. The suite uses two torch matrices, so that own rows
are not copied next to received rows. The comparison uses one matrix and one dense operand.
"""

from __future__ import annotations

from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.config.compose import resolve
from suite.gnn import partition_data
from suite.gnn.exchange import Aware, SpanRecorder
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import LocalBlock
from tests.support.samples import measured_elsewhere, play, take_turns, tell

GRAPHS = {
    "amazon_like": ("graph.source.vertices=131072",),
    "rmat": ("graph.source.vertices=65536",),
    "protein_like": (),
    "reddit_like": (),
}
WIDTHS = (16, 300)
TURNS = 9


class _Alone(LoopbackWorld):
    """One rank of a larger world without the other ranks: for products, not for messages."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(Hub(size), rank)


@cache
def times(graph: str, width: int, parts: int) -> dict[str, list[float]]:
    """Seconds of the first process's product, by implementation."""
    overrides = ["system=sparsity_aware", f"graph={graph}", *GRAPHS[graph], "graph.source.features=1"]
    config = resolve([*overrides, "partitioner=metis", "reports=."])
    _, matrix, _ = partition_data.graph_of(config)
    chosen = partition_data.partitioner_of(config).parts(matrix, parts, 0)
    block = LocalBlock.from_plan(ExchangePlan.build(matrix, chosen, Placement(parts)), 0)
    world = _Alone(0, parts)
    ours = Aware(block, world, recorder=SpanRecorder(world), dtype=torch.float32)
    whole = block.matrix.astype(np.float32)
    x = np.random.default_rng(0).standard_normal((whole.shape[1], width), np.float32)
    inner, halo = torch.from_numpy(x[: block.rows]), torch.from_numpy(x[block.rows :])
    calls = {
        "compact columns": lambda: ours.accumulate(
            ours.accumulate(None, ours.local, inner), ours.halo_blocks[-1], halo
        ),
        "scipy": lambda: whole @ x,
    }
    assert np.abs(calls["compact columns"]().numpy() - calls["scipy"]()).max() < 1e-3
    return take_turns(calls, TURNS, perf_counter)


@measured_elsewhere
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("who", ["compact columns", "scipy"])
def test_a_product(benchmark: Any, who: str, width: int, graph: str) -> None:
    benchmark.group = f"a product of {graph} by {width} columns, one of 4 parts"
    seconds = times(graph, width, 4)
    play(benchmark, seconds[who])
    tell(
        benchmark,
        peer=who == "scipy",
        timing="seconds of one product, in turns",
        graph=graph,
        width=width,
        times_scipy=median(seconds[who]) / median(seconds["scipy"]),
    )
