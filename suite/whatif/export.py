"""Choices of the page from conf/: schedules, systems, weight policies, models and machines as plain data."""

from __future__ import annotations

import csv
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

from suite.config.compose import resolve
from suite.config.families import choices_in, content
from suite.config.run import RunConfig
from suite.config.typed_yaml import read_typed
from suite.core.errors import SuiteError
from suite.core.resources import conf_folder
from suite.core.values import Json
from suite.schedule.placement import places
from suite.simulate.nearest import SetupFeatures
from suite.simulate.operations import states
from suite.simulate.validation import calibrate
from suite.simulate.validation.adapter import scored_setups
from suite.simulate.validation.cells import load_cells
from suite.simulate.validation.tables import ACCURACY
from suite.whatif.catalogue import TARGET, Catalogue

CONF = conf_folder()
LANGUAGE_MODELS = ("suite.workload.LanguageModel", "suite.workload.Transformer")


def names(group: str) -> list[str]:
    """The choices of a group of conf/."""
    return choices_in(CONF / group)


def catalogue(reports: Path | None = None) -> Catalogue:
    """All choices of the page by group, with the evidence of a reports folder."""
    weights = {name: dict(content("weights", name).keys) for name in names("weights")}
    return {
        "schedules": schedules(weights["latest"]),
        "weights": weights,
        "models": models(),
        "machines": having("machine", "family"),
        "efficiencies": having("efficiency", "generation"),
        "systems": simulated_systems(),
        "constants": [list(astuple(one)) for one in calibrate.constants()],
        "ranges": ranges(),
        "cells": cells(reports) if reports else [],
    }


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


@cache
def systems() -> tuple[tuple[str, RunConfig], ...]:
    """Systems of conf/system that run a schedule, with their configuration on four ranks."""
    found = []
    for name in names("system"):
        try:
            config = resolve([f"system={name}", "executor=check", "grid.inter=4", "batch.size=8"])
            places(config.schedule.build(), 4)
        except SuiteError:
            continue
        found.append((name, config))
    return tuple(found)


def models() -> dict[str, Json]:
    """Shapes of the language models of conf/model, whose steps are simulated from their blocks."""
    shapes = {name: content("model", name).keys["shape"] for name in names("model")}
    return {name: shape for name, shape in shapes.items() if shape[TARGET] in LANGUAGE_MODELS}


def having(group: str, key: str) -> dict[str, Json]:
    """Choices of a group of conf/ that have a key."""
    choices = {name: dict(content(group, name).keys) for name in names(group)}
    return {name: choice for name, choice in choices.items() if choice.get(key)}


def simulated_systems() -> dict[str, Json]:
    """Systems of conf/system that the executor `simulated` models by the blocks of a GPT."""
    return {
        name: config.system.modelled(config.schedule.data())
        for name, config in systems()
        if config.system.simulation and config.update_interval is None
    }


def ranges() -> dict[str, Json]:
    """Plausible range of each constant of a software generation, without `sparse`, which belongs to pruned systems."""
    rows = read_typed(list[dict[str, Any]], Path(states.__file__).with_name("sources.yaml"))
    return {row["constant"]: row["range"] for row in rows if "." not in row["constant"] and row["constant"] != "sparse"}


def cells(reports: Path) -> list[list[Json]]:
    """Public cells to which no constant is fitted, with the errors that `suite accuracy` wrote to a reports folder."""
    file, fitted = reports / ACCURACY, {one.cell for one in calibrate.constants()}
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        errors = {row["id"]: row["error"] for row in csv.DictReader(lines)}
    return [
        [cell.id, *SetupFeatures.of(setup), float(errors[cell.id]), cell.source]
        for cell, setup in scored_setups(load_cells())
        if cell.id not in fitted and errors.get(cell.id)
    ]
