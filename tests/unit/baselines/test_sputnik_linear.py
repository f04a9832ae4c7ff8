"""The sparse layer on a CPU: its output and both gradients equal a dense layer with explicit zeros."""

from __future__ import annotations

import copy

import torch

from baselines.sputnik.structure import Structure
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused
from tests.support.sparse_products import ALLOWED, CASES, error, errors_of, index_of, layer_of, tensor


def test_output_and_gradients_are_those_of_explicit_zeros() -> None:
    for name, case in CASES.items():
        for dtype, allowed in ALLOWED.items():
            for product, largest in errors_of(case, dtype).items():
                assert largest <= allowed, (name, dtype, product)


def test_leading_dimensions_are_samples_and_bias_is_dense() -> None:
    dense, sparse = layer_of(CASES["odd"], torch.float64, bias=True)
    x = tensor(3, 2, 13, dtype=torch.float64, seed=2)
    output, expected = sparse(x), dense(x)
    assert output.shape == (3, 2, 7)
    assert error(output, expected.detach()) <= 1e-13
    output.square().sum().backward()
    shared = sparse.bias.grad.clone()
    sparse.bias.grad = None
    expected.square().sum().backward()
    assert error(shared, dense.bias.grad) <= 1e-13
    flipped = tensor(13, 5, dtype=torch.float64, seed=2).t()
    assert torch.equal(sparse(flipped), sparse(flipped.contiguous())), "a view that is not contiguous"


def test_a_layer_that_is_cast_or_copied_keeps_its_places() -> None:
    _, sparse = layer_of(CASES["odd"], torch.float32)
    other = copy.deepcopy(sparse).double()
    assert other.structure.order.dtype == torch.int32
    x = tensor(5, 13, dtype=torch.float32, seed=2)
    assert error(other(x.double()), sparse(x).detach().double()) <= 2e-6


def test_wrong_places_inputs_and_devices_are_refused() -> None:
    for places in ([0, 0], [3, 1], [-1, 2], [5, 30], []):
        with refused(InvalidRequest, subject=f"an index of {len(places)} entries for a weight of 5 x 6"):
            Structure(torch.tensor(places, dtype=torch.int32), outputs=5, inputs=6)
    with refused(InvalidRequest, subject="65536 x 32768 entries"):
        Structure(torch.tensor([0]), outputs=65536, inputs=32768)
    with refused(InvalidRequest, subject="31 features in a layer with 16 input features"):
        layer_of(CASES["square"], torch.float32)[1](torch.ones(4, 31))


def test_structure_has_three_numbers_per_entry_and_two_per_row_and_column() -> None:
    assert Structure(index_of(CASES["square"]), outputs=16, inputs=16).bytes == 4 * (3 * 16 * 3 + 2 * (17 + 16))
