"""Fingerprint of a run: settings that a checkpoint and the resuming engine must share.

The fingerprint holds, as plain data, every setting that determines the numbers of a training run: update rule with its
arguments, seed, precision, clipping. Schedule, grid, memory layout and bucket size do not change the numbers (laws 2
and 8) and are absent. An asynchronous pipeline adds its depth, its update interval and its weight policy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from suite.core.errors import InvalidRequest
from suite.core.members import attributes
from suite.core.values import leaves
from suite.engine.checkpoint.storage import Fingerprint
from suite.engine.optim.torch_optimizer import TorchOptimizer
from suite.engine.ties import as_pairs
from suite.engine.train_state import TrainState

RULE = "a checkpoint resumes a run with the settings that it was saved with"
_ARGUMENTS = {  # argument of Engine for a key of the fingerprint, where their names differ
    "clip": "clip_norm",
    "loss_scale": "loss_scaler",
    "ties": "tied",
    "stream": "update_interval",
    "update_every": "update_interval",
}


def fingerprint_of(state: TrainState) -> Fingerprint:
    """The fingerprint as plain data, which a round trip through JSON does not change."""
    settings, rule = state.settings, state.update.rule
    values = {
        "layers": settings.layer_count,
        "ties": [pair for ends in settings.ties for pair in as_pairs(ends)],
        "seed": settings.config.seed,
        "microbatch": settings.config.microbatch,
        "half": str(settings.half).removeprefix("torch.") if settings.half else None,
        "clip": state.update.clip_norm,
        "optimizer": rule.fingerprint() if isinstance(rule, TorchOptimizer) else to_plain_data(rule),
        "loss_scale": to_plain_data(state.loss_scaler),
        "stream": {
            "update_every": settings.config.update_interval,
            "stages": settings.grid.inter,
            "weights": to_plain_data(state.versions.policy),
        }
        if settings.streams
        else None,
    }
    fingerprint: Fingerprint = json.loads(json.dumps(values))
    return fingerprint


def check_equal(name: str, saved: Fingerprint, current: Fingerprint) -> None:
    """Raises InvalidRequest for the first setting in which checkpoint `name` differs from the current run."""
    saved_values, current_values = dict(leaves(saved)), dict(leaves(current))
    for key in dict.fromkeys((*saved_values, *current_values)):
        if saved_values.get(key) != current_values.get(key):
            argument = _argument_name(key)
            raise InvalidRequest(
                f"{name} has {argument}={saved_values.get(key)}, this engine has {argument}={current_values.get(key)}",
                rule=RULE,
                legal=f"{argument}={saved_values.get(key)}",
            )


def _argument_name(key: str) -> str:
    """The argument of Engine that a dotted key of the fingerprint records."""
    first, _, rest = key.partition(".")
    if first == "stream" and rest:
        first, _, rest = rest.partition(".")
    first = _ARGUMENTS.get(first, first)
    return f"{first}.{rest}" if rest else first


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
