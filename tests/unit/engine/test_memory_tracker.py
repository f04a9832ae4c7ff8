"""Memory tracker: each storage counted once, from allocation to release."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import torch

from suite.engine.memory_tracker import MemoryTracker


def test_views_and_in_place_results_are_counted_once() -> None:
    with MemoryTracker() as live:
        a = torch.zeros(10, 25)
        views = [a[2:], a.view(-1), a.t(), a.detach(), a.split(5)[1], a.expand(4, 10, 25)]
        a.add_(1.0)
        torch.add(a, a, out=a)
        a.mul_(2)[0].zero_()
        assert (live.live, live.peak) == (1000, 1000)
        del a
        assert live.live == 1000  # a view keeps the whole storage
        del views
        assert live.live == 0


def test_sparse_tensor_is_counted_by_its_parts() -> None:
    """It has no storage; its values and indices were counted at their allocation."""
    with MemoryTracker() as live:
        offsets, columns, values = torch.arange(3), torch.arange(2), torch.ones(2)
        allocated = live.live
        matrix = torch.sparse_csr_tensor(offsets, columns, values, (2, 2), check_invariants=False)
        assert live.live == allocated == 8 * 3 + 8 * 2 + 4 * 2
        right = torch.ones(2, 5)
        product = matrix @ right
        assert live.live == allocated + right.nbytes + product.nbytes


def test_ranks_that_are_threads_leave_the_compiler_on() -> None:
    """The rank that began first also ends first."""
    compilations: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compilations.append(graph)
        return graph

    double = torch.compile(lambda x: 2 * x, backend=backend)
    both, first_left = Barrier(2), Event()

    def rank(number: int) -> None:
        with MemoryTracker():
            both.wait(30)
            if number:
                first_left.wait(30)
            assert double(torch.ones(1)) == 2
        first_left.set()

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(rank, range(2)))
    assert not compilations, "kernels of a compiler are not counted"
    double(torch.ones(1))
    assert len(compilations) == 1
