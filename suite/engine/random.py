"""Decides which random numbers a layer draws: those of (run seed, layer in the whole model, sample number).

The sample number is microbatch index * replicas + replica, so every split of the model, every schedule, a recomputation
and a replay draw the same. Layers draw from torch's default generator, which is the process's: a lock keeps the stages
of a loopback world apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_default_generator = threading.Lock()
_MASK = (1 << 64) - 1
_INITIAL = (1 << 32) - 1  # the sample number of a layer's initial weights: no training reaches it


def seed_of(run: int, layer: int, sample: int) -> int:
    """A 63-bit seed, well mixed (splitmix64 over the three numbers)."""
    state = 0
    for number in (run, layer, sample):
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


@contextmanager
def drawing(run: int, layer: int, sample: int) -> Iterator[None]:
    """Inside, the default generators stand at the seed of this layer and sample."""
    seed = seed_of(run, layer, sample)
    with _default_generator:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leaves the caller's random state as it was."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def initial(run: int, layer: int) -> tuple[int, int, int]:
    """Arguments of `drawing` for a layer's initial weights: the same on every split and every rank."""
    return run, layer, _INITIAL
