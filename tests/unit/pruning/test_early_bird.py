"""Early-bird tickets: hand-computed distances, and channel masks."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from suite.config.compose import resolve
from suite.core.errors import InvalidRequest, UnknownName
from suite.models import gpt
from suite.pruning.early_bird import EarlyBird, differing, followed, packed
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, View
from suite.workload import Transformer
from tests.support.masks import draw_on_stages, equal_masks, join_masks, whole_view
from tests.support.refusals import fault, refused


def line(values: list[float]) -> list[nn.Module]:
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data = torch.tensor([values])
    return [layer]


def keeping(*places: int) -> list[float]:
    """Eight weights of which the four at `places` are the largest."""
    return [2.0 if place in places else 1.0 for place in range(8)]


def epochs(method: EarlyBird, masks: list[tuple[int, ...]]) -> list[Indices | None]:
    return [method.draw(whole_view(line(keeping(*places)), sparsity=0.5)) for places in masks]


# -- distances -------------------------------------------------------------------------------------------------------


def test_distances_are_those_of_masks_compared_by_hand() -> None:
    method = EarlyBird(1, window=3, distance=0.01)
    epochs(method, [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 5, 4), (0, 1, 5, 4), (0, 1, 5, 6)])
    # one place that goes and one that comes are two of eight; from the third on the largest of two comparisons
    assert method.distances == [2 / 8, 4 / 8, 2 / 8, 2 / 8]


def test_newest_mask_is_drawn_when_near_to_the_window() -> None:
    far, near = (0, 1, 2, 3), (4, 5, 6, 7)
    drawn = epochs(EarlyBird(1, window=3, distance=0.1), [far, near, near, near])
    assert drawn[:3] == [None, None, None]
    assert drawn[3][0, "weight"].tolist() == list(near)


def test_a_window_that_is_not_full_decides_nothing() -> None:
    same_mask = (0, 1, 2, 3)
    for window in (2, 3, 5):
        drawn = epochs(EarlyBird(1, window=window), [same_mask] * window)
        assert [one is None for one in drawn] == [True] * (window - 1) + [False]


def test_a_distance_that_is_met_exactly_is_not_below() -> None:
    masks = [(0, 1, 2, 3), (0, 1, 2, 4)]  # 0.25 apart
    assert epochs(EarlyBird(1, window=2, distance=0.25), masks)[1] is None
    assert epochs(EarlyBird(1, window=2, distance=0.26), masks)[1] is not None


def test_newest_mask_is_drawn_after_the_latest_epoch() -> None:
    far, near = (0, 1, 2, 3), (4, 5, 6, 7)
    drawn = epochs(EarlyBird(1, window=3, latest=3), [far, near, far])
    assert drawn[:2] == [None, None]
    assert drawn[2][0, "weight"].tolist() == list(far)
    first = epochs(EarlyBird(1, latest=1), [far])
    assert first[0][0, "weight"].tolist() == list(far)


@pytest.mark.parametrize("entries", [1, 7, 8, 9, 1000])
def test_packed_masks_differ_where_the_masks_do(entries: int) -> None:
    torch.manual_seed(entries)
    masks = [torch.rand(entries) < share for share in (0.3, 0.6)]
    first, second = (packed(mask.nonzero().flatten().to(torch.int32), entries) for mask in masks)
    assert differing(first, second) == int((masks[0] != masks[1]).sum())
    assert differing(first, first) == 0
    assert first.numel() * first.itemsize == math.ceil(entries / 8)  # bytes


def test_only_compared_masks_stay_in_memory() -> None:
    method = EarlyBird(1, window=3)
    masks = [(0, 1, 2, 3), (4, 5, 6, 7)] * 3
    for number, places in enumerate(masks):
        epochs(method, [places])
        assert len(method.before) == min(number + 1, 2)
    assert epochs(method, [masks[-1], masks[-1]])[1] is not None
    assert not method.before


def test_search_draws_after_each_epoch_but_not_before_training() -> None:
    assert [batches for batches in range(61) if EarlyBird(20).draws_after(batches)] == [20, 40, 60]


# -- training --------------------------------------------------------------------------------------------------------


def learner() -> tuple[list[nn.Module], Any]:
    """A small regression whose weights settle, an epoch at a time."""
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Linear(12, 16), nn.Linear(16, 12), nn.Linear(12, 4)]
    inputs = torch.randn(64, 12)
    targets = inputs @ torch.randn(12, 4)

    def epoch(rate: float) -> None:
        hidden = layers[1](torch.tanh(layers[0](inputs)))
        loss = (layers[2](torch.tanh(hidden)) - targets).square().mean()
        for layer in layers:
            layer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for layer in layers:
                for parameter in layer.parameters():
                    parameter.add_(parameter.grad, alpha=-rate)

    return layers, epoch


def trained(method: EarlyBird, view: View, layers: list[nn.Module], epoch: Any) -> tuple[Indices | None, list[float]]:
    for number in range(30):
        epoch(0.5 / (1 + number) ** 2)  # a falling rate, with which masks settle
        ticket = method.draw(view)
        if ticket is not None:
            return ticket, method.distances
    return None, method.distances


def test_masks_of_a_training_converge_to_the_ticket() -> None:
    layers, epoch = learner()
    view = whole_view(layers, sparsity=0.5)
    ticket, distances = trained(EarlyBird(1, window=4, distance=0.02), view, layers, epoch)
    assert ticket is not None
    assert max(distances[:3]) >= 0.02 > distances[-1]
    assert equal_masks(ticket, Magnitude("global").draw(view))


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("stages", [2, 3])
def test_every_grid_draws_the_same_ticket_after_the_same_epoch(stages: int, scope: str) -> None:
    def new_search() -> EarlyBird:
        return EarlyBird(1, window=4, distance=0.02, scope=scope)

    layers, epoch = learner()
    alone, distances = trained(new_search(), whole_view(layers, sparsity=0.5), layers, epoch)

    history, epoch = learner()
    masters = []
    for number in range(30):
        epoch(0.5 / (1 + number) ** 2)
        masters.append([layer.weight.detach().clone() for layer in history])

    def draw(method: EarlyBird, view: View) -> tuple[Indices | None, list[float]]:
        for weights in masters:
            now = View(view.layers, lambda key, w=weights: w[key[0]], view.keys, 0.5, 0, view.total, view.stage, stages)
            ticket = method.draw(now)
            if ticket is not None:
                return ticket, method.distances
        return None, method.distances

    tickets = draw_on_stages(new_search, history, stages, draw)
    assert equal_masks(join_masks([ticket for ticket, _ in tickets]), alone)
    assert all(told == distances for _, told in tickets)


def test_restored_search_continues_as_if_uninterrupted() -> None:
    masks = [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 5, 4), (0, 1, 5, 6), (0, 1, 5, 7), (1, 2, 5, 6)]  # none is near

    def new_search() -> EarlyBird:
        return EarlyBird(1, window=3, distance=0.1, latest=6)

    whole_search = new_search()
    expected = epochs(whole_search, masks)
    assert [one is None for one in expected] == [True] * 5 + [False]
    for stop in range(6):
        first, second = new_search(), new_search()
        epochs(first, masks[:stop])
        second.load_state_dict(first.state_dict())
        continued = epochs(second, masks[stop:])
        assert second.distances == whole_search.distances
        assert [one is None for one in continued] == [one is None for one in expected[stop:]]
        assert equal_masks(continued[-1], expected[-1])


def test_a_search_by_other_settings_is_refused_before_anything_changes() -> None:
    def new_search(**told: Any) -> EarlyBird:
        return EarlyBird(**{"epoch": 4, "window": 3, **told})

    begun = new_search()
    epochs(begun, [(0, 1, 2, 3), (4, 5, 6, 7)])
    state = begun.state_dict()
    for told, expected in (
        ({"epoch": 5}, {"subject": "this engine's is 5", "legal": "EarlyBird(epoch=4)"}),
        ({"window": 5}, {"subject": "window=3), this engine's is 5"}),
        ({"kind": "channels"}, {"subject": "kind=weights), this engine's is channels"}),
        ({"scope": "layer"}, {"subject": "scope=global), this engine's is layer"}),
    ):
        other = new_search(**told)
        for reject in (other.check, other.load_state_dict):
            with refused(InvalidRequest, **expected):
                reject(state)
        assert (other.epochs, list(other.before), other.distances) == (0, [], [])
    later = new_search(distance=0.3, latest=9)  # when it ends may change
    later.check(state)
    assert later.epochs == 0
    later.load_state_dict(state)
    assert (later.epochs, later.distances) == (2, [1.0])


@pytest.mark.parametrize("name", ["epochs", "distances", "settings"])
def test_what_no_search_remembered_is_refused(name: str) -> None:
    state = EarlyBird(1).state_dict()
    del state[name]
    with refused(InvalidRequest, subject=f"without {name}"):
        EarlyBird(1).check(state)


def test_a_search_that_has_found_its_ticket_searches_anew() -> None:
    masks = [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]
    method = EarlyBird(1, window=2, distance=0.01, latest=3)
    first = epochs(method, masks)
    seen = method.distances
    assert seen == [1.0, 1.0]
    again = epochs(method, masks[:1])
    assert (method.distances, seen) == ([], [1.0, 1.0]), "what the record was given stays as it was"
    again += epochs(method, masks[1:])
    assert [one is None for one in first] == [one is None for one in again] == [True, True, False]
    assert method.distances == [1.0, 1.0]


def test_a_latest_that_is_past_already_ends_the_search() -> None:
    method = EarlyBird(1, window=4, latest=9)
    epochs(method, [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)])
    shorter = EarlyBird(1, window=4, latest=2)
    shorter.load_state_dict(method.state_dict())
    assert epochs(shorter, [(4, 5, 6, 7)])[0] is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device but the host")
def test_masks_of_a_device_wait_on_the_host() -> None:
    assert packed(torch.tensor([1], dtype=torch.int32, device="cuda"), 9).device.type == "cpu"


def test_named_scope_keeps_entries_of_gpt_projections() -> None:
    """They are drawn smaller than the rest by 1 / sqrt(2 * layers), below any threshold of the whole model."""
    overrides = ["system=axonn_samo", "pruning=early_bird", "pruning.ticket.latest=1"]
    search = resolve(overrides).pruning.ticket
    torch.manual_seed(3)
    blocks = [
        gpt.TransformerBlock(Transformer(layers=24, hidden=16, heads=2, sequence=4, vocabulary=11)) for _ in range(2)
    ]
    assert len(search.build().draw(whole_view(blocks, sparsity=0.9))) == 8
    with refused(
        InvalidRequest,
        subject="project.weight of layer 0",
        rule="each weight keeps at least one entry",
        legal="scope=layer",
    ):
        search.build(scope="global").draw(whole_view(blocks, sparsity=0.9))


# -- channels --------------------------------------------------------------------------------------------------------


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


def convolutional() -> list[nn.Module]:
    torch.manual_seed(2)
    layers: list[nn.Module] = [Bottleneck(), Bottleneck(), nn.Linear(4, 2)]
    for layer in layers[:2]:
        for module in layer.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight)
    return layers


def test_a_batch_norm_belongs_to_the_convolution_directly_before_it() -> None:
    layers = list(followed(Bottleneck()))
    assert layers == [("norm_1", "first"), ("norm_3", "second"), ("shortcut.1", "shortcut.0")]
    norms = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    apart = nn.Sequential(nn.Conv1d(2, 2, 1), nn.ReLU(), norms[0], nn.ConvTranspose1d(2, 2, 1), norms[1])
    assert not list(followed(apart))


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


def test_a_channel_that_went_is_zero_whatever_comes_in() -> None:
    torch.manual_seed(4)
    layer = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
    nn.init.normal_(layer[1].weight)
    nn.init.normal_(layer[1].bias)
    ticket = EarlyBird(1, latest=1, kind="channels").draw(whole_view([layer], sparsity=0.5))
    with torch.no_grad():
        for (_, name), index in ticket.items():
            flat = layer.get_parameter(name).data.reshape(-1)
            gone = torch.ones(flat.numel(), dtype=torch.bool)
            gone[index.long()] = False
            flat[gone] = 0
        out = layer(torch.randn(2, 3, 5, 5))
    stays = set(ticket[0, "1.weight"].tolist())
    assert len(stays) == 3
    assert all(bool(out[:, channel].any()) == (channel in stays) for channel in range(6))


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("stages", [2, 3])
def test_every_grid_draws_the_same_channels(stages: int, scope: str) -> None:
    def new_search() -> EarlyBird:
        return EarlyBird(1, latest=1, kind="channels", scope=scope)

    layers = convolutional()
    alone = new_search().draw(whole_view(layers, sparsity=0.3))
    assert equal_masks(join_masks(draw_on_stages(new_search, layers, stages, sparsity=0.3)), alone)
    assert len(alone) == 2 * 3 * 3


def test_distances_of_channels_count_channels() -> None:
    layer = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    method = EarlyBird(1, window=2, kind="channels", distance=0.01)
    for scales in ([4.0, 3.0, 2.0, 1.0], [4.0, 2.0, 3.0, 1.0]):
        layer[1].weight.data = torch.tensor(scales)
        method.draw(whole_view([layer], sparsity=0.5))
    assert method.distances == [2 / 4]


# -- refused ---------------------------------------------------------------------------------------------------------


def test_batch_norm_without_kept_channels_is_refused() -> None:
    layer = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    layer[1].weight.data = torch.tensor([0.1, 0.2])
    with refused(InvalidRequest, subject="weight 1.weight of layer 0 has 2 entries", rule="at least one entry"):
        EarlyBird(1, latest=1, kind="channels").draw(whole_view([layer], sparsity=0.5))


@pytest.mark.parametrize(
    ("kind", "layers", "words"),
    [
        (
            "channels",
            [nn.Linear(2, 2), nn.Linear(2, 2)],
            r"no stage has a weight to prune.*batch norms that directly follow.*kind=.weights.\)",
        ),
        ("weights", [nn.LayerNorm(2), nn.LayerNorm(2)], r"no stage has a weight to prune.*weights that may be pruned"),
    ],
)
def test_network_without_prunable_weights_is_refused_on_every_stage(
    kind: str, layers: list[nn.Module], words: str
) -> None:
    def look(method: EarlyBird, view: View) -> str:
        with pytest.raises(InvalidRequest) as refused:
            method.draw(view)
        return str(refused.value)

    reasons = draw_on_stages(lambda: EarlyBird(1, kind=kind), layers, 2, look)
    assert len(reasons) == 2
    assert all(re.search(words, one) for one in reasons)


def test_channels_on_one_stage_alone_are_enough() -> None:
    layers = [nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)), nn.Linear(4, 4)]
    nn.init.normal_(layers[0][1].weight)
    first, second = draw_on_stages(lambda: EarlyBird(1, latest=1, kind="channels"), layers, 2)
    assert len(first) == 3
    assert second == {}


def test_mask_that_empties_a_weight_is_refused_when_drawn() -> None:
    layers = [*line([2.0, 2.0]), *line([1.0, 1.0])]
    method = EarlyBird(1, window=2)
    assert method.draw(whole_view(layers, sparsity=0.5)) is None
    with refused(InvalidRequest, subject="weight of layer 1 has 2 entries", rule="at least one entry"):
        method.draw(whole_view(layers, sparsity=0.5))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"epoch": 0}, fault("epoch", "0", rule="at least 1")),
        ({"window": 1}, fault("window", "1", rule="at least 2")),
        ({"latest": 0}, fault("latest", "0", rule="at least 1")),
        ({"epoch": "two"}, fault("epoch", "two", rule="a whole number")),
        ({"epoch": None}, fault("epoch", "None", rule="a whole number")),
        ({"window": 2.5}, fault("window", "2.5", rule="a whole number")),
        ({"latest": True}, fault("latest", "True", rule="a whole number")),
        ({"distance": "near"}, fault("distance", "near")),
        ({"distance": True}, fault("distance", "True")),
        ({"distance": 0.0}, fault("distance", "0.0")),
        ({"distance": 1.5}, fault("distance", "1.5")),
        ({"kind": "channel"}, fault("kind", "channel", legal="did you mean 'channels'?")),
        ({"scope": "layers"}, fault("scope", "layers", legal="did you mean 'layer'?")),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_by_name(told: dict[str, Any], expected: dict[str, object]) -> None:
    with refused((InvalidRequest, UnknownName), **expected):
        EarlyBird(**{"epoch": 1, **told})
