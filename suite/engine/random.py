"""Decides which random numbers a layer draws: those of (run seed, layer in the whole model, sample number).

The sample number is microbatch index * replicas + replica, so every split of the model, every schedule, a recomputation
and a replay draw the same. Layers draw from torch's default generator, which is the process's: a lock keeps the stages
of a loopback world apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

_T = TypeVar("_T")
generators = threading.Lock()
_MASK = (1 << 64) - 1
_INITIAL = (1 << 32) - 1  # the sample number of a layer's initial weights: no training reaches it


def _mixed(state: int, number: int) -> int:
    """One round of splitmix64 with `number` added."""
    state = (state + number + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def seed_of(run: int, layer: int, sample: int) -> int:
    """A 63-bit seed, well mixed in all bits (torch's CPU generator uses the low 32)."""
    return Stream(run, layer).seed(sample)


class Stream:
    """The random numbers of one layer in one run: once per op and layer, so the mixing is begun in advance."""

    __slots__ = ("state",)

    def __init__(self, run: int, layer: int) -> None:
        self.state = _mixed(_mixed(0, run), layer)

    def seed(self, sample: int) -> int:
        return _mixed(self.state, sample) >> 1

    def stand_at(self, sample: int) -> None:
        """Set the default generators to this layer's numbers for `sample`; the caller holds `generators`."""
        seed = self.seed(sample)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)


@contextmanager
def drawing(run: int, layer: int, sample: int) -> Iterator[None]:
    """Inside, the default generators stand at the seed of this layer and sample."""
    with generators:
        Stream(run, layer).stand_at(sample)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leaves the caller's random state as it was."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        with generators:  # not while a layer of another thread draws
            torch.default_generator.set_state(state)


def outside(told: Iterator[_T | None]) -> Iterator[_T]:
    """What a generator tells, its Nones apart. It leaves the random state of whoever asks as it was, time and again."""
    while True:
        with undisturbed():
            try:
                found = next(told)
            except StopIteration:
                return
        if found is not None:
            yield found


def initial(run: int, layer: int) -> tuple[int, int, int]:
    """Arguments of `drawing` for a layer's initial weights: the same on every split and every rank."""
    return run, layer, _INITIAL
