"""Ring collectives of ranks without torch move the parts of an all-reduce."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from suite.comm.p2p.host_memory import HostMemoryWorld, RingTraffic
from suite.comm.p2p.polling import wait_until
from tests.support.ranks import on_ranks

SIZES = (0, 1, 7, 12_000, 1_000_001)


def rings(world: Any) -> int:
    """All-reduces of plain memory in groups of two, three and four. Returns the number of those of this rank."""
    assert isinstance(world, HostMemoryWorld)
    assert world.size == 4
    made = 0
    for ranks in ((0, 1), (3, 1, 2), (0, 1, 2, 3)):
        group = world.group(ranks)
        assert group is world.group(ranks)
        if world.rank not in ranks:
            continue
        count, place = len(ranks), ranks.index(world.rank)
        for size in SIZES:
            buffer = world.buffer(size)
            memoryview(buffer.memory)[:] = bytes([place]) * size
            ring = group.all_reduce(buffer)
            assert isinstance(ring, RingTraffic)
            assert wait_until(ring.done, lambda: None, timeout=30)
            assert ring.done(), "done stays true"
            cuts = [index * size // count for index in range(count + 1)]
            lengths = [end - start for start, end in pairwise(cuts)]
            # every slice of the first owner has reached all ranks
            assert bytes(buffer.memory) == b"".join(bytes([p]) * n for p, n in enumerate(lengths)), (ranks, size)
            # every slice is sent twice, except the next and the second next slice of this rank, sent once
            unsent = lengths[(place + 1) % count] + lengths[(place + 2) % count]
            assert ring.sent_bytes == 2 * size - unsent, (ranks, size)
            if size % count == 0:
                assert ring.sent_bytes * count == 2 * (count - 1) * size
            made += 1
    return made


def test_ring_all_reduce_moves_every_slice() -> None:
    assert sum(on_ranks(4, rings, deadline=60, tensors=False)) == len(SIZES) * (2 + 3 + 4)
