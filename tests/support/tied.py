"""Models with tied weights, trained on ranks as threads and by plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.engine.engine import Engine
from suite.engine.layers import Layer
from suite.engine.optim.optimizer import SGD
from suite.engine.pruning import Pruning
from suite.memory.layout import offloaded
from suite.pruning.magnitude import Magnitude
from suite.schedule import MessageDriven
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV

LAYERS, WIDTH, MICROBATCHES, BATCHES = 8, 5, 4, 4
# two layers per stage on four ranks, and one per stage where each of the four ranks holds two stages
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one stage": [(2, 3)],
    "neighbours": [(1, 2)],
    "one rank of a V": [(0, 7), (2, 5)],
    "one rank of a loop": [(1, 5)],
    "three": [(1, 4, 6)],
    "four": [(0, 2, 3, 7)],
    "crossing": [(0, 4), (2, 6)],
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
    "clip_norm": {"clip_norm": 0.5},
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


def batches(dtype: torch.dtype = torch.float64, count: int = BATCHES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 16 samples: one size for all grids."""
    generator = torch.Generator().manual_seed(1)
    pairs = [torch.randn(2, 4 * MICROBATCHES, WIDTH, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [(pair[0].to(dtype), 4 * pair[1].to(dtype)) for pair in pairs]


def engine_of(layers: Sequence[Layer], world: LoopbackWorld, grid: Grid, name: str, **options: Any) -> Engine:
    return Engine(
        layers,
        loss=mse_loss,
        optimizer=SGD(0.1, momentum=0.9),
        microbatch=2,
        grid=grid,
        schedule=SCHEDULES[name],
        world=world,
        **options,
    )


def weights_of(engine: Engine) -> dict[str, torch.Tensor]:
    states = engine.state.model_states
    return {
        f"{number}.{name}": (states.export(weight)["weight"] if weight.requires_grad else weight.data).clone()
        for number, layer in engine.state.numbered_layers()
        for name, weight in layer.named_parameters(remove_duplicate=False)
    }


def run(layers: Sequence[Layer], grid: Grid, name: str, dtype: torch.dtype, **options: Any) -> Outcome:
    """Train copies of the layers on the ranks of a grid, as threads."""

    def rank(world: LoopbackWorld) -> Outcome:
        data = batches(dtype)
        engine = engine_of(copy.deepcopy(layers), world, grid, name, **options)
        losses = [*engine.train(data), engine.evaluate(data[:2])]
        weights = weights_of(engine)
        engine.close()
        return Outcome(losses, weights)

    outcomes = threads.run(grid.size, rank, deadline=60.0)
    assert all(outcome.losses == outcomes[0].losses for outcome in outcomes)
    return Outcome(outcomes[0].losses, {name: weight for one in outcomes for name, weight in one.weights.items()})


@cache
def on_one_rank(shape: str, replicas: int, dtype: torch.dtype = torch.float64, option: str = "none") -> Outcome:
    options = {name: value for name, value in OPTIONS[option].items() if name in ("clip_norm", "half", "pruning")}
    return run(network(shape, dtype), Grid(data=replicas), "one_f_one_b", dtype, **options)


def assert_same(got: Outcome, right: Outcome) -> None:
    assert got.losses == right.losses
    assert got.weights.keys() == right.weights.keys()
    for name, weight in right.weights.items():
        assert torch.equal(got.weights[name], weight), name


def assert_ends_equal(shape: str, outcome: Outcome) -> None:
    for first, *others in SHAPES[shape]:
        assert all(torch.equal(outcome.weights[f"{first}.weight"], outcome.weights[f"{n}.weight"]) for n in others)


def plain_torch(layers: list[nn.Module], clip_norm: float | None = None) -> Outcome:
    """Plain PyTorch with one shared parameter."""
    model, data = nn.Sequential(*layers), batches()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, clip_norm)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(sum(mse_loss(model(inputs), targets).item() for inputs, targets in data[:2]) / 2)
    named = model.named_parameters(remove_duplicate=False)
    return Outcome(losses, {name: weight.detach() for name, weight in named})


def assert_close(got: Outcome, right: Outcome) -> None:
    assert got.losses == pytest.approx(right.losses, rel=1e-12)
    assert got.weights.keys() == right.weights.keys()
    for name, weight in right.weights.items():
        assert (got.weights[name] - weight).abs().max() < 1e-12, name
