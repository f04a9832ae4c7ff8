"""Law 2 for full-graph training: any number of processes gives the losses of one process.

The bytes sent equal the bytes of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.comm.p2p.threads import LoopbackWorld, run
from suite.config.compose import resolve
from suite.config.locate import locate
from suite.gnn import partition_data
from suite.gnn.settings import graph_settings

SMALL = ("graph=rmat", "graph.source.vertices=256", "graph.source.features=6", "graph.source.classes=3")
EPOCHS = 5


def losses(overrides: Sequence[str], processes: int, replication: int, folder: Path) -> list[float]:
    """Of some epochs and a validation, in float64, on threads. Raises AssertionError where ranks receive different
    losses, or send other bytes than planned.
    """
    grid_overrides = [f"grid.data={processes}", f"exchange.replication={replication}", "model.dtype=float64"]
    config = resolve([*SMALL, *overrides, *grid_overrides, f"reports={folder}"])
    holdings = folder / f"{config.system.name}-{processes}-{replication}"
    prepared = partition_data.Prepared(config, holdings)
    config = config.changed({"graph.holdings": str(holdings)})

    def rank(world: LoopbackWorld) -> tuple[list[float], int]:
        system = locate(config.system.target)(world, config)
        losses = [system.train_batch(()) for _ in range(EPOCHS)]
        return [*losses, system.evaluate(())], system.trainer.sent

    rank_losses: list[Any] = run(processes, rank, deadline=60)
    shape = prepared.metrics
    # forward products of the evaluation: as wide as features and hidden layers
    widths = graph_settings(config).source.arguments["features"] + 2 * 16
    evaluated = int(shape["rows_sent"].values[0]) * 8 * widths
    sent, planned = sum(one for _, one in rank_losses), EPOCHS * shape["planned_bytes"].values[0] + evaluated
    assert sent == planned, f"{processes} processes handed over {sent} bytes, planned were {planned:.0f}"
    assert all(curve == rank_losses[0][0] for curve, _ in rank_losses), "ranks are told different losses"
    return list(rank_losses[0][0])


def check_losses(overrides: Sequence[str], processes: int, replication: int, alone: Sequence[float], at: Path) -> None:
    """Losses of a system against one process, up to rounding."""
    found_losses = losses(overrides, processes, replication, at)
    for epoch, (ours, right) in enumerate(zip(found_losses, alone, strict=True)):
        said = f"epoch {epoch} on {processes} processes has loss {ours!r}, on one {right!r}"
        assert abs(ours - right) <= 1e-9 * abs(right), said
