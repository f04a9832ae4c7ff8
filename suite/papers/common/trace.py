"""Data that an answer reads while it is computed: constants of efficiency, plans, graphs and other claims.

A value that reads a constant fitted to its own claim, or to another cell of the same table, is weaker evidence than
one that does not. While the answer runs, its reads are recorded here as dotted names: `stack.samo.adapters`,
`plan.axonn.deepspeed_3d.transformer_12b`, `graph.amazon`, `claim.axonn.table2.12b.axonn.g_inter`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

from suite.simulate.cost.efficiency import Stack

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_reads: ContextVar[set[str] | None] = ContextVar("reads", default=None)
_WORDS = frozenset({"name", "fitted", "chosen", "reasons", "ranges"})
_CONSTANTS = frozenset(each.name for each in fields(Stack)) - _WORDS


def read(name: str) -> None:
    """Note that the answer that is being computed reads `name`."""
    reads = _reads.get()
    if reads is not None:
        reads.add(name)


def is_covered(name: str, reads: Iterable[str]) -> bool:
    """Whether `name` is among `reads`, or a part of one of them: a plan or a graph is read as a whole."""
    return any(name == each or name.startswith(f"{each}.") for each in reads)


@contextmanager
def record_reads() -> Iterator[set[str]]:
    """The names that are read within; those that are read within an inner one count for both."""
    outer, reads = _reads.get(), set[str]()
    token = _reads.set(reads)
    try:
        yield reads
    finally:
        _reads.reset(token)
        if outer is not None:
            outer |= reads


class TracedCache(Generic[Key, Value]):
    """A cache that stores each value with the reads of its computation; a cache hit counts as the same reads."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Value, frozenset[str]]] = {}

    def without(self, name: str) -> TracedCache[Key, Value]:
        """A copy that lacks the values that were computed with `name`."""
        cache: TracedCache[Key, Value] = TracedCache()
        cache._known = {key: entry for key, entry in self._known.items() if not is_covered(name, entry[1])}
        return cache

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """The value of `key`, computed where it is not known yet."""
        if key not in self._known:
            with record_reads() as reads:
                value = compute()
            self._known[key] = value, frozenset(reads)
        value, names = self._known[key]
        for name in names:
            read(name)
        return value


class TracedStack(Stack):
    """A stack whose constants are noted as they are read; of shares by name, only those that there are."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in _CONSTANTS:
            full = f"stack.{object.__getattribute__(self, 'name')}.{name}"
            if isinstance(value, Mapping):
                return _TracedShares(full, value)
            read(full)
        return value


class _TracedShares(Mapping[str, float]):
    def __init__(self, name: str, shares: Mapping[str, float]) -> None:
        self._name, self._shares = name, shares

    def __getitem__(self, key: str) -> float:
        share = self._shares[key]
        read(self._name)
        return share

    def __iter__(self) -> Iterator[str]:
        return iter(self._shares)

    def __len__(self) -> int:
        return len(self._shares)


def with_constant(stack: Stack, constant: str, value: float | str) -> Stack:
    """The stack with another value of a constant; shares by name are multiplied by it, and counts stay whole.

    Raises InvalidRequest for a value outside the constant's bounds."""
    now, changed = getattr(stack, constant), float(value)
    replacement: Any = int(changed) if isinstance(now, int) else changed
    if isinstance(now, Mapping):
        replacement = {name: share * changed for name, share in now.items()}
    return replace(stack, **{constant: replacement})


def trace_stack(stack: Stack) -> Stack:
    """The same constants, noted as they are read."""
    constants = {each.name: getattr(stack, each.name) for each in fields(stack)}
    token = _reads.set(None)  # its own checks read every constant
    try:
        return TracedStack(**constants)
    finally:
        _reads.reset(token)


def fitted_to(stack: Stack, constant: str) -> tuple[str, ...]:
    """The claims that a constant of a stack was fitted to or chosen by."""
    return (*stack.fitted.get(constant, ()), *stack.chosen.get(constant, ()))
