"""Top-1 and top-5 accuracy on answers ranked by hand."""

from __future__ import annotations

import pytest
import torch

from suite.models import accuracy, chain, convnet


def test_top_1_and_top_5_by_hand() -> None:
    """Of four rows the first is right, the second second, the third fifth, the fourth sixth and last."""
    logits = torch.tensor([[5.0, 4, 3, 2, 1, 0]]).repeat(4, 1)
    ranks = accuracy.top(logits, torch.tensor([0, 1, 4, 5]))
    assert (ranks.tolist(), ranks.dtype) == ([25.0, 75.0], torch.float32)
    few = torch.tensor([[0.0, 1, 2], [2, 1, 0]])
    assert accuracy.top(few, torch.tensor([0, 0])).tolist() == [50.0, 100.0]
    for network in (convnet, chain):
        assert network.SCORES == ("top_1", "top_5")
        assert network.scores(logits, torch.tensor([0, 1, 4, 5])).tolist() == [25.0, 75.0]


def test_a_network_that_has_diverged_is_right_about_nothing() -> None:
    logits = torch.full((10, 10), float("nan"))
    assert accuracy.top(logits, torch.arange(10)).tolist() == [0.0, 0.0], "whichever five of them are taken"
    logits[9] = torch.arange(10.0)
    assert accuracy.top(logits, torch.arange(10)).tolist() == pytest.approx([10.0, 10.0])


def test_scores_and_loss_have_one_type() -> None:
    """They are sent in one tensor, so neither may lose precision through the type of the other."""
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        ranks = accuracy.top(torch.eye(7, dtype=dtype), torch.arange(7))
        assert ranks.dtype == convnet.loss(torch.eye(7, dtype=dtype), torch.arange(7)).dtype == expected
