"""Unit of a network's throughput on the page: tokens of text, or images."""

from __future__ import annotations

from suite.workload.transformer import Network


def counted_in(shape: Network) -> tuple[str, int]:
    """Unit and its count per sample: ("token", 512) for a GPT of that sequence length, ("image", 1)."""
    return ("image", 1) if shape.tokens is None else ("token", shape.tokens)
