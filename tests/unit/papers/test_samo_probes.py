"""SAMO's probes in a small network: each count detects a planted change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.engine.states.state import ModelState
from suite.papers.samo import probes as shown


def test_both_trainings_move_and_are_the_same() -> None:
    before, (dense, samo) = shown.twins(batches=0), shown.twins()
    for number, (begun, first, second) in enumerate(
        zip(
            before[1].state.model_states.parameters,
            dense.state.model_states.parameters,
            samo.state.model_states.parameters,
            strict=True,
        )
    ):
        assert torch.equal(first, second), number
        assert not torch.equal(begun, second), number
    assert all(one == other for one, other in shown.updated())
    assert all(one == other for one, other in shown.outputs())


def test_counts_by_hand() -> None:
    """Dense gradients alive at once are of one layer: of a convolution and two linear layers of 96, 168 and 105."""
    assert shown.dense_gradients(1) == shown.dense_gradients(2) == (2 * 168, 2 * 168)
    forward = 2 * (16 * 24 + 24 * 7 + 7 * 15)  # a convolution of 6 x 2 x 2 outputs, and two linear layers
    assert shown.flops() == (4 * 3 * forward, 4 * 3 * forward)  # 4 samples; a backward pass is two products
    assert [shown.reduced_bytes(density, 400) for density in (1.0, 0.5, 0.01)] == [800, 400, 8]
    assert shown.index_bytes(3, 7) == (3 * 7 * 4, 7 * 4)
    assert shown.indices_of([(0, 0), (1, 1)], 2) == [0, 3]
    assert shown.indices_of([(0, 2), (2, 1)], 3) == [2, 7]


@pytest.mark.parametrize("more", [0, 40], ids=["of its size", "larger"])
def test_probe_finds_a_dense_full_precision_gradient(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    original = ModelState._compress_gradient

    def widened(self: ModelState, parameter: Any) -> None:
        whole = torch.zeros(parameter.numel() + more)  # in four bytes an entry
        whole[: parameter.numel()] = parameter.grad.flatten()
        original(self, parameter)

    monkeypatch.setattr(ModelState, "_compress_gradient", widened)
    assert shown.dense_gradients(1) == (2 * 168 + 4 * (168 + more), 2 * 168)


def test_expanding_is_compared_with_tensors_that_are_not_all_zero() -> None:
    pairs = shown.expanded()
    assert all(one == other for one, other in pairs)
    assert sum(one != 0 for one, _ in pairs) == 10 + 10 + 9
