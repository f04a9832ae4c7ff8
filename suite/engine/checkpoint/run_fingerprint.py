"""Fingerprint of a run: settings that a checkpoint and the resuming engine must share.

The fingerprint holds, as plain data, every setting that determines the numbers of a training run: update rule with its
arguments, seed, precision, clipping. Schedule, grid, memory layout and bucket size do not change the numbers (laws 2
and 8) and are absent. An asynchronous pipeline adds its depth, its update interval and its weight policy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from suite.core.errors import InvalidRequest
from suite.core.members import attributes
from suite.core.values import Json, leaves
from suite.engine.ties import as_pairs
from suite.engine.torch_api.torch_optimizer import TorchOptimizer
from suite.engine.train_state import TrainState

RULE = "a checkpoint resumes a run with the settings that it was saved with"


def fingerprint_of(state: TrainState) -> Mapping[str, Json]:
    """The fingerprint as plain data by arguments of Engine, which a round trip through JSON does not change."""
    settings, rule = state.settings, state.update.rule
    streams = settings.streams
    values = {
        "layers": len(settings.parts.layers),
        "tied": [pair for ends in settings.ties for pair in as_pairs(ends)],
        "seed": settings.config.seed,
        "microbatch": settings.config.microbatch,
        "half": str(settings.half).removeprefix("torch.") if settings.half else None,
        "clip_norm": state.update.clip_norm,
        "optimizer": rule.fingerprint() if isinstance(rule, TorchOptimizer) else to_plain_data(rule),
        "loss_scaler": to_plain_data(state.loss_scaler),
        "update_interval": settings.config.update_interval,
        "stages": settings.grid.inter if streams else None,
        "weights": to_plain_data(state.versions.policy) if streams else None,
    }
    fingerprint: Mapping[str, Json] = json.loads(json.dumps(values))
    return fingerprint


def search_of(state: TrainState) -> Mapping[str, Json]:
    """Settings of a search for a mask that goes on, as plain data; empty without a search."""
    pruning = state.pruning
    if pruning is None or state.pruned_after is not None or not pruning.method.searches:
        return {}
    method = to_plain_data(pruning.method if is_dataclass(pruning.method) else type(pruning.method))
    return {"method": method, "sparsity": pruning.sparsity, "scope": pruning.scope}


def check_equal(name: str, saved: Mapping[str, Json], current: Mapping[str, Json]) -> None:
    """Raises InvalidRequest for the first setting in which checkpoint `name` differs from the current run."""
    saved_values, current_values = dict(leaves(saved)), dict(leaves(current))
    for key in dict.fromkeys((*saved_values, *current_values)):
        if saved_values.get(key) != current_values.get(key):
            setting = f"{key}={saved_values.get(key)}"
            raise InvalidRequest(
                f"{name} has {setting}, this engine has {key}={current_values.get(key)}", rule=RULE, legal=setting
            )


def to_plain_data(value: Any) -> Any:
    """An object as its class and the plain values that it was made from; a function as its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return [to_plain_data(element) for element in value]
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    names = [field.name for field in fields(value)] if is_dataclass(value) else sorted(attributes(value))
    return {"_target_": to_plain_data(type(value)), **{name: to_plain_data(getattr(value, name)) for name in names}}
