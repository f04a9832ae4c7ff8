"""Table of the settings of a study next to the published settings of the original network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.core.claim import Scalar, Settings
from suite.report.panels.panel_spec import LONG
from suite.report.panels.seed_study import Study, StudyTask
from suite.report.tables.record_tables import NONE, Cell, Column, Table

RULES = {"SGD": "sgdm", "Adam": "adam", "AdamW": "adamw"}  # as the published settings name them


def settings_table(asked: Study, found: Sequence[StudyTask], settings: Settings) -> Table:
    """PipeOptim's Table III: ours, and below it what is published of the network that ours stands for."""
    names = list(dict.fromkeys(name for task in found for name in task.settings))
    columns = (
        Column("stands for", numeric=False),
        *(Column(name, numeric=False, detail="ours; published") for name in names),
    )
    rows = []
    for task in found:
        of = asked.stands_for.get(task.model, "")
        theirs = _published(of, task.settings.get("optimizer", ""), settings)
        cells = [Cell(text, detail=theirs.get(name, "")) for name, text in task.settings.items()]
        rows.append((Cell(of or NONE), *cells))
    return Table("Settings", columns, tuple(rows))


def _published(network: str, rule: str, settings: Settings) -> dict[str, str]:
    """The published settings of a network under an optimizer, as text by the name that ours has."""
    models = settings.get("models", ())
    our_row: Mapping[str, Scalar] = next((row for row in models if row.get("id") == network), {})
    optimizer, data = RULES.get(rule, rule.lower()), our_row.get("dataset")
    fits = [
        row for row in settings.get("training", ()) if row.get("dataset") == data and row.get("optimizer") == optimizer
    ]
    group: Mapping[str, Scalar] = fits[0] if our_row and fits else {}
    published = {
        "network": our_row.get("id"),
        "data": data,
        "optimizer": group.get("optimizer"),
        "batch": our_row.get("batch_size"),
        "epochs": our_row.get("epochs"),
        "learning rate": group.get("learning_rate"),
        "schedule": group.get("schedule"),
        "decay": group.get("weight_decay"),
    }
    return {name: str(value)[:LONG] for name, value in published.items() if value is not None}
