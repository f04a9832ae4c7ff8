"""Records of earlier schemas are migrated: renamed, with their provenance, found again and not stale."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from suite.bench import provenance
from suite.bench.migrate import COMMAND, STEPS, migrate, migrated
from suite.bench.runs import Run, expand
from suite.bench.store import Store
from suite.core.errors import DamagedRecord
from suite.core.record import SCHEMA_VERSION, Metric, Outcome, Record, Source
from suite.report.load import Aside, read_store

# by key of today: that of schema 1
OF_SCHEMA_1 = {
    "activation_checkpointing": "checkpoints",
    "checkpoint": "resume",
    "update_interval": "update.every",
    "optimizer.bucket_numel": "update.bucket",
    "optimizer.buckets_per_reduction": "update.chunk",
    "optimizer.clip_norm": "update.clip",
    "launch.heartbeat_interval": "launch.beat",
    "launch.heartbeat_timeout": "launch.silence",
    "launch.launcher": "launch.starter",
    "comm.eager_bytes": "comm.inline",
    "measure.rounds": "measure.turns",
    "measure.discard_first": "measure.settle",
    "measure.eval_batches": "measure.evaluate",
    "pruning.scope": "pruning.what",
    "experiment.paper_ref": "experiment.where",
    "experiment.expected_seconds": "experiment.seconds",
    "system.has_memory_model": "system.budget",
    "system.description": "system.what",
    "system.supports_schedules": "system.ordered",
    "system.supports_streaming": "system.streams",
    "system.supports_pruning": "system.prunes",
    "system.supports_checkpoints": "system.resumes",
    "system.requires_full_pipeline": "system.fills",
    "system.simulation.activation_checkpointing": "system.simulation.checkpoints",
    "system.simulation.blocking_sends": "system.simulation.blocking",
    "system.simulation.device_initiated": "system.simulation.direct",
    "system.simulation.sync_before_update": "system.simulation.apart",
    "system.simulation.scatter_messages": "system.simulation.sliced",
    "system.simulation.zero_stage": "system.simulation.zero",
    "system.simulation.allreduces_per_update": "system.simulation.reductions",
    "system.simulation.tied_embeddings": "system.simulation.ties",
    "system.simulation.bucket_numel": "system.simulation.bucket",
    "system.simulation.buckets_per_reduction": "system.simulation.coarsening",
}
NOT_DECIDING = ("reports", "scale", "resume", "rerun", "on_error")  # in the keys of schema 1
MEASURED = {"batch_time": Metric("s", "lower", (0.5, 0.25))}


def put(config: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        config = config.setdefault(group, {})
    config[name] = value


def take(config: dict[str, Any], path: str) -> Any:
    """The value at a path, which is removed; KeyError where there is none."""
    *groups, name = path.split(".")
    for group in groups:
        config = config[group]
    return config.pop(name)


def of_schema_1(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run as a record of schema 1 held them."""
    config = copy.deepcopy(settings)
    for new, old in OF_SCHEMA_1.items():
        try:
            value = take(config, new)
        except KeyError:
            continue
        put(config, old, value)
    if config["measure"].get("validate") == "every_round":
        config["measure"]["validate"] = "turn"
    del config["executor"]["kind"]  # of real ranks
    return config


