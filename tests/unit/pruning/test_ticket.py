"""Masks: prunable weights, refusals, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.units import most_sparse
from suite.models.gpt import layers
from suite.pruning.mask import (
    Indices,
    View,
    check_index,
    check_some,
    density,
    kept_count,
    load,
    prunable,
    save,
)
from suite.pruning.random import RandomMask
from suite.workload import Transformer
from tests.support.masks import draw_on_stages, equal_masks, whole_view
from tests.support.refusals import refused

KEY = (3, "qkv.weight")
SHAPE = Transformer(layers=1, hidden=8, heads=2, sequence=4, vocabulary=11)


def index(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def names(layer: nn.Module, what: str = "weights") -> list[str]:
    return list(prunable(layer, what))


# -- what may be pruned ----------------------------------------------------------------------------------------------


def test_only_the_four_matrices_of_a_block_are_prunable() -> None:
    embedding, block, head = (make() for make in layers(SHAPE))
    assert names(embedding) == []
    assert names(block) == ["qkv.weight", "project.weight", "widen.weight", "narrow.weight"]
    head.prunable = False
    assert names(head) == []


def test_convolutions_give_their_kernels_and_norms_and_biases_stay() -> None:
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 2), nn.LayerNorm(2), nn.Embedding(5, 2))
    assert names(layer) == ["0.weight", "2.weight"]


def test_scope_all_is_every_trained_weight() -> None:
    layer = nn.Sequential(nn.Linear(3, 2), nn.Embedding(5, 2), nn.LayerNorm(2))
    layer.prunable = False
    layer[0].weight.requires_grad_(False)
    assert names(layer, "all") == ["0.bias", "1.weight", "2.weight", "2.bias"]
    with refused(UnknownName, "what", "weight", legal="did you mean 'weights'?"):
        names(layer, "weight")


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
    projections = [f"other.{name}_proj_weight" for name in "qkv"]
    expected = ["one.in_proj_weight", "one.out_proj.weight", *projections, "other.out_proj.weight", "wide.weight"]
    assert names(Attending()) == expected


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 1.0, 1.5, -0.1, float("nan"), float("inf"), True, "0.9"], ids=repr)
def test_a_sparsity_that_is_no_share_below_one_is_refused(sparsity: float) -> None:
    with refused(InvalidRequest, "sparsity", str(sparsity), rule="at least 0 and below 1", legal="sparsity=0.9"):
        kept_count(KEY, 100, sparsity)


def test_as_many_stay_as_the_nearest_whole_number() -> None:
    assert [kept_count(KEY, 100, sparsity) for sparsity in (0, 0.0, 0.25, 0.899, 0.9, 0.99)] == [
        100,
        100,
        75,
        10,
        10,
        1,
    ]


def test_emptied_weight_is_refused_with_a_legal_sparsity() -> None:
    with refused(
        InvalidRequest,
        subject="weight qkv.weight of layer 3 of 4 entries",
        rule="at least one entry",
        legal="sparsity=0.75",
    ):
        kept_count(KEY, 4, 0.9)
    assert kept_count(KEY, 4, 0.75) == 1
    with refused(
        InvalidRequest, subject="qkv.weight of layer 3 without kept entries", rule="at least one entry is kept"
    ):
        check_index(KEY, index(), 4)


@pytest.mark.parametrize("entries", [1, 2, 3, 7, 24, 1000, 999_999, 10**7, 3 * 10**8, 2**31 - 1])
def test_the_sparsity_that_would_do_leaves_one_entry(entries: int) -> None:
    sparsities = most_sparse(entries)
    assert kept_count(KEY, entries, float(sparsities)) == 1
    if entries > 1:
        with refused(InvalidRequest, legal=f"sparsity={sparsities}"):
            kept_count(KEY, entries, 1 - 0.4 / entries)


def test_model_without_prunable_weights_is_refused_on_every_stage() -> None:
    def refusal(_: object, view: View) -> str:
        try:
            check_some(view)
        except InvalidRequest as error:
            return str(error)
        return ""

    layers = [nn.Embedding(4, 3), nn.Linear(3, 3)]
    assert draw_on_stages(RandomMask, layers, 2, refusal) == ["", ""]
    none = draw_on_stages(RandomMask, [nn.Embedding(4, 3), nn.LayerNorm(3)], 2, refusal)
    assert len(none) == 2
    assert all("no stage has a weight to prune" in reason and "weights that may be pruned" in reason for reason in none)


def test_weight_above_int32_indices_is_refused() -> None:
    vast = torch.empty(1, dtype=torch.bfloat16).expand(2**16, 2**15)  # one entry that stands in for all
    with refused(
        InvalidRequest, subject="layer 3 of 2147483648 entries", rule="2^31 entries, the range of a 32-bit index"
    ):
        kept_count(KEY, vast.numel(), 0.5)
    with refused(InvalidRequest, rule="2^31"):
        check_index(KEY, index(0), 2**31)
    assert kept_count(KEY, 2**31 - 1, 0.5) == 2**30
    check_index(KEY, index(2**31 - 2), 2**31 - 1)


def test_method_refuses_an_oversized_weight_before_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("8 GiB of places")

    monkeypatch.setattr(torch, "randperm", draws)
    with torch.device("meta"):
        layer = nn.Linear(2**16, 2**15, bias=False)
    with refused(InvalidRequest, subject="weight weight of layer 0 of 2147483648 entries", rule="2^31"):
        RandomMask().draw(whole_view([layer]))


@pytest.mark.parametrize(("places", "beyond"), [((0, 4), 4), ((4,), 4), ((-1, 2), -1), ((0, 2, 9), 9)])
def test_an_index_beyond_its_weight_is_refused_with_the_place(places: tuple[int, ...], beyond: int) -> None:
    with refused(InvalidRequest, subject=f"qkv.weight of layer 3: index {beyond} of 4 entries", rule="from 0 to 3"):
        check_index(KEY, index(*places), 4)


@pytest.mark.parametrize("places", [(0, 0), (2, 1), (0, 3, 1, 4)], ids=str)
def test_an_index_that_does_not_rise_is_refused(places: tuple[int, ...]) -> None:
    with refused(
        InvalidRequest,
        subject="qkv.weight of layer 3: the index is not sorted",
        rule="each entry once, in rising order",
    ):
        check_index(KEY, index(*places), 10)


WRONG = [torch.tensor([0, 1]), torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([0.0])]


@pytest.mark.parametrize("wrong", WRONG, ids=["int64", "two dimensions", "float"])
def test_an_index_that_is_not_flat_int32_is_refused(wrong: torch.Tensor) -> None:
    with refused(InvalidRequest, subject="qkv.weight of layer 3: the index has", rule="one-dimensional int32"):
        check_index(KEY, wrong, 4)


def test_an_index_that_is_no_tensor_is_refused() -> None:
    with refused(InvalidRequest, subject="qkv.weight of layer 3: the index is a list", rule="one-dimensional int32"):
        check_index(KEY, [0, 1], 4)  # type: ignore[arg-type]


def test_a_good_index_passes() -> None:
    for places in ((0,), (3,), (0, 1, 2, 3), (1, 3)):
        check_index(KEY, index(*places), 4)


# -- files -----------------------------------------------------------------------------------------------------------

TICKET: Indices = {KEY: index(0, 2), (11, "deep.inside.weight"): index(1, 3, 5)}
ENTRIES = {KEY: 4, (11, "deep.inside.weight"): 6}


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.ticket"
    save(path, TICKET, {**ENTRIES, (12, "dense"): 9})
    indices, entries = load(path)
    assert equal_masks(indices, TICKET)
    assert entries == ENTRIES


def test_the_share_that_stays_is_that_of_what_was_pruned() -> None:
    assert density(TICKET, {**ENTRIES, (12, "dense"): 90}) == 0.5


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "other tensors", "one byte"])
def test_a_damaged_file_is_refused_by_its_path(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.ticket"
    save(path, TICKET, ENTRIES)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other tensors":
        from safetensors.torch import save_file

        save_file({"weight": torch.ones(3)}, path)
    elif damage == "one byte":  # of an index: 0, 2 becomes 0, 258
        path.write_bytes(content.replace(b"\x02\0\0\0", b"\x02\x01\0\0"))
    else:
        path.write_bytes({"empty": b"", "text": b"no ticket", "cut": content[:-4]}[damage])
    subject = "index 258 of 4 entries" if damage == "one byte" else "a.ticket holds no mask"
    with refused(InvalidRequest, subject=subject):
        load(path)


@pytest.mark.parametrize(
    ("named", "sized", "words"),
    [
        ((3,), (), "an index without the size of weight w of layer 3"),
        ((3,), (3, 4), "a size without an index of weight w of layer 4"),
        ((), (), "no index"),
    ],
    ids=["no size", "no index of one", "no index"],
)
def test_file_with_inconsistent_indices_and_sizes_is_refused(
    tmp_path: Path, named: tuple[int, ...], sized: tuple[int, ...], words: str
) -> None:
    from safetensors.torch import save_file

    sizes = json.dumps({f"{number}/w": 4 for number in sized})
    save_file({f"{number}/w": index(0, 2) for number in named}, tmp_path / "a.ticket", {"entries": sizes})
    with refused(InvalidRequest, subject=f"a.ticket holds no mask ({words})"):
        load(tmp_path / "a.ticket")


def test_interrupted_save_leaves_the_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import torch as format_

    path = tmp_path / "a.ticket"
    save(path, TICKET, ENTRIES)

    def halfway(_: object, target: Path, __: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(format_, "save_file", halfway)
    with pytest.raises(OSError, match="full"):
        save(path, {KEY: index(1)}, ENTRIES)
    assert equal_masks(load(path)[0], TICKET)
    assert list(tmp_path.iterdir()) == [path]
