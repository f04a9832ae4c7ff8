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
from suite.gnn.settings import required

SMALL = ("graph=rmat", "graph.source.vertices=256", "graph.source.features=6", "graph.source.classes=3")
EPOCHS = 5


def train_losses(overrides: Sequence[str], processes: int, replication: int, folder: Path) -> list[float]:
    """Losses of the epochs and of a validation, in float64, on threads.

    Raises AssertionError if ranks receive different losses or send other bytes than planned.
    """
    grid = [f"grid.data={processes}", f"exchange.replication={replication}", "model.dtype=float64"]
    config = resolve([*SMALL, *overrides, *grid, f"reports={folder}"])
    holdings = folder / f"{config.system.name}-{processes}-{replication}"
    prepared = partition_data.Prepared(config, holdings)
    config = config.changed({"graph.holdings": str(holdings)})

    def rank(world: LoopbackWorld) -> tuple[list[float], int]:
        system = locate(config.system.target)(world, config)
        losses = [system.train_batch(()) for _ in range(EPOCHS)]
        return [*losses, system.evaluate(())], system.trainer.sent

    results: list[Any] = run(processes, rank)
    metrics = prepared.metrics
    # forward products of the evaluation: as wide as features and hidden layers
    widths = required(config.graph).source.arguments["features"] + 2 * 16
    evaluated = int(metrics["rows_sent"].values[0]) * 8 * widths
    sent = sum(rank_bytes for _, rank_bytes in results)
    planned = EPOCHS * metrics["planned_bytes"].values[0] + evaluated
    assert sent == planned, f"{processes} processes sent {sent} bytes, planned were {planned:.0f}"
    assert all(losses == results[0][0] for losses, _ in results), "ranks receive different losses"
    return list(results[0][0])


def check_losses(
    overrides: Sequence[str], processes: int, replication: int, expected: Sequence[float], folder: Path
) -> None:
    """Compare the losses of a system on several processes with those of one process, up to rounding."""
    losses = train_losses(overrides, processes, replication, folder)
    for epoch, (loss, expected_loss) in enumerate(zip(losses, expected, strict=True)):
        message = f"epoch {epoch} on {processes} processes has loss {loss!r}, on one {expected_loss!r}"
        assert abs(loss - expected_loss) <= 1e-9 * abs(expected_loss), message
