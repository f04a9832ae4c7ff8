"""Times measured in turns or by ranks, passed to pytest-benchmark with the circumstances of the benchmark.

Such a test replaces the clock of pytest-benchmark by one that returns the samples, so the statistics in the JSON are
exactly the statistics of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from suite.comm.rendezvous.mpiexec_flags import mpi_version
from suite.runner.provenance import versions

REQUIRED = ("peer", "libraries", "threads", "binding", "timing")  # keys of extra_info of every benchmark


class _Clock:
    """Zero, or the sample that is being played. Its name is the `timer` of the benchmark's options in the JSON."""

    __name__ = "time_taken_by_the_ranks"

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


_clock = _Clock()
measured_elsewhere = pytest.mark.benchmark(timer=_clock)


def play(benchmark: Any, samples: Sequence[float]) -> None:
    """Make `samples` (seconds) the rounds of this benchmark. The test is marked `measured_elsewhere`."""
    assert benchmark._timer is _clock or benchmark.disabled, "the test is not marked measured_elsewhere"
    assert samples
    rest = iter(samples)

    def rewind() -> None:
        _clock.now = 0.0

    def step() -> None:
        _clock.now = next(rest)

    benchmark.pedantic(step, setup=rewind, rounds=len(samples))


def take_turns(
    calls: Mapping[str, Callable[[], object]], turns: int, clock: Callable[[], float], per: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, divided by `per`, by turn. The first turn settles and does not count.

    The calls take turns, A B A B, so that a shared machine's drift falls on all alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            begin = clock()
            call()
            if turn:
                seconds[name].append((clock() - begin) / per)
    return seconds


def tell(
    benchmark: Any, *, peer: bool, timing: str, ranks: int = 1, threads: int = 1, binding: str = "none", **more: Any
) -> None:
    """Record the circumstances of a benchmark in its extra_info.

    Args:
        benchmark: The benchmark fixture.
        peer: Whether the code belongs to another project that ours is compared with.
        timing: Description of the timed operation and of the clock.
        ranks: Number of ranks.
        threads: Threads per rank.
        binding: Binding of ranks to cores by mpiexec.
        more: Settings of the operation.
    """
    launched = {"mpiexec": mpi_version(None)} if ranks > 1 else {}
    benchmark.extra_info.update(
        peer=peer,
        timing=timing,
        ranks=ranks,
        threads=threads,
        binding=binding,
        libraries={**versions(), **launched},
        **more,
    )
