"""Random legal orders over threads: no deadlock, and every op receives its own message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from suite.comm.p2p import threads
from suite.core.op import Kind, message_of, needs
from tests.support.placed import random_homes, random_order, run_order


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.booleans())
def test_random_orders_end(seed: int, ranks: int, first_in_first_out: bool) -> None:
    homes = random_homes(seed, ranks)
    order = random_order(seed, homes, first_in_first_out=first_in_first_out)
    received = threads.run(ranks, lambda world: run_order(order, world.rank, world.transport(homes)), deadline=30)
    stages = len(homes)
    wanted = [sum(needs(op, stages) is not None for op in ops) for ops in order.orders]
    assert received == wanted


def test_random_orders_are_legal_and_varied() -> None:
    orders = [random_order(seed, random_homes(seed, 3)) for seed in range(200)]
    for order in orders:
        ops = {op for rank in order.orders for op in rank}
        assert len(ops) == sum(map(len, order.orders))
        passes = {message_of(op) for op in ops if op.kind is not Kind.WEIGHT}
        microbatches = 1 + max(op.index for op in ops)
        assert len(passes) == 2 * len(order.homes) * microbatches
    assert len({order.homes for order in orders}) > 50
    assert any(op.kind is Kind.WEIGHT for order in orders for rank in order.orders for op in rank)
