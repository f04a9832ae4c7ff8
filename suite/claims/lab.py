"""Modelled runs with constants and choices that can be varied, and a cache that records what each value read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from suite.claims import trace
from suite.claims.claim import Scalar
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")
AnyLab = TypeVar("AnyLab", bound="BaseLab")


@dataclass(frozen=True, eq=False)
class BaseLab:
    """Source of simulated answers.

    Attributes:
        machine: Modelled machine.
        efficiencies: Efficiency constants by name.
        changes: Values of choices that override their defaults, by traced name: {"plan.pipeoptim.sentence": 20}.
    """

    software: ClassVar[str]  # name of the efficiency that most runs take

    machine: Machine
    efficiencies: Mapping[str, Efficiency]
    changes: Mapping[str, Scalar] = field(default_factory=dict, kw_only=True)

    @cached_property
    def cache(self) -> trace.TracedCache[Any, Any]:
        return trace.TracedCache()

    @cached_property
    def _traced(self) -> Mapping[str, Efficiency]:
        return {name: trace.trace_efficiency(efficiency) for name, efficiency in self.efficiencies.items()}

    def efficiency(self, name: str = "") -> Efficiency:
        """Efficiency constants by name. Each read is traced."""
        return self._traced[name or self.software]

    def choice(self, name: str, default: Scalar) -> Scalar:
        """Value of a choice that no paper prints: `default` unless it is varied.

        Args:
            name: Traced name, for example plan.pipeoptim.sentence.
            default: Value without variation.
        """
        trace.read(name)
        return self.changes.get(name, default)

    def varied(self, name: str, value: Scalar) -> Self:
        """Copy with another value of a constant or a choice. Cached values that do not depend on it are kept.

        Args:
            name: Traced name, for example efficiency.summit.adapters or plan.samo.axonn_samo.gpt3_xl.inter.
            value: New value, or a factor if the constant is a mapping of shares.
        """
        changed = self._changed(name, value)
        changed.__dict__["cache"] = self.cache.without(name)
        return changed

    def _changed(self, name: str, value: Scalar) -> Self:
        kind, owner, *rest = name.split(".")
        if kind == "efficiency":
            constants = trace.with_constant(self.efficiencies[owner], rest[0], value)
            return replace(self, efficiencies={**self.efficiencies, owner: constants})
        return replace(self, changes={**self.changes, name: value})

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """Ids of the claims to which a traced input was fitted or by which it was chosen."""
        kind, owner, *rest = name.split(".")
        return trace.fitted_to(self.efficiencies[owner], rest[0]) if kind == "efficiency" else ()


def cached(
    method: Callable[Concatenate[AnyLab, Parameters], Value],
) -> Callable[Concatenate[AnyLab, Parameters], Value]:
    """Method or function of a lab that computes each value once; a cached value records the same reads again."""

    @wraps(method)
    def once(lab: AnyLab, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        key = method.__qualname__, args, *sorted(kwargs.items())
        return cast(Value, lab.cache.get(key, lambda: method(lab, *args, **kwargs)))

    return once
