"""Arguments of `Engine` as a caller passes them."""

from __future__ import annotations

from typing import Any, TypedDict, cast


class EngineArguments(TypedDict):
    """The arguments of `Engine` before they are checked: a caller may have passed anything."""

    layers: Any
    loss: Any
    optimizer: Any
    microbatch: Any
    grid: Any
    schedule: Any
    weights: Any
    memory: Any
    split: Any
    tied: Any
    seed: Any
    half: Any
    scaler: Any
    bucket: Any
    chunk: Any
    clip: Any
    checkpoints: Any
    pruning: Any
    update_every: Any
    scores: Any
    score_names: Any
    compare_batches: Any
    world: Any


def given(**arguments: Any) -> EngineArguments:
    """The arguments by name. Others, such as the engine itself, are passed over."""
    return cast(EngineArguments, arguments)
