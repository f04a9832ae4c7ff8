"""Table of the settings of a study next to the published settings of the original network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.claims.claim import Scalar, Settings
from suite.config.experiment import StudySpec
from suite.core.values import MAX_CHARACTERS
from suite.report.names import NONE
from suite.report.panels.seed_study import StudyTask
from suite.report.tables.record_tables import Cell, Row, Table, tabled

OPTIMIZER_IDS = {"SGD": "sgdm", "Adam": "adam", "AdamW": "adamw"}  # in the published settings, by class name


def settings_table(study: StudySpec, tasks: Sequence[StudyTask], settings: Settings) -> Table | None:
    """PipeOptim's Table III: our settings, and below each the published one of the network that ours stands for."""
    rows: list[Row] = []
    for task in tasks:
        network = study.stands_for.get(task.model, "")
        published = _published_settings(network, task.settings.get("optimizer", ""), settings)
        own = {
            f"{name}\nours; published": Cell(text, detail=published.get(name, ""))
            for name, text in task.settings.items()
        }
        rows.append({"stands for": network or NONE, **own})
    return tabled("Settings", rows)


def _published_settings(network: str, optimizer: str, settings: Settings) -> dict[str, str]:
    """The published settings of a network under an optimizer, as text, by the names that ours have."""
    model: Mapping[str, Scalar] = next((row for row in settings.get("models", ()) if row.get("id") == network), {})
    optimizer_id, data = OPTIMIZER_IDS.get(optimizer, optimizer.lower()), model.get("dataset")
    rows = settings.get("training", ())
    trainings = [row for row in rows if row.get("dataset") == data and row.get("optimizer") == optimizer_id]
    training: Mapping[str, Scalar] = trainings[0] if model and trainings else {}
    published = {
        "network": model.get("id"),
        "data": data,
        "optimizer": training.get("optimizer"),
        "batch": model.get("batch_size"),
        "epochs": model.get("epochs"),
        "learning rate": training.get("learning_rate"),
        "schedule": training.get("schedule"),
        "decay": training.get("weight_decay"),
    }
    return {name: str(value)[:MAX_CHARACTERS] for name, value in published.items() if value is not None}
