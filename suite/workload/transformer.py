"""Shape of a GPT: parameters, flops and activation bytes per layer.

Every network is a list of such layers (suite.models.image_shapes has others). A GPT has an embedding, `layers` blocks
and a head. The head shares its weight matrix with the embedding unless `tied` is False. Counts are per sequence of
`sequence` tokens. Flops count matrix products only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

from suite.core.errors import InvalidRequest, refuse
from suite.core.values import format_value


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of a pipeline.

    Attributes:
        parameters: Parameters of the layer; a tied matrix counts where it first appears.
        tied: Further parameters of which the layer holds a copy.
        flops: Flops of one forward pass of one sequence.
        saved: Bytes saved for the backward pass of one sequence, including the layer's input.
        output: Bytes of the output, which is the message at the end of a stage.
        working: Bytes of the largest transient of a pass, in addition to `saved`.
        weight_working: Transient bytes that do not grow with the microbatch: a weight gradient before it is
            accumulated.
        prunable: Entries of each weight that a mask may prune: weights of linear layers and convolutions. Biases,
            norms, embeddings and a language head are never pruned.
        checkpointed: Whether activation checkpoints and an even split count the layer as a block.
        deferred: Flops of the forward pass of one sequence in products whose weight gradient may run apart from the
            input gradient: linear layers and convolutions with an input that needs a gradient
            (suite.engine.split_backward). Input and weight gradient of such a product cost as much as its forward
            pass.
        owed: Bytes of one sequence from the input gradient to the weight gradient: inputs of these products and
            gradients of their outputs.
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
    deferred: int = 0
    owed: int = 0


class Network(Protocol):
    """A network as splits, budgets and flop counts read it: its layers in order. It is a dictionary key.

    A class that inherits from this one has the defaults below.

    Attributes:
        content: Kind of samples: text, labelled_text, sentence_pairs or images. Data sources compare it.
        tied: Whether the first and the last layer share a weight.
    """

    content: str = ""
    tied: bool = False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""

    @property
    def tokens(self) -> int | None:
        """Tokens of one sample; None for a network of images."""
        return None

    @property
    def pixels(self) -> int:
        """Numbers of one image; 0 for a network of text."""
        return 0

    @property
    def least_microbatch(self) -> int:
        """Smallest number of samples for which every batch norm has a variance."""
        return 1


def check_counts(shape: Any, **least: int) -> None:
    """Raise InvalidRequest for a number, or one of a list, below 1 or below the `least` of its name."""
    for each in fields(shape):
        value, low = getattr(shape, each.name), least.get(each.name, 1)
        if "int" in str(each.type):
            broken = min(value if isinstance(value, tuple) else (value,), default=0) < low
            legal = f"model.shape.{each.name}={[low] if isinstance(value, tuple) else low}"
            refuse([(broken, f"model.shape.{each.name}={format_value(value)}", f"at least {low}", legal)])


@dataclass(frozen=True, slots=True)
class Transformer(Network):
    """A GPT: learned positions, pre-norm blocks of attention and a 4x GELU MLP, a final norm and a language head.

    Attributes:
        attention_bias: Whether queries, keys and values have biases, as published. The gradient of a key's bias is
            zero up to rounding, and Adam turns rounding into steps. Models whose weights are compared bit by bit have
            none.
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
        check_counts(self)
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
        """All parameters; a tied matrix counts once."""
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
        """Shape of a block: 12 h^2 weights, 13 h biases and norms, and 24 s h^2 + 4 s^2 h flops with attention in full.

        Saved, in units of one s x h activation: the input, the outputs of both norms, queries, keys and values (3),
        the output of attention, the middle residual, and the hidden layer of the MLP before and after GELU (4 + 4):
        16. In addition, two statistics per token and norm, and one per token and head.
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
            deferred=24 * s * h * h,
            # inputs of attention, its projection, the MLP and its second layer (1 + 1 + 1 + 4), and gradients of the
            # outputs of these products (3 + 1 + 4 + 1)
            owed=16 * unit,
        )

    def head(self, width: int = 4) -> LayerShape:
        """Shape of the final norm and the language head.

        The loss, in single precision or higher, saves the log-probabilities; its backward pass needs two more tensors
        of that size.
        """
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
            deferred=2 * s * h * v,
            owed=s * (h + v) * width,
        )

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        return (self.embedding(width), *[self.block(width)] * self.layers, self.head(width))
