"""Training on the device that TORCH_DEVICE names (cpu, or cuda on a machine with a GPU) equals training on a CPU.

On a GPU, `TORCH_DEVICE=cuda python -m pytest tests/cuda` runs the cells of the day, with `-m exhaustive` the others.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from suite.engine.system import EngineSystem
from tests.support.curves import losses_of
from tests.support.drawn import cells

DEVICE = os.environ.get("TORCH_DEVICE", "cpu")
BATCHES = 5
BASE = ("system=axonn", "grid.inter=1", "batch.size=4", "batch.microbatch=2")


class Images:
    """Random images: the digits come with scikit-learn, which a machine with a GPU may lack."""

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng([seed, number])
        images = draw.standard_normal((size, shape.colours, shape.image, shape.image), dtype=np.float32)
        return images, draw.integers(0, shape.classes, size)


MODELS = {"gpt": ("model=gpt_tiny",), "convolutions": ("model=wideresnet_narrow", "data=digits")}
STATES = {
    "resident": (),
    "offloaded": ("memory=offload", "optimizer.bucket_numel=20000"),
    "compressed": ("memory=samo", "pruning=random"),
    "both": ("memory=samo_offload", "pruning=random", "optimizer.bucket_numel=20000"),
}
PRECISIONS = {"full": 2e-5, "bf16": 2e-2}  # largest relative difference of a loss
CHECKPOINTS = {"kept": (), "recomputed": ("activation_checkpointing=1",)}
OPTIMIZERS = ("adamw", "sgd", "rmsprop")


@pytest.mark.parametrize(
    ("model", "states", "precision", "checkpoints", "optimizer"),
    cells(MODELS, STATES, PRECISIONS, CHECKPOINTS, OPTIMIZERS, n=3 if DEVICE == "cpu" else 20),
)
def test_losses_equal_those_of_states_on_a_cpu(
    model: str, states: str, precision: str, checkpoints: str, optimizer: str
) -> None:
    same = (*BASE, *MODELS[model], f"optimizer={optimizer}", "optimizer.lr=0.001", f"precision={precision}")
    pruned = ("pruning=random", "memory=samo") if "pruning=random" in STATES[states] else ()
    data = Images() if model == "convolutions" else None
    expected = losses_of(EngineSystem, [*same, *pruned], BATCHES, data=data)
    cell = [*same, *STATES[states], *CHECKPOINTS[checkpoints]]
    assert losses_of(EngineSystem, cell, BATCHES, DEVICE, data) == pytest.approx(expected, rel=PRECISIONS[precision])
    assert len(set(expected)) == BATCHES
