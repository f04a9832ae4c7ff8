"""Masks: prunable weights, refusals, files, and masks from files on every grid."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import torch as format_
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.units import most_sparse
from suite.engine.optim.optimizer import AdamW
from suite.engine.pruning.settings import Pruning
from suite.models.gpt import layers
from suite.pruning.early_bird import EarlyBird
from suite.pruning.from_file import Saved
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, check_index, density, kept_count, load, prunable, save
from suite.pruning.random import RandomMask
from suite.workload import Transformer
from tests.support.cases import gpt_case
from tests.support.masked import FixedMask, random_mask
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view
from tests.support.refusals import refused
from tests.support.resuming import trained

KEY = (3, "qkv.weight")
SHAPE = Transformer(layers=1, hidden=8, heads=2, sequence=4, vocabulary=11)


def index(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def names(layer: nn.Module, scope: str = "weights") -> list[str]:
    return list(prunable(layer, scope))


class Attending(nn.Module):
    """Attention, a table of positions of its own, and a head whose matrix is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4, 6))
        self.head = nn.Linear(6, 5, bias=False)
        self.token = nn.Embedding(5, 6)
        self.token.weight = self.head.weight
        self.bag = nn.EmbeddingBag(5, 6)
        self.one, self.other = nn.MultiheadAttention(6, 2), nn.MultiheadAttention(6, 2, kdim=3, vdim=4)
        self.wide = nn.Conv1d(2, 3, 1)


def test_prunable_weights_are_found_by_module_type() -> None:
    embedding, block, head = (make() for make in layers(SHAPE))
    assert names(embedding) == []
    assert names(block) == ["qkv.weight", "project.weight", "widen.weight", "narrow.weight"]
    head.prunable = False
    assert names(head) == []
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 2), nn.LayerNorm(2), nn.Embedding(5, 2))
    assert names(layer) == ["0.weight", "2.weight"]
    projections = [f"other.{name}_proj_weight" for name in "qkv"]
    expected = ["one.in_proj_weight", "one.out_proj.weight", *projections, "other.out_proj.weight", "wide.weight"]
    assert names(Attending()) == expected


def test_kept_entries_are_the_nearest_whole_number_above_none() -> None:
    kept = [kept_count(KEY, 100, sparsity) for sparsity in (0, 0.0, 0.25, 0.899, 0.9, 0.99)]
    assert kept == [100, 100, 75, 10, 10, 1]
    for sparsity in (1, 1.0, 1.5, -0.1, float("nan"), float("inf"), True, "0.9"):
        with refused(InvalidRequest, "sparsity", str(sparsity), legal="sparsity=0.9"):
            Pruning(RandomMask(), sparsity)  # type: ignore[arg-type]
    with refused(InvalidRequest, subject="weight qkv.weight of layer 3 of 4 entries", legal="sparsity=0.75"):
        kept_count(KEY, 4, 0.9)
    for entries in (1, 2, 3, 7, 24, 1000, 999_999, 10**7, 3 * 10**8, 2**31 - 1):
        sparsities = most_sparse(entries)
        assert kept_count(KEY, entries, float(sparsities)) == 1
        if entries > 1:
            with refused(InvalidRequest, legal=f"sparsity={sparsities}"):
                kept_count(KEY, entries, 1 - 0.4 / entries)


def test_an_index_is_flat_rising_and_inside_its_weight() -> None:
    for places in ((0,), (3,), (0, 1, 2, 3), (1, 3)):
        check_index(KEY, index(*places), 4)
    outside, unsorted = (index(0, 4), index(4), index(-1, 2)), (index(0, 0), index(2, 1), index(0, 2, 1, 3))
    other = (index(), torch.tensor([0, 1]), torch.tensor([[0, 1]], dtype=torch.int32), [0, 1])
    for wrong in (*outside, *unsorted, *other):
        with refused(InvalidRequest, subject="weight qkv.weight of layer 3", rule="from 0 to 3, in rising order"):
            check_index(KEY, wrong, 4)  # type: ignore[arg-type]


TICKET: Indices = {KEY: index(0, 2), (11, "deep.inside.weight"): index(1, 3, 5)}
ENTRIES = {KEY: 4, (11, "deep.inside.weight"): 6}


def test_a_file_gives_back_the_saved_mask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.ticket"
    save(path, TICKET, {**ENTRIES, (12, "dense"): 9})
    indices, entries = load(path)
    assert equal_masks(indices, TICKET)
    assert entries == ENTRIES
    assert density(TICKET, {**ENTRIES, (12, "dense"): 90}) == 0.5


def test_a_damaged_file_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.ticket"
    save(path, TICKET, ENTRIES)
    content = path.read_bytes()
    for damaged, subject in (
        (content[:-4], "a.ticket holds no mask"),
        (content.replace(b"\x02\0\0\0", b"\x02\x01\0\0"), "weight qkv.weight of layer 3"),
    ):
        path.write_bytes(damaged)
        with refused(InvalidRequest, subject=subject):
            load(path)
    path.unlink()
    with refused(InvalidRequest, subject="a.ticket holds no mask"):
        load(path)
    for metadata in ({}, {"entries": json.dumps({"3/w": 4, "4/w": 4})}):
        format_.save_file({"3/w": index(0, 2)}, path, metadata)
        with refused(InvalidRequest, subject="a.ticket holds no mask"):
            load(path)


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


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_a_ticket_of_another_sparsity_is_refused_with_its_own(path: Path, scope: str) -> None:
    layers = network()
    saved_ticket(path, layers, Magnitude(scope))
    Saved(str(path)).draw(whole_view(layers, sparsity=0.5))
    with refused(InvalidRequest, subject="mask of sparsity 0.5", legal="sparsity=0.5"):
        Saved(str(path)).draw(whole_view(layers, sparsity=0.3))


@pytest.mark.parametrize(
    ("other", "subject"),
    [
        (network(wide=5), "36 entries of weight 0.weight of layer 0, and this model has 25 entries"),
        (network(layers=5), "none of weight 0.weight of layer 4, and this model has 36 entries"),
        (network(layers=3), "36 entries of weight 0.weight of layer 3, and this model has none"),
        ([nn.Linear(6, 6) for _ in range(4)], "weight 0.weight of layer 0, and this model has none"),
    ],
    ids=["another width", "more layers", "fewer layers", "other names"],
)
def test_a_ticket_of_another_model_is_refused(path: Path, other: list[nn.Module], subject: str) -> None:
    saved_ticket(path, network(), Magnitude())
    with refused(InvalidRequest, subject=subject):
        Saved(str(path)).draw(whole_view(other))


def test_mask_of_a_checkpoint_moves_from_two_stages_to_one(tmp_path: Path) -> None:
    case = gpt_case("tied", "float32", layers=2)
    indices = random_mask(case, 0.75)
    run = partial(trained, case, batches=range(1), optimizer=AdamW(0.01))
    pruning = Pruning(FixedMask(indices), 0.75)
    threads.run(2, lambda world: run(world=world, grid=Grid(inter=2), save=tmp_path, pruning=pruning))
    loaded, entries = load(tmp_path / "step-000001")
    assert equal_masks(loaded, indices)
    assert set(entries.values()) == {16 * 48, 16 * 16, 16 * 64}
    checkpoint = Pruning(Saved(str(tmp_path / "step-000001")), 0.75)
    threads.run(1, lambda world: run(world=world, grid=Grid(), pruning=checkpoint))
    with refused(InvalidRequest, subject="holds no mask", rule="a checkpoint of a pruned network"):
        load(tmp_path)
