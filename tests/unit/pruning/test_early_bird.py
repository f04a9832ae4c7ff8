"""Early-bird tickets: hand-computed distances, and channel masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.pruning.early_bird import EarlyBird
from suite.pruning.mask import Indices, View
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view
from tests.support.refusals import refused


def line(values: list[float]) -> list[nn.Module]:
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data = torch.tensor([values])
    return [layer]


def keeping(*places: int) -> list[float]:
    """Eight weights of which the four at `places` are the largest."""
    return [2.0 if place in places else 1.0 for place in range(8)]


def epochs(method: EarlyBird, masks: list[tuple[int, ...]]) -> list[Indices | None]:
    return [method.draw(whole_view(line(keeping(*places)), sparsity=0.5)) for places in masks]


def test_newest_mask_is_drawn_when_near_to_the_window() -> None:
    far, near, same = (0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 4)  # far and same are 0.25 apart
    for settings, masks, after in (
        ({"window": 3, "distance": 0.1}, [far, near, near, near], 4),
        ({"window": 2}, [far, far], 2),  # a window that is not full decides nothing
        ({"window": 3}, [far, far, far], 3),
        ({"window": 5}, [far, far, far, far, far], 5),
        ({"window": 2, "distance": 0.25}, [far, same], None),  # a distance that is met exactly is not below
        ({"window": 2, "distance": 0.26}, [far, same], 2),
        ({"window": 3, "latest": 3}, [far, near, far], 3),
        ({"latest": 1}, [far], 1),
    ):
        drawn = epochs(EarlyBird(1, **settings), masks)
        assert [one is not None for one in drawn] == [number == after for number in range(1, len(masks) + 1)], settings
        if after:
            assert drawn[-1][0, "weight"].tolist() == list(masks[-1])


@pytest.mark.parametrize(("scope", "stages"), [("global", 3), ("layer", 2)])
def test_every_grid_draws_the_same_ticket_after_the_same_epoch(stages: int, scope: str) -> None:
    """The weights of three layers after eight epochs, which move less and less."""
    torch.manual_seed(1)
    layers = [nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False), nn.Linear(12, 4, bias=False)]
    start = [layer.weight.detach().clone() for layer in layers]
    masters = [[w + torch.randn_like(w) * 0.2 / 4**epoch for w in start] for epoch in range(8)]

    def draw(method: EarlyBird, view: View) -> tuple[int, Indices | None, list[float]]:
        for epoch, weights in enumerate(masters):
            now = replace(view, weight=lambda key, weights=weights: weights[key[0]])
            ticket = method.draw(now)
            if ticket is not None:
                return epoch, ticket, method.distances
        return len(masters), None, method.distances

    def new_search() -> EarlyBird:
        return EarlyBird(1, window=3, distance=0.02, scope=scope)

    epoch, alone, distances = draw(new_search(), whole_view(layers, sparsity=0.5))
    assert 2 < epoch < len(masters)
    assert max(distances) >= 0.02 > distances[-1]
    parts = draw_on_stages(new_search, layers, stages, draw, sparsity=0.5)
    assert equal_masks(join_masks([ticket for _, ticket, _ in parts]), alone)
    assert all((last, each) == (epoch, distances) for last, _, each in parts)


def test_restored_search_continues_as_if_uninterrupted() -> None:
    masks = [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 5, 4), (0, 1, 5, 6), (0, 1, 5, 7), (1, 2, 5, 6)]  # none is near
    whole, first, second = (EarlyBird(1, window=3, distance=0.1, latest=6) for _ in range(3))
    expected = epochs(whole, masks)
    epochs(first, masks[:4])
    second.load_state_dict(first.state_dict())
    last, ticket = epochs(second, masks[4:])
    assert (last, second.distances) == (None, whole.distances)
    assert equal_masks(ticket, expected[-1])


class Bottleneck(nn.Module):
    """Two convolutions with norms, a shortcut with one, a norm of its own, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm_1 = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3)
        self.relu = nn.ReLU()
        self.norm_2 = nn.BatchNorm2d(3)  # follows no convolution
        self.second, self.norm_3 = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.shortcut = nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.wide = nn.Linear(4, 4)


def test_pruned_channel_includes_scale_shift_and_rows() -> None:
    layer = Bottleneck()
    for name, values in (("norm_1", [1.0, -5.0, 4.0]), ("norm_3", [3.0, 0.1, 0.2, -2.0]), ("norm_2", [9.0, 9.0, 9.0])):
        layer.get_submodule(name).weight.data = torch.tensor(values)
    layer.shortcut[1].weight.data = torch.tensor([0.3, 0.4, 6.0, 0.5])
    ticket = EarlyBird(1, latest=1, kind="channels").draw(whole_view([layer], sparsity=1 - 5 / 11))
    expected = {
        "norm_1.weight": [1, 2],
        "norm_1.bias": [1, 2],
        "first.weight": list(range(18, 54)),  # rows of 2 * 3 * 3
        "norm_3.weight": [0, 3],
        "norm_3.bias": [0, 3],
        "second.weight": [0, 1, 2, 9, 10, 11],  # rows of 3
        "shortcut.1.weight": [2],
        "shortcut.1.bias": [2],
        "shortcut.0.weight": [4, 5],
    }
    assert {key[1]: index.tolist() for key, index in ticket.items()} == expected
    assert all(index.dtype == torch.int32 for index in ticket.values())


def test_masks_that_leave_nothing_are_refused() -> None:
    layer = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    layer[1].weight.data = torch.tensor([0.1, 0.2])
    with refused(InvalidRequest, subject="weight 1.weight of layer 0 has 2 entries"):
        EarlyBird(1, latest=1, kind="channels").draw(whole_view([layer], sparsity=0.5))
    layers = [*line([2.0, 2.0]), *line([1.0, 1.0])]
    method = EarlyBird(1, window=2)
    assert method.draw(whole_view(layers, sparsity=0.5)) is None
    with refused(InvalidRequest, subject="weight of layer 1 has 2 entries"):
        method.draw(whole_view(layers, sparsity=0.5))

    def look(method: EarlyBird, view: View) -> str:
        with pytest.raises(InvalidRequest) as refusal:
            method.draw(view)
        return str(refusal.value)

    for kind, bare in (("channels", nn.Linear(2, 2)), ("weights", nn.LayerNorm(2))):
        for reason in draw_on_stages(lambda kind=kind: EarlyBird(1, kind=kind), [bare, bare], 2, look):
            assert f"no stage has {kind} to prune" in reason
