"""Random numbers of layers, seeded by (run seed, layer in the whole model, sample number).

The sample number is microbatch index * replicas + replica, so every split of the model, every schedule, a recomputation
and a replay draw the same numbers. Layers draw from torch's default generators, which belong to the process and to the
user. The engine restores them after each pass (`undisturbed`), so the user's code always finds the state that it left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from suite import accelerator

_MASK = (1 << 64) - 1
_INITIAL = (1 << 32) - 1  # sample number of a layer's initial weights, which no training reaches
EVALUATION = 1 << 40  # sample numbers of evaluations begin here


def _splitmix64(state: int, number: int) -> int:
    """One round of splitmix64 with `number` added."""
    state = (state + number + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def seed_of(run: int, layer: int, sample: int) -> int:
    """A 63-bit seed whose bits are all mixed, because torch's CPU generator uses only the low 32."""
    return LayerRandom(run, layer).seed(sample)


class LayerRandom:
    """Seeds of one layer in one run. Each op needs one, so the first two rounds of mixing are precomputed."""

    __slots__ = ("state",)

    def __init__(self, run: int, layer: int) -> None:
        self.state = _splitmix64(_splitmix64(0, run), layer)

    def seed(self, sample: int) -> int:
        return _splitmix64(self.state, sample) >> 1

    def set_generators(self, sample: int) -> None:
        """Seed the default generators for `sample`."""
        accelerator.seed(self.seed(sample))


@contextmanager
def drawing(run: int, layer: int, sample: int) -> Iterator[None]:
    """Context in which the default generators start at the seed of this layer and sample."""
    LayerRandom(run, layer).set_generators(sample)
    yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context after which the default generators, of the CPU and of the device, have their states again."""
    states = accelerator.random_states()
    try:
        yield
    finally:
        accelerator.set_random_states(states)


def initial(run: int, layer: int) -> tuple[int, int, int]:
    """Arguments of `drawing` for a layer's initial weights, equal on every split and every rank."""
    return run, layer, _INITIAL
