"""Interval of activation checkpoints, and the activations that a stage holds with them.

A stage saves the output of every `interval`-th layer and recomputes the others before a backward pass. AxoNN derives
the interval (V-A, Equation 1). Its formula and its rule differ, because the best interval of the formula need not
divide the layers of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import sqrt

from suite.core.errors import InvalidRequest
from suite.core.values import Exact
from suite.core.words import format_count


def activations(layers: Exact, stages: Exact, interval: Exact) -> Fraction:
    """Layer outputs in memory at the peak of a stage, in layer outputs of one microbatch (AxoNN Equation 1).

    They are the checkpoints of all microbatches in flight (one per stage, AxoNN IV-A), the input of the segment that is
    recomputed, and the layers of that segment. `interval` is any number above zero.
    """
    in_flight, stage_layers = Fraction(stages), Fraction(layers) / Fraction(stages)
    checkpoints = stage_layers / Fraction(interval)
    segment_input = 1
    return in_flight * checkpoints + segment_input + Fraction(interval)


def resolve_interval(checkpoints: int | str | None, stages: Sequence[int]) -> int | None:
    """Checkpoint interval of a configuration; `auto` is AxoNN's rule.

    Args:
        checkpoints: `auto`, None, or a number that divides the layers of every stage.
        stages: Number of layers of each stage; all equal for `auto`.

    Raises:
        InvalidRequest: For any other value.
    """
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
    """AxoNN's rule (V-A): the factor of a stage's layers that is closest to sqrt(layers).

    Of two equally close factors, the one with fewer activations. Raises InvalidRequest unless `stages` divides
    `layers`.
    """
    if not 1 <= stages <= layers or layers % stages:
        legal = max(n for n in range(1, max(1, min(stages, layers)) + 1) if layers % n == 0)
        raise InvalidRequest(
            f"{layers} layers on {stages} stages", rule="stages divide layers", legal=format_count(legal, "stage")
        )
    stage_layers = layers // stages
    factors = [n for n in range(1, stage_layers + 1) if stage_layers % n == 0]
    return min(factors, key=lambda n: (abs(n - sqrt(layers)), activations(layers, stages, n)))
