"""Shape of a GPT: parameters, flops and activation bytes per layer.

Any network is a list of such layers (suite.workload.convnet has others). A GPT is embedding, `layers` blocks, head. The
head shares its weight matrix with the embedding (tied) unless told otherwise. Counts are per sequence of `sequence`
tokens. Flops count matrix products only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of a pipeline.

    Attributes:
        parameters: The layer's own, a tied matrix counted where it first appears.
        tied: Further parameters it holds a copy of.
        flops: Of one forward pass of one sequence.
        saved: Bytes kept for the backward pass of one sequence, the layer's input among them.
        output: Bytes of its output, which is a message where a stage ends.
        working: Bytes of the largest transient of its passes beyond `saved`.
        weight_working: Those that do not grow with the microbatch (a weight's gradient before it is added to the sum).
        prunable: Entries of each of its weights that a ticket may prune: of linear layers and convolutions. Biases,
            norms, embeddings and a language head stay whole.
        checkpointed: Whether activation checkpoints count it, and a split that is even (a block).
    """

    name: str
    parameters: int
    flops: int
    saved: int
    output: int
    working: int
    weight_working: int
    tied: int = 0
    prunable: tuple[int, ...] = ()
    checkpointed: bool = True


class Network(Protocol):
    """A model as splits, budgets and counts of flops see it: its layers in order. It is a key, too.

    A class that inherits from this one has the defaults below.

    Attributes:
        content: Kind of its samples, as data sources compare it: text, labelled_text, sentence_pairs or images.
        tied: Whether its first and its last layer share a weight.
    """

    content: str = ""
    tied: bool = False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """`width` is the bytes of one activation entry."""

    @property
    def tokens(self) -> int | None:
        """Of one sample; None for a network of images."""
        return None

    @property
    def pixels(self) -> int:
        """Numbers of one image; 0 for a network of text."""
        return 0

    @property
    def least_microbatch(self) -> int:
        """Samples without which a batch norm has no spread to divide by."""
        return 1


@dataclass(frozen=True, slots=True)
class Transformer(Network):
    """A GPT: learned positions, pre-norm blocks of attention and a 4x GELU perceptron, a final norm, a language head.

    attention_bias: biases on queries, keys and values, as published. A key's bias has zero gradient up to rounding, and
        Adam turns rounding into steps, so models whose *weights* are compared bit by bit have none.
    """

    content = "text"
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    tied: bool = True
    attention_bias: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"model.shape.{name}={getattr(self, name)}", rule="at least 1", legal=f"model.shape.{name}=1"
                )
        if self.hidden % self.heads:
            legal = max(n for n in range(1, self.heads + 1) if self.hidden % n == 0)
            raise InvalidRequest(
                f"model.shape.hidden={self.hidden} with model.shape.heads={self.heads}",
                rule="heads divide the hidden width",
                legal=f"model.shape.heads={legal}",
            )

    @property
    def tokens(self) -> int:
        return self.sequence

    @property
    def parameters(self) -> int:
        """All parameters, a tied matrix once."""
        return sum(layer.parameters for layer in self.shapes())

    def embedding(self, width: int = 4) -> LayerShape:
        h, s, v = self.hidden, self.sequence, self.vocabulary
        return LayerShape(
            name="embedding",
            parameters=(v + s) * h,
            flops=0,
            saved=0,
            output=s * h * width,
            working=0,
            weight_working=v * h * width,
            checkpointed=False,
        )

    def block(self, width: int = 4) -> LayerShape:
        """12 h^2 weights and 13 h of biases and norms; 24 s h^2 + 4 s^2 h flops (attention counted in full).

        Saved, in units of one s x h activation: the input, both norms' outputs, queries, keys and values (3), the
        attention's output, the middle residual, the perceptron's hidden layer before and after GELU (4 + 4): 16;
        beside that two statistics per token and norm and one per token and head.
        """
        h, s = self.hidden, self.sequence
        unit = s * h * width
        return LayerShape(
            name="block",
            parameters=12 * h * h + (13 if self.attention_bias else 10) * h,
            flops=24 * s * h * h + 4 * s * s * h,
            saved=16 * unit + (4 + self.heads) * s * width,
            output=unit,
            working=6 * unit,  # the gradients of the perceptron's hidden layer and of its two neighbours
            weight_working=4 * h * h * width,
            prunable=(3 * h * h, h * h, 4 * h * h, 4 * h * h),
        )

    def head(self, width: int = 4) -> LayerShape:
        """Final norm and language head; the loss, in single precision at least, keeps the log-probabilities, and its
        backward pass two more as large."""
        h, s, v, loss = self.hidden, self.sequence, self.vocabulary, max(4, width)
        return LayerShape(
            name="head",
            parameters=2 * h + (0 if self.tied else v * h),
            tied=v * h if self.tied else 0,
            flops=2 * s * h * v,
            saved=2 * s * h * width + 2 * s * width + s * v * loss,
            output=s * v * width,
            working=2 * s * v * loss,
            weight_working=0,
            checkpointed=False,
        )

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Every layer in order; `width` is the bytes of one activation entry."""
        return (self.embedding(width), *[self.block(width)] * self.layers, self.head(width))
