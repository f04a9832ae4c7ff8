"""The sparse layer on a CPU: its output and both gradients equal a dense layer with explicit zeros."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from baselines.sputnik.linear import SparseLinear, kernels_of
from baselines.sputnik.structure import structure_of
from suite.core.errors import InvalidRequest, Unsupported
from tests.support.refusals import refused
from tests.support.sparse_products import ALLOWED, CASES, Case, drawn, error, index_of, products

SQUARE = CASES["square"]


def layer_of(case: Case, dtype: torch.dtype, *, bias: bool = False) -> tuple[nn.Linear, SparseLinear]:
    dense = nn.Linear(case.inputs, case.outputs, bias=bias).to(dtype)
    dense.weight.data = drawn(case.outputs, case.inputs, dtype=dtype, seed=1)
    return dense, SparseLinear(dense, index_of(case))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients_are_those_of_explicit_zeros(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    dense, sparse = layer_of(case, dtype)
    x = drawn(case.m, case.inputs, dtype=dtype, seed=2).requires_grad_()
    grad = drawn(case.m, case.outputs, dtype=dtype, seed=3)
    output = sparse(x)
    output.backward(grad)
    assert output.is_contiguous()
    assert sparse.values.grad is not None
    assert sparse.values.grad.dtype == output.dtype == dtype
    out, into, weight = products(dense.weight, index_of(case), x.detach(), grad)
    assert error(output, out) <= ALLOWED[dtype]
    assert error(x.grad, into) <= ALLOWED[dtype]
    assert error(sparse.values.grad, weight) <= ALLOWED[dtype]


def test_leading_dimensions_are_samples_and_bias_is_dense() -> None:
    dense, sparse = layer_of(CASES["odd"], torch.float64, bias=True)
    dense.weight.data = dense.weight.data.flatten().index_fill(0, torch.arange(0), 0).view_as(dense.weight)
    mask = (
        torch.zeros_like(dense.weight).flatten().index_fill(0, index_of(CASES["odd"]).long(), 1).view_as(dense.weight)
    )
    dense.weight.data *= mask
    x = drawn(3, 2, 29, dtype=torch.float64, seed=2)
    output, expected = sparse(x), dense(x)
    assert output.shape == (3, 2, 17)
    assert error(output, expected.detach()) <= 1e-13
    output.square().sum().backward()
    expected.square().sum().backward()
    assert error(sparse.bias.grad, dense.bias.grad) <= 1e-13


def test_a_view_that_is_not_contiguous_multiplies_alike() -> None:
    _, sparse = layer_of(CASES["odd"], torch.float64)
    x = drawn(29, 13, dtype=torch.float64, seed=2)
    assert torch.equal(sparse(x.t()), sparse(x.t().contiguous()))


def test_unneeded_input_gradient_is_not_computed() -> None:
    _, sparse = layer_of(SQUARE, torch.float32)
    x = drawn(16, 16, dtype=torch.float32, seed=2)
    sparse(x).sum().backward()
    assert x.grad is None
    assert sparse.values.grad is not None
    sparse.values.grad = None
    sparse.values.requires_grad_(False)
    sparse(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert sparse.values.grad is None


@pytest.mark.parametrize("name", CASES)
def test_structure_matches_the_mask_and_its_transpose(name: str) -> None:
    case, index = CASES[name], index_of(CASES[name])
    structure = structure_of(index, outputs=case.outputs, inputs=case.inputs)
    mask = torch.zeros(case.outputs * case.inputs).index_fill(0, index.long(), 1).view(case.outputs, case.inputs)
    marks = torch.arange(1.0, index.numel() + 1)
    placed = torch.zeros(mask.numel()).index_copy(0, index.long(), marks).view_as(mask)
    for side, expected, values in (
        (structure.weight, placed, marks),
        (structure.transposed, placed.t(), marks[structure.order.long()]),
    ):
        dense = torch.zeros(side.rows, side.width)
        for row in range(side.rows):
            at = slice(int(side.offsets[row]), int(side.offsets[row + 1]))
            dense[row, side.columns[at].long()] = values[at]
        assert torch.equal(dense, expected)
        assert {t.dtype for t in (side.offsets, side.columns, side.swizzle, structure.order)} == {torch.int32}
        lengths = side.offsets.diff()[side.swizzle.long()]
        assert bool((lengths.diff() <= 0).all())
        assert sorted(side.swizzle.tolist()) == list(range(side.rows))
        assert side.longest == int(lengths[0])


def test_all_indices_are_counted_once() -> None:
    structure = structure_of(index_of(SQUARE), outputs=16, inputs=16)
    assert structure.bytes == 4 * (3 * 16 * 3 + 2 * (17 + 16))


def test_a_layer_that_is_cast_or_copied_keeps_its_places() -> None:
    _, sparse = layer_of(CASES["odd"], torch.float32)
    other = copy.deepcopy(sparse).double()
    assert other.order.dtype == torch.int32
    assert other.structure.weight.columns is other.get_buffer("weight_columns")
    x = drawn(13, 29, dtype=torch.float32, seed=2)
    assert error(other(x.double()), sparse(x).detach().double()) <= 2e-6


def test_after_buffers_were_written_the_longest_row_is_theirs() -> None:
    _, sparse = layer_of(SQUARE, torch.float32)
    uneven = torch.cat([torch.arange(16), 16 + torch.arange(32) * 7]).int()
    expected = SparseLinear(nn.Linear(16, 16), uneven)
    with torch.no_grad():
        for name, buffer in sparse.named_buffers():
            buffer.copy_(expected.get_buffer(name))
    sparse.refresh()
    assert sparse.structure.weight.longest == expected.structure.weight.longest == 16


@pytest.mark.parametrize(
    ("places", "told"),
    [([0, 0], "2 entries"), ([3, 1], "2 entries"), ([-1, 2], "2 entries"), ([5, 30], "2 entries"), ([], "0 entries")],
)
def test_places_that_are_none_are_refused(places: list[int], told: str) -> None:
    with refused(InvalidRequest, subject=f"an index of {told} for a weight of 5 x 6"):
        structure_of(torch.tensor(places, dtype=torch.int32), outputs=5, inputs=6)


def test_a_weight_beyond_32_bits_is_refused() -> None:
    with refused(
        InvalidRequest, subject="65536 x 32768 entries", rule="fewer than 2^31 entries, the range of a 32-bit index"
    ):
        structure_of(torch.tensor([0]), outputs=65536, inputs=32768)


def test_activations_of_another_width_are_refused() -> None:
    _, sparse = layer_of(SQUARE, torch.float32)
    with refused(
        InvalidRequest,
        subject="31 features in a layer with 16 input features",
        rule="the last dimension of the input is the number of input",
    ):
        sparse(torch.ones(4, 31))


def test_another_kind_of_device_is_refused_by_name() -> None:
    with refused(Unsupported, subject="sparse products on meta", rule="sparse products run on a CPU or on CUDA"):
        kernels_of(torch.device("meta"))
