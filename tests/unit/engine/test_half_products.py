"""Rounded products of float32 in place of slow ones in half precision."""

from __future__ import annotations

from itertools import accumulate, chain

import pytest
import torch
from torch import nn

from suite.engine.half_products import REPEATS, RoundedProducts, are_slow
from tests.support.drawn import cells

LAYERS = {
    "linear": (lambda: nn.Linear(32, 8), (5, 32)),
    "batches of matrices": (lambda: nn.MultiheadAttention(32, 4, batch_first=True), (2, 6, 32)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "vector": (lambda: nn.Linear(32, 8), (32,)),
}


@pytest.mark.parametrize(("half", "name"), cells(["bfloat16", "float16"], LAYERS, n=3))
def test_products_equal_those_of_float32_after_rounding(half: str, name: str) -> None:
    make, shape = LAYERS[name]
    dtype = getattr(torch, half)
    torch.manual_seed(0)
    layer, x = make().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True)
    wide = make()
    wide.load_state_dict(layer.state_dict())

    def outputs(network: nn.Module, value: torch.Tensor) -> list[torch.Tensor]:
        result = network(value, value, value)[0] if name == "batches of matrices" else network(value)
        return [result, *torch.autograd.grad(result.float().square().sum(), [value, *network.parameters()])]

    expected = outputs(wide, x.detach().float().requires_grad_())
    with RoundedProducts(half):
        rounded = outputs(layer, x)
    assert {tensor.dtype for tensor in rounded} == {dtype}
    for right, ours in zip(expected, rounded, strict=True):
        torch.testing.assert_close(ours.float(), right, rtol=0.05, atol=0.05 * right.abs().max().item())


@pytest.mark.parametrize(("plain", "rounded", "slow"), [(2.1, 1.0, True), (2.0, 1.0, False), (1.0, 3.0, False)])
def test_products_are_slow_by_measurement(plain: float, rounded: float, slow: bool) -> None:
    """The quickest of each kind counts: all others here take ten times as long."""
    lengths = chain(*([kind * 10] * (REPEATS - 1) + [kind] for kind in (plain, rounded)))
    times = accumulate(chain.from_iterable((0.0, length) for length in lengths))
    assert are_slow("bfloat16", lambda: next(times)) is slow
