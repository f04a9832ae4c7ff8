"""Random numbers of layers, by (run seed, layer in the whole model, sample number).

The sample number is microbatch index * replicas + replica, so every split of the model, every schedule, a recomputation
and a replay draw the same. Layers draw from torch's default generators, which belong to the process and to the user.
The engine therefore restores them after each pass (`undisturbed`): the user's code always sees the state that it left.

Ranks that are threads of one process share these generators. A lock keeps their passes apart, and keeps a user's
iterator apart from passes (`user_code`). Such an iterator must not wait for another rank, except through the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

_T = TypeVar("_T")
generators = threading.RLock()


class _User(threading.local):
    """Of one thread. exclusive: it runs user code that holds the lock"""

    exclusive = False


_user = _User()
_MASK = (1 << 64) - 1
_INITIAL = (1 << 32) - 1  # the sample number of a layer's initial weights: no training reaches it
EVALUATION = 1 << 40  # sample numbers of evaluations begin here


def _mixed(state: int, number: int) -> int:
    """One round of splitmix64 with `number` added."""
    state = (state + number + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def seed_of(run: int, layer: int, sample: int) -> int:
    """A 63-bit seed, well mixed in all bits (torch's CPU generator uses the low 32)."""
    return LayerRandom(run, layer).seed(sample)


class LayerRandom:
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
        LayerRandom(run, layer).stand_at(sample)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold the default generators, of the CPU and of the current CUDA device, and restore their states at the end."""
    with generators:
        cpu = torch.default_generator.get_state()
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        try:
            yield
        finally:
            torch.default_generator.set_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda)


@contextmanager
def user_code(*, exclusive: bool) -> Iterator[None]:
    """Run the user's iterator. exclusive: no layer of another thread draws meanwhile."""
    if not exclusive:
        yield
        return
    with generators:
        outer, _user.exclusive = _user.exclusive, True
        try:
            yield
        finally:
            _user.exclusive = outer


@contextmanager
def _engine_code() -> Iterator[None]:
    """Release the lock where the user's iterator calls an engine, because the other ranks must run their passes."""
    if not _user.exclusive:
        yield
        return
    _user.exclusive = False
    generators.release()
    try:
        yield
    finally:
        generators.acquire()
        _user.exclusive = True


def outside(steps: Iterator[_T | None]) -> Iterator[_T]:
    """Return the values of an engine's generator to the user, without its Nones."""
    while True:
        with _engine_code():
            try:
                value = next(steps)
            except StopIteration:
                return
        if value is not None:
            yield value


def initial(run: int, layer: int) -> tuple[int, int, int]:
    """Arguments of `drawing` for a layer's initial weights: the same on every split and every rank."""
    return run, layer, _INITIAL
