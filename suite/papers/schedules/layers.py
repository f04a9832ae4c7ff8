"""Answers about one transformer layer, from the shapes and accounts of the suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.claims.answer import Cases, Question
from suite.workload import Transformer
from suite.workload.megatron_activations import Kernels


def shape_of(point: Mapping[str, int]) -> Transformer:
    """A GPT of one layer with the hidden width h, a heads and sequences of s tokens."""
    return Transformer(layers=1, hidden=point["h"], heads=point["a"], sequence=point["s"], vocabulary=1)


def forward_flops(question: Question, source: Any) -> tuple[Cases, str]:
    """Flops of a forward pass of b sequences, at each point."""
    values = [point["b"] * shape_of(point).block().flops for point in question.integer_points()]
    return [values], "flops of a layer shape of the suite"


def saved_bytes(question: Question, source: Any) -> tuple[Cases, str]:
    """Bytes that b sequences leave for the backward pass, at each point."""
    values = [point["b"] * Kernels.of(shape_of(point)).kept for point in question.integer_points()]
    return [values], "bytes by the account of activations in half precision"
