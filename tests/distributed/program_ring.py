"""Program of each of four ranks for test_rings.py: all-reduces of plain memory in groups of two, three and four."""

from __future__ import annotations

import sys
from itertools import pairwise

from suite.comm.p2p.host_memory import HostMemoryWorld, RingTraffic
from suite.comm.p2p.polling import wait_until
from suite.comm.world import init_world

SIZES = (0, 1, 7, 12_000, 1_000_001)


def main() -> None:
    world = init_world(tensors=False)
    assert isinstance(world, HostMemoryWorld)
    assert world.size == 4
    rings = 0
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
            rings += 1
    assert "torch" not in sys.modules
    (total,) = world.all_reduce_numbers([rings], "sum", lambda: None)
    if world.rank == 0:
        print(f"{total:g} rings")
    world.close()


if __name__ == "__main__":
    main()
