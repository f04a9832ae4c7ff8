"""Published parameter counts of the recurrent networks."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.workload.flops import forward
from suite.workload.recurrent import GNMT, ResidualLSTM
from suite.workload.split import blocks, divide
from tests.support.refusals import fault, refused


def test_residual_lstm() -> None:
    shape = ResidualLSTM()
    first, *inner, last = shape.shapes()
    assert first.parameters == 10_000 * 128
    one = 4 * 128 * 128 * 2 + 8 * 128 + 128 * 128 + 128
    assert [layer.parameters for layer in inner] == [one] * 4
    assert last.parameters == 128 * 2 + 2
    assert shape.parameters == 1_874_690  # 1.87 million
    assert shape.tokens == 200


def by_hand(encoder: int, decoder: int, h: int, vocabulary: int, embeddings: int) -> int:
    """GNMT, weight matrix by weight matrix: rows x columns, and the vectors."""
    gates = 4 * h
    narrow, wide = gates * h + gates * h + 2 * gates, gates * 2 * h + gates * h + 2 * gates
    encoders = [narrow, narrow, wide, *[narrow] * (encoder - 2)]  # both directions of the first read h numbers
    decoders = [narrow, *[wide] * (decoder - 1)]  # each later decoder also reads the context
    attention = h * h + h * h + h + 1 + h
    return embeddings * vocabulary * h + sum(encoders) + sum(decoders) + attention + h * vocabulary + vocabulary


def test_gnmt() -> None:
    eight, sixteen = GNMT(), GNMT(encoder=8, decoder=8)
    # what the reference implementation counts, whose two sides share one embedding
    assert eight.parameters - 32_320 * 1024 == by_hand(4, 4, 1024, 32_320, 1) == 160_671_297
    assert eight.parameters == by_hand(4, 4, 1024, 32_320, 2) == 193_766_977
    assert sixteen.parameters == by_hand(8, 8, 1024, 32_320, 2) == 277_718_593
    assert GNMT(2, 3, 6, sequence=5, vocabulary=9).parameters == by_hand(2, 3, 6, 9, 2)
    assert [len(shape.shapes()) for shape in (eight, sixteen)] == [10, 18], "an embedding, a layer per LSTM, a head"
    assert (eight.layers, sixteen.layers, eight.tokens) == (8, 16, 100)


def test_values_that_travel_are_counted_whole() -> None:
    """Three tokens on either side, width 2, vocabulary 7, float32: lengths and tokens are integers of 8 bytes."""
    shapes = GNMT(3, 3, 2, sequence=3, vocabulary=7).shapes()
    beside = 8 + 3 * 8
    assert [layer.output for layer in shapes] == [
        3 * 2 * 4 + beside,
        3 * 4 * 4 + beside,
        3 * 2 * 4 + beside,
        3 * 2 * 4 + beside,
        2 * 3 * 2 * 4,
        2 * 3 * 2 * 4,
        3 * 2 * 4,
        3 * 7 * 4,
    ]
    assert GNMT(3, 3, 2, sequence=3, vocabulary=7).shapes(width=2)[0].output == 3 * 2 * 2 + beside
    texts = ResidualLSTM(1, 2, 5, sequence=3, vocabulary=7, classes=4).shapes()
    assert [layer.output for layer in texts] == [3 * 2 * 4, 3 * 2 * 4, 4 * 4]


def test_bytes_and_flops_by_hand() -> None:
    _, block, last = ResidualLSTM(1, 2, 5, sequence=3, vocabulary=7, classes=4).shapes()
    assert block.saved == 3 * (2 + 7 * 5 + 5) * 4
    assert block.flops == 3 * 2 * (4 * 5 * (2 + 5) + 5 * 2)
    assert last.saved == (3 * 2 + 2) * 4 + 4 * 4
    assert ResidualLSTM(1, 2, 5, 3, 7, 4).shapes(width=2)[-1].saved == (3 * 2 + 2) * 2 + 4 * 4, "a loss is single"
    shape = GNMT(2, 2, 2, sequence=3, vocabulary=7)
    _, both, second, first, after, head = shape.shapes()
    gates = 8
    assert both.flops == 2 * second.flops - 2 * 2 * 3 * gates * 2, "two directions of 2 numbers, not of 4"
    assert first.flops == 3 * 2 * gates * 4 + 2 * (3 * 4 + 3 * 4) + 2 * 2 * 3 * 3 * 2
    assert after.flops == second.flops == 3 * 2 * gates * 6
    assert head.flops == 3 * 2 * 2 * 7
    assert forward(shape) == sum(layer.flops for layer in shape.shapes())
    assert first.prunable == (4, 4)


def test_an_even_split_counts_lstms() -> None:
    assert blocks(GNMT(), divide(GNMT(), 4, "even")) == (2, 2, 2, 2)
    assert blocks(ResidualLSTM(), divide(ResidualLSTM(), 4, "even")) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("kind", "wrong", "expected"),
    [
        (ResidualLSTM, {"layers": 0}, fault("model.shape.layers", "0", rule="a whole number, at least 1", legal="1")),
        (ResidualLSTM, {"classes": True}, fault("model.shape.classes", "True")),
        (GNMT, {"encoder": 1}, fault("model.shape.encoder", "1", rule="a whole number, at least 2")),
        (GNMT, {"decoder": 1.5}, fault("model.shape.decoder", "1.5")),
        (GNMT, {"vocabulary": 4}, fault("model.shape.vocabulary", "4", rule="at least 5")),
    ],
)
def test_what_is_no_network_is_refused(kind: Any, wrong: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        kind(**wrong)
