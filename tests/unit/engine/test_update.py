"""Update: order of sums of gradients, each added exactly once; overflow, clipping, and overlap of steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from suite.comm.p2p import threads
from suite.engine.optim.loss_scaler import unscaled
from suite.engine.optim.optimizer import SGD
from suite.engine.optim.update import Update, subtract
from suite.engine.states.state import ModelState
from suite.engine.ties import TieGroup
from suite.memory.layout import resident

BIG = 2.0**53  # BIG + 1 rounds to BIG in float64, so a sum depends on its order
SINGLE = torch.float32


def parameter(*values: float, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def update_of(
    world: threads.LoopbackWorld,
    parameters: Sequence[nn.Parameter],
    gradient: Sequence[float] | None = None,
    *,
    column: Sequence[int] | None = None,
    ties: Sequence[Sequence[nn.Parameter]] = (),
    owners: Sequence[int] = (),
    rule: Any = SGD(0.5),  # noqa: B008 - frozen
    half: torch.dtype | None = None,
    bucket_numel: int | None = None,
    layout: Any = resident,
    **more: Any,
) -> Update:
    """The update of one rank.

    Args:
        gradient: Gradient of all parameters.
        column: Replicas of this rank; by default it has none.
        ties: This rank's weights of each tie.
        owners: Rank of each end of a tie, in the order of layers; by default this rank holds all ends.
    """
    state = ModelState(parameters, rule.states, layout, half=half, bucket_numel=bucket_numel)
    if gradient is not None:
        state.gradient.copy_(torch.tensor(gradient))
    groups = [tie_group(world, weights, owners or [world.rank] * len(weights)) for weights in ties]
    return Update(
        state,
        rule,
        data_parallel_group=world.group(column or (world.rank,)),
        ties=groups,
        most_ends=max((len(group.ends) for group in groups), default=1),
        transport=world.transport((world.rank,)),
        reduce_number=lambda number, op: world.all_reduce_numbers([number], op, lambda: None)[0],
        **more,
    )


def tie_group(world: threads.LoopbackWorld, weights: Sequence[nn.Parameter], owners: Sequence[int]) -> TieGroup:
    ends = tuple((layer, "weight") for layer in range(len(owners)))
    here = [end for end, owner in zip(ends, owners, strict=True) if owner == world.rank]
    group = world.group(sorted({*owners}))
    return TieGroup(ends, tuple(owners), world.rank, group, dict(zip(here, weights, strict=True)))


def reduced(update: Update) -> list[float]:
    """The gradient after all reductions, without a step."""
    list(update.run(step=False))
    return update.state.gradient.tolist()


def test_replicas_are_summed_before_tie() -> None:
    """Two replicas with both ends: (BIG + 1) + (0 - BIG) is 0; with the tie first, (BIG - BIG) + (1 + 0) would be 1."""

    def rank(world: threads.LoopbackWorld) -> list[float]:
        ends = [parameter(0.0), parameter(0.0)]
        return reduced(update_of(world, ends, [(BIG, -BIG), (1.0, 0.0)][world.rank], column=(0, 1), ties=[ends]))

    assert threads.run(2, rank) == [[0.0, 0.0], [0.0, 0.0]]


def test_ends_are_summed_in_order_of_layers() -> None:
    """((1 + BIG) - BIG) + 0.5 is 0.5. In other orders, the sum of these four is 0, 1, 1.5 or 2."""
    parts = [1.0, BIG, -BIG, 0.5]

    def rank(world: threads.LoopbackWorld, owners: tuple[int, ...]) -> list[float]:
        here = [part for part, owner in zip(parts, owners, strict=True) if owner == world.rank]
        weights = [parameter(0.0) for _ in here]
        return reduced(update_of(world, weights, here, ties=[weights] if here else [], owners=owners))

    for owners in ((0, 1, 2, 3), (0, 0, 0, 0), (0, 1, 0, 1), (2, 2, 1, 0), (1, 0, 0, 2)):
        by_rank = threads.run(4, partial(rank, owners=owners))
        assert by_rank == [[0.5] * owners.count(number) for number in range(4)], owners


# -- slices of the flat order ----------------------------------------------------------------------------------------


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


# -- overflow and clipping -------------------------------------------------------------------------------------------


def test_addends_of_a_sum_decide_about_overflow() -> None:
    """Two replicas in float16, whose largest number is 65504; a tie of two ends makes four addends."""

    def rank(world: threads.LoopbackWorld, gradient: float, tied: bool) -> int:
        weights = [parameter(1.0, dtype=SINGLE), parameter(1.0, dtype=SINGLE)]
        settings = {"column": (0, 1), "half": torch.float16, "loss_scaler": unscaled()}
        update = update_of(world, weights, [gradient] * 2, ties=[weights] if tied else [], **settings)
        list(update.run())
        return update.skipped

    for gradient, tied, skipped in ((32752.0, False, 0), (32768.0, False, 1), (30000.0, True, 1), (16376.0, True, 0)):
        assert threads.run(2, partial(rank, gradient=gradient, tied=tied)) == [skipped] * 2, (gradient, tied)
