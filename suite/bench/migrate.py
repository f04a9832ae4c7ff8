"""Migration of records to the present schema: `python -m suite.bench.migrate FOLDER...`.

STEPS has one function per schema version, which turns a record of that version into one of the next. A later change of
keys, class paths or experiment names raises SCHEMA_VERSION (suite/core/record.py) and adds a step.

A step renames; it replaces no recorded value. Provenance stays as it was written. A record's key is a hash of its
settings and circumstances: where the recorded ones give the recorded key, the migrated record has the key that the
renamed run has now, and is found again. Otherwise (the hash was made by earlier rules) it keeps its key.
`migrated_from` holds the schema version and the key that the record had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suite.bench.store import decisive, key_of
from suite.cli import Arguments, Command
from suite.core.errors import DamagedRecord, InvalidRequest
from suite.core.exits import Exit
from suite.core.files import write_atomically
from suite.core.record import LINES, SCHEMA_VERSION, Record

Data = dict[str, Any]

# -- schema 1: keys in private words ---------------------------------------------------------------------------------

_UPDATE = {"bucket": "bucket_numel", "chunk": "buckets_per_reduction", "clip": "clip_norm"}
_SIMULATION = {
    "checkpoints": "activation_checkpointing",
    "blocking": "blocking_sends",
    "direct": "device_initiated",
    "apart": "sync_before_update",
    "sliced": "scatter_messages",
    "zero": "zero_stage",
    "reductions": "allreduces_per_update",
    "ties": "tied_embeddings",
    "bucket": "bucket_numel",
    "coarsening": "buckets_per_reduction",
}
_GROUPS = {
    "launch": {"beat": "heartbeat_interval", "silence": "heartbeat_timeout", "starter": "launcher"},
    "comm": {"inline": "eager_bytes"},
    "measure": {"turns": "rounds", "settle": "discard_first", "evaluate": "eval_batches"},
    "tune": {"turns": "rounds"},
    "pruning": {"what": "scope"},
    "experiment": {"where": "paper_ref", "seconds": "expected_seconds"},
    "system": {
        "budget": "has_memory_model",
        "what": "description",
        "ordered": "supports_schedules",
        "streams": "supports_streaming",
        "prunes": "supports_pruning",
        "resumes": "supports_checkpoints",
        "fills": "requires_full_pipeline",
    },
    "system.simulation": _SIMULATION,
}
_TOP = {"checkpoints": "activation_checkpointing", "resume": "checkpoint"}
_EXPERIMENTS = {
    "compute": "compute_bound",
    "overhead": "overhead_bound",
    "compute_bf16": "compute_bound_bf16",
    "overhead_bf16": "overhead_bound_bf16",
    "microbatch_compute": "microbatch_compute_bound",
    "peer_settings_compute": "peer_settings_compute_bound",
    "peer_settings_overhead": "peer_settings_overhead_bound",
}
_DOTTED = {
    **{f"{group}.{old}": f"{group}.{new}" for group, names in _GROUPS.items() for old, new in names.items()},
    **{f"update.{old}": f"optimizer.{new}" for old, new in _UPDATE.items()},
    **{f"resume.{name}": f"checkpoint.{name}" for name in ("folder", "every", "keep")},
    "update.every": "update_interval",
    "checkpoints": "activation_checkpointing",
}
_MODELLED = "suite.simulate.plan.Modelled"
_SIMULATED, _CHECKED = "suite.simulate.whatif.Simulated", "suite.bench.checked.Checked"
_EMULATED, _MESSAGES = "suite.bench.emulate.Emulated", "suite.bench.messages.Messages"
_PRODUCTS = "baselines.sputnik.products.Products"

# -- schema 2: class paths of evidence outside suite.papers ----------------------------------------------------------

_MOVED = {
    "suite.clusters.Published": "suite.papers.common.figure_executor.FigureExecutor",
    "suite.clusters.graph_figures.GraphFigures": "suite.papers.sparse_gnn.figure_executor.GraphFigureExecutor",
    "baselines.sputnik.products.Products": "suite.papers.samo.layer_products.Products",
    "baselines.sputnik.products.Claims": "suite.papers.samo.layer_products.Claims",
}
_TIMING = "baselines.sputnik.layer_timing.LayerTiming"  # which was no setting


def _from_1(data: Data) -> None:
    """Keys in the field's words, the group `update` in `optimizer`, the kind of the executor, and modelled systems as
    system.simulation gives them."""
    settings = data["config"]
    for group, names in _GROUPS.items():
        _rename(_group(settings, group), names)
    _rename(settings, _TOP)
    update = settings.pop("update", None)
    if isinstance(update, dict):
        if "every" in update:
            settings["update_interval"] = update.pop("every")
        settings["optimizer"] = {**_group(settings, "optimizer"), **_renamed(update, _UPDATE)}
    _kind(_group(settings, "executor"))
    if isinstance(settings.get("pruning"), dict):
        settings["pruning"].setdefault("searches", False)  # the default, which was left out
    measure, experiment, scale = (_group(settings, name) for name in ("measure", "experiment", "scale"))
    if measure.get("validate") == "turn":
        measure["validate"] = "every_round"
    for named, key in ((data, "experiment"), (experiment, "name")):
        if key in named:
            named[key] = _EXPERIMENTS.get(named[key], named[key])
    for panel in experiment.get("panels") or ():
        if isinstance(panel, dict):
            panel |= {key: _DOTTED.get(panel[key], panel[key]) for key in ("key", "curve") if key in panel}
    if isinstance(scale.get("reproduce"), list):
        scale["reproduce"] = [_first_word(entry) for entry in scale["reproduce"]]
    if isinstance(settings.get("unread"), list):
        settings["unread"] = [_override(each) for each in settings["unread"]]
    data["label"] = " ".join(map(_override, data["label"].split(" ")))
    systems = _group(settings, "executor.systems")
    for name, system in systems.items():
        if isinstance(system, dict) and system.get("_target_") == _MODELLED:
            # the defaults of the class stood for what was not written
            systems[name] = {"tensor": False, "sparse": False, **_renamed(system, _SIMULATION)}


def _kind(executor: Data) -> None:
    """The kind of an executor, which followed from the keys that it had."""
    prepares, replays, stand_in = (executor.pop(name, None) for name in ("prepares", "replays", "system"))
    executor.pop("tensors", None)
    target = executor.get("_target_")
    if prepares is not None:
        kind = "full_graph"
        executor.pop("graphs", None)
    elif replays is not None:
        kind = "replay"
        executor.pop("ranks", None)
    elif stand_in == _EMULATED:
        kind = "emulated"
    elif stand_in is not None:
        kind, executor["_target_"] = "microbenchmark", stand_in
        for key, owner, name in (("claim", _MESSAGES, "Claim"), ("claims", _PRODUCTS, "Claims")):
            if stand_in == owner and isinstance(executor.get(key), dict):
                executor[key]["_target_"] = f"{owner.rpartition('.')[0]}.{name}"
    elif target in (_SIMULATED, _CHECKED):
        kind = "simulated" if target == _SIMULATED else "check"
        del executor["_target_"]
    else:
        kind = "real" if target is None else "plugin"
    executor["kind"] = kind


def _first_word(entry: Any) -> Any:
    """An entry of a scale, with the name of its experiment."""
    if not isinstance(entry, str):
        return entry
    name, *words = entry.split(" ")
    return " ".join([_EXPERIMENTS.get(name, name), *map(_override, words)])


def _override(word: str) -> str:
    """KEY=VALUE with the key of today; other words as they are."""
    key, equals, value = word.partition("=")
    bare = key.lstrip("+~")
    value = "every_round" if (bare, value) == ("measure.validate", "turn") else value
    return f"{key.removesuffix(bare)}{_DOTTED.get(bare, bare)}={value}" if equals else word


def _from_2(data: Data) -> None:
    """Executors of published figures have the class paths of suite.papers."""
    executor = _group(data["config"], "executor")
    if executor.get("_target_") == _PRODUCTS:
        executor["timing"] = _TIMING
    for part in (executor, _group(executor, "claims")):
        if part.get("_target_") in _MOVED:
            part["_target_"] = _MOVED[part["_target_"]]


def _decisive_1(settings: Mapping[str, Any]) -> Data:
    """As suite.bench.store.decisive, of schema 1."""
    outer = ("reports", "hydra", "scale", "resume", "rerun", "on_error")
    found = {name: value for name, value in settings.items() if name not in outer}
    found["experiment"] = _group(settings, "experiment").get("name")
    if "_target_" not in _group(settings, "executor"):
        found["system"] = {key: value for key, value in _group(settings, "system").items() if key != "simulation"}
    by_scheduler = ("submit", "dry_run", "site", "time", "account", "qos", "array_parallelism")
    apart = (*by_scheduler, "beat", "silence", "memory_check")
    found["launch"] = {name: value for name, value in _group(settings, "launch").items() if name not in apart}
    return found


# -- all schemas -----------------------------------------------------------------------------------------------------

STEPS: Mapping[int, Callable[[Data], None]] = {  # by the version of the record: the step to the next one
    1: _from_1,
    2: _from_2,
}
DECISIVE: Mapping[int, Callable[[Mapping[str, Any]], Data]] = {  # settings that its key was made of
    1: _decisive_1,
    2: decisive,
}
CIRCUMSTANCES = ("machine", "versions", "source", "executor_source", "own_source", "split_file", "data_files")


def migrated(text: str) -> Record:
    """The record of a JSON text in the present schema. Raises DamagedRecord, with the reason, for a text that is no
    record or one of a schema that no step starts from."""
    try:
        data = json.loads(text)
        version = data["schema_version"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise DamagedRecord(f"no JSON with a schema_version: {error}") from error
    if version == SCHEMA_VERSION:
        return Record.from_json(text)
    if not isinstance(version, int) or isinstance(version, bool) or version not in STEPS:
        known = ", ".join(map(str, (*STEPS, SCHEMA_VERSION)))
        raise DamagedRecord(f"schema version {version}; rule: one of {known}")
    try:
        known_key = data["key"] == _key_of_then(data, version)
        origin = {"schema_version": version, "key": data["key"]}
        for step in range(version, SCHEMA_VERSION):
            STEPS[step](data)
        if known_key:
            data["key"] = key_of(data["config"], _circumstances(data))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedRecord(f"schema version {version}: {type(error).__name__}: {error}") from error
    return Record.from_json(json.dumps({"migrated_from": origin, **data, "schema_version": SCHEMA_VERSION}))


def migrate(folder: Path) -> Iterator[str]:
    """Migrate the records of a reports folder in place. Yields a line per changed file, and per record set aside."""
    for path in sorted(folder.glob("records/*.json")):
        try:
            text = path.read_text(encoding="utf-8")
            record = migrated(text)
        except (DamagedRecord, OSError, ValueError) as error:
            yield f"{path}: set aside: {error}"
            continue
        target = path.with_name(f"{record.key}.json")
        if json.loads(text)["schema_version"] == SCHEMA_VERSION:
            continue
        if target.exists() and target != path:
            yield f"{path}: set aside: {target.name} holds a newer record of the same run"
            continue
        write_atomically(target, record.to_json().encode(), inside=folder)
        if target != path:
            path.unlink()
        yield f"{path}: {target.name}"
    for path in sorted(folder.glob(f"measured/*/*{LINES}")):
        yield from _migrate_lines(path, folder)


def _migrate_lines(path: Path, folder: Path) -> Iterator[str]:
    """A file with a record per line. A line that is set aside stays as it is."""
    old = path.read_text(encoding="utf-8")
    lines = old.split("\n")
    for number, line in enumerate(lines):
        if line.strip():
            try:
                lines[number] = migrated(line).to_line().rstrip("\n")
            except DamagedRecord as error:
                yield f"{path}#{number + 1}: set aside: {error}"
    target = path.with_name(f"{_EXPERIMENTS.get(path.stem, path.stem)}{LINES}")
    if "\n".join(lines) == old and target == path:
        return
    if target != path and target.exists():
        yield f"{path}: set aside: {target.name} exists"
        return
    write_atomically(target, "\n".join(lines).encode(), inside=folder)
    if target != path:
        path.unlink()
    yield f"{path}: {target.name}"


def _circumstances(data: Mapping[str, Any]) -> Data:
    return {name: data["provenance"][name] for name in CIRCUMSTANCES if name in data["provenance"]}


def _key_of_then(data: Mapping[str, Any], version: int) -> str:
    """The key that the record's settings and circumstances gave in its schema."""
    text = json.dumps([DECISIVE[version](data["config"]), _circumstances(data)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _group(settings: Mapping[str, Any], path: str) -> Data:
    """The group of keys at a path; an empty one where there is none."""
    found: Any = settings
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _renamed(group: Mapping[str, Any], names: Mapping[str, str]) -> Data:
    return {names.get(key, key): value for key, value in group.items()}


def _rename(group: Data, names: Mapping[str, str]) -> None:
    """Rename keys of a group in place."""
    renamed = _renamed(group, names)
    group.clear()
    group.update(renamed)


def show(arguments: Arguments) -> int:
    """Migrate the folders and print what was done. Returns SOME_FAILED where a record was set aside."""
    aside = 0
    for name in arguments.options.folders:
        folder = Path(name)
        if not folder.is_dir():
            raise InvalidRequest(
                f"{name} is no folder", rule="a reports folder, with records/ or measured/", legal="reports"
            )
        for line in migrate(folder):
            sys.stdout.write(f"{line}\n")
            aside += ": set aside: " in line
    return Exit.SOME_FAILED if aside else Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="reports folder, with records/ or measured/")


COMMAND = Command(
    "bench.migrate",
    "Migrate records of earlier schemas to the present one, in place.",
    show,
    "reports",
    options=options,
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
