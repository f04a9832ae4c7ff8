"""Masks from files on every grid, and refusal of another model's mask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.pruning.early_bird import EarlyBird
from suite.pruning.from_file import Saved
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, save
from suite.pruning.random import RandomMask
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view
from tests.support.refusals import refused


def network(wide: int = 6, layers: int = 4) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(wide, wide), nn.Tanh()) for _ in range(layers)]


def saved_ticket(path: Path, layers: list[nn.Module], method: Magnitude | EarlyBird) -> Indices:
    ticket = method.draw(whole_view(layers, sparsity=0.5))
    assert ticket is not None
    save(path, ticket, {key: layers[key[0]].get_parameter(key[1]).numel() for key in ticket})
    return ticket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ticket"


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_grid_takes_its_own_part(path: Path, stages: int) -> None:
    layers = network()
    ticket = saved_ticket(path, layers, Magnitude())
    parts = draw_on_stages(lambda: Saved(str(path)), layers, stages)
    assert equal_masks(join_masks(parts), ticket)
    assert all(len(part) == 4 // stages for part in parts)
    assert [batches for batches in range(50) if Saved(str(path)).draws_after(batches)] == [0]


@pytest.mark.parametrize("stages", [1, 2])
def test_channel_mask_is_restored_with_the_rest_dense(path: Path, stages: int) -> None:
    """The last linear layer may be on a stage of its own, of which the ticket names nothing."""
    layers = [nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)), nn.Linear(4, 4)]
    nn.init.normal_(layers[0][1].weight)
    ticket = saved_ticket(path, layers, EarlyBird(1, latest=1, kind="channels"))
    assert {key[0] for key in ticket} == {0}
    assert equal_masks(join_masks(draw_on_stages(lambda: Saved(str(path)), layers, stages)), ticket)


def test_extra_entries_do_not_make_a_channel_mask(path: Path) -> None:
    layers = [nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)), nn.Linear(4, 4)]
    ticket = RandomMask().draw(whole_view(layers, what="all"))
    entries = {key: layers[key[0]].get_parameter(key[1]).numel() for key in ticket}
    ticket[0, "1.bias"] = ticket[0, "1.weight"]  # as by chance
    del ticket[1, "weight"]
    save(path, ticket, entries)
    with refused(InvalidRequest, subject="no index of weight weight of layer 1"):
        Saved(str(path)).draw(whole_view(layers))


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_a_ticket_of_another_sparsity_is_refused_with_its_own(path: Path, scope: str) -> None:
    layers = network()
    saved_ticket(path, layers, Magnitude(scope))
    Saved(str(path)).draw(whole_view(layers, sparsity=0.5))
    with refused(InvalidRequest, subject="mask of sparsity 0.5", legal="sparsity=0.5"):
        Saved(str(path)).draw(whole_view(layers, sparsity=0.3))


def test_rounding_explains_at_most_one_entry_per_weight(path: Path) -> None:
    layers = network(wide=5)  # 25 entries, of which 12 stay at a half
    for sizes, fits in (((11, 12, 12, 11), 0.5), ((11, 11, 12, 11), 0.55)):  # 4 and 5 less than 50
        state = {(n, "0.weight"): torch.arange(n, n + stays, dtype=torch.int32) for n, stays in enumerate(sizes)}
        save(path, state, dict.fromkeys(state, 25))
        assert len(Saved(str(path)).draw(whole_view(layers, sparsity=fits))) == 4
    with refused(InvalidRequest, legal="sparsity=0.55"):
        Saved(str(path)).draw(whole_view(layers))


def test_channels_are_counted_where_channels_were_asked_for(path: Path) -> None:
    """Half of the channels, and far from half of the entries: the wide convolution loses nearly all of its own."""
    layers = [nn.Sequential(nn.Conv2d(20, 9, 1), nn.BatchNorm2d(9), nn.Conv2d(9, 9, 1), nn.BatchNorm2d(9))]
    layers[0][1].weight.data = torch.linspace(0.1, 0.2, 9)
    layers[0][3].weight.data = torch.linspace(1.0, 2.0, 9)
    layers[0][1].weight.data[4] = 3.0
    ticket = saved_ticket(path, layers, EarlyBird(1, latest=1, kind="channels"))
    assert ticket[0, "1.weight"].numel() == 1
    assert equal_masks(Saved(str(path)).draw(whole_view(layers)), ticket)
    with refused(InvalidRequest, legal="sparsity=0.5"):
        Saved(str(path)).draw(whole_view(layers, sparsity=0.8))


def test_tied_weight_in_a_file_twice_counts_once(path: Path) -> None:
    layers = [nn.Linear(10, 10, bias=False) for _ in range(3)]
    layers[0].weight.data.fill_(1.0)  # the smallest weights are the tied ones: all go but the first row
    layers[0].weight.data[0] = 9.0
    layers[1].weight.data.fill_(5.0)
    layers[2].weight = layers[0].weight
    ticket = Magnitude("global").draw(whole_view(layers[:2], sparsity=0.45))
    ticket[2, "weight"] = ticket[0, "weight"]
    save(path, ticket, dict.fromkeys(ticket, 100))
    assert len(Saved(str(path)).draw(whole_view(layers, sparsity=0.45))) == 3
    with refused(InvalidRequest, subject="mask of sparsity 0.6"):
        Saved(str(path)).draw(whole_view(layers, sparsity=0.5))


@pytest.mark.parametrize(
    ("other", "subject"),
    [
        (network(wide=5), "weight 0.weight of layer 0 has 36 entries, in this model it has 25"),
        (network(layers=5), "no index of weight 0.weight of layer 4"),
        (network(layers=3), "prunes layer 3, and the last layer is 2"),
        ([nn.Linear(6, 6) for _ in range(4)], "prunes 0.weight of layer 0, which has no such weight"),
    ],
    ids=["another width", "more layers", "fewer layers", "other names"],
)
def test_a_ticket_of_another_model_is_refused(path: Path, other: list[nn.Module], subject: str) -> None:
    saved_ticket(path, network(), Magnitude())
    with refused(InvalidRequest, subject=subject):
        Saved(str(path)).draw(whole_view(other))
