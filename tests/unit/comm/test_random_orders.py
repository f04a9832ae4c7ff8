"""Random legal orders over threads: no deadlock, and every op receives its own message."""

from __future__ import annotations

from suite.comm.p2p import threads
from suite.core.op import Kind, message_of, needs
from tests.support.drawn import generator
from tests.support.placed import random_homes, random_order, run_order


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


def test_random_orders_are_legal_and_varied() -> None:
    orders = [random_order(seed, random_homes(seed, 3)) for seed in range(60)]
    for order in orders:
        ops = {op for rank in order.orders for op in rank}
        assert len(ops) == sum(map(len, order.orders))
        passes = {message_of(op) for op in ops if op.kind is not Kind.WEIGHT}
        microbatches = 1 + max(op.index for op in ops)
        assert len(passes) == 2 * len(order.homes) * microbatches
    assert len({order.homes for order in orders}) > 15
    assert any(op.kind is Kind.WEIGHT for order in orders for rank in order.orders for op in rank)
