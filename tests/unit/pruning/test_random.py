"""Random pruning depends on the seed and on the place in the model only."""

from __future__ import annotations

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.pruning.mask import check_index
from suite.pruning.random import RandomMask
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view
from tests.support.refusals import refused


def network() -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)]


def test_every_weight_keeps_its_share_on_every_grid() -> None:
    layers = network()
    for sparsity in (0.0, 0.3, 0.5, 0.9):
        for key, index in RandomMask().draw(whole_view(layers, sparsity=sparsity)).items():
            check_index(key, index, 64)
            assert index.numel() == round((1 - sparsity) * 64)
    for stages in (2, 3):
        parts = draw_on_stages(RandomMask, layers, stages, sparsity=0.5)
        assert equal_masks(join_masks(parts), RandomMask().draw(whole_view(layers, sparsity=0.5)))


def test_masks_differ_by_weight_layer_and_seed_alone() -> None:
    layers, others = network(), network()
    tickets = [RandomMask().draw(whole_view(layers, sparsity=0.5, seed=seed)) for seed in (0, 1)]
    places = {tuple(index.tolist()) for ticket in tickets for index in ticket.values()}
    assert len(places) == 2 * 3 * 2
    for layer in others:
        layer[0].weight.data.zero_()
    before = torch.random.get_rng_state()
    assert equal_masks(RandomMask().draw(whole_view(layers)), RandomMask().draw(whole_view(others)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_each_place_stays_as_often_as_any_other() -> None:
    layers = [nn.Linear(10, 10, bias=False)]
    counts = torch.zeros(100)
    for seed in range(400):
        counts[RandomMask().draw(whole_view(layers, sparsity=0.75, seed=seed))[0, "weight"].long()] += 1
    assert 60 < counts.min() <= counts.max() < 140  # 100 expected; the deviation is 8.7


def test_it_is_drawn_once_and_empties_no_weight() -> None:
    assert [batches for batches in range(50) if RandomMask().draws_after(batches)] == [0]
    with refused(InvalidRequest, subject="weight weight of layer 0 of 4 entries at sparsity 0.9"):
        RandomMask().draw(whole_view([nn.Linear(2, 2)], sparsity=0.9))
