"""Channels over gloo between two ranks of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from suite.comm.p2p.gloo import TAGS, GlooTransport
from suite.comm.rendezvous.rank_rendezvous import use_loopback_interface
from suite.core.errors import PeerEnded
from suite.core.op import EVALUATION_CAPACITY, Kind, Op

FIRST = Op(0, Kind.FORWARD, 0)
BACK = Op(1, Kind.BACKWARD, 0)
LIMIT = timedelta(seconds=0.6)


class World:
    order, eager_bytes, device, staged, timeout = "any", 1024, torch.device("cpu"), False, LIMIT

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.rank = rank
        self.channel_group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30))

    def first_tag(self) -> int:
        return TAGS


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GlooTransport]]:
    monkeypatch.setattr("suite.comm.p2p.gloo._AHEAD", 1)
    monkeypatch.setattr("suite.comm.p2p.gloo._SIZES", 2)
    use_loopback_interface()
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        worlds = list(pool.map(lambda rank: World(store, rank), range(2)))
    transports = [GlooTransport(world, (0, 1)) for world in worlds]
    yield transports
    for transport in transports:
        transport._at_exit()


def value(index: int, numel: int) -> tuple[torch.Tensor, ...]:
    return (torch.full((numel, 2), float(index), requires_grad=True), torch.empty(0), torch.tensor([True]))


def test_values_arrive_in_order_whether_the_rank_waits_or_polls(ends: list[GlooTransport]) -> None:
    left, right = ends
    sizes = (1, 1000, 300, 1000, 2000, 1, 2000, 300, 500, 1000)
    for start, timeout in ((0, None), (10, 0)):
        ops = [FIRST._replace(index=start + number) for number in range(len(sizes))]
        for op, numel in zip(ops, sizes, strict=True):
            left.send(op, value(op.index, numel))
        arrivals = []
        for op in ops:
            while (arrival := right.recv_any((op,), timeout)) is None:
                time.sleep(0.001)
            arrivals.append(arrival)
        assert [op for op, _ in arrivals] == ops
        for (op, arrived), numel in zip(arrivals, sizes, strict=True):
            assert all(map(torch.equal, arrived, value(op.index, numel)))
            assert not arrived[0].requires_grad


def test_sends_wait_for_no_receiver_and_are_freed_by_its_answer(ends: list[GlooTransport]) -> None:
    left, right = ends
    for index in range(100):
        left.send(FIRST._replace(index=index), value(index, 1 + 500 * (index % 2)))
    assert len(left.channels[1].sending) == 100
    assert not any(tensor.requires_grad for _, _, payload in left.channels[1].sending for tensor in payload)
    for index in range(100):
        right.recv_any((FIRST._replace(index=index),), None)
    right.send(BACK, value(0, 1))
    left.recv_any((BACK,), None)
    assert not left.channels[1].sending


@pytest.mark.parametrize("polls", [False, True])
def test_wait_has_a_limit_and_a_silent_channel_has_none(ends: list[GlooTransport], polls: bool) -> None:
    left, right = ends
    if polls:
        right.recv_any((FIRST,), 0)
    time.sleep(1.5 * LIMIT.total_seconds())
    left.send(FIRST, value(0, 1))
    assert right.recv_any((FIRST,), None) is not None
    with pytest.raises(PeerEnded):
        right.recv_any((FIRST._replace(index=1),), None)


@pytest.mark.parametrize("polls", [False, True])
def test_unread_evaluation_values_block_their_sender(ends: list[GlooTransport], polls: bool) -> None:
    left, right = ends
    ops = [Op(0, Kind.EVALUATE, index) for index in range(8 * EVALUATION_CAPACITY)]
    left.channels[1].limit = timedelta(seconds=30)
    sender = threading.Thread(target=lambda: [left.send(op, value(op.index, 1000)) for op in ops])
    if polls:
        right.recv_any((FIRST,), 0)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive()
    assert len(right.mailbox) <= EVALUATION_CAPACITY
    for op in ops:
        right.recv_any((op,), None)
    sender.join()
