"""Variants of the cost model: other plausible values of the constants that were chosen with measurements in sight.

A variant changes one constant of every software generation. variants.yaml lists every value that was tried, with the
mean error of each group when all fitted constants are fitted again. The variant without a change is the chosen model.
Leaving a family of sources out chooses among the variants again, by the errors of the other families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from suite.config.typed_yaml import read_typed
from suite.core.errors import UnknownName
from suite.simulate.operations.generation import SoftwareGeneration
from suite.simulate.operations.setup import FLASH, TrainingSetup

OVERLAPS = ("tensor_overlap_flash", "tensor_overlap_compiled", "tensor_overlap_fp8")
CONSTANTS = (
    *("start", "contention", "within", "between", "traffic", "pause", "dispatch", "recompute_host", "jitter"),
    *(
        "norm_bytes",
        "unfused_norm_bytes",
        "residual_bytes",
        "cast_bytes",
        "loss_forward",
        "loss_backward",
        *("collective", "shard_call"),
    ),
)


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """One changed constant; no change for an empty name.

    Attributes:
        constant: Field of SoftwareGeneration; flash1, flash2 or flash3 for a factor on that kernel's shares; or
            tensor_overlap_GENERATION.
        groups: Mean error of each group with this variant.
    """

    constant: str = ""
    value: float = 0.0
    groups: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.constant}={self.value:g}" if self.constant else "as chosen"

    def of(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with the changed constant."""
        return replace(setup, generation=self.applied(setup.generation)) if self.constant else setup

    def applied(self, generation: SoftwareGeneration) -> SoftwareGeneration:
        """The generation with the changed constant. Raises UnknownName for an unknown constant."""
        if self.constant in FLASH:
            shares = {
                family: (forward * self.value, backward * self.value)
                for family, (forward, backward) in generation.flash[self.constant].items()
            }
            return replace(generation, flash={**generation.flash, self.constant: shares})
        if self.constant in OVERLAPS:
            if not self.constant.endswith(generation.name[:3]) and not self.constant.endswith(generation.name):
                return generation
            forward = self.value if generation.name.startswith("fp") else generation.tensor_overlap[0]
            return replace(generation, tensor_overlap=(forward, self.value))
        if self.constant not in CONSTANTS:
            raise UnknownName("constant of a variant", self.constant, (*CONSTANTS, *FLASH, *OVERLAPS))
        return _with(generation, self.constant, self.value)


def _with(generation: SoftwareGeneration, name: str, value: float) -> SoftwareGeneration:
    values: dict[str, float] = {name: value}
    return replace(generation, **values)  # type: ignore[arg-type]


CHOSEN = ModelVariant()


@cache
def recorded_variants() -> tuple[ModelVariant, ...]:
    """Variants of variants.yaml, the chosen model first."""
    return tuple(read_typed(list[ModelVariant], Path(__file__).with_name("variants.yaml")))


def best_without(groups: Iterable[str], variants: Sequence[ModelVariant]) -> ModelVariant:
    """The variant with the smallest mean error over all groups but these."""
    left = frozenset(groups)

    def mean(variant: ModelVariant) -> float:
        others = [error for group, error in variant.groups.items() if group not in left]
        return fmean(others) if others else 0.0

    return min(variants, key=mean)
