"""Shapes of decoder-only language models: parameters, flops and activation bytes per layer.

Every network is a list of such layers (suite.models.image_shapes has others). The
engine trains a Transformer, which is a GPT; GPT-3, Llama and Mistral in general (suite.workload.language_model) are
simulated only. Counts are per sequence of `sequence` tokens. Flops count matrix products only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
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


def embedding_layer(parameters: int, gradient: int, output: int) -> LayerShape:
    """Shape of an embedding, whose largest transient is the `gradient` of its matrix."""
    return LayerShape(
        name="embedding",
        parameters=parameters,
        flops=0,
        saved=0,
        output=output,
        working=0,
        weight_working=gradient,
        checkpointed=False,
    )


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
    def parameters(self) -> int:
        """All parameters."""
        return sum(layer.parameters for layer in self.shapes())

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


class DecoderOnly(Network):
    """A decoder-only language model: layers of attention and MLP between an embedding and a language head.

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
    gated: bool
    attention_bias: bool = True

    @property
    def tokens(self) -> int:
        return self.sequence

    @property
    def key_width(self) -> float:
        """Width of keys, and of values."""
        return self.hidden * self.kv_heads / self.heads

    @property
    def block_weights(self) -> int:
        """Entries of the weight matrices of a block; 12 h^2 in a GPT."""
        matrices = 3 if self.gated else 2
        return round(self.hidden * (2 * self.hidden + 2 * self.key_width) + matrices * self.hidden * self.ffn)

    @property
    def block_parameters(self) -> int:
        """Parameters of a block: weights, norms, and biases where the model has them; 12 h^2 + 13 h in a GPT."""
        if self.gated:
            return self.block_weights + 2 * self.hidden
        queries = round(self.hidden + 2 * self.key_width) if self.attention_bias else 0
        return self.block_weights + 6 * self.hidden + queries + self.ffn

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
        """Flops of one forward pass of a block for one sequence, with attention in full."""
        return self.sequence * (2 * self.block_weights + 4 * self.sequence * self.hidden)

    @property
    def flops(self) -> int:
        """Flops of one forward pass of one sequence."""
        return self.layers * self.block_flops + 2 * self.sequence * self.hidden * self.vocabulary

    def embedding(self, width: int = 4) -> LayerShape:
        output = self.sequence * self.hidden * width
        return embedding_layer(self.embedding_parameters, self.vocabulary * self.hidden * width, output)

    def block(self, width: int = 4) -> LayerShape:
        """Shape of a block.

        Saved, in units of one s x h activation of a GPT: the input, the outputs of both norms, queries, keys and values
        (3), the output of attention, the middle residual, and the hidden layer of the MLP before and after GELU (4 +
        4): 16. Owed are as many: inputs of attention, its projection, the MLP and its second layer (1 + 1 + 1 + 4), and
        gradients of the outputs of these products (3 + 1 + 4 + 1).
        """
        h, f, unit = self.hidden, self.ffn, self.sequence * width
        saved = round(unit * (6 * h + 2 * self.key_width + (3 if self.gated else 2) * f))
        return LayerShape(
            name="block",
            parameters=self.block_parameters,
            flops=self.block_flops,
            saved=saved,
            output=unit * h,
            working=unit * (2 * h + f),  # the gradients of the MLP's hidden layer and of its two neighbours
            weight_working=h * f * width,
            prunable=self.prunable,
            deferred=2 * self.sequence * self.block_weights,
            owed=saved,
        )

    @property
    def prunable(self) -> tuple[int, ...]:
        """Entries of each weight of a block that a mask may prune."""
        return ()

    def head(self, width: int = 4) -> LayerShape:
        """Shape of the final norm and the language head.

        The loss, in single precision or higher, saves the log-probabilities; its backward pass needs two more tensors
        of that size.
        """
        h, s, v, loss = self.hidden, self.sequence, self.vocabulary, max(4, width)
        return LayerShape(
            name="head",
            parameters=self.head_parameters,
            tied=v * h if self.tied else 0,
            flops=2 * s * h * v,
            saved=2 * s * h * width + s * v * loss,
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


@dataclass(frozen=True, slots=True)
class Transformer(DecoderOnly):
    """A GPT: learned positions, pre-norm blocks of attention and a 4x GELU MLP, a final norm and a language head.

    Attributes:
        attention_bias: Whether queries, keys and values have biases, as published. The gradient of a key's bias is
            zero up to rounding, and Adam turns rounding into steps. Models whose weights are compared bit by bit have
            none.
    """

    gated = False
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
    def kv_heads(self) -> int:  # type: ignore[override]
        return self.heads

    @property
    def ffn(self) -> int:  # type: ignore[override]
        return 4 * self.hidden

    @property
    def prunable(self) -> tuple[int, ...]:
        return tuple(self.hidden**2 * times for times in (3, 1, 4, 4))

    def block(self, width: int = 4) -> LayerShape:
        """A block also saves two statistics per token and norm, and one per token and head."""
        block = DecoderOnly.block(self, width)
        return replace(block, saved=block.saved + (4 + self.heads) * self.sequence * width)

    def head(self, width: int = 4) -> LayerShape:
        head = DecoderOnly.head(self, width)
        return replace(head, saved=head.saved + 2 * self.sequence * width)
