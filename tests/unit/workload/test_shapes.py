"""Published parameter counts of the GPTs.

Flops, memory and percent of peak all start from these shapes. The printed counts are AxoNN Table I (rounded to a
billion, with 512 tokens and 51200 words), and SAMO Table I with the shapes of Brown et al. Table 2.1 (2048 tokens, the
50257 words of GPT-2's tokenizer; 16 heads where that table's 24 do not divide the width, 5120 where it prints 5140).
"""

from __future__ import annotations

import pytest

from suite.core.errors import InvalidRequest
from suite.workload import Transformer
from tests.support.refusals import refused

AXONN = {  # layers, hidden, heads, printed, computed from the published shape
    "transformer_12b": (48, 4512, 24, 12e9, 11.962e9),
    "transformer_24b": (48, 6336, 36, 24e9, 23.455e9),
    "transformer_50b": (96, 6528, 48, 50e9, 49.438e9),
    "transformer_100b": (96, 9360, 60, 100e9, 101.422e9),
}
SAMO = {  # layers, hidden, heads, printed
    "gpt3_xl": (24, 2048, 16, 1.3e9),
    "gpt3_2_7b": (32, 2560, 32, 2.7e9),
    "gpt3_6_7b": (32, 4096, 32, 6.7e9),
    "gpt3_13b": (40, 5120, 40, 13.0e9),
}


@pytest.mark.parametrize("name", AXONN)
def test_axonn_models(name: str) -> None:
    layers, hidden, heads, printed, computed = AXONN[name]
    shape = Transformer(layers, hidden, heads, sequence=512, vocabulary=51200)
    assert shape.parameters == pytest.approx(computed, abs=0.5e6)  # to its last printed digit
    assert shape.parameters == pytest.approx(printed, rel=0.03)


@pytest.mark.parametrize("name", SAMO)
def test_samo_models(name: str) -> None:
    layers, hidden, heads, printed = SAMO[name]
    shape = Transformer(layers, hidden, heads, sequence=2048, vocabulary=50257)
    assert shape.parameters == pytest.approx(printed, rel=0.03)


def test_a_tied_head_holds_a_copy_of_the_embedding() -> None:
    tied = Transformer(2, 8, 2, sequence=4, vocabulary=10)
    free = Transformer(2, 8, 2, sequence=4, vocabulary=10, tied=False)
    assert free.parameters - tied.parameters == 80
    assert (tied.head().tied, free.head().tied) == (80, 0)
    assert [layer.name for layer in tied.shapes()] == ["embedding", "block", "block", "head"]


def test_block_bytes_by_hand() -> None:
    """4 tokens of 8 float32: a unit is 128 bytes. 16 units, and (4 + 2 heads) statistics per token of 4 bytes."""
    block = Transformer(1, 8, 2, sequence=4, vocabulary=10).block()
    assert (block.output, block.saved) == (128, 16 * 128 + 6 * 4 * 4)
    assert (block.working, block.weight_working) == (6 * 128, 4 * 8 * 8 * 4)
    half = Transformer(1, 8, 2, sequence=4, vocabulary=10).block(width=2)
    assert 2 * half.saved == block.saved


def test_only_the_four_matrices_of_a_block_are_prunable() -> None:
    """8 wide: queries, keys and values 8 x 24, their projection 8 x 8, the perceptron 8 x 32 and 32 x 8."""
    shapes = Transformer(1, 8, 2, sequence=4, vocabulary=10).shapes()
    assert [layer.prunable for layer in shapes] == [(), (8 * 24, 8 * 8, 8 * 32, 32 * 8), ()]


def test_head_bytes_by_hand() -> None:
    """Norm input and output (2 units of 128), two statistics per token, log-probabilities of 4 tokens and 10 words."""
    head = Transformer(1, 8, 2, sequence=4, vocabulary=10).head()
    assert head.saved == 2 * 128 + 2 * 4 * 4 + 4 * 10 * 4
    assert head.working == 2 * 4 * 10 * 4


def test_heads_divide_the_width() -> None:
    """Brown et al. print 24 heads for 2048: the largest legal number below is said."""
    with refused(
        InvalidRequest, "model.shape.hidden", "2048", subject="with model.shape.heads=24", legal="model.shape.heads=16"
    ):
        Transformer(24, 2048, 24, sequence=2048, vocabulary=50257)


@pytest.mark.parametrize("name", ["layers", "hidden", "heads", "sequence", "vocabulary"])
def test_empty_models_are_refused(name: str) -> None:
    sizes = {"layers": 1, "hidden": 1, "heads": 1, "sequence": 1, "vocabulary": 1, name: 0}
    with refused(InvalidRequest, f"model.shape.{name}", "0", legal=f"model.shape.{name}=1"):
        Transformer(**sizes)