def key_of_schema_1(config: dict[str, Any], circumstances: dict[str, Any]) -> str:
    decisive = {name: value for name, value in config.items() if name not in NOT_DECIDING}
    decisive["experiment"] = config["experiment"]["name"]
    if "_target_" not in config["executor"]:
        decisive["system"] = {name: value for name, value in config["system"].items() if name != "simulation"}
    launch = config["launch"].items()
    apart = ("submit", "dry_run", "time", "account", "qos", "array_parallelism", "beat", "silence", "memory_check")
    decisive["launch"] = {k: v for k, v in launch if k not in apart}
    text = json.dumps([decisive, circumstances], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def old_record(run: Run, **changes: Any) -> dict[str, Any]:
    """The record of schema 1 that a run left here, as JSON holds it."""
    config = of_schema_1(run.settings)
    circumstances = provenance.circumstances(run.outline)
    record = Record(
        key_of_schema_1(config, circumstances),
        run.outline.experiment.name,
        run.outline.system.name,
        run.label,
        Outcome.OK,
        Source.MEASURED,
        config=config,
        metrics=MEASURED,
        provenance={**circumstances, "command": run.command, "seconds": 1.5},
    )
    data: dict[str, Any] = json.loads(record.to_json())
    del data["migrated_from"]
    return {**data, "schema_version": 1, **changes}


@pytest.fixture(scope="module")
def run() -> Run:
    (run,) = expand(["grid.inter=2", "optimizer.buckets_per_reduction=2", "measure.validate=every_round"])
    assert run.refusal is None
    return run


def store(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "records" / f"{data['key']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


# -- a whole record --------------------------------------------------------------------------------------------------


def test_migrated_record_is_found_and_not_stale(tmp_path: Path, run: Run) -> None:
    old = old_record(run)
    path = store(tmp_path, old)
    key = provenance.key(run)
    assert old["key"] != key
    assert Store(tmp_path).standing(run.settings, key, "stale") is None
    assert [*migrate(tmp_path)] == [f"{path}: {key}.json"]
    found = Store(tmp_path).standing(run.settings, key, "stale")
    assert found is not None
    assert not path.exists()
    assert found.config == json.loads(json.dumps(run.settings))
    assert found.metrics == MEASURED
    assert found.provenance == old["provenance"]
    assert found.migrated_from == {"schema_version": 1, "key": old["key"]}


def test_record_of_other_circumstances_stays_stale(tmp_path: Path, run: Run) -> None:
    old = old_record(run)
    old["provenance"]["source"] = "0123"
    old["key"] = key_of_schema_1(old["config"], {**provenance.circumstances(run.outline), "source": "0123"})
    store(tmp_path, old)
    assert len([*migrate(tmp_path)]) == 1
    assert Store(tmp_path).standing(run.settings, provenance.key(run), "stale") is None
    assert Store(tmp_path).standing(run.settings, provenance.key(run), "keep") is not None


def test_key_that_settings_do_not_give_is_kept(run: Run) -> None:
    found = migrated(json.dumps(old_record(run, key="of earlier rules")))
    assert (found.key, found.migrated_from) == ("of earlier rules", {"schema_version": 1, "key": "of earlier rules"})


def test_second_migration_changes_nothing(tmp_path: Path, run: Run) -> None:
    store(tmp_path, old_record(run))
    lines = tmp_path / "measured" / "here" / "overhead.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text(json.dumps(old_record(run)) + "\n")
    assert len([*migrate(tmp_path)]) == 2
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    assert sorted(path.name for path in first) == [f"{provenance.key(run)}.json", "overhead_bound.jsonl"]
    assert [*migrate(tmp_path)] == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == first


# -- renames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "old"), OF_SCHEMA_1.items())
def test_each_key_is_renamed_with_its_value(run: Run, new: str, old: str) -> None:
    data = old_record(run)
    put(data["config"], old, "recorded")
    config = migrated(json.dumps(data)).config
    assert take(config, new) == "recorded"
    with pytest.raises(KeyError):
        take(config, old)


MESSAGES, PRODUCTS = "suite.bench.messages", "baselines.sputnik.products"
FIGURE_1 = "suite.papers.samo.layer_products"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"kind": "real"}),
        ({"graphs": True, "prepares": "suite.gnn.prepare.Prepared"}, {"kind": "full_graph"}),
        ({"ranks": 1, "replays": "suite.engine.replayed.Replayed"}, {"kind": "replay"}),
        ({"system": "suite.bench.emulate.Emulated", "copy": 0.5}, {"kind": "emulated", "copy": 0.5}),
        (
            {"system": f"{MESSAGES}.Messages", "tensors": True, "claim": {"id": "a"}},
            {
                "kind": "microbenchmark",
                "_target_": f"{MESSAGES}.Messages",
                "claim": {"id": "a", "_target_": f"{MESSAGES}.Claim"},
            },
        ),
        (
            {"system": f"{PRODUCTS}.Products", "claims": {"ratio": "a"}},
            {
                "kind": "microbenchmark",
                "_target_": f"{FIGURE_1}.Products",
                "claims": {"ratio": "a", "_target_": f"{FIGURE_1}.Claims"},
                "timing": "baselines.sputnik.layer_timing.LayerTiming",
            },
        ),
        (
            {"_target_": "suite.clusters.Published", "figure": "a"},
            {"kind": "plugin", "_target_": "suite.papers.common.figure_executor.FigureExecutor", "figure": "a"},
        ),
        ({"_target_": "suite.simulate.whatif.Simulated", "plan": "given"}, {"kind": "simulated", "plan": "given"}),
        ({"_target_": "suite.bench.checked.Checked"}, {"kind": "check"}),
        (
            {"_target_": "suite.gnn.counted.Counted", "graphs": True},
            {"kind": "plugin", "_target_": "suite.gnn.counted.Counted", "graphs": True},
        ),
    ],
    ids=lambda value: str(value.get("kind", "")),
)
def test_executor_gets_its_kind(run: Run, old: dict[str, Any], new: dict[str, Any]) -> None:
    data = old_record(run)
    data["config"]["executor"] = copy.deepcopy(old)
    assert migrated(json.dumps(data)).config["executor"] == new


