"""Decides how times that ranks took reach pytest-benchmark, and what every benchmark says of its circumstances.

Ranks are started once and time themselves: what pytest-benchmark would measure is the start. So its clock is replaced
for such a test by one that stands at zero until a sample is played: the statistics in the JSON are those of the
samples, to the last bit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from suite.bench.launch import mpi_version
from suite.bench.provenance import versions

REQUIRED = ("peer", "libraries", "threads", "binding", "timing")  # what extra_info of every benchmark holds


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


def tell(benchmark: Any, *, peer: bool, timing: str, ranks: int = 1, **more: Any) -> None:
    """What a reader needs to judge the numbers.

    peer: somebody else's code, which ours is compared with; timing: what was timed, and by whom; more: its settings
    """
    launched = {"mpiexec": mpi_version(None)} if ranks > 1 else {}
    torch = sys.modules.get("torch")  # what has not loaded it runs on one thread
    benchmark.extra_info.update(
        peer=peer,
        timing=timing,
        ranks=ranks,
        libraries={**versions(), **launched},
        threads=torch.get_num_threads() if torch else 1,
        binding="mpiexec --bind-to none" if ranks > 1 else "none",
        **more,
    )
