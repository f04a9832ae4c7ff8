"""Interval of activation checkpoints, and the activations that a stage then holds.

With checkpoints a stage keeps the output of every `interval`-th layer and computes the rest again before a backward
pass. AxoNN derives the interval (V-A, Equation 1): its formula and its rule are two things, since the formula's best
interval need not divide the layers of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import sqrt

from suite.core.errors import InvalidRequest
from suite.core.values import Exact


def activations(layers: Exact, stages: Exact, interval: Exact) -> Fraction:
    """AxoNN Equation 1: layer outputs alive at the peak of a stage, in units of one layer's output of one microbatch.

    Checkpoints of every microbatch in flight (as many as stages: AxoNN IV-A), the input of the segment that is computed
    again, and the segment's own layers. `interval` may be any number above zero.
    """
    in_flight, stage_layers = Fraction(stages), Fraction(layers) / Fraction(stages)
    checkpoints = stage_layers / Fraction(interval)
    segment_input = 1
    return in_flight * checkpoints + segment_input + Fraction(interval)


def chosen(checkpoints: int | str | None, stages: Sequence[int]) -> int | None:
    """The interval that a config's `checkpoints` means for `stages` with so many layers each; 'auto' is AxoNN's rule.

    Raises InvalidRequest for anything else than auto, nothing or a number that divides every stage's layers, and for
    auto on stages that differ."""
    if checkpoints is None:
        return None
    spacing = checkpoint_interval(sum(stages), len(stages)) if checkpoints == "auto" else checkpoints
    whole = isinstance(spacing, int) and not isinstance(spacing, bool) and spacing > 0
    if not whole or any(stage_layers % int(spacing) for stage_layers in stages):
        legal = [str(n) for n in range(1, max(stages) + 1) if not any(stage_layers % n for stage_layers in stages)]
        raise InvalidRequest(
            f"activation_checkpointing={checkpoints} on stages of {', '.join(map(str, dict.fromkeys(stages)))} layers",
            rule="it divides the layers of a stage (AxoNN V-A): "
            f"{', '.join(legal)}{', auto' if len(set(stages)) == 1 else ''} or None",
            legal=f"activation_checkpointing={legal[-1]}",
        )
    return int(spacing)


def checkpoint_interval(layers: int, stages: int) -> int:
    """AxoNN's rule (V-A): of the factors of a stage's layers the one closest to sqrt(layers).

    Of two equally close the one with fewer activations. Raises InvalidRequest unless every stage has the same layers.
    """
    if not 1 <= stages <= layers or layers % stages:
        legal = max(n for n in range(1, max(1, min(stages, layers)) + 1) if layers % n == 0)
        raise InvalidRequest(
            f"{layers} layers on {stages} stages", rule="stages divide layers", legal=f"{legal} stages"
        )
    stage_layers = layers // stages
    factors = [n for n in range(1, stage_layers + 1) if stage_layers % n == 0]
    return min(factors, key=lambda n: (abs(n - sqrt(layers)), activations(layers, stages, n)))
