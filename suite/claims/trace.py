"""Record of the inputs of an answer: efficiency constants, plans, graphs, other claims.

A value is weaker evidence if it depends on a constant fitted to its own claim or to a cell of the same table. The
inputs of an answer are recorded as dotted names while the answer runs: `efficiency.summit.adapters`,
`plan.axonn.deepspeed_3d.transformer_12b`, `graph.amazon`, `claim.axonn.table2.12b.axonn.g_inter`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

from suite.simulate.cost.efficiency import Efficiency

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_reads: ContextVar[set[str] | None] = ContextVar("reads", default=None)
_DESCRIPTIONS = frozenset({"name", "fitted", "chosen", "reasons", "ranges"})
_CONSTANTS = frozenset(field.name for field in fields(Efficiency)) - _DESCRIPTIONS


def read(name: str) -> None:
    """Record `name` as an input of the answer being computed."""
    reads = _reads.get()
    if reads is not None:
        reads.add(name)


def is_covered(name: str, reads: Iterable[str]) -> bool:
    """Whether `name` or a prefix of it is among `reads`. A plan or a graph is recorded as a whole."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in reads)


@contextmanager
def record_reads() -> Iterator[set[str]]:
    """Set of names read in the context. Reads in a nested context count for both."""
    outer, reads = _reads.get(), set[str]()
    token = _reads.set(reads)
    try:
        yield reads
    finally:
        _reads.reset(token)
        if outer is not None:
            outer |= reads


class TracedCache(Generic[Key, Value]):
    """Cache of values with the reads of their computation. A cache hit records the same reads again."""

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[Value, frozenset[str]]] = {}

    def without(self, name: str) -> TracedCache[Key, Value]:
        """Copy without the values that depend on `name`."""
        cache: TracedCache[Key, Value] = TracedCache()
        cache._entries = {key: entry for key, entry in self._entries.items() if not is_covered(name, entry[1])}
        return cache

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """Value of `key`, computed by `compute` on the first call."""
        if key not in self._entries:
            with record_reads() as reads:
                value = compute()
            self._entries[key] = value, frozenset(reads)
        value, names = self._entries[key]
        for name in names:
            read(name)
        return value


class TracedEfficiency(Efficiency):
    """Efficiency that records each constant read. A mapping of shares is recorded when one of its entries is read."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in _CONSTANTS:
            full = f"efficiency.{object.__getattribute__(self, 'name')}.{name}"
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


def with_constant(efficiency: Efficiency, constant: str, value: float | str) -> Efficiency:
    """Copy of an efficiency with another value of a constant.

    A mapping of shares is multiplied by `value`, and an integer constant stays an integer.

    Raises:
        InvalidRequest: The value is outside the bounds of the constant.
    """
    current, changed = getattr(efficiency, constant), float(value)
    replacement: Any = int(changed) if isinstance(current, int) else changed
    if isinstance(current, Mapping):
        replacement = {name: share * changed for name, share in current.items()}
    return replace(efficiency, **{constant: replacement})


def trace_efficiency(efficiency: Efficiency) -> Efficiency:
    """Traced copy of an efficiency."""
    constants = {field.name: getattr(efficiency, field.name) for field in fields(efficiency)}
    token = _reads.set(None)  # validation in the constructor reads every constant
    try:
        return TracedEfficiency(**constants)
    finally:
        _reads.reset(token)


def fitted_to(efficiency: Efficiency, constant: str) -> tuple[str, ...]:
    """Ids of the claims to which a constant was fitted or by which it was chosen."""
    return (*efficiency.fitted.get(constant, ()), *efficiency.chosen.get(constant, ()))
