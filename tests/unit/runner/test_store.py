"""Records are found again when nothing that determines their numbers has changed, the card of a GPU included."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from suite.config.base import Rerun
from suite.config.compose import composed, resolve
from suite.config.run import checked_run
from suite.core.files import write_atomically
from suite.core.record import Metric, Outcome, Record, Source
from suite.runner import provenance
from suite.runner.run import ActiveRun
from suite.runner.runs import Run, expand
from suite.runner.store import Store, key_of, source_hash

SMALL = ("system=axonn", "model=gpt_tiny", "grid.inter=1", "launch.memory_check=false")


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """A program nvidia-smi that prints `rows`, and fails for an unknown id."""
    program = folder / "nvidia-smi"
    lines = " ".join(f"'{row}'" for row in rows)
    program.write_text(f"#!/bin/sh\ncase $1 in --id=7) exit 6;; esac\nprintf '%s\\n' {lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    provenance.gpus.cache_clear()


def test_two_cards_share_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (on_gpu,), (on_cpu,) = (expand([*SMALL, f"launch.device={device}"]) for device in ("cuda", "cpu"))
    keys = set()
    for card in ("NVIDIA H100 80GB HBM3, 580.1", "NVIDIA H200, 580.1", "NVIDIA H200, 580.2"):
        smi(tmp_path, monkeypatch, card)
        name, driver = card.split(", ")
        assert provenance.circumstances(on_gpu.config)["gpus"] == [f"{name}, driver {driver}"]
        assert "gpus" not in provenance.circumstances(on_cpu.config)
        notes = [ActiveRun(run, tmp_path, "together")._notes() for run in (on_gpu, on_cpu)]
        assert notes == [(f"on {name}, driver {driver}",), ()], "the page shows the card next to its numbers"
        keys |= {replace(run).key for run in (on_gpu, on_cpu)}
    assert len(keys) == 4
    provenance.gpus.cache_clear()


HERE = {"machine": {"cores": 2}, "versions": {"torch": "2.13"}, "source": "0123"}
RERUN, RUN = get_args(Rerun), resolve([])
CONFIG: dict[str, Any] = {
    "seed": 0,
    "reports": "reports",
    "scale": {"name": "laptop", "reproduce": ["a", "b"]},
    "grid": {"data": 1, "inter": 2, "tensor": 1},
    "measure": {"rounds": 5},
    "system": {"name": "axonn", "simulation": {"activation_checkpointing": "interval"}},
    "executor": {"name": "real"},
    "launch": {"name": "local", "submit": False},
    "experiment": {"name": "single", "title": "Single runs", "expect": []},
}


DECIDING = {"seed": 1, "grid.inter": 1, "measure.rounds": 6, "experiment.name": "other", "new": None}
BOOKKEEPING = {
    "reports": "elsewhere",
    "experiment.title": "The same, said better",
    "experiment.expect": [{"what": "a check"}],
    "rerun": "failed",
    "on_error": "stop",
    "launch.submit": True,
    "scale.name": "evening",
    "scale.reproduce": ["a", "b", "c"],
    "checkpoint": {"folder": "checkpoints", "every": 5},
    "system.simulation": {"activation_checkpointing": "layer"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *groups, leaf = path.split(".")
    at = config
    for group in groups:
        at = at[group]
    at[leaf] = value
    return config


def reusable(folder: Path, config: dict[str, Any], key: str, rerun: str) -> Record | None:
    return Store(folder).reusable(Run("", config, "", RUN.model_copy(update={"rerun": rerun})), key=key)


def record_of(key: str, outcome: Outcome = Outcome.OK) -> Record:
    metrics = {"batch_time": Metric("s", "lower", (0.5, 0.25))}
    return Record(key, "single", "axonn", "axonn 1x1", outcome, Source.MEASURED, metrics=metrics, config={"seed": 0})


# -- names -----------------------------------------------------------------------------------------------------------


def test_record_key_follows_what_decides_numbers() -> None:
    key = key_of(CONFIG, HERE)
    assert len(key) == 20
    assert set(key) <= set("0123456789abcdef")
    shuffled = {name: CONFIG[name] for name in reversed(CONFIG)}
    assert key_of(shuffled, dict(reversed(HERE.items()))) == key
    for path, value in DECIDING.items():
        assert key_of(changed(path, value), HERE) != key, path
    for path, value in BOOKKEEPING.items():
        assert key_of(changed(path, value), HERE) == key, path
    for other in ({"machine": {"cores": 4}}, {"versions": {"torch": "2.14"}}, {"source": "0124"}):
        assert key_of(CONFIG, {**HERE, **other}) != key, other
    # where no rank is started, the simulation of a system decides
    simulated = [{"executor": {"kind": "simulated"}, "system": {"simulation": {"zero_stage": n}}} for n in (0, 1)]
    assert key_of(simulated[0], HERE) != key_of(simulated[1], HERE)


def test_sources_are_hashed_by_name_and_content(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "b.py").write_text("y = 2\n")
    hashes = []
    for name, text in (("a.py", "x = 1\n"), ("notes.txt", "nothing"), ("a.py", "x = 2\n"), ("a.py", "x = 1\n")):
        (folder / name).write_text(text)
        hashes.append(source_hash([folder]))
    (folder / "a.py").rename(folder / "c.py")
    hashes.append(source_hash([folder]))
    assert hashes[0] == hashes[1] == hashes[3]
    assert len({hashes[0], hashes[2], hashes[4]}) == 3
    assert {len(each) for each in hashes} == {16}


def test_own_code_and_data_are_circumstances_too(tmp_path: Path) -> None:
    """A number is not reused when the user's own system or text has changed under the same path."""
    (tmp_path / "mine.py").write_text("a = 1")
    (tmp_path / "wiki.train.tokens").write_text("words")
    config = composed(["data=wikitext_103", f"data.folder={tmp_path}", f"launch.python_path=[{tmp_path}]"])
    before = provenance.circumstances(checked_run(config))
    (tmp_path / "mine.py").write_text("a = 2")
    code = provenance.circumstances(checked_run(config))
    (tmp_path / "wiki.train.tokens").write_text("other words")
    data = provenance.circumstances(checked_run(config))
    assert len({key_of(config, facts) for facts in (before, code, data)}) == 3


