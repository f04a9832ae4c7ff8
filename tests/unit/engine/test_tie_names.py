"""Names of tied weights: pairs that make one tie, several names of one weight, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine.ties import as_pairs, find_ties, join_pairs
from tests.support.drawn import cells, drawn
from tests.support.refusals import fault, refused
from tests.support.tied import (
    GRIDS,
    LAYERS,
    SCHEDULES,
    WIDTH,
    assert_close,
    assert_same,
    engine_of,
    network,
    plain_torch,
    run,
    weights_of,
)


def functions() -> list[Callable[[], nn.Module]]:
    return [partial(nn.Linear, WIDTH, WIDTH, dtype=torch.float64) for _ in range(LAYERS)]


@pytest.mark.parametrize(("grid", "name"), cells(GRIDS, SCHEDULES, n=2), ids=str)
def test_named_pairs_make_one_tie(grid: Grid, name: str) -> None:
    """The pairs of a set may come in any order, and begin with either end."""
    tied = [(6, "weight", 4, "weight"), (1, "bias", 2, "bias"), (1, "weight", 6, "weight")]
    got = run(functions(), grid, name, torch.float64, tied=tied)
    ordered = [(1, "weight", 4, "weight"), (4, "weight", 6, "weight"), (1, "bias", 2, "bias")]
    assert_same(got, run(functions(), Grid(data=grid.data), "one_f_one_b", torch.float64, tied=ordered))
    for end in ("4.weight", "6.weight"):
        assert torch.equal(got.weights["1.weight"], got.weights[end])
    assert torch.equal(got.weights["1.bias"], got.weights["2.bias"])


def test_first_layer_gives_the_initial_weight() -> None:
    def rank(world: LoopbackWorld) -> dict[str, torch.Tensor]:
        tied = [(5, "weight", 2, "weight"), (7, "weight", 5, "weight")]
        return weights_of(engine_of(functions(), world, Grid(inter=world.size), "one_f_one_b", tied=tied))

    def untied(world: LoopbackWorld) -> dict[str, torch.Tensor]:
        return weights_of(engine_of(functions(), world, Grid(), "one_f_one_b"))

    (right,) = threads.run(1, untied)
    for ranks in (1, 2, 4):
        got = {name: weight for part in threads.run(ranks, rank, deadline=20.0) for name, weight in part.items()}
        for number in range(LAYERS):
            expected = right[f"{2 if number in (5, 7) else number}.weight"]
            assert torch.equal(got[f"{number}.weight"], expected), number


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
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(LAYERS)]
    layers[3] = Twice()
    return layers


@pytest.mark.parametrize(("grid", "name"), cells([Grid(), *GRIDS], ["one_f_one_b", "zbv"], n=2), ids=str)
def test_a_leaf_with_two_names_is_added_once(grid: Grid, name: str) -> None:
    """Both names are in ties, which therefore are one tie of layers 1, 3 and 6."""
    tied = [(1, "weight", 3, "again"), (3, "inner.weight", 6, "weight")]
    got = run(twice_modules(), grid, name, torch.float64, tied=tied)
    plain = twice_modules()
    plain[3].inner.weight = plain[3].again = plain[6].weight = plain[1].weight  # type: ignore[union-attr, assignment]
    assert_close(got, plain_torch(plain))


@pytest.mark.parametrize("ranks", drawn([1, 2, 4], n=1))
def test_a_function_may_make_a_leaf_with_two_names(ranks: int) -> None:
    makers = functions()
    makers[3] = Twice
    tied = [(1, "weight", 3, "again"), (3, "inner.weight", 6, "weight"), (3, "again", 3, "inner.weight")]
    got = run(makers, Grid(inter=ranks), "one_f_one_b", torch.float64, tied=tied)
    for end in ("3.again", "3.inner.weight", "6.weight"):
        assert torch.equal(got.weights["1.weight"], got.weights[end])
    one_name = [(1, "weight", 3, "inner.weight"), (1, "weight", 6, "weight")]
    assert_same(got, run(makers, Grid(), "one_f_one_b", torch.float64, tied=one_name))


def test_pairs_with_common_ends_are_joined() -> None:
    a, b, c, d, e = ((layer, "weight") for layer in range(5))
    assert join_pairs([(c, a), (e, d), (b, b)]) == ((a, c), (d, e))
    assert join_pairs([(c, a), (e, d), (d, c)]) == ((a, c, d, e),)
    assert join_pairs([]) == ()
    assert as_pairs((a, c, e)) == [(0, "weight", 2, "weight"), (2, "weight", 4, "weight")]


def test_ties_are_found_in_one_order() -> None:
    assert find_ties(network("three groups"), [(6, "bias", 0, "bias")]) == (
        ((0, "bias"), (6, "bias")),
        ((0, "weight"), (4, "weight")),
        ((1, "weight"), (3, "weight"), (5, "weight"), (7, "weight")),
        ((2, "weight"), (6, "weight")),
    )


# -- refusals --------------------------------------------------------------------------------------------------------


LAST = LAYERS - 1
LEGAL = f'tied=[(0, "weight", {LAST}, "weight")]'
# the last two are refused on the rank of layer 4 only, which alone knows the names of its weights
REFUSED: list[tuple[list[Any], dict[str, Any]]] = [
    ([(1, "weight", 4, "bias")], fault("tied", rule="weights of one shape and type")),
    (
        [(1, "weight", 4, "weight"), (4, "weight", 6, "bias")],
        fault("tied", subject="(4, 'weight', 6, 'bias')", rule="weights of one shape and type"),
    ),
    ([(1, "weight", 1, "weight")], fault("tied", rule="of two weights", legal=LEGAL)),
    ([(1, "weight", LAYERS, "weight")], fault("tied", rule=f"layers from 0 to {LAST}", legal=LEGAL)),
    ([(1, "weight", 4, "wait")], fault("tied", subject="layer 4 has no weight 'wait'", rule="one of weight, bias")),
    (
        [(1, "weight", 4, "again"), (4, "inner.weight", 6, "weight")],
        fault("tied", subject="weight again of layer 4", legal="the name 'again' in both ties"),
    ),
]


@pytest.mark.parametrize("ranks", drawn([1, 2, 4], n=1, always=[2]))
def test_wrong_ties_are_refused_on_every_rank(ranks: int) -> None:
    culprit = 4 * ranks // LAYERS

    def rank(world: LoopbackWorld, tied: list[Any], expected: dict[str, Any], one_rank: bool) -> None:
        makers = functions()
        if "again" in tied[0]:
            makers[4] = Twice
        others = fault(subject=f"weights are tied: rank {culprit} failed and reports the reason")
        seen = expected if world.rank == culprit or not one_rank else others
        with refused(InvalidRequest, **seen) as refusal:
            engine_of(makers, world, Grid(inter=world.size), "one_f_one_b", tied=tied)
        assert not isinstance(refusal.value, Unsupported)

    for number, (tied, expected) in enumerate(REFUSED):
        threads.run(ranks, partial(rank, tied=tied, expected=expected, one_rank=number >= 4), deadline=20.0)


@pytest.mark.parametrize("layer", [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.float64)])
def test_ends_of_other_types_are_refused_on_all_ranks(layer: nn.Linear) -> None:
    """The third end has another dtype, or is frozen; its two ranks and the rank of the other ends refuse it."""
    layer.weight.requires_grad_(layer.weight.dtype != torch.float64)

    layers = twice_modules()
    layers[6] = layer

    def rank(world: LoopbackWorld) -> None:
        tied = [(0, "weight", 1, "weight"), (6, "weight", 1, "weight")]
        with refused(InvalidRequest, "tied", rule="all trained or all frozen"):
            engine_of(copy.deepcopy(layers), world, Grid(inter=world.size), "one_f_one_b", tied=tied)

    for ranks in (1, 2):
        threads.run(ranks, rank, deadline=20.0)


def test_asynchronous_pipelines_refuse_ties() -> None:
    layers = network("three")

    def rank(world: LoopbackWorld) -> None:
        with refused(Unsupported, subject="a tied weight", rule="all ends of a tie", legal="tied=()"):
            engine_of(copy.deepcopy(layers), world, Grid(inter=2), "one_f_one_b", update_interval=1)

    threads.run(2, rank, deadline=20.0)
