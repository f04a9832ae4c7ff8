"""Transports and groups of ranks that take turns, with failures and random orders."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch

from suite.comm.p2p import threads
from suite.comm.p2p.message import EVALUATION_CAPACITY
from suite.comm.p2p.threads import LoopbackWorld, run
from suite.core.errors import RankError
from suite.core.op import Kind, Op, needs
from suite.runner.launch.signals import Interrupted, ending_ranks
from tests.support.drawn import generator
from tests.support.placed import random_homes, random_order, run_order


def op(text: str) -> Op:
    return Op.parse(text)


def value(*numbers: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([number]) for number in numbers)


def waits_for_a_value(world: LoopbackWorld) -> None:
    world.transport((0, 1, 2)).recv_any([op("0F0")], None)


def waits_for_a_reduction(world: LoopbackWorld) -> None:
    world.group(range(3)).all_reduce(torch.ones(1)).wait()


def waits_for_room(world: LoopbackWorld) -> None:
    transport = world.transport((0, 1, 2))
    for index in range(EVALUATION_CAPACITY + 1):
        transport.send(Op(0, Kind.EVALUATE, index), value(1))


def polls(world: LoopbackWorld) -> None:
    transport = world.transport((world.rank,))
    while True:
        transport.progress()
        time.sleep(1e-4)


def computes(world: LoopbackWorld) -> None:
    while True:
        world.transport((0, 1)).progress()


@pytest.mark.parametrize("waits", [waits_for_a_value, waits_for_a_reduction, waits_for_room, polls])
def test_first_failure_ends_the_other_ranks(waits: Callable[[LoopbackWorld], None]) -> None:
    ended: list[str] = []

    def rank(world: LoopbackWorld) -> None:
        if world.rank == 1:
            raise ValueError("the first fault")
        try:
            waits(world)
        except RankError as error:
            ended.append(str(error))
            raise

    with pytest.raises(ValueError, match="the first fault"):
        run(3, rank)
    assert ended == ["another rank failed: ValueError('the first fault')"] * 2


def test_one_rank_runs_at_a_time_in_the_same_order() -> None:
    """Rank r adds its number before and after each of r + 1 reductions with the next lower rank."""
    ran: list[list[int]] = [[], []]

    def rank(world: LoopbackWorld) -> None:
        group = world.group(range(3))
        for _ in range(20):
            order.append(world.rank)
            time.sleep(1e-5)  # would let another thread in
            order.append(world.rank)
            group.all_reduce(torch.ones(1)).wait()

    for order in ran:
        run(3, rank)
        assert order[::2] == order[1::2], "two ranks ran at once"
    assert ran[0] == ran[1]


@pytest.mark.usefixtures("own_signals")
def test_threads_end_before_an_interrupt_is_raised() -> None:
    """A thread that is in torch when the interpreter ends aborts the process."""
    ended: list[int] = []

    def rank(world: LoopbackWorld) -> None:
        try:
            world.all_reduce_numbers([1.0], "sum", lambda: None)
            os.kill(os.getpid(), signal.SIGINT) if world.rank else None
            waits_for_a_reduction(world) if world.rank else computes(world)
        finally:
            time.sleep(0.05)
            ended.append(world.rank)

    with pytest.raises(Interrupted), ending_ranks():
        run(2, rank)
    assert sorted(ended) == [0, 1]


BIG = 2.0**53  # BIG + 1 is BIG: the order of a sum shows


def test_all_reduce_adds_in_rank_order() -> None:
    parts = [1.0, BIG, -BIG]
    expected = (parts[0] + parts[1]) + parts[2]
    assert expected != parts[0] + (parts[1] + parts[2])

    def rank(world: LoopbackWorld) -> list[float]:
        group = world.group(range(3))
        tensor = torch.tensor([parts[world.rank]], dtype=torch.float64)
        handle = group.all_reduce(tensor)
        totals = world.all_reduce_numbers([parts[world.rank], 0.5], "sum", lambda: None)
        handle.wait()
        largest = torch.tensor([float(world.rank), -float(world.rank)])
        group.all_reduce(largest, "max").wait()
        from_1 = torch.tensor([[10.0 * world.rank]])
        group.broadcast(from_1, 1).wait()
        return [float(tensor), *totals, *largest.tolist(), float(from_1)]

    assert run(3, rank) == [[expected, expected, 1.5, 2.0, 0.0, 10.0]] * 3


def test_random_orders_end() -> None:
    random = generator("orders")
    for seed in [random.randrange(2**32) for _ in range(60)]:
        ranks, first_in_first_out = 1 + seed % 4, bool(seed & 4)
        homes = random_homes(seed, ranks)
        order = random_order(seed, homes, first_in_first_out=first_in_first_out)
        received = threads.run(
            ranks, lambda world, order=order, homes=homes: run_order(order, world.rank, world.transport(homes))
        )
        wanted = [sum(needs(op, len(homes)) is not None for op in ops) for ops in order.orders]
        assert received == wanted, seed