def test_pruning_gets_the_default_of_a_key_that_was_left_out(run: Run) -> None:
    data = old_record(run)
    del data["config"]["pruning"]["searches"]
    assert migrated(json.dumps(data)).config["pruning"]["searches"] is False


def test_experiments_labels_panels_and_overrides_are_renamed(run: Run) -> None:
    data = old_record(
        run, experiment="compute_bf16", label="axonn 1x2 update.chunk=2 checkpoints measure.validate=turn"
    )
    data["config"]["experiment"] |= {"name": "compute_bf16", "panels": [{"key": "update.bucket", "curve": "grid"}]}
    data["config"]["scale"]["reproduce"] = ["overhead", "h200_memory checkpoints=1", "samo_overhead"]
    data["config"]["unread"] = ["+pruning.what=all"]
    found = migrated(json.dumps(data))
    assert (found.experiment, found.config["experiment"]["name"]) == ("compute_bound_bf16", "compute_bound_bf16")
    assert found.label == "axonn 1x2 optimizer.buckets_per_reduction=2 checkpoints measure.validate=every_round"
    assert found.config["experiment"]["panels"] == [{"key": "optimizer.bucket_numel", "curve": "grid"}]
    names = ["overhead_bound", "h200_memory activation_checkpointing=1", "samo_overhead"]
    assert found.config["scale"]["reproduce"] == names
    assert found.config["unread"] == ["+pruning.scope=all"]


def test_modelled_systems_keep_their_recorded_values(run: Run) -> None:
    data = old_record(run)
    layout = {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": 7}
    modelled = {"_target_": "suite.simulate.plan.Modelled", "name": "axonn", "bucket": 7, "zero": 1, "layout": layout}
    data["config"]["executor"]["systems"] = {"axonn": modelled, "other": {"_target_": "mine.System", "bucket": 7}}
    assert migrated(json.dumps(data)).config["executor"]["systems"] == {
        "axonn": {
            **{"_target_": "suite.simulate.plan.Modelled", "name": "axonn", "bucket_numel": 7, "zero_stage": 1},
            **{"layout": layout, "tensor": False, "sparse": False},
        },
        "other": {"_target_": "mine.System", "bucket": 7},
    }


def test_there_is_a_step_from_every_earlier_schema() -> None:
    assert [*STEPS] == [*range(1, SCHEMA_VERSION)]


# -- what is no record of a known schema -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema_version": 99}', "schema version 99; rule: one of 1, 2, 3"),
        ('{"schema_version": true}', "schema version True; rule: one of 1, 2, 3"),
        ('{"schema_version": 1, "key": "k"}', "schema version 1: KeyError"),
        ("[]", "no JSON with a schema_version"),
        ("{", "no JSON with a schema_version"),
    ],
)
def test_unknown_schemas_and_damaged_records_are_set_aside(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DamagedRecord, match=reason):
        migrated(text)
    path = tmp_path / "records" / "damaged.json"
    path.parent.mkdir()
    path.write_text(text)
    assert COMMAND.main([str(tmp_path)]) == 1
    assert f"{path}: set aside: {reason}" in capsys.readouterr().out
    assert path.read_text() == text


def test_record_that_is_not_migrated_is_set_aside_with_the_command(tmp_path: Path, run: Run) -> None:
    old = old_record(run)
    store(tmp_path, old)
    (aside,) = read_store(tmp_path).aside
    assert aside.kind is Aside.OTHER_SCHEMA
    assert "schema version 1, this suite reads 3: python -m suite.bench.migrate FOLDER" in aside.reason
    assert Store(tmp_path).find(old["key"]) is None
