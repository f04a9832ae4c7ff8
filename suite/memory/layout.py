"""Decides what model states a rank keeps: form, type, size, home and life of each.

A layout is a tuple of states, and a memory optimisation is a function from layout to layout, so that optimisations
compose (SAMO with offload) and their byte counts follow instead of being typed. engine.state holds the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suite.core.errors import Refused, UnknownName

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
LIVES = ("always", "step", "bucket")  # held for ever; during the update; one bucket of the update at a time
HOMES = ("device", "host")
FORMS = ("dense", "indexed")


@dataclass(frozen=True, slots=True)
class State:
    """One model state: `entries` numbers of `dtype`. kind groups states on the page: weights, moments, ..."""

    name: str
    kind: str
    dtype: str
    entries: int
    form: str = "dense"
    home: str = "device"
    life: str = "always"

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("dtype", self.dtype, tuple(BYTES)),
            ("form", self.form, FORMS),
            ("home", self.home, HOMES),
            ("life", self.life, LIVES),
        ):
            if value not in known:
                raise UnknownName(kind, value, known)
        if self.entries < 0:
            raise Refused(f"state {self.name} of {self.entries} entries", rule="not negative", legal="0")

    @property
    def bytes(self) -> int:
        return self.entries * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    """The model states of one rank."""

    states: tuple[State, ...]

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __getitem__(self, name: str) -> State:
        for state in self.states:
            if state.name == name:
                return state
        raise UnknownName("state", name, [state.name for state in self.states])

    def bytes(self, *, home: str = "device", life: str | None = None) -> int:
        """Bytes at `home`, of one `life` or of all."""
        return sum(s.bytes for s in self.states if s.home == home and life in (None, s.life))

    def by_kind(self, *, home: str = "device", life: str = "always") -> dict[str, int]:
        kinds: dict[str, int] = {}
        for state in self.states:
            if state.home == home and state.life == life:
                kinds[state.kind] = kinds.get(state.kind, 0) + state.bytes
        return kinds


def dense(entries: int, moments: Sequence[str], dtype: str = "float32") -> Layout:
    """Weights, gradients and one buffer per moment, all of one type, and one scratch buffer during the update.

    With Adam in float32 that is 16 bytes per parameter, and 4 more while the update runs.
    """
    return Layout(
        (
            State("master", "weights", dtype, entries),
            State("gradient", "gradients", dtype, entries),
            *(State(name, "moments", dtype, entries) for name in moments),
            State("drift", "scratch", dtype, entries, life="step"),
        )
    )
