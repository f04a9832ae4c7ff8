"""Transport and group of threads, with failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from suite.comm import here, started
from suite.comm.p2p.message import CAPACITY
from suite.comm.p2p.threads import Hub, LoopbackTransport, LoopbackWorld, run
from suite.core.errors import RankError, RankTimeout
from suite.core.op import Kind, Op
from suite.core.protocols import Transport


def op(text: str) -> Op:
    return Op.parse(text)


def value(*numbers: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([number]) for number in numbers)


def pair() -> tuple[Hub, LoopbackTransport, LoopbackTransport]:
    hub = Hub(2)
    return hub, LoopbackTransport(hub, 0, None, 1, 2), LoopbackTransport(hub, 1, 0, None, 2)


# -- channels ----------------------------------------------------------------------------------------------------


def test_of_what_is_here_the_first_wish_comes() -> None:
    _, first, last = pair()
    for index in range(3):
        first.send(Op(0, Kind.FORWARD, index), value(index))
    assert last.recv_any([op("0F9"), op("0F2"), op("0F0")], None) == (op("0F2"), value(2))
    assert last.recv_any([op("0F0"), op("0F2")], 0) == (op("0F0"), value(0))
    assert last.recv_any([op("0F1")], 0) == (op("0F1"), value(1))
    last.close()


def test_values_go_both_ways_and_stay_typed() -> None:
    _, first, last = pair()
    sent = (torch.ones(2, 3, requires_grad=True), torch.tensor(7), torch.empty(0))
    first.send(op("0F0"), sent)
    got = last.recv_any([op("0F0")], 0)
    assert got is not None
    assert [(t.dtype, t.shape, t.requires_grad) for t in got[1]] == [(t.dtype, t.shape, False) for t in sent]
    last.send(op("1B0"), value(4))
    assert first.recv_any([op("1B0")], None) == (op("1B0"), value(4))


def test_a_middle_stage_sends_forwards_on_and_gradients_back() -> None:
    hub = Hub(3)
    middle = LoopbackTransport(hub, 1, 0, 2, 3)
    for text in ("1F0", "1B0", "1E0"):
        middle.send(op(text), value(1))
    assert [list(map(str, inbox)) for inbox in hub.inbox] == [["1B0"], [], ["1F0", "1E0"]]


def test_what_nobody_needs_is_not_sent() -> None:
    hub, first, last = pair()
    first.send(op("0B0"), value(1))
    first.send(op("0U0"), ())
    last.send(op("1F0"), value(1))
    last.send(op("1E0"), value(1))
    assert hub.inbox == [{}, {}]


def test_a_timeout_of_0_polls_and_another_waits_that_long() -> None:
    _, first, last = pair()
    start = time.perf_counter()
    assert last.recv_any([op("0F0")], 0) is None
    assert last.recv_any([op("0F0")], 0.05) is None
    assert time.perf_counter() - start >= 0.05
    timer = threading.Timer(0.02, first.send, (op("0F0"), value(1)))
    timer.start()
    assert last.recv_any([op("0F0")], None) == (op("0F0"), value(1))
    timer.join()


def test_training_does_not_block_and_an_evaluation_does_at_its_capacity() -> None:
    sent: list[int] = []
    count = CAPACITY + 5
    full = threading.Event()

    def rank(world: LoopbackWorld) -> int:
        before, after = ((None, 1), (0, None))[world.rank]
        channel: Transport = world.transport(before, after, 2)
        if world.rank == 0:
            for index in range(3 * CAPACITY):
                channel.send(Op(0, Kind.FORWARD, index), value(index))
            for index in range(count):
                if index == CAPACITY:
                    full.set()
                channel.send(Op(0, Kind.EVALUATE, index), value(index))
                sent.append(index)
            return len(sent)
        assert full.wait(10)
        time.sleep(0.05)
        most = len(sent)
        assert most == CAPACITY
        assert channel.recv_any([op("0E0")], None) is not None
        deadline = time.perf_counter() + 10
        while len(sent) == most and time.perf_counter() < deadline:
            time.sleep(0.001)
        assert len(sent) == most + 1  # one has been taken, one has come
        for index in range(1, count):
            assert channel.recv_any([Op(0, Kind.EVALUATE, index)], None) is not None
        for index in range(3 * CAPACITY):
            assert channel.recv_any([Op(0, Kind.FORWARD, index)], 0) is not None
        channel.close()
        return most

    assert run(2, rank) == [count, CAPACITY]


def test_values_unreceived_at_the_end_are_an_error() -> None:
    _, first, last = pair()
    first.send(op("0F3"), value(1))
    first.send(op("0F4"), value(1))
    with pytest.raises(RankError, match="rank 1 closes with values unreceived: 0F3, 0F4"):
        last.close()
    first.close()


# -- failures -------------------------------------------------------------------------------------------------


def waits_for_a_value(world: LoopbackWorld) -> None:
    world.transport(0, None, 3).recv_any([op("0F0")], None)


def waits_for_a_reduction(world: LoopbackWorld) -> None:
    world.group(range(3)).all_reduce(torch.ones(1)).wait()


def waits_for_room(world: LoopbackWorld) -> None:
    channel = world.transport(None, 2, 3)
    for index in range(CAPACITY + 1):
        channel.send(Op(0, Kind.EVALUATE, index), value(1))


def polls(world: LoopbackWorld) -> None:
    channel = world.transport(None, None, 1)
    while True:
        channel.progress()
        time.sleep(1e-4)


@pytest.mark.parametrize("waits", [waits_for_a_value, waits_for_a_reduction, waits_for_room, polls])
def test_the_first_failure_ends_the_others_and_is_the_one_raised(waits: Callable[[LoopbackWorld], None]) -> None:
    ended: list[str] = []

    def rank(world: LoopbackWorld) -> None:
        if world.rank == 1:
            time.sleep(0.02)
            raise ValueError("the first fault")
        try:
            waits(world)
        except RankError as error:
            ended.append(str(error))
            raise

    with pytest.raises(ValueError, match="the first fault"):
        run(3, rank)
    assert ended == ["another rank failed: ValueError('the first fault')"] * 2


def test_no_thread_outlives_a_deadline() -> None:
    """A waiting thread that the failure wakes does so before the caller hears of it."""
    left: list[int] = []

    def rank(world: LoopbackWorld) -> None:
        try:
            waits_for_a_reduction(world) if world.rank else None
        except RankError:
            time.sleep(0.1)
            left.append(world.rank)

    with pytest.raises(RankTimeout):
        run(2, rank, deadline=0.05)
    assert left == [1]


def test_a_value_that_is_here_is_still_given_out_after_a_failure() -> None:
    hub, first, last = pair()
    first.send(op("0F0"), value(1))
    hub.fail(ValueError())
    assert last.recv_any([op("0F0")], None) == (op("0F0"), value(1))
    with pytest.raises(RankError):
        last.recv_any([op("0F1")], None)


# -- groups ---------------------------------------------------------------------------------------------------


BIG = 2.0**53  # BIG + 1 is BIG: the order of a sum shows


def test_a_sum_is_made_in_rank_order() -> None:
    parts = [1.0, BIG, -BIG]

    def rank(world: LoopbackWorld) -> float:
        time.sleep((3 - world.rank) * 0.01)  # they come in the other order
        tensor = torch.tensor([parts[world.rank]], dtype=torch.float64)
        world.group(range(3)).all_reduce(tensor).wait()
        return float(tensor)

    right = (parts[0] + parts[1]) + parts[2]
    assert right != parts[0] + (parts[1] + parts[2])
    assert run(3, rank) == [right] * 3


def test_largest_and_broadcast() -> None:
    def rank(world: LoopbackWorld) -> list[list[float]]:
        group = world.group(range(3))
        largest = torch.tensor([float(world.rank), -float(world.rank)])
        group.all_reduce(largest, "max").wait()
        from_1 = torch.tensor([[10.0 * world.rank]])
        group.broadcast(from_1, 1).wait()
        return [largest.tolist(), from_1.flatten().tolist()]

    assert run(3, rank) == [[[2.0, 0.0], [10.0]]] * 3


def test_a_total_is_the_same_number_on_every_rank_beside_other_collectives() -> None:
    parts = [1.0, BIG, -BIG]

    def rank(world: LoopbackWorld) -> list[float]:
        group = world.group(range(3))
        tensor = torch.ones(1)
        handle = group.all_reduce(tensor)
        told = [
            world.all_reduce_scalar(parts[world.rank], "sum", lambda: None),
            world.all_reduce_scalar(0.5, "sum", lambda: None),
        ]
        handle.wait()
        return [*told, float(tensor)]

    assert run(3, rank) == [[(1.0 + BIG) - BIG, 1.5, 3.0]] * 3


def test_a_group_of_some_ranks_and_its_root_is_a_rank_of_the_world() -> None:
    def rank(world: LoopbackWorld) -> list[float]:
        group = world.group((1, 3) if world.rank % 2 else (0, 2))
        assert group is world.group(group.ranks)
        total, root = torch.tensor([float(world.rank)]), torch.tensor([float(world.rank)])
        group.all_reduce(total).wait()
        group.broadcast(root, group.ranks[1]).wait()
        return [float(total), float(root)]

    assert run(4, rank) == [[2.0, 2.0], [4.0, 3.0]] * 2


def test_several_collectives_are_under_way_at_once() -> None:
    def rank(world: LoopbackWorld) -> list[float]:
        both, own = world.group((0, 1)), world.group((world.rank,))
        tensors = [torch.full((2,), float(10**k * (world.rank + 1))) for k in range(4)]
        handles = [both.all_reduce(tensor) for tensor in tensors[:3]]
        handles.append(own.all_reduce(tensors[3]))
        for handle in reversed(handles):  # finished in another order than begun
            while not handle.done():
                time.sleep(1e-4)
            handle.wait()  # again does nothing
        return [float(tensor[0]) for tensor in tensors]

    assert run(2, rank) == [[3.0, 30.0, 300.0, 1000.0], [3.0, 30.0, 300.0, 2000.0]]


def test_nothing_is_done_before_all_have_come() -> None:
    hub = Hub(2)
    tensors = [torch.tensor([1.0]), torch.tensor([2.0])]
    groups = [LoopbackWorld(hub, rank).group((0, 1)) for rank in range(2)]
    first = groups[0].all_reduce(tensors[0])
    assert not first.done()
    assert tensors[0].item() == 1.0
    second = groups[1].all_reduce(tensors[1])
    assert second.done()
    assert tensors[1].item() == 3.0
    assert tensors[0].item() == 1.0  # a result comes to those who look
    assert first.done()
    assert tensors[0].item() == 3.0
    assert not hub.results
    assert not hub.meetings


# -- worlds ---------------------------------------------------------------------------------------------------


def test_results_stand_by_rank() -> None:
    assert run(3, lambda world: (world.rank, world.size)) == [(0, 3), (1, 3), (2, 3)]


def test_a_process_without_a_launcher_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    world = here(inline=1024)
    assert isinstance(world, LoopbackWorld)
    assert (world.rank, world.size, started().rank) == (0, 1, 0)
