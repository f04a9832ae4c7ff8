"""Answers about one transformer layer, from the shapes and accounts of the suite."""

from __future__ import annotations

from typing import Any

from suite.workload import Transformer
from suite.workload.megatron_activations import saved_per_token


def forward_flops(batch: int, **shape: Any) -> int:
    """Flops of a forward pass of a layer shape of the suite."""
    return batch * Transformer(layers=1, vocabulary=1, **shape).block().flops


def saved_bytes(batch: int, **shape: Any) -> float:
    """Bytes that sequences leave for the backward pass, by the account of activations in half precision."""
    model = Transformer(layers=1, vocabulary=1, **shape)
    return batch * model.sequence * saved_per_token(model)
