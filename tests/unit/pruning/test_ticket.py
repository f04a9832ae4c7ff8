"""Masks: prunable weights, refusals, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import torch as format_
from torch import nn

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.units import most_sparse
from suite.models.gpt import layers
from suite.pruning.mask import Indices, View, check_index, check_some, density, kept_count, load, prunable, save
from suite.pruning.random import RandomMask
from suite.workload import Transformer
from tests.support.masks import draw_on_stages, equal_masks, whole_view
from tests.support.refusals import fault, refused

KEY = (3, "qkv.weight")
SHAPE = Transformer(layers=1, hidden=8, heads=2, sequence=4, vocabulary=11)


def index(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def names(layer: nn.Module, what: str = "weights") -> list[str]:
    return list(prunable(layer, what))


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


def test_scope_all_is_every_trained_weight() -> None:
    layer = nn.Sequential(nn.Linear(3, 2), nn.Embedding(5, 2), nn.LayerNorm(2))
    layer.prunable = False
    layer[0].weight.requires_grad_(False)
    assert names(layer, "all") == ["0.bias", "1.weight", "2.weight", "2.bias"]
    with refused(UnknownName, "what", "weight", legal="did you mean 'weights'?"):
        names(layer, "weight")


def test_kept_entries_are_the_nearest_whole_number_above_none() -> None:
    kept = [kept_count(KEY, 100, sparsity) for sparsity in (0, 0.0, 0.25, 0.899, 0.9, 0.99)]
    assert kept == [100, 100, 75, 10, 10, 1]
    for sparsity in (1, 1.0, 1.5, -0.1, float("nan"), float("inf"), True, "0.9"):
        with refused(InvalidRequest, "sparsity", str(sparsity), legal="sparsity=0.9"):
            kept_count(KEY, 100, sparsity)  # type: ignore[arg-type]
    with refused(InvalidRequest, subject="weight qkv.weight of layer 3 of 4 entries", legal="sparsity=0.75"):
        kept_count(KEY, 4, 0.9)
    for entries in (1, 2, 3, 7, 24, 1000, 999_999, 10**7, 3 * 10**8, 2**31 - 1):
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

    assert draw_on_stages(RandomMask, [nn.Embedding(4, 3), nn.Linear(3, 3)], 2, refusal) == ["", ""]
    none = draw_on_stages(RandomMask, [nn.Embedding(4, 3), nn.LayerNorm(3)], 2, refusal)
    assert len(none) == 2
    assert all("no stage has a weight to prune" in reason for reason in none)


def test_weight_above_int32_indices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(InvalidRequest, subject="layer 3 of 2147483648 entries"):
        kept_count(KEY, 2**31, 0.5)
    with refused(InvalidRequest, rule="2^31"):
        check_index(KEY, index(0), 2**31)
    assert kept_count(KEY, 2**31 - 1, 0.5) == 2**30
    check_index(KEY, index(2**31 - 2), 2**31 - 1)

    def draws(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("8 GiB of places")

    monkeypatch.setattr(torch, "randperm", draws)
    with torch.device("meta"):
        layer = nn.Linear(2**16, 2**15, bias=False)
    with refused(InvalidRequest, subject="weight weight of layer 0 of 2147483648 entries"):
        RandomMask().draw(whole_view([layer]))


def test_an_index_is_flat_rising_and_inside_its_weight() -> None:
    for places in ((0,), (3,), (0, 1, 2, 3), (1, 3)):
        check_index(KEY, index(*places), 4)
    for wrong, expected in (
        (index(0, 4), fault(subject="index 4 of 4 entries", rule="from 0 to 3")),
        (index(4), fault(subject="index 4 of 4 entries")),
        (index(-1, 2), fault(subject="index -1 of 4 entries")),
        (index(), fault(subject="without kept entries")),
        (index(0, 0), fault(subject="not sorted")),
        (index(2, 1), fault(subject="not sorted")),
        (index(0, 2, 1, 3), fault(subject="not sorted")),
        (torch.tensor([0, 1]), fault(subject="int64")),
        (torch.tensor([[0, 1]], dtype=torch.int32), fault(subject="2 dimensions")),
        ([0, 1], fault(subject="is a list")),
    ):
        with refused(InvalidRequest, **expected):
            check_index(KEY, wrong, 4)  # type: ignore[arg-type]


TICKET: Indices = {KEY: index(0, 2), (11, "deep.inside.weight"): index(1, 3, 5)}
ENTRIES = {KEY: 4, (11, "deep.inside.weight"): 6}


def test_a_file_gives_back_the_saved_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "a.ticket"
    save(path, TICKET, {**ENTRIES, (12, "dense"): 9})
    indices, entries = load(path)
    assert equal_masks(indices, TICKET)
    assert entries == ENTRIES
    assert density(TICKET, {**ENTRIES, (12, "dense"): 90}) == 0.5

    def halfway(_: object, target: Path, __: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(format_, "save_file", halfway)
    with pytest.raises(OSError, match="full"):
        save(path, {KEY: index(1)}, ENTRIES)
    assert equal_masks(load(path)[0], TICKET), "an interrupted save leaves the existing file"
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_file_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.ticket"
    save(path, TICKET, ENTRIES)
    content = path.read_bytes()
    for damaged, subject in (
        (b"", "a.ticket holds no mask"),
        (b"no ticket", "a.ticket holds no mask"),
        (content[:-4], "a.ticket holds no mask"),
        (content.replace(b"\x02\0\0\0", b"\x02\x01\0\0"), "index 258 of 4 entries"),
    ):
        path.write_bytes(damaged)
        with refused(InvalidRequest, subject=subject):
            load(path)
    path.unlink()
    with refused(InvalidRequest, subject="a.ticket holds no mask"):
        load(path)
    for named, sized, words in (
        ((3,), (), "an index without the size of weight w of layer 3"),
        ((3,), (3, 4), "a size without an index of weight w of layer 4"),
        ((), (), "no index"),
    ):
        sizes = json.dumps({f"{number}/w": 4 for number in sized})
        format_.save_file({f"{number}/w": index(0, 2) for number in named}, path, {"entries": sizes})
        with refused(InvalidRequest, subject=f"a.ticket holds no mask ({words})"):
            load(path)
