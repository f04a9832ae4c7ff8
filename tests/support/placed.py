"""A stream with split backward passes, and random orders that keep every law."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from suite.core.op import FlushInterval, Kind, Op, Place, Program, feeds, message_of, needs
from suite.core.protocols import Transport, Value
from suite.engine.worker import run_program, run_to_end
from suite.schedule.one_f_one_b import OneFOneB


class SplitStream:
    """1F1B with a split backward pass. It updates between the passes of later microbatches."""

    chunks, fold, split = 1, False, True

    def program(self, place: Place, interval: FlushInterval) -> Program:
        whole = OneFOneB().program(place, interval)
        (op,) = next(whole)
        while True:
            if op.kind is Kind.BACKWARD:
                yield (op._replace(kind=Kind.INPUT),)
                yield (op._replace(kind=Kind.WEIGHT),)
            else:
                yield (op,)
            try:
                (op,) = whole.send(op)
            except StopIteration:
                return

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return OneFOneB().in_flight(place, interval)


@dataclass(frozen=True)
class RandomOrder:
    """A legal order on a random placement.

    Attributes:
        homes: Rank of each stage.
        orders: Ops of each rank.
    """

    homes: tuple[int, ...]
    orders: tuple[tuple[Op, ...], ...]

    def program(self, rank: int) -> Program:
        for op in self.orders[rank]:
            yield (op,)


def random_homes(seed: int, ranks: int) -> tuple[int, ...]:
    """The rank of each of up to 8 stages; every rank has one."""
    draw = random.Random(seed)
    homes = [*range(ranks), *(draw.randrange(ranks) for _ in range(draw.randint(0, 8 - ranks)))]
    draw.shuffle(homes)
    return tuple(homes)


def random_order(seed: int, homes: tuple[int, ...], *, first_in_first_out: bool = False) -> RandomOrder:
    """An order of up to 6 microbatches, drawn op by op among those whose message has been sent.

    Args:
        homes: Rank of each stage.
        first_in_first_out: Whether neighbouring stages run their passes in one order, for static transports.
    """
    draw = random.Random(seed)
    ranks = 1 + max(homes)
    stages, microbatches = len(homes), draw.randint(1, 6)
    splits = [draw.random() < 0.5 for _ in homes]
    backward_order = draw.sample(range(microbatches), microbatches)
    sent: set[Op] = set()
    orders: list[list[Op]] = [[] for _ in range(ranks)]
    waiting = [Op(stage, Kind.FORWARD, index) for stage in range(stages) for index in range(microbatches)]
    last_of: dict[tuple[int, Kind], int] = {}

    def is_next(op: Op) -> bool:
        if (need := needs(op, stages)) is not None and need not in sent:
            return False
        if not first_in_first_out or op.kind is Kind.WEIGHT:
            return True
        count = last_of.get((op.stage, message_of(op).kind), 0)
        return op.index == (count if op.kind is Kind.FORWARD else backward_order[count])

    while waiting:
        op = draw.choice([op for op in waiting if is_next(op)])
        waiting.remove(op)
        orders[homes[op.stage]].append(op)
        message = message_of(op)
        sent.add(message)
        last_of[op.stage, message.kind] = last_of.get((op.stage, message.kind), 0) + 1
        if op.kind is Kind.FORWARD:
            waiting.append(op._replace(kind=Kind.INPUT if splits[op.stage] else Kind.BACKWARD))
        elif op.kind is Kind.INPUT:
            waiting.append(op._replace(kind=Kind.WEIGHT))
    return RandomOrder(homes, tuple(map(tuple, orders)))


def run_order(order: RandomOrder, rank: int, transport: Transport) -> int:
    """Run the ops of `rank`, and check that each op receives its own message.

    Returns the number of received messages."""
    received = 0

    def execute(op: Op, value: Value) -> Value:
        nonlocal received
        need = needs(op, len(order.homes))
        expected = [] if need is None else [_content(need)]
        assert [tensor.tolist() for tensor in value] == expected, f"{op} received {value}"
        received += need is not None
        return (torch.tensor(_content(message_of(op))),) if feeds(op, len(order.homes)) else ()

    program, homes = order.program(rank), order.homes
    run_to_end(run_program(program, execute, transport, rank=rank, homes=homes, bound=1 << 30, trace=None))
    return received


def _content(message: Op) -> list[int]:
    return [message.stage, ord(message.kind.value), message.index]
