"""Random numbers of layers, seeded by (run seed, layer in the whole model, sample number).

The sample number is microbatch index * replicas + replica, so every split of the model, every schedule, a recomputation
and a replay draw the same numbers. Layers draw from torch's default generators, which belong to the process and to the
user. The engine restores them after each pass (`undisturbed`), so the user's code always finds the state that it left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from suite import accelerator

_GENERATORS = torch.Generator, random.Random, np.random.Generator, np.random.RandomState
_Access = tuple[Callable[[], Any], Callable[[Any], Any]]
_MASK = (1 << 64) - 1
_INITIAL = (1 << 32) - 1  # sample number of a layer's initial weights, which no training reaches
EVALUATION = 1 << 40  # sample numbers of evaluations begin here


def _splitmix64(state: int, number: int) -> int:
    """One round of splitmix64 with `number` added."""
    state = (state + number + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


class LayerRandom:
    """Seeds of one layer in one run. Each op needs one, so the first two rounds of mixing are precomputed."""

    __slots__ = ("state",)

    def __init__(self, run: int, layer: int) -> None:
        self.state = _splitmix64(_splitmix64(0, run), layer)

    def seed(self, sample: int) -> int:
        """A 63-bit seed whose bits are all mixed, because torch's CPU generator uses only the low 32."""
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


class HostRandom:
    """Random numbers of Python and numpy, and of the generators that modules hold.

    Forwards that draw from them draw again when they are recomputed, so the states are restored for that."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        values = (value for module in modules for value in vars(module).values())
        self.accesses: list[_Access] = [(random.getstate, random.setstate), (np.random.get_state, np.random.set_state)]
        self.accesses += [_access(value) for value in values if isinstance(value, _GENERATORS)]

    def state(self) -> list[Any]:
        """The states of all generators."""
        return [get() for get, _ in self.accesses]

    @contextmanager
    def again(self, state: Sequence[Any]) -> Iterator[None]:
        """Context in which the generators repeat what they drew after `state`; they then go on as if it were not."""
        after = self.state()
        self.restore(state)
        try:
            yield
        finally:
            self.restore(after)

    def restore(self, state: Sequence[Any]) -> None:
        """Go on after `state`."""
        for (_, put), own in zip(self.accesses, state, strict=True):
            put(own)


def same_draws(one: Any, other: Any) -> bool:
    """Whether two states of HostRandom are equal."""
    return all(map(np.array_equal, tree_leaves(one), tree_leaves(other)))


def _access(generator: Any) -> _Access:
    """Functions that read and write the state of a generator."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(getattr, bits, "state"), partial(setattr, bits, "state")
    return generator.get_state, generator.set_state


def initial(run: int, layer: int) -> tuple[int, int, int]:
    """Arguments of `drawing` for a layer's initial weights, equal on every split and every rank."""
    return run, layer, _INITIAL
