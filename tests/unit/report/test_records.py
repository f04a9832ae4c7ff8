"""Records as a table: columns, types, records from elsewhere, and the lines that docs/getting_started.md shows."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from suite import load_records
from suite.core.errors import InvalidRequest
from suite.report import records, write_report
from tests.support.refusals import refused
from tests.support.report_records import make, store
from tests.support.scripts import printed

ROOT = Path(__file__).parents[3]
CONFIG = {
    "model": {"name": "gpt_tiny"},
    "batch": {"size": 16, "microbatch": 2},
    "precision": {"name": "bf16"},
    "executor": {"name": "simulated", "machine": {"name": "summit"}, "efficiency": {"name": "samo"}},
    "schedule": {"_target_": "suite.schedule.MessageDriven"},
    "optimizer": {"_target_": "suite.engine.optim.optimizer.AdamW", "lr": 0.001},
    "activation_checkpointing": 4,
    "pruning": {"name": "none", "sparsity": 0.0},
    "update_interval": None,
    "seed": 3,
}


def test_columns_of_the_config(tmp_path):
    base = make("axonn 2x1", (0.1, 0.2, 0.3))
    store(tmp_path, make("axonn 2x1", (0.1, 0.2, 0.3), loss=[3.0, 2.0], config=base.config | CONFIG))
    store(tmp_path, make("pytorch 1x1"))
    table = load_records(tmp_path)
    row = table.set_index("label").loc["axonn 2x1"]
    expected = {
        **{"system": "axonn", "experiment": "demo", "grid": "2x1", "outcome": "ok", "source": "measured"},
        **{"model": "gpt_tiny", "precision": "bf16", "executor": "simulated"},
        **{"machine.simulated": "summit", "efficiency.simulated": "samo"},
        **{"schedule": "MessageDriven", "optimizer": "AdamW", "activation_checkpointing": "4", "pruning": "none"},
        **{"batch.size": 16, "batch.microbatch": 2, "grid.inter": 2, "grid.data": 1, "seed": 3},
        **{"optimizer.lr": 0.001, "pruning.sparsity": 0.0, "batch_time_median": 0.2},
    }
    assert {name: row[name] for name in expected} == expected
    assert row["samples"]["batch_time"] == [0.1, 0.2, 0.3]
    assert row["series"]["loss"] == [3.0, 2.0]
    assert pd.isna(row["update_interval"])
    assert pd.isna(table.set_index("label").loc["pytorch 1x1", "seed"]), "a record without the key"
    assert str(table["batch.size"].dtype) == "Int64"
    assert table.query("model == 'gpt_tiny' and `batch.size` == 16").label.tolist() == ["axonn 2x1"]


def test_records_csv_holds_the_same_columns(tmp_path):
    store(tmp_path, make("axonn 2x1", config=CONFIG))
    write_report(tmp_path)
    with (tmp_path / "records.csv").open(newline="", encoding="utf-8") as stream:
        (row,) = csv.DictReader(stream)
    assert tuple(row) == records.COLUMNS
    assert (row["model"], row["batch.size"], row["precision"], row["seed"]) == ("gpt_tiny", "16", "bf16", "3")


def test_config_of_any_shape_costs_its_cell_only(tmp_path):
    odd = {
        "model": "gpt",
        "batch": {"size": 10**30, "microbatch": True},
        "seed": "1",
        "optimizer": {"lr": [1]},
        "split": 3.5,
    }
    store(tmp_path, make("axonn 2x1", config=odd))
    (row,) = load_records(tmp_path).to_dict("records")
    for name in ("batch.size", "batch.microbatch", "seed", "optimizer.lr"):
        assert pd.isna(row[name]), name
    assert (row["model"], row["split"]) == ("", "")


def test_missing_folder_is_refused_and_damage_is_named(tmp_path):
    with refused(InvalidRequest, "folder", rule="an existing reports folder"):
        load_records(tmp_path / "nowhere")
    store(tmp_path, make("axonn 2x1"))
    (tmp_path / "records" / "cut.json").write_text("{")
    with pytest.warns(UserWarning, match=r"records/cut\.json \(damaged record\)"):
        assert len(load_records(tmp_path)) == 1


def test_lines_of_the_document_print_the_table(tmp_path):
    """They load no torch, as a report can be made on any machine."""
    section = (ROOT / "docs/getting_started.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    shutil.copytree(ROOT / "reports" / "measured", tmp_path / "reports" / "measured")
    code += "\nimport sys\nassert 'torch' not in sys.modules\n"
    head, *rows = printed("-c", code, cwd=tmp_path).splitlines()
    assert head.split() == ["system", "grid", "batch.size", "precision", "batch_time_median"]
    assert any("axonn" in row for row in rows)
