"""Choices of the page from conf/: schedules, systems, weight policies, models and machines as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from suite.config.compose import resolve
from suite.config.families import choices_in, content
from suite.config.run import RunConfig
from suite.core.errors import SuiteError
from suite.core.resources import conf_folder
from suite.core.values import Json
from suite.schedule.placement import places
from suite.whatif.catalogue import Catalogue

CONF = conf_folder()


def names(group: str) -> list[str]:
    """The choices of a group of conf/."""
    return choices_in(CONF / group)


def catalogue() -> Catalogue:
    """All choices of the page by group."""
    weights = {name: dict(content("weights", name).keys) for name in names("weights")}
    return {"schedules": schedules(weights["latest"]), "weights": weights}


def schedules(latest: Json) -> dict[str, Json]:
    """Schedules of conf/schedule, and systems with a pipeline of their own: schedule, weight policy and updates."""
    found: dict[str, Json] = {}
    for name in names("schedule"):
        data = dict(content("schedule", name).keys)
        if "???" not in data.values():  # the order of a file
            found[name] = {"schedule": data, "weights": latest, "update_interval": None}
    for name, config in systems():
        own: dict[str, Json] = {"schedule": config.schedule.data(), "weights": config.weights.data()}
        own["update_interval"] = config.update_interval
        if own not in found.values():
            found.setdefault(name, own)
    return found


def systems() -> Iterator[tuple[str, RunConfig]]:
    """Systems of conf/system that run a schedule, with their configuration on four ranks."""
    for name in names("system"):
        try:
            config = resolve([f"system={name}", "executor=check", "grid.inter=4", "batch.size=8"])
            places(config.schedule.build(), 4)
        except SuiteError:
            continue
        yield name, config
