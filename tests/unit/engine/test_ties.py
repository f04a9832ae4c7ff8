"""Ties between any layers: every placement has the numbers of one rank, and those of one shared parameter.

Then masks and names of tied weights, and slices of the flat order without those of ties."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.engine.engine import Engine
from suite.engine.layers import Layer
from suite.engine.optim.optimizer import SGD
from suite.engine.optim.update import subtract
from suite.engine.pruning.settings import Pruning
from suite.memory.layout import offloaded
from suite.pruning.magnitude import Magnitude
from suite.schedule import MessageDriven
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from tests.support.drawn import cells, drawn
from tests.support.masked import FixedMask
from tests.support.refusals import fault, refused
from tests.support.small_engines import mse_loss, normal_batches, train_plainly


def test_subtract_returns_parts_outside_holes() -> None:
    for span, holes, rest in (
        ((0, 10), [], [(0, 10)]),
        ((0, 10), [(0, 10)], []),
        ((0, 10), [(3, 5)], [(0, 3), (5, 10)]),
        ((4, 8), [(0, 5), (7, 20)], [(5, 7)]),
        ((4, 8), [(0, 4), (8, 9)], [(4, 8)]),
        ((4, 8), [(0, 2), (9, 12)], [(4, 8)]),
        ((0, 9), [(1, 2), (4, 9)], [(0, 1), (2, 4)]),
        ((2, 6), [(0, 20)], []),
    ):
        assert subtract(slice(*span), [slice(*pair) for pair in holes]) == [slice(*pair) for pair in rest], (
            span,
            holes,
        )


LAYERS, WIDTH, MICROBATCHES, BATCHES = 8, 5, 4, 4
# two layers per stage on four ranks, and one per stage where each of the four ranks holds two stages
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one stage": [(2, 3)],
    "neighbours": [(1, 2)],
    "one rank of a V": [(0, 7), (2, 5)],
    "one rank of a loop": [(1, 5)],
    "three": [(1, 4, 6)],
    "crossing": [(0, 4), (2, 6)],
    "four": [(0, 2, 3, 7)],
    "three groups": [(0, 4), (2, 6), (1, 3, 5, 7)],
}
GRIDS = [Grid(inter=2), Grid(inter=4), Grid(inter=2, data=2)]
SCHEDULES: dict[str, Schedule] = {
    "message_driven": MessageDriven(),
    "one_f_one_b": OneFOneB(),
    "zbv": ZBV(),
    "interleaved": Staircase(chunks=2),
}
# arguments of an engine; the numbers of one rank depend on clip_norm, half and pruning
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "clip_norm": {"clip_norm": 0.5, "bucket_numel": 7, "buckets_per_reduction": 2},  # no step before the norm is known
    "half and clip_norm": {"half": "bfloat16", "clip_norm": 0.5},
    "buckets": {"bucket_numel": 7, "buckets_per_reduction": 2},
    "offload": {"bucket_numel": 7, "memory": partial(offloaded, bucket=7), "half": "bfloat16"},
    "overlapped offload": {"bucket_numel": 7, "buckets_per_reduction": 3, "memory": partial(offloaded, bucket=7)},
    "recomputation": {"activation_checkpointing": 1},
    "mask of each layer": {"pruning": Pruning(Magnitude(scope="layer"), sparsity=0.6)},
    "mask of the network": {"pruning": Pruning(Magnitude(scope="global"), sparsity=0.6)},
}


class Outcome(NamedTuple):
    """Losses of the batches and of an evaluation, and full-precision weights by their names in the model."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


def network(shape: str, dtype: torch.dtype = torch.float64, *, frozen: bool = False) -> list[nn.Module]:
    """Linear layers, of which each set of `shape` shares one weight."""
    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(LAYERS)]
    for first, *others in SHAPES[shape]:
        for other in others:
            layers[other].weight = layers[first].weight
        layers[first].weight.requires_grad_(not frozen)
    return list(layers)


