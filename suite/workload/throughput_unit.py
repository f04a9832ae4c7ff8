"""Unit of a network's samples on the page: tokens of text, or images.

A text has a length, and throughput is told per token; an image is one.
"""

from __future__ import annotations

from suite.workload.transformer import Network


def counted_in(shape: Network) -> tuple[str, int]:
    """The word, and how many a sample has: ('token', 512) for a GPT of that sequence, ('image', 1)."""
    return ("image", 1) if shape.tokens is None else ("token", shape.tokens)
