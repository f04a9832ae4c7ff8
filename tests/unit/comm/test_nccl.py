"""Messages over NCCL: when a sent value is freed, and how long a message may take."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from suite.comm.collective import process_group
from suite.comm.collective.process_group import TorchWorld
from suite.comm.p2p.nccl import NcclTransport
from suite.core.op import Kind, Op


class Sent:
    """A message. Over gloo, it is never reported complete before a wait."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.gloo = tensor.dtype is torch.uint8
        self.received = self.waited = False

    def is_completed(self) -> bool:
        return self.received and not self.gloo

    def wait(self) -> None:
        assert self.received, "a wait for a value that has not arrived"
        self.waited = True


def test_sent_values_are_freed_once_received(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Sent] = []

    def isend(tensor: torch.Tensor, rank: int, group: Any) -> Sent:
        sent.append(Sent(tensor))
        return sent[-1]

    monkeypatch.setattr(dist, "isend", isend)
    world: Any = SimpleNamespace(rank=0, device="cpu", eager_bytes=4096, lane_groups=lambda homes: {(0, 1): "lane"})
    transport = NcclTransport(world, (0, 1))
    held = []
    for index in range(5):
        transport.send(Op(0, Kind.FORWARD, index), (torch.ones(2), torch.ones(3)))
        held.append(len(transport.sending[0, 1]))
        if index in (1, 3):  # the receiver has caught up
            for message in sent:
                message.received = True
    assert held == [1, 2, 1, 2, 1]
    assert [message.waited for message in sent] == [True] * 12 + [False] * 3


@pytest.mark.parametrize(("suspended", "limit"), [(True, timedelta(days=30)), (False, None)])
def test_only_suspended_ranks_wait_for_days(
    monkeypatch: pytest.MonkeyPatch, suspended: bool, limit: timedelta | None
) -> None:
    limits = []
    monkeypatch.setattr(
        process_group, "ProcessGroups", lambda *args, **kwargs: SimpleNamespace(departures=None, group=id, groups={})
    )
    monkeypatch.setattr(dist, "new_group", lambda *args, timeout=None, **kwargs: limits.append(timeout))
    monkeypatch.setattr(
        dist, "all_gather_object", lambda found, value, group: found.__setitem__(slice(None), [value] * 2)
    )
    launch: Any = SimpleNamespace(rank=0, size=2)
    world = TorchWorld(launch, None, suspended=suspended)  # type: ignore[arg-type]
    world.lane_groups((0, 1))
    assert limits[1:] == [limit] * 3  # after the group of numbers