def batches(dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 16 samples: one size for all grids."""
    data = normal_batches(BATCHES, 4 * MICROBATCHES, WIDTH, WIDTH, dtype)
    return [(inputs, 4 * targets) for inputs, targets in data]


def engine_of(layers: Sequence[Layer], world: LoopbackWorld, grid: Grid, name: str, **options: Any) -> Engine:
    usual = {"loss": mse_loss, "optimizer": SGD(0.1, momentum=0.9), "microbatch": 2}
    return Engine(copy.deepcopy(layers), grid=grid, schedule=SCHEDULES[name], world=world, **usual, **options)


def weights_of(engine: Engine) -> dict[str, torch.Tensor]:
    states = engine.state.model_states
    return {
        f"{number}.{name}": (states.export(weight)["weight"] if weight.requires_grad else weight.data).clone()
        for number, layer in engine.state.numbered_layers()
        for name, weight in layer.named_parameters(remove_duplicate=False)
    }


def run(layers: Sequence[Layer], grid: Grid, name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Outcome:
    """Train copies of the layers on the ranks of a grid, as threads."""
    data = batches(dtype)

    def rank(world: LoopbackWorld) -> Outcome:
        engine = engine_of(layers, world, grid, name, **options)
        losses = [*engine.train(data), engine.evaluate(data[:2])]
        weights = weights_of(engine)
        engine.close()
        return Outcome(losses, weights)

    outcomes = threads.run(grid.size, rank)
    assert all(outcome.losses == outcomes[0].losses for outcome in outcomes)
    return Outcome(outcomes[0].losses, {name: weight for one in outcomes for name, weight in one.weights.items()})


def dtype_of(option: str) -> torch.dtype:
    """In float64 the norm of several ranks differs from the norm of one rank by a rounding."""
    return torch.float64 if option == "none" else torch.float32


@cache
def on_one_rank(shape: str, replicas: int, option: str) -> Outcome:
    options = {name: value for name, value in OPTIONS[option].items() if name in ("clip_norm", "half", "pruning")}
    dtype = dtype_of(option)
    return run(network(shape, dtype), Grid(data=replicas), "one_f_one_b", dtype, **options)


def plain_torch(layers: list[nn.Module], clip_norm: float | None = None) -> Outcome:
    """Plain PyTorch with one shared parameter."""
    model, data = nn.Sequential(*layers), batches()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)

    def clip() -> None:
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, clip_norm)

    losses = train_plainly(model, optimizer, data, before_step=clip)
    with torch.no_grad():
        losses.append(sum(mse_loss(model(inputs), targets).item() for inputs, targets in data[:2]) / 2)
    return Outcome(losses, dict(model.named_parameters(remove_duplicate=False)))


def compare(got: Outcome, right: Outcome, within: float = 0.0) -> None:
    """By default every bit is equal."""
    assert got.losses == pytest.approx(right.losses, rel=within, abs=0)
    assert got.weights.keys() == right.weights.keys()
    for name, weight in right.weights.items():
        assert float((got.weights[name] - weight).detach().abs().max()) <= within, name


LARGE = ("four", "three groups")
MASKS = ("mask of each layer", "mask of the network")
WITH_OPTIONS = [
    *product(LARGE, GRIDS, ["message_driven", "zbv"], [option for option in OPTIONS if option not in MASKS]),
    *product(LARGE, GRIDS, ["message_driven"], MASKS),
]


@pytest.mark.parametrize(
    ("shape", "grid", "name", "option"),
    [
        *cells(SHAPES, GRIDS, SCHEDULES, ["none"], n=5, always=[("three groups", GRIDS[1], "zbv", "none")]),
        *drawn(WITH_OPTIONS, n=6, always=[("four", GRIDS[1], "zbv", "clip_norm"), WITH_OPTIONS[-1]]),
    ],
    ids=str,
)
def test_every_placement_has_the_numbers_of_one_rank(shape: str, grid: Grid, name: str, option: str) -> None:
    dtype = dtype_of(option)
    got = run(network(shape, dtype), grid, name, dtype, **OPTIONS[option])
    compare(got, on_one_rank(shape, grid.data, option))
    assert (got.weights[f"{SHAPES[shape][0][0]}.weight"] == 0).any() == (option in MASKS)


@pytest.mark.parametrize(
    ("shape", "replicas", "option"),
    cells(SHAPES, [1, 2], ["none", "clip_norm"], n=4, always=[("three groups", 2, "clip_norm"), ("four", 1, "none")]),
)
def test_one_rank_trains_like_one_shared_parameter(shape: str, replicas: int, option: str) -> None:
    got = run(network(shape), Grid(data=replicas), "one_f_one_b", **OPTIONS[option])
    compare(got, plain_torch(network(shape), OPTIONS[option].get("clip_norm")), within=1e-12)


# -- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", drawn([Grid(), *GRIDS], n=1, always=[GRIDS[1]]), ids=str)
def test_a_mask_in_training_prunes_all_ends(grid: Grid) -> None:
    """The method draws the mask of the first end, after two batches; the other ends have no mask of their own."""
    index = torch.tensor([1, 3, 4, 9, 20], dtype=torch.int32)
    pruning = Pruning(FixedMask({(0, "weight"): index, (1, "weight"): index + 1}, after=2), sparsity=0.8)
    got = run(network("four"), grid, "one_f_one_b", pruning=pruning, clip_norm=0.5)
    for end in SHAPES["four"][0]:
        assert got.weights[f"{end}.weight"].flatten().nonzero().flatten().tolist() == index.tolist()
    assert int((got.weights["4.weight"] == 0).sum()) == 0


@pytest.mark.parametrize(("ranks", "other"), cells([1, 2, 4], [2, 3, 7], n=2, always=[(4, 3)]))
def test_masks_that_differ_between_ends_raise_everywhere(ranks: int, other: int) -> None:
    index = torch.tensor([1, 3, 4], dtype=torch.int32)
    mask = {(number, "weight"): index + (number == other) for number in (0, 2, 3, 7)}
    layers = network("four")

    def rank(world: LoopbackWorld) -> None:
        engine = engine_of(layers, world, Grid(inter=world.size), "one_f_one_b")
        with refused(InvalidRequest, subject="tied=[(0, 'weight', 2, 'weight')", rule="all ends of a tied weight"):
            engine.prune(mask)
        engine.train_batch(batches()[0])
        engine.close()

    threads.run(ranks, rank)


# -- names -----------------------------------------------------------------------------------------------------------


def functions() -> list[Callable[[], nn.Module]]:
    return [partial(nn.Linear, WIDTH, WIDTH, dtype=torch.float64) for _ in range(LAYERS)]


class Twice(nn.Module):
    """A layer with one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.again = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)) @ self.again


