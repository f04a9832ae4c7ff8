"""Rate of large products: constants that are fitted to public measurements, by family of devices and generation.

A constant is relative to the best published product of the device (Machine.sustained), so that it can be taken for
another family. The values are in suite/simulate/validation/constants.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from suite.simulate.operations.generation import SoftwareGeneration
from suite.simulate.operations.setup import TrainingSetup

Pair = tuple[str, str]  # family of devices, generation
Shares = Mapping[Pair, float]


def share_of(pair: Pair, constants: Shares) -> float:
    """Constant of a pair; the median of all constants for a pair without its own."""
    return constants[pair] if pair in constants else median(constants.values())


def with_share(setup: TrainingSetup, share: float) -> TrainingSetup:
    """The setup with another constant for its large products."""
    generation: SoftwareGeneration = replace(setup.generation, products={setup.machine.family: share})
    return replace(setup, generation=generation)
