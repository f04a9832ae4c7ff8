"""Magnitude and random pruning: exact counts, and equal masks on every grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.pruning.early_bird import EarlyBird
from suite.pruning.magnitude import Magnitude, ranked
from suite.pruning.mask import Indices, View, check_index
from suite.pruning.random import RandomMask
from tests.support.drawn import cells
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHARES = [0.0, 0.1, 0.5, 0.9]


def line(values: list[float], dtype: torch.dtype = torch.float32) -> nn.Linear:
    layer = nn.Linear(len(values), 1, bias=False, dtype=dtype)
    layer.weight.data = torch.tensor([values], dtype=dtype)
    return layer


def network(dtype: torch.dtype = torch.float32, *, tied: bool = False) -> list[nn.Module]:
    """Six layers of different scales; `tied`: of three sizes |w| only, so that most entries are equal."""
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for number, (wide, high) in enumerate([(7, 9), (9, 5), (5, 11), (11, 3), (3, 13), (13, 4)]):
        layer = nn.Linear(wide, high)
        drawn = torch.randint(-1, 2, (high, wide)).float() if tied else torch.randn(high, wide) * (1 + number)
        layer.weight.data = drawn
        layers.append(layer.to(dtype))
    return layers


def by_sorting(layers: list[nn.Module], sparsity: float) -> Indices:
    """Kept weights over all layers: the first ones, sorted by (-|w|, layer, place)."""
    order = sorted(
        (-abs(value), number, place)
        for number, layer in enumerate(layers)
        for place, value in enumerate(layer.weight.detach().double().flatten().tolist())
    )
    kept = order[: round((1 - sparsity) * len(order))]
    return {
        (number, "weight"): torch.tensor(sorted(place for _, at, place in kept if at == number), dtype=torch.int32)
        for number in range(len(layers))
    }


@pytest.mark.parametrize(("sparsity", "dtype", "tied"), cells(SHARES, TYPES, [False, True], n=6))
def test_global_threshold_equals_sorting_all_weights(sparsity: float, dtype: torch.dtype, tied: bool) -> None:
    layers = network(dtype, tied=tied)
    assert equal_masks(ranked(whole_view(layers, sparsity=sparsity), "global"), by_sorting(layers, sparsity))


@pytest.mark.parametrize(("stages", "tied", "scope"), cells([2, 3, 6], [False, True], ["global", "layer"], n=4))
def test_every_grid_draws_the_same_ticket(stages: int, tied: bool, scope: str) -> None:
    layers = network(tied=tied)
    tickets = draw_on_stages(Magnitude, layers, stages, lambda _, view: ranked(view, scope), sparsity=0.5)
    assert equal_masks(join_masks(tickets), ranked(whole_view(layers, sparsity=0.5), scope))


def test_stages_of_two_types_or_without_weights_share_one_threshold() -> None:
    layers = network()
    layers[4:] = [layer.double() for layer in layers[4:]]
    tickets = draw_on_stages(lambda: Magnitude("global"), layers, 2, sparsity=0.5)
    assert equal_masks(join_masks(tickets), by_sorting(layers, 0.5))
    some = [nn.Embedding(4, 3), line([1.0, 2.0, 3.0, 4.0])]
    first, second = draw_on_stages(lambda: Magnitude("global"), some, 2, sparsity=0.5)
    assert (first, second[1, "weight"].tolist()) == ({}, [2, 3])


def refusal(method: Magnitude | EarlyBird, view: View) -> str:
    with pytest.raises(InvalidRequest) as caught:
        method.draw(view)
    return str(caught.value)


@pytest.mark.parametrize("made", [Magnitude, lambda: EarlyBird(1, scope="layer")], ids=["magnitude", "early bird"])
def test_weight_too_small_on_one_stage_is_refused_on_all(made: Callable[[], Magnitude | EarlyBird]) -> None:
    """If one stage alone stopped, the others would wait for its sums."""
    layers = [line([1.0, 2.0]), line([1.0] * 9)]
    first, second = draw_on_stages(made, layers, 2, refusal, sparsity=0.8)  # 0.4 and 1.8 entries
    assert "weight weight of layer 0 of 2 entries" in first
    assert "another stage" in second
    with torch.device("meta"):
        vast = nn.Linear(2**16, 2**15, bias=False)
    first, second = draw_on_stages(lambda: Magnitude("global"), [vast, line([1.0])], 2, refusal)
    assert "2^31" in first
    assert "another stage" in second


def blocks() -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)]


def test_every_weight_keeps_its_share_on_every_grid() -> None:
    layers = blocks()
    for sparsity in (0.0, 0.3, 0.5, 0.9):
        for key, index in RandomMask().draw(whole_view(layers, sparsity=sparsity)).items():
            check_index(key, index, 64)
            assert index.numel() == round((1 - sparsity) * 64)
    for stages in (2, 3):
        parts = draw_on_stages(RandomMask, layers, stages, sparsity=0.5)
        assert equal_masks(join_masks(parts), RandomMask().draw(whole_view(layers, sparsity=0.5)))


def test_masks_differ_by_weight_layer_and_seed_alone() -> None:
    layers, others = blocks(), blocks()
    tickets = [RandomMask().draw(whole_view(layers, sparsity=0.5, seed=seed)) for seed in (0, 1)]
    places = {tuple(index.tolist()) for ticket in tickets for index in ticket.values()}
    assert len(places) == 2 * 3 * 2
    for layer in others:
        layer[0].weight.data.zero_()
    before = torch.random.get_rng_state()
    assert equal_masks(RandomMask().draw(whole_view(layers)), RandomMask().draw(whole_view(others)))
    assert torch.equal(before, torch.random.get_rng_state())
