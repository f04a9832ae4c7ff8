"""Shape of a decoder-only language model with attention heads in groups and a plain or gated MLP, such as Llama."""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.workload.transformer import DecoderOnly, check_counts


@dataclass(frozen=True, slots=True)
class LanguageModel(DecoderOnly):
    """A decoder-only language model, which is simulated only."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int
    ffn: int
    gated: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        check_counts(self)
        if self.heads % self.kv_heads:
            legal = max(n for n in range(1, self.heads + 1) if self.heads % n == 0 and n <= self.kv_heads)
            raise InvalidRequest(
                f"model.shape.kv_heads={self.kv_heads} with model.shape.heads={self.heads}",
                rule="heads of keys and values divide the heads",
                legal=f"model.shape.kv_heads={legal}",
            )
