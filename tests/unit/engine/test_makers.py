"""Options of layers and losses give the results of the plain form; rounded products of float32 in half precision."""

from __future__ import annotations

from itertools import accumulate, chain

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baselines.pytorch import PyTorch
from suite.config.network import KernelForms
from suite.core.errors import Unsupported
from suite.engine import makers
from suite.engine.half_products import REPEATS, RoundedProducts, are_slow
from suite.engine.makers import AccumulatingLinear, loss_of
from suite.engine.system import EngineSystem
from suite.models import gpt
from tests.support.curves import losses_of
from tests.support.drawn import cells
from tests.support.refusals import refused

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


SMALL = ("model=gpt_tiny", "grid.inter=1", "batch.size=4", "batch.microbatch=2", "model.shape.layers=2")
SYSTEMS = {"axonn": EngineSystem, "pytorch": PyTorch, "axonn_samo": EngineSystem}
OPTIONS = ("kernels.compile=block", "kernels.accumulate=in_place", "kernels.loss_chunk=7")


@pytest.mark.slow("the compiler of torch is imported")
@pytest.mark.parametrize(("system", "option"), cells(SYSTEMS, OPTIONS, n=3))
def test_options_change_no_loss(monkeypatch: pytest.MonkeyPatch, system: str, option: str) -> None:
    monkeypatch.setattr(makers, "COMPILER", "aot_eager")  # needs no compiler of C++
    same = [*SMALL, f"system={system}"]
    losses = losses_of(SYSTEMS[system], [*same, option], 3)
    assert losses == pytest.approx(losses_of(SYSTEMS[system], same, 3), rel=1e-6)
    assert len(set(losses)) == 3


def test_a_product_adds_to_a_gradient_and_returns_one_otherwise() -> None:
    plain, ours = nn.Linear(5, 3), AccumulatingLinear(5, 3)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(2, 4, 5)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for _ in range(2):  # the first pass finds no `.grad`
        before = ours.weight.grad
        for layer, each in zip((plain, ours), inputs, strict=True):
            layer(each).square().sum().backward()
        assert before is None or ours.weight.grad is before
    for a, b in zip((*ours.parameters(), inputs[1]), (*plain.parameters(), inputs[0]), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_loss_in_chunks_has_the_gradient_of_the_whole(dtype: torch.dtype) -> None:
    logits, targets = torch.randn(2, 5, 11, dtype=dtype), torch.randint(0, 11, (2, 5))
    results = []
    for loss in (gpt.loss, gpt.chunked_loss(3)):  # the last chunk has one row
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, targets)
        (3 * value).backward()
        results.append((value, leaf.grad))
    torch.testing.assert_close(results[1], results[0])
    assert results[1][0].dtype == F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).dtype or (
        dtype is torch.float64
    )


def test_a_network_without_a_loss_in_chunks_is_refused() -> None:
    with refused(Unsupported, "kernels.loss_chunk", 7, legal="kernels.loss_chunk=null"):
        loss_of(KernelForms(loss_chunk=7), "suite.models.convnet")