def test_measured_numbers_belong_to_the_code_that_makes_them() -> None:
    folders = set(provenance._MEASURED)
    assert all((provenance.ROOT / folder).exists() for folder in folders)
    packages = {f"suite/{path.parent.name}" for path in (provenance.ROOT / "suite").glob("*/__init__.py")}
    # these decide the values of executors that name them as their sources, and of no other
    package_names = {"suite/claims", "suite/papers", "suite/gnn", "suite/simulate"}
    # these read what is there, or ask for runs
    rooms = ("report", "doctor", "regression", "conformance", "artifact", "cli", "stats", "whatif")
    reading = {f"suite/{name}" for name in rooms}
    assert packages - folders <= package_names | reading


# -- files -----------------------------------------------------------------------------------------------------------


def test_writes_are_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "record.json"
    write_atomically(path, b"first")

    def killed(source: Path, target: Path) -> None:
        assert (Path(source).read_bytes(), path.read_bytes()) == (b"second", b"first"), (
            "complete before it has the name"
        )
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(path.parent.glob("*.json")) == [path]  # what is left has no record's name
    write_atomically(path, b"third")
    assert path.read_bytes() == b"third"
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


WELL, LATE, NOT_MADE = {"ok"}, {"timeout"}, {"unsupported", "missing_dependency", "cancelled"}
SPARED = {  # outcomes that spare a run from being repeated, by the value of `rerun`
    "stale": set(Outcome) - NOT_MADE,
    "failed": WELL,
    "timeout": set(Outcome) - NOT_MADE - LATE,
    "all": set(),
    "keep": set(Outcome) - NOT_MADE,
}


def test_which_earlier_records_stand(tmp_path: Path) -> None:
    store, key = Store(tmp_path), "b" * 20
    assert not any(reusable(tmp_path, CONFIG, key, rerun) for rerun in RERUN)
    for outcome in Outcome:
        store.write(record_of(key, outcome))
        for rerun in RERUN:
            record = reusable(tmp_path, CONFIG, key, rerun)
            assert (record is not None) is (outcome in SPARED[rerun]), (outcome, rerun)


def test_damaged_file_is_ignored(tmp_path: Path) -> None:
    store, key = Store(tmp_path), "c" * 20
    for content in (b"", b"{", b"null", b"[]", b"{}", b'{"schema_version": 99}', b'{"schema_version": 2}', b"\xff\xfe"):
        write_atomically(store.path(key), content)
        assert store.find(key) is None, content
        assert not any(reusable(tmp_path, CONFIG, key, rerun) for rerun in RERUN)
    store.write(record_of(key))
    assert store.find(key) == record_of(key)
    store.path("e" * 20).mkdir()
    assert store.find("e" * 20) is None, "a folder in place of a record"
