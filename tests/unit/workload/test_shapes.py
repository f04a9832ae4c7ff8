"""Weights, flops and bytes of GPTs and recurrent networks: published counts, and layers by hand.

Flops, memory and percent of peak all start from these shapes. The printed counts are AxoNN Table I (rounded to a
billion, with 512 tokens and 51200 words), and SAMO Table I with the shapes of Brown et al. Table 2.1 (2048 tokens, the
50257 words of GPT-2's tokenizer; 16 heads where that table's 24 do not divide the width, 5120 where it prints 5140).
"""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.workload import Transformer
from suite.workload.megatron_activations import saved_per_token
from suite.workload.recurrent import GNMT, ResidualLSTM
from tests.support.refusals import refused

TINY = Transformer(layers=1, hidden=8, heads=2, sequence=4, vocabulary=10)
MEGATRON = Transformer(96, 12288, 96, sequence=2048, vocabulary=51200)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "printed", "computed"),
    [  # computed from the published shape
        (48, 4512, 24, 12e9, 11.962e9),
        (48, 6336, 36, 24e9, 23.455e9),
        (96, 6528, 48, 50e9, 49.438e9),
        (96, 9360, 60, 100e9, 101.422e9),
        (24, 2048, 16, 1.3e9, None),
        (32, 2560, 32, 2.7e9, None),
        (32, 4096, 32, 6.7e9, None),
        (40, 5120, 40, 13.0e9, None),
    ],
)
def test_published_gpts(layers: int, hidden: int, heads: int, printed: float, computed: float | None) -> None:
    sequence, vocabulary = (2048, 50257) if computed is None else (512, 51200)
    shape = Transformer(layers, hidden, heads, sequence=sequence, vocabulary=vocabulary)
    assert shape.parameters == pytest.approx(printed, rel=0.03)
    assert computed is None or shape.parameters == pytest.approx(computed, abs=0.5e6)  # to its last printed digit


def test_gpt_bytes_by_hand() -> None:
    """4 tokens of 8 float32: a unit is 128 bytes."""
    block, head = TINY.block(), TINY.head()
    # 16 units, and (4 + 2 heads) statistics per token of 4 bytes
    assert (block.output, block.saved) == (128, 16 * 128 + 6 * 4 * 4)
    assert (block.working, block.weight_working) == (6 * 128, 4 * 8 * 8 * 4)
    assert 2 * TINY.block(width=2).saved == block.saved
    # norm input and output, two statistics per token, log-probabilities of 4 tokens and 10 words
    assert (head.saved, head.working) == (2 * 128 + 2 * 4 * 4 + 4 * 10 * 4, 2 * 4 * 10 * 4)
    # queries, keys and values 8 x 24, their projection 8 x 8, the perceptron 8 x 32 and 32 x 8
    assert [layer.prunable for layer in TINY.shapes()] == [(), (8 * 24, 8 * 8, 8 * 32, 32 * 8), ()]
    free = Transformer(1, 8, 2, sequence=4, vocabulary=10, tied=False)
    assert free.parameters - TINY.parameters == head.tied == 80
    assert free.head().tied == 0
    assert [layer.name for layer in TINY.shapes()] == ["embedding", "block", "head"]


@pytest.mark.parametrize(
    ("shape", "tensor", "units"),
    [  # Korthikanti et al. 2022, Equations 1 and 2, in units of s b h: 34 + 5 a s / h, and 10 + (24 + 5 a s / h) / t
        (MEGATRON, 1, 34 + 80),
        (MEGATRON, 8, 10 + (24 + 80) / 8),
        (Transformer(105, 20480, 128, sequence=2048, vocabulary=51200), 8, 10 + (24 + 64) / 8),
    ],
)
def test_kept_activations_of_published_models(shape: Transformer, tensor: int, units: float) -> None:
    assert saved_per_token(shape, tensor) == pytest.approx(units * shape.hidden, rel=1e-12)


# -- recurrent networks ------------------------------------------------------------------------------------------------


def test_residual_lstm_by_hand() -> None:
    assert (ResidualLSTM().parameters, ResidualLSTM().tokens) == (1_874_690, 200)
    small = ResidualLSTM(1, 2, 5, sequence=3, vocabulary=7, classes=4)
    assert [layer.saved for layer in small.shapes()[1:]] == [3 * (2 + 7 * 5 + 5) * 4, (3 * 2 + 2) * 4 + 4 * 4]
    assert small.shapes(width=2)[-1].saved == (3 * 2 + 2) * 2 + 4 * 4, "a loss is single"


def test_gnmt_by_hand() -> None:
    """Layers are compared with modules in tests/unit/models/test_counted.py."""
    eight, sixteen = GNMT(), GNMT(encoder=8, decoder=8)
    # what the reference implementation counts, whose two sides share one embedding
    assert eight.parameters - 32_320 * 1024 == 160_671_297
    assert sixteen.parameters == 277_718_593
    assert [len(shape.shapes()) for shape in (eight, sixteen)] == [10, 18], "an embedding, a layer per LSTM, a head"
    assert eight.tokens == 100


@pytest.mark.parametrize(
    ("kind", "key", "value", "more", "legal"),
    [
        # Brown et al. print 24 heads for 2048: the refusal names the largest legal number below
        (Transformer, "hidden", 2048, {"heads": 24}, "model.shape.heads=16"),
        *(
            (Transformer, name, 0, {}, f"model.shape.{name}=1")
            for name in ("layers", "hidden", "heads", "sequence", "vocabulary")
        ),
        (ResidualLSTM, "layers", 0, {}, "1"),
        (GNMT, "encoder", 1, {}, "2"),
        (GNMT, "vocabulary", 4, {}, "5"),
    ],
)
def test_impossible_networks_are_refused(kind: Any, key: str, value: Any, more: dict[str, int], legal: str) -> None:
    ones = dict.fromkeys(("layers", "hidden", "heads", "sequence", "vocabulary"), 1) if kind is Transformer else {}
    with refused(InvalidRequest, f"model.shape.{key}", str(value), legal=legal):
        kind(**{**ones, key: value, **more})