def twice_modules() -> list[nn.Module]:
    torch.manual_seed(4)
    return [Twice() if number == 3 else make() for number, make in enumerate(functions())]


@pytest.mark.parametrize(("grid", "name"), cells([Grid(), *GRIDS], ["one_f_one_b", "zbv"], n=2), ids=str)
def test_a_leaf_with_two_names_is_added_once(grid: Grid, name: str) -> None:
    """Both names are in ties, which therefore are one tie of layers 1, 3 and 6."""
    tied = [(1, "weight", 3, "again"), (3, "inner.weight", 6, "weight")]
    got = run(twice_modules(), grid, name, tied=tied)
    plain = twice_modules()
    plain[3].inner.weight = plain[3].again = plain[6].weight = plain[1].weight  # type: ignore[union-attr, assignment]
    compare(got, plain_torch(plain), within=1e-12)


# -- refusals --------------------------------------------------------------------------------------------------------


LAST = LAYERS - 1
LEGAL = f'tied=[(0, "weight", {LAST}, "weight")]'
REFUSED: list[tuple[list[Any], dict[str, Any]]] = [
    ([(1, "weight", 4, "bias")], fault("tied", rule="weights of one shape and type")),
    (
        [(1, "weight", 4, "weight"), (4, "weight", 6, "bias")],
        fault("tied", subject="(4, 'weight', 6, 'bias')", rule="weights of one shape and type"),
    ),
    ([(1, "weight", 1, "weight")], fault("tied", rule="of two weights", legal=LEGAL)),
    ([(1, "weight", LAYERS, "weight")], fault("tied", rule=f"layers from 0 to {LAST}", legal=LEGAL)),
]
# refused on the rank of layer 4 only, which alone knows the names of its weights
NAMES: list[tuple[list[Any], dict[str, Any]]] = [
    ([(1, "weight", 4, "wait")], fault("tied", subject="layer 4 has no weight 'wait'", rule="one of weight, bias")),
    (
        [(1, "weight", 4, "again"), (4, "inner.weight", 6, "weight")],
        fault("tied", subject="weight again of layer 4", legal="the name 'again' in both ties"),
    ),
]


@pytest.mark.parametrize("ranks", drawn([1, 2, 4], n=1, always=[2]))
def test_wrong_ties_are_refused(ranks: int) -> None:
    def rank(world: LoopbackWorld, tied: list[Any]) -> None:
        engine_of(functions(), world, Grid(inter=world.size), "one_f_one_b", tied=tied)

    for tied, expected in REFUSED:
        with refused(InvalidRequest, **expected) as refusal:
            threads.run(ranks, partial(rank, tied=tied))
        assert not isinstance(refusal.value, Unsupported)


@pytest.mark.parametrize("ranks", drawn([1, 2, 4], n=1, always=[2]))
def test_wrong_names_are_refused_on_every_rank(ranks: int) -> None:
    culprit = 4 * ranks // LAYERS

    def rank(world: LoopbackWorld, tied: list[Any], expected: dict[str, Any]) -> None:
        makers = functions()
        if "again" in tied[0]:
            makers[4] = Twice
        others = fault(subject=f"weights are tied: rank {culprit} failed and reports the reason")
        with refused(InvalidRequest, **(expected if world.rank == culprit else others)):
            engine_of(makers, world, Grid(inter=world.size), "one_f_one_b", tied=tied)

    for tied, expected in NAMES:
        threads.run(ranks, partial(rank, tied=tied, expected=expected))
