"""Points of the page for the configurations of records: the words of a link and of `suite whatif`.

Plain data in and out, so that the report can write the links. A configuration may hold anything, as records come from
elsewhere; a name that is not on the page gives no words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from suite.core.values import Json
from suite.whatif.catalogue import TARGET, Catalogue

Config = Mapping[str, Json]
PIPELINES = ("real", "emulated", "replay", "check")  # kinds of executors that the schedule view shows
_WORD = re.compile(r"[\w.]+=[\w.-]+")  # a plus sign is a space in a link


def point_words(config: Config, catalogue: Catalogue) -> list[str]:
    """The words of the view that shows the configuration of a record; empty for one without a view."""
    kind = value_at(config, "executor.kind")
    if kind in PIPELINES and whole_at(config, "grid.inter") > 1:
        return words(schedule_point(config, catalogue))
    return words(cluster_point(config, catalogue)) if kind == "simulated" else []


def words(point: Config) -> list[str]:
    """The words KEY=VALUE of a point; empty if a shell or a link would change one."""
    return plain([f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in point.items()])


def plain(found: Sequence[str]) -> list[str]:
    """Words that a shell and a link take as they are; empty if one of them is none."""
    return [*found] if all(map(_WORD.fullmatch, found)) else []


def schedule_point(config: Config, catalogue: Catalogue) -> dict[str, Any]:
    """Keys of the schedule view for a configuration; empty for a schedule that is not on the page."""
    own, update, weights = config.get("schedule"), config.get("update_interval"), weights_of(config, catalogue)
    found = []
    for name, choice in catalogue["schedules"].items():
        data = choice["schedule"]
        if isinstance(own, Mapping) and own.keys() == data.keys() and own[TARGET] == data[TARGET] and weights:
            changed = {f"schedule.{key}": value for key, value in own.items() if value != data[key]}
            changed |= {"weights": weights} if weights != weights_of(choice, catalogue) else {}
            changed |= {"update": update} if update != choice["update_interval"] else {}
            found.append({"view": "schedule", "schedule": name, **changed})
    ranks, replicas = whole_at(config, "grid.inter"), whole_at(config, "grid.data")
    if not (found and ranks and replicas):
        return {}
    point = min(found, key=len) | {"ranks": ranks}
    size = whole_at(config, "batch.size") // (replicas * (whole_at(config, "batch.microbatch") or 1))
    if size and not value_at(config, "system.asynchronous"):  # which drains after an epoch, not after a batch
        point["microbatches"] = size
    return point | ({"replicas": replicas} if replicas > 1 else {})


def cluster_point(config: Config, catalogue: Catalogue) -> dict[str, Any]:
    """Keys of the cluster view for a configuration; empty for a model, machine or system that is not on the page."""
    inter, tensor, data = (whole_at(config, f"grid.{axis}") for axis in ("inter", "tensor", "data"))
    system, _, schedule = system_of(config).partition(" schedule=")
    places = {"model": "model", "machine": "executor.machine", "efficiency": "executor.efficiency"}
    point: dict[str, Json] = {"view": "cluster", "system": system, "schedule": schedule}
    point |= {key: value_at(config, f"{path}.name") for key, path in places.items()}
    point |= {"devices": inter * tensor * data, "batch": whole_at(config, "batch.size")}
    point |= {"sparsity": value_at(config, "pruning.sparsity"), "layout": "search"}
    if value_at(config, "executor.plan") != "search":
        size = whole_at(config, "batch.microbatch")
        point |= {"layout": "given", "tensor": tensor, "pipeline": inter, "microbatch": size}
    groups = {"system": "systems", "model": "models", "machine": "machines", "efficiency": "efficiencies"}
    known = all(str(point[key]) in catalogue.get(group, ()) for key, group in groups.items())
    return {key: value for key, value in point.items() if value} if known else {}


def system_of(config: Config) -> str:
    """The choice of a system, with the schedule that was chosen for it: 'axonn', 'pipeline schedule=zbv'."""
    return str(value_at(config, "system.choice") or value_at(config, "system.name") or "")


def weights_of(config: Config, catalogue: Catalogue) -> str:
    """Name of the weight policy of a configuration; empty for one that is not on the page."""
    own = value_at(config, f"weights.{TARGET}")
    return next((name for name, data in catalogue["weights"].items() if data[TARGET] == own), "")


def value_at(config: Any, path: str) -> Any:
    """The value at a dotted path of nested mappings; None without one."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def whole_at(config: Config, path: str) -> int:
    """The positive whole number at a path; 0 for anything else, and for a number that no run has."""
    value = value_at(config, path)
    return value if type(value) is int and 0 < value < 2**53 else 0
