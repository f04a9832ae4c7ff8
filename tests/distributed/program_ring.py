"""Program of each of four ranks for test_rings.py: all-reduces of plain memory in groups of two, three and four."""

from __future__ import annotations

import sys
from itertools import pairwise

from suite.comm import here
from suite.comm.p2p.host_memory import PlainWorld, RingTraffic
from suite.comm.p2p.polling import until

SIZES = (0, 1, 7, 12_000, 1_000_001)


def main() -> None:
    world = here(tensors=False)
    assert isinstance(world, PlainWorld)
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
            memoryview(buffer.held)[:] = bytes([place]) * size
            ring = group.all_reduce(buffer)
            assert isinstance(ring, RingTraffic)
            assert until(ring.done, lambda: None, timeout=30)
            assert ring.done(), "done stays done"
            cuts = [part * size // count for part in range(count + 1)]
            lengths = [b - a for a, b in pairwise(cuts)]
            # every part has been round: what its first owner held stands everywhere
            assert bytes(buffer.held) == b"".join(bytes([p]) * n for p, n in enumerate(lengths)), (ranks, size)
            # a rank sends every part twice, but the one after its own in the first half, and the next in the second
            spared = lengths[(place + 1) % count] + lengths[(place + 2) % count]
            assert ring.sent == 2 * size - spared, (ranks, size)
            if size % count == 0:
                assert ring.sent * count == 2 * (count - 1) * size
            rings += 1
    assert "torch" not in sys.modules
    total = world.all_reduce_scalar(rings, "sum", lambda: None)
    if world.rank == 0:
        print(f"{total:g} rings")
    world.close()


if __name__ == "__main__":
    main()
