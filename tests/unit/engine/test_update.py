"""Decides whether an update adds what belongs together, in the order that is promised, and nothing twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from suite.comm import loopback
from suite.core.errors import Refused
from suite.engine.optimizer import SGD, Adam
from suite.engine.state import ModelState
from suite.engine.update import Update
from suite.memory.layout import dense

BIG = 2.0**53  # BIG + 1 rounds to BIG in float64: sums tell in which order they were made


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def update_of(
    world: loopback.LoopbackWorld,
    parameters: Sequence[nn.Parameter],
    *,
    column: Sequence[int] = (0,),
    ends: Sequence[int] = (0,),
    ties: Sequence[tuple[nn.Parameter, ...]] = (),
    rule: SGD | Adam | None = None,
) -> Update:
    rule = rule or SGD(0.5)
    state = ModelState(parameters, rule.states, dense)
    progress = world.transport(None, None, 1).progress
    return Update(state, rule, column=world.group(column), ends=world.group(ends), ties=ties, progress=progress)


def alone() -> loopback.LoopbackWorld:
    return loopback.LoopbackWorld(loopback.Hub(1), 0)


def test_a_tie_on_one_stage_is_summed_input_part_then_output_part() -> None:
    first, between, last = parameter(1.0, 1.0), parameter(2.0), parameter(1.0, 1.0)
    update = update_of(alone(), [first, between, last], ties=[(first, last)])
    update.state.gradient.copy_(torch.tensor([3.0, -0.25, 7.0, 4.0, 0.5]))
    list(update.reduce())
    assert update.state.gradient.tolist() == [7.0, 0.25, 7.0, 7.0, 0.25]
    update.step()
    assert torch.equal(first, last)
    assert first.tolist() == [-2.5, 0.875]
    assert not update.state.gradient.any()


def test_replicas_are_added_before_the_tie() -> None:
    """Two replicas that hold both ends: (BIG + 1) + (0 - BIG) is 0, and (BIG - BIG) + (1 + 0), the tie first, is 1."""
    parts = [(BIG, -BIG), (1.0, 0.0)]

    def rank(world: loopback.LoopbackWorld) -> list[float]:
        first, last = parameter(0.0), parameter(0.0)
        update = update_of(world, [first, last], column=(0, 1), ties=[(first, last)])
        update.state.gradient.copy_(torch.tensor(parts[world.rank]))
        list(update.reduce())
        return update.state.gradient.tolist()

    assert loopback.run(2, rank) == [[0.0, 0.0], [0.0, 0.0]]


def test_a_tie_of_two_ranks_is_summed_over_the_ends() -> None:
    def rank(world: loopback.LoopbackWorld) -> list[float]:
        tied, other = parameter(0.0, 0.0), parameter(0.0)
        update = update_of(world, [other, tied], column=(world.rank,), ends=(0, 1), ties=[(tied,)])
        update.state.gradient.copy_(torch.tensor([10.0, 1.0, 2.0]) * (world.rank + 1))
        list(update.reduce())
        return update.state.gradient.tolist()

    assert loopback.run(2, rank) == [[10.0, 3.0, 6.0], [20.0, 3.0, 6.0]]


def test_a_middle_stage_has_no_part_in_a_tie() -> None:
    own = parameter(1.0)
    update = update_of(alone(), [own], ends=(0, 2), ties=[()])
    assert not update.parts
    assert not update.local


@pytest.mark.parametrize("replacement", [None, torch.zeros(2, dtype=torch.float64)], ids=["none", "another"])
def test_a_replaced_gradient_is_refused(replacement: torch.Tensor | None) -> None:
    own = parameter(1.0, 2.0)
    update = update_of(alone(), [own])
    list(update.reduce())
    own.grad = replacement
    with pytest.raises(Refused, match="do not call zero_grad"):
        list(update.reduce())


@pytest.mark.parametrize("rule", [SGD(0.1, momentum=0.9, weight_decay=0.1), Adam(0.1, weight_decay=0.1)], ids=str)
def test_a_stage_without_weights_steps(rule: SGD | Adam) -> None:
    def rank(world: loopback.LoopbackWorld) -> int:
        update = update_of(world, [], column=(0, 1), rule=rule)
        for _ in range(2):
            list(update.reduce())
            update.step()
        return len(update.parts)

    assert loopback.run(2, rank) == [0, 0]
