"""Shape of a decoder-only language model: attention heads in groups, plain or gated MLP, tied or separate embeddings.

GPT-3, Llama and Mistral are such models. The engine trains suite.workload.Transformer; a LanguageModel is simulated
only. Counts are per sequence of `sequence` tokens. Flops count matrix products only, with attention in full.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.workload.transformer import LayerShape, Network, Transformer, check_counts


@dataclass(frozen=True, slots=True)
class LanguageModel(Network):
    """A decoder-only language model.

    Attributes:
        heads: Attention heads of the queries.
        kv_heads: Attention heads of keys and values, each shared by a group of query heads (grouped-query attention).
        ffn: Width of the hidden layer of the MLP.
        gated: Whether the MLP has a gate (SwiGLU): three matrices, no biases, rotary positions and RMS norms, as Llama.
            Otherwise the model has two matrices, biases, learned positions and layer norms, as GPT-3.
        tied: Whether the language head shares the matrix of the embedding.
    """

    content = "text"
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

    @classmethod
    def of(cls, shape: Transformer) -> LanguageModel:
        """The same shape as a LanguageModel."""
        return cls(
            shape.layers,
            shape.hidden,
            shape.heads,
            shape.sequence,
            shape.vocabulary,
            kv_heads=shape.heads,
            ffn=4 * shape.hidden,
            gated=False,
            tied=shape.tied,
        )

    @property
    def tokens(self) -> int:
        return self.sequence

    @property
    def key_width(self) -> float:
        """Width of keys, and of values."""
        return self.hidden * self.kv_heads / self.heads

    @property
    def block_weights(self) -> int:
        """Entries of the weight matrices of a block."""
        matrices = 3 if self.gated else 2
        return round(self.hidden * (2 * self.hidden + 2 * self.key_width) + matrices * self.hidden * self.ffn)

    @property
    def block_parameters(self) -> int:
        """Parameters of a block: weights, norms, and biases where the model has them."""
        if self.gated:
            return self.block_weights + 2 * self.hidden
        biases = round(2 * self.hidden + 2 * self.key_width) + self.ffn + self.hidden
        return self.block_weights + 4 * self.hidden + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, with learned positions where the model has them."""
        return self.hidden * (self.vocabulary + (0 if self.gated else self.sequence))

    @property
    def head_parameters(self) -> int:
        """Parameters of the final norm and of the language head; a tied matrix belongs to the embedding."""
        return self.hidden * (1 if self.gated else 2) + (0 if self.tied else self.hidden * self.vocabulary)

    @property
    def parameters(self) -> int:
        """All parameters; a tied matrix counts once."""
        return self.embedding_parameters + self.layers * self.block_parameters + self.head_parameters

    @property
    def block_flops(self) -> int:
        """Flops of one forward pass of a block for one sequence."""
        return self.sequence * (2 * self.block_weights + 4 * self.sequence * self.hidden)

    @property
    def flops(self) -> int:
        """Flops of one forward pass of one sequence."""
        return self.layers * self.block_flops + 2 * self.sequence * self.hidden * self.vocabulary

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry.

        A block saves its input, the outputs of both norms, queries, keys and values, the output of attention, the
        middle residual, and the hidden layers of the MLP.
        """
        h, s, v, f = self.hidden, self.sequence, self.vocabulary, self.ffn
        unit, saved_mlp = s * width, (3 if self.gated else 2) * f
        block = LayerShape(
            name="block",
            parameters=self.block_parameters,
            flops=self.block_flops,
            saved=round(unit * (6 * h + 2 * self.key_width + saved_mlp)),
            output=unit * h,
            working=round(unit * (2 * h + f)),
            weight_working=h * f * width,
            deferred=2 * s * self.block_weights,
            owed=round(unit * (6 * h + 2 * self.key_width + saved_mlp + f)),
        )
        embedding = LayerShape(
            name="embedding",
            parameters=self.embedding_parameters,
            flops=0,
            saved=0,
            output=unit * h,
            working=0,
            weight_working=v * h * width,
            checkpointed=False,
        )
        loss = max(4, width)
        head = LayerShape(
            name="head",
            parameters=self.head_parameters,
            tied=v * h if self.tied else 0,
            flops=2 * s * h * v,
            saved=2 * unit * h + s * v * loss,
            output=unit * v,
            working=2 * s * v * loss,
            weight_working=0,
            checkpointed=False,
            deferred=2 * s * h * v,
            owed=unit * (h + v),
        )
        return (embedding, *[block] * self.layers, head)
