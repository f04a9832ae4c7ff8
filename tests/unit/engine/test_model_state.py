"""Model states: allocated bytes, and gradients as views."""

from __future__ import annotations

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.engine.optim.update import check_attached
from suite.engine.states.state import ModelState
from suite.memory.layout import resident
from tests.support.refusals import refused


def weights(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def test_replaced_gradient_or_weight_is_detected() -> None:
    parameters = weights(((3,), (2,)))
    parameters[0].grad = torch.tensor([5.0, 6.0, 7.0])
    state = ModelState(parameters, ("velocity",), resident)
    assert state.gradient.tolist() == [5.0, 6.0, 7.0, 0.0, 0.0]  # gradients that exist are kept
    parameters[0].grad = torch.tensor([1.0, 2.0, 3.0])
    with refused(InvalidRequest, subject=".grad of a weight"):
        check_attached(state)
    state.attach_gradients()
    check_attached(state)
    assert state.gradient.tolist() == [1.0, 2.0, 3.0, 0.0, 0.0]
    parameters[1].grad = None  # as after zero_grad()
    with refused(InvalidRequest, subject=".grad of a weight"):
        check_attached(state)
    state.attach_gradients()
    parameters[1].sum().backward()
    assert state.gradient.tolist() == [1.0, 2.0, 3.0, 1.0, 1.0]
    parameters[1].data = parameters[1].data.clone()
    with refused(InvalidRequest, subject=".data of a weight"):
        check_attached(state)
