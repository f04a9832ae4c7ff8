"""Fingerprint of a run: the settings that a checkpoint and the resuming engine must share.

Everything that determines the numbers of a training run as plain data: rule and arguments of the optimizer, seed,
precision, clipping. A schedule, a grid, a memory layout and the buckets of an update decide none (laws 2 and 8), but
of an asynchronous pipeline its depth, its updates and which versions its passes read do."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from suite.core.errors import InvalidRequest
from suite.core.members import attributes
from suite.core.values import Json

if TYPE_CHECKING:
    from suite.engine.engine import Engine

RESUMES = "a checkpoint resumes the run that it was taken from"


class Identity(TypedDict):
    """What two runs that are one have in common. optimizer, loss_scale, stream: as `described`"""

    layers: int
    ties: list[Any]
    seed: int
    microbatch: int
    half: str | None
    clip: float | None
    optimizer: Json
    loss_scale: Json
    stream: Json


def of(engine: Engine) -> Identity:
    """As plain data, the same after a way through JSON."""
    arguments = {
        "layers": engine.split[-1].stop,
        "ties": engine.ties,
        "seed": engine.seed,
        "microbatch": engine.microbatch,
        "half": str(engine.half).removeprefix("torch.") if engine.half else None,
        "clip": engine.update.clip,
        "optimizer": described(engine.update.rule),
        "loss_scale": described(engine.scaler),
        "stream": _stream(engine),
    }
    identity: Identity = json.loads(json.dumps(arguments))
    return identity


def _stream(engine: Engine) -> dict[str, Any] | None:
    if engine.update_every is None:
        return None
    policy = described(engine.store.policy)
    return {"update_every": engine.update_every, "stages": engine.grid.inter, "weights": policy}


def check(name: str, saved: Identity, own: Identity) -> None:
    """Raises InvalidRequest for the first thing that checkpoint `name` does not have in common with this run."""
    there, here = _flat(saved), _flat(own)
    for key in dict.fromkeys((*there, *here)):
        if there.get(key) != here.get(key):
            argument = _argument(key)
            message = f"{name} is of {argument}={there.get(key)}, this engine of {argument}={here.get(key)}"
            raise InvalidRequest(message, rule=RESUMES, legal=f"{argument}={there.get(key)}")


def _argument(key: str) -> str:
    """The argument of Engine that decides a key of a manifest."""
    first, _, rest = key.partition(".")
    if first == "stream":
        return rest or "update_every"
    first = {"loss_scale": "scaler", "ties": "tied"}.get(first, first)
    return f"{first}.{rest}" if rest else first


def described(value: Any) -> Any:
    """An object as its class and the plain values that it was made from; a function as its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return [described(element) for element in value]
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    names = [f.name for f in fields(value)] if is_dataclass(value) else sorted(attributes(value))
    return {"_target_": described(type(value)), **{name: described(getattr(value, name)) for name in names}}


def _flat(told: Any, path: str = "") -> dict[str, Any]:
    """Nested plain data by dotted paths."""
    if not isinstance(told, Mapping):
        return {path: told}
    return {
        key: leaf for name, element in told.items() for key, leaf in _flat(element, f"{path}.{name}".strip(".")).items()
    }
