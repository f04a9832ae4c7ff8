"""Collectives of ranks that are generators of one thread."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import pytest
import torch

from suite.comm.p2p.coroutine import CoroutineHub, CoroutineWorld
from suite.core.errors import IllegalSchedule


def created(size: int) -> tuple[CoroutineHub, list[CoroutineWorld]]:
    hub = CoroutineHub(size)
    return hub, hub.create_ranks(lambda world: world)


@pytest.mark.parametrize("root", [0, 2])
def test_collectives_wait_for_all_ranks_of_their_group(root: int) -> None:
    """Ranks 0 and 2 broadcast 1 + the root, then add; rank 1 is in neither group."""
    hub, worlds = created(3)
    tensors = [torch.tensor([1.0 + rank]) for rank in range(3)]

    def rank(world: CoroutineWorld) -> Generator[None, None, None]:
        if world.rank == 1:
            return
        group, tensor = world.group((0, 2)), tensors[world.rank]
        for collective in (partial(group.broadcast, root=root), group.all_reduce):
            handle = collective(tensor)
            while not handle.done():
                yield None

    list(hub.run([rank(world) for world in worlds]))
    assert [tensor.item() for tensor in tensors] == [2.0 * (1 + root), 2.0, 2.0 * (1 + root)]


def test_a_broadcast_without_its_root_is_a_deadlock() -> None:
    hub, worlds = created(2)

    def rank(world: CoroutineWorld) -> Generator[None, None, None]:
        if world.rank == 1:
            handle = world.group((0, 1)).broadcast(torch.zeros(1), 0)
            while not handle.done():
                yield None

    with pytest.raises(IllegalSchedule):
        list(hub.run([rank(world) for world in worlds]))
