"""Engine as a system: notes of its mask in the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.engine.system import EngineSystem

TINY = ["model.shape.layers=1", "model.shape.hidden=16", "model.shape.heads=2", "model.shape.sequence=8"]
TICKET = ["epoch=1", "window=2", "scope=layer", "distance=0.5"]
SEARCH = ["pruning=early_bird", *(f"pruning.ticket.{setting}" for setting in TICKET)]


def notes_after(batches: int, *overrides: str) -> dict[str, Any]:
    config = resolve(["system=axonn_samo", *TINY, "batch.size=2", "batch.microbatch=1", *overrides])
    system = EngineSystem(threads.LoopbackWorld(threads.Hub(1), 0), config)
    rows = np.random.default_rng(0).integers(0, 256, (2, 9))
    for _ in range(batches):
        system.train_batch((rows[:, :-1].copy(), rows[:, 1:].copy()))
    return system.facts()


@pytest.mark.parametrize(("batches", "prefix"), [(1, "not pruned: the masks did not settle"), (4, "pruned after ")])
def test_mask_search_reports_outcome(batches: int, prefix: str) -> None:
    notes = notes_after(batches, *SEARCH)
    (note,) = notes["notes"]
    assert note.startswith(prefix)
    assert notes["pruned_after"] == (None if batches == 1 else 2)
    assert len(notes["mask_distances"]) == (0 if batches == 1 else 1)
    assert ("last two masks" in note) == (batches > 1)
