"""Decides whether a ticket comes back from its file on every grid, and whether another model's is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tickets import drawn, joined, same, whole
from torch import nn

from suite.core.errors import Refused
from suite.pruning.early_bird import EarlyBird
from suite.pruning.magnitude import Magnitude
from suite.pruning.saved import Saved
from suite.pruning.ticket import Indices, save


def network(wide: int = 6, layers: int = 4) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(wide, wide), nn.Tanh()) for _ in range(layers)]


def kept(path: Path, layers: list[nn.Module], method: Magnitude | EarlyBird) -> Indices:
    ticket = method.draw(whole(layers, sparsity=0.5))
    assert ticket is not None
    save(path, ticket, {key: layers[key[0]].get_parameter(key[1]).numel() for key in ticket})
    return ticket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ticket"


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_grid_takes_its_own_part(path: Path, stages: int) -> None:
    layers = network()
    ticket = kept(path, layers, Magnitude())
    parts = drawn(lambda: Saved(str(path)), layers, stages)
    assert same(joined(parts), ticket)
    assert all(len(part) == 4 // stages for part in parts)


def test_a_ticket_drawn_by_channels_comes_back_and_leaves_the_rest_dense(path: Path) -> None:
    layers = [nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)), nn.Linear(4, 4)]
    nn.init.normal_(layers[0][1].weight)
    ticket = kept(path, layers, EarlyBird(1, latest=1, kind="channels"))
    assert same(Saved(str(path)).draw(whole(layers)), ticket)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (network(wide=5), "weight 0.weight of layer 0 has 36 entries, this model's 25"),
        (network(layers=5), "no index of weight 0.weight of layer 4"),
        (network(layers=3), "prunes layer 3, the last is 2"),
        ([nn.Linear(6, 6) for _ in range(4)], "prunes 0.weight of layer 0, which has none"),
    ],
    ids=["another width", "more layers", "fewer layers", "other names"],
)
def test_a_ticket_of_another_model_is_refused_by_what_differs(path: Path, other: list[nn.Module], words: str) -> None:
    kept(path, network(), Magnitude())
    with pytest.raises(Refused, match=words) as refused:
        Saved(str(path)).draw(whole(other))
    assert "a ticket of this model" in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_its_path(path: Path) -> None:
    with pytest.raises(Refused, match=r"a\.ticket holds no ticket"):
        Saved(str(path)).draw(whole(network()))


def test_it_is_read_before_the_first_batch_and_never_again(path: Path) -> None:
    assert [batches for batches in range(50) if Saved(str(path)).due(batches)] == [0]
