"""Shapes of PipeOptim's recurrent networks: parameters, flops and activation bytes per layer.

The Residual LSTM classifies texts, and GNMT translates sentences (PipeOptim V-A). Counts are per sample: one text, or
one pair of sentences. A text is padded to the fixed length `sequence`, so every message has one size. Flops count
matrix products only. Saved activations follow torch's plain kernels: the input of an LSTM, four gates, the cell state
and its tanh, and the hidden state. Fused kernels have workspaces of other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from suite.workload.transformer import LayerShape, Network, check_counts, embedding_layer

PADDING, UNKNOWN, BEGIN, END = range(4)  # tokens of GNMT's vocabulary, before the words
INTEGER = 8  # bytes of a token, or of a length
KEPT = 7  # numbers per token and unit of an LSTM, in addition to its input: four gates, state, tanh, hidden state


def lstm(inputs: int, hidden: int) -> int:
    """Parameters of one direction: weights of input and hidden state for four gates, and two biases, as in torch."""
    return 4 * hidden * (inputs + hidden + 2)


@dataclass(frozen=True, slots=True)
class ResidualLSTM(Network):
    """Residual LSTM: an embedding, `layers` LSTMs with projection and residual connection, and a classifier of the
    mean.

    The defaults are SpecTrain's sentiment network, which PipeOptim trains on IMDb.

    Attributes:
        embedding, hidden: Width outside and inside an LSTM.
        sequence: Tokens of a text, padded or truncated to this length.
    """

    content = "labelled_text"
    layers: int = 4
    embedding: int = 128
    hidden: int = 128
    sequence: int = 200
    vocabulary: int = 10_000
    classes: int = 2

    def __post_init__(self) -> None:
        check_counts(self)

    @property
    def tokens(self) -> int:
        """Tokens of one sample."""
        return self.sequence

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        s, e, h, k = self.sequence, self.embedding, self.hidden, self.classes
        block = _recurrent("lstm", s, e, h, output=s * e * width, width=width)
        loss = k * max(4, width)
        return (
            embedding_layer(self.vocabulary * e, self.vocabulary * e * width, s * e * width),
            *[
                replace(
                    block,
                    parameters=block.parameters + h * e + e,
                    flops=block.flops + 2 * s * h * e,
                    saved=block.saved + s * h * width,  # what enters the projection
                    prunable=(h * e,),
                    deferred=2 * s * h * e,
                    owed=s * (h + e) * width,
                )
            ]
            * self.layers,
            LayerShape(
                name="classifier",
                parameters=e * k + k,
                flops=2 * e * k,
                saved=(s + 1) * e * width + loss,
                output=k * width,
                working=max(2 * loss, s * e * width),
                weight_working=e * k * width,
                prunable=(e * k,),
                checkpointed=False,
                deferred=2 * e * k,
                owed=(e + k) * width,
            ),
        )


@dataclass(frozen=True, slots=True)
class GNMT(Network):
    """GNMT (Wu et al.) as its second reference version has it (suite.models.gnmt).

    The defaults are GNMT-8. A pipeline has one embedding per side; one device may share a single embedding.

    Attributes:
        encoder, decoder: Number of LSTMs on each side; the first LSTM of the encoder is bidirectional.
        hidden: Width of the LSTMs and of the embeddings.
        sequence: Tokens of a sentence on each side, padded or truncated to this length.
        vocabulary: Tokens of both languages together, including PADDING, UNKNOWN, BEGIN and END.
    """

    content = "sentence_pairs"
    encoder: int = 4
    decoder: int = 4
    hidden: int = 1024
    sequence: int = 50
    vocabulary: int = 32_320

    def __post_init__(self) -> None:
        check_counts(self, encoder=2, decoder=2, vocabulary=END + 2)

    @property
    def tokens(self) -> int:
        """Tokens of one sample, source and target together."""
        return 2 * self.sequence

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        return (*self._encoder(width), *self._decoder(width))

    def _encoder(self, width: int) -> Iterator[LayerShape]:
        s, h = self.sequence, self.hidden
        beside = INTEGER * (1 + s)  # the source's length and the decoder's tokens go with every value
        yield embedding_layer(self.vocabulary * h, self.vocabulary * h * width, s * h * width + beside)
        one = _recurrent("encoder 0", s, h, h, output=2 * s * h * width + beside, width=width)
        yield replace(
            one,
            parameters=2 * one.parameters,
            flops=2 * one.flops,
            # the input before it is reversed, the reversed output, the indices that reverse them, and the padding mask
            saved=2 * one.saved + 2 * s * h * width + s * INTEGER + s,
            working=one.working + 3 * s * h * width,
        )
        for number in range(1, self.encoder):
            inputs = 2 * h if number == 1 else h
            yield _recurrent(f"encoder {number}", s, inputs, h, output=s * h * width + beside, width=width)

    def _decoder(self, width: int) -> Iterator[LayerShape]:
        s, h, v = self.sequence, self.hidden, self.vocabulary
        one = _recurrent("decoder 0", s, h, h, output=2 * s * h * width, width=width)
        yield replace(
            one,
            parameters=one.parameters + v * h + 2 * h * h + 2 * h + 1,
            flops=one.flops + 4 * s * h * h + 4 * s * s * h,
            # the memory, the queries, the tanh of every pair, its weights, and the padding mask
            saved=one.saved + 3 * s * h * width + s * s * (h + 1) * width + s * INTEGER + s,
            working=max(one.working, (2 * s * s * h + 2 * s * h) * width),
            weight_working=max(one.weight_working, v * h * width),
            prunable=(h * h, h * h),
            deferred=4 * s * h * h,  # of the attention
            owed=4 * s * h * width,
        )
        for number in range(1, self.decoder):
            output = (1 if number == self.decoder - 1 else 2) * s * h * width
            yield _recurrent(f"decoder {number}", s, 2 * h, h, output=output, width=width)
        loss = s * v * max(4, width)
        yield LayerShape(
            name="classifier",
            parameters=v * h + v,
            flops=2 * s * h * v,
            saved=s * h * width + loss,
            output=s * v * width,
            working=2 * loss,
            weight_working=v * h * width,
            checkpointed=False,
            deferred=2 * s * h * v,
            owed=s * (h + v) * width,
        )


def _recurrent(name: str, sequence: int, inputs: int, hidden: int, *, output: int, width: int) -> LayerShape:
    """Shape of one direction of an LSTM over `sequence` tokens.

    Its transient consists of the gradients of its gates, output and input.
    """
    return LayerShape(
        name=name,
        parameters=lstm(inputs, hidden),
        flops=2 * sequence * 4 * hidden * (inputs + hidden),
        saved=sequence * (inputs + KEPT * hidden) * width,
        output=output,
        working=sequence * (5 * hidden + inputs) * width,
        weight_working=4 * hidden * max(inputs, hidden) * width,
    )
