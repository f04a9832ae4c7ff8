"""Top-1 and top-5 accuracy on answers ranked by hand."""

from __future__ import annotations

import pytest
import torch

from suite.models import accuracy, chain, convnet


def test_by_hand() -> None:
    """Of four rows the first is right, the second second, the third fifth, the fourth sixth and last."""
    logits = torch.tensor([[5.0, 4, 3, 2, 1, 0]]).repeat(4, 1)
    ranks = accuracy.top(logits, torch.tensor([0, 1, 4, 5]))
    assert ranks.tolist() == [25.0, 75.0]
    assert ranks.dtype == torch.float32


def test_fewer_classes_than_five() -> None:
    logits = torch.tensor([[0.0, 1, 2], [2, 1, 0]])
    assert accuracy.top(logits, torch.tensor([0, 0])).tolist() == [50.0, 100.0]


@pytest.mark.parametrize(("dtype", "rank_dtype"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_every_precision_ranks(dtype: torch.dtype, rank_dtype: torch.dtype) -> None:
    """Loss and scores are sent in one tensor. Neither may lose precision through the other's dtype."""
    logits = torch.eye(7, dtype=dtype)
    ranks = accuracy.top(logits, torch.arange(7))
    assert ranks.tolist() == [100.0, 100.0]
    assert ranks.dtype == convnet.loss(logits, torch.arange(7)).dtype == rank_dtype


def test_a_network_that_has_diverged_is_right_about_nothing() -> None:
    logits = torch.full((10, 10), float("nan"))
    assert accuracy.top(logits, torch.arange(10)).tolist() == [0.0, 0.0], "whichever five of them are taken"
    logits[9] = torch.arange(10.0)
    assert accuracy.top(logits, torch.arange(10)).tolist() == pytest.approx([10.0, 10.0])


def test_every_network_of_images_has_them() -> None:
    for network in (convnet, chain):
        assert network.SCORES == ("top_1", "top_5")
        assert network.scores(torch.eye(8), torch.arange(8)).shape == (len(network.SCORES),)
