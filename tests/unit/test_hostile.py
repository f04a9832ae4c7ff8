"""Files from anybody: each reader refuses a damaged one by name, runs nothing, and stays inside its folder.

Records: tests/unit/report/test_load.py; graphs: tests/unit/data/graphs; archives: tests/unit/artifact; class paths:
tests/unit/config/test_locate.py."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.cli.main import main
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.exit_codes import Exit
from suite.engine.checkpoint.save import STATE
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.gnn.rank_shard import RankShard
from suite.pruning.mask import load as load_ticket
from suite.runner.runs import expand
from suite.simulate.cost.measured import recorded
from suite.simulate.network.machine import measured
from tests.support.cases import gpt_case
from tests.support.drawn import cells
from tests.support.hostile import Hostile
from tests.support.refusals import refused

READERS: dict[str, Callable[[Path], object]] = {
    "ticket": load_ticket,
    "holding": RankShard.load,
    "trace": lambda path: recorded(trace=str(path)),
    "machine": lambda path: measured(name="local", file=str(path)),
    "overrides": lambda path: expand([f"@{path}"]),
}


CONTENTS: dict[str, Callable[[Path, Path], object]] = {  # what a file holds, which would leave the mark
    "pickle": lambda path, mark: path.write_bytes(pickle.dumps(touching(mark))),
    "npz of objects": lambda path, mark: write_objects(path, np.array([touching(mark)], dtype=object)),
    "python yaml": lambda path, mark: path.write_text(f"!!python/object/apply:os.system ['touch {mark}']"),
    "empty": lambda path, mark: path.write_bytes(b""),
}


def touching(mark: Path) -> Hostile:
    """An unpickled object leaves a file behind."""
    return Hostile(os.system, f"touch {mark}")


def write_objects(path: Path, objects: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, parts=objects, format=objects)


@pytest.mark.parametrize("content", CONTENTS)
def test_each_reader_refuses_by_name_and_runs_nothing(content: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "given", tmp_path / "it ran"
    CONTENTS[content](path, mark)
    for name, read in READERS.items():
        with pytest.raises(SuiteError):
            read(path)
        assert not mark.exists(), name


def test_yaml_of_the_user_is_read_as_data(tmp_path: Path) -> None:
    """Also where the folder was chosen: its modules may run, its YAMLs have nothing to run."""
    mark = tmp_path / "it ran"
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "evil.yaml").write_text(f"system: !!python/object/apply:os.system ['touch {mark}']\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        resolve([f"launch.python_path=['{tmp_path}']", "system=evil"])
    assert not mark.exists()


# -- checkpoints -----------------------------------------------------------------------------------------------------


def engine() -> Engine:
    case = gpt_case("untied", "float32", tied=False, layers=1)
    return Engine(case.layers, loss=case.loss, optimizer=SGD(0.1), microbatch=case.microbatch)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return engine().save(tmp_path / "checkpoints")


def test_pipe_in_a_checkpoint_is_refused(saved: Path) -> None:
    """To open one would wait for its writer."""
    for path in list(saved.iterdir()):
        path.unlink()
        os.mkfifo(path)
        with refused(InvalidRequest, subject="is missing", key=""):
            engine().load(saved)


SPOILT: tuple[dict[str, Any], ...] = (  # entries of state.json
    {"ranks": []},
    {"ranks": ["../../etc"] * 3},
    {"replicas": "many", "inter": None},
    {"microbatches": None},
    {"run": 3},
    {"more": 1},
)


def test_state_of_another_form_is_refused(saved: Path) -> None:
    right, other = json.loads((saved / STATE).read_text()), engine()
    before = [parameter.detach().clone() for parameter in other.state.model_states.parameters]
    for body in ({}, [], 3, *({**right, **spoilt} for spoilt in SPOILT)):
        (saved / STATE).write_text(json.dumps(body))
        with refused(InvalidRequest, subject=saved.name):
            other.load(saved.parent)
    assert all(bool((a == b).all()) for a, b in zip(before, other.state.model_states.parameters, strict=True))


PROGRAMS = (
    "launch.mpiexec=/bin/evil",
    "+launch.python_path=[somewhere]",
    "launch.extra={wrap: evil}",
    "++launch={mpiexec: evil}",
)


def test_override_file_cannot_select_a_program(tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    for line in PROGRAMS:
        file.write_text(json.dumps(["seed=1", line]))
        with refused(InvalidRequest, subject=f"holds {line}"):
            expand([f"@{file}"])
    file.write_text(json.dumps(["launch.threads=1", "launch=local", "seed=2"]))
    assert expand([f"@{file}"])[0].config.seed == 2


RECORD = next((Path(__file__).parents[2] / "reports" / "measured").glob("*/*.jsonl")).read_text().splitlines()[0]
CELLS = (Path(__file__).parents[2] / "suite" / "simulate" / "validation" / "cells.yaml").read_text()[:20_000]
SYSTEM = "# @package _global_\ndefaults: [/system/axonn]\nsystem: {{_target_: {module}.Mine, name: mine}}\n"
BINARY = b"\xff\xfe\x00\x80" * 60
NUMBERS = count()


def without(text: str, field: str) -> bytes:
    data = json.loads(text)
    del data[field]
    return json.dumps(data).encode()


def own_folder(file: Path) -> str:
    return f"launch.python_path=['{file.parents[file.parent.name == 'system']}']"


def own_module(file: Path) -> list[str]:
    """A run of a system whose class is in the file."""
    (file.parent / "system").mkdir()
    (file.parent / "system" / "mine.yaml").write_text(SYSTEM.format(module=file.stem))
    return [own_folder(file), "system=mine"]


def folder_of(file: Path) -> str:
    return f"reports={file.parents[1]}"


# by command: name of the file, its content, its content without a field, and the arguments of the command
COMMANDS: dict[str, tuple[str, str, bytes, Callable[[Path], list[str]]]] = {
    "show": ("records/{}.json", RECORD, without(RECORD, "outcome"), lambda file: ["show", str(file)]),
    "show KEY": (
        "records/{}.json",
        RECORD,
        without(RECORD, "series"),
        lambda file: ["show", file.stem, folder_of(file)],
    ),
    "show LINE": ("{}.jsonl", RECORD, without(RECORD, "metrics"), lambda file: ["show", str(file)]),
    "report": ("records/{}.json", RECORD, without(RECORD, "source"), lambda file: ["report", folder_of(file)]),
    "compare": (
        "records/{}.json",
        RECORD,
        without(RECORD, "key"),
        lambda file: ["compare", *[str(file.parents[1])] * 2],
    ),
    "accuracy": ("{}.yaml", CELLS, b"- {id: a.b, group: a}", lambda file: ["accuracy", f"cells={file}"]),
    "check": ("{}.csv", "0F0,0F1,0B0,0B1", b"0F0\n", lambda file: ["check", str(file)]),
    "overrides": ("{}.yaml", "[grid.inter=2, batch", b"- {a: 1}", lambda file: ["run", f"@{file}"]),
    "split": (
        "{}.json",
        '{"layers": [1]}',
        b"{}",
        lambda file: ["run", f"split={file}", "executor=simulated", "grid.inter=2"],
    ),
    "module": ("mine{}.py", "class Mine(:\n    a = 1\n", b"", lambda file: ["run", *own_module(file)]),
    "laws of a module": ("mine{}.py", "def f(:\n    a = 1\n", b"", lambda file: ["conformance", *own_module(file)]),
    "edges": (
        "{}.txt",
        "0 1 2 3 4 5",
        b"7",
        lambda file: ["run", "system=cagnet", "executor=volumes", "graph=edge_list", f"graph.source.file={file}"],
    ),
}
DAMAGES = ("cut", "binary", "empty", "another type", "a missing field")


@pytest.mark.parametrize(
    ("command", "damage"), cells(COMMANDS, DAMAGES, n=9, always=[("report", "cut"), ("module", "cut")])
)
def test_damaged_file_is_named_in_one_sentence(
    command: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text, missing, arguments = COMMANDS[command]
    content = dict(zip(DAMAGES, (text[: len(text) * 2 // 3].encode(), BINARY, b"", b"7", missing), strict=True))
    file = tmp_path / "given" / name.format(f"damaged{next(NUMBERS)}")  # Python keeps what it has imported
    file.parent.mkdir(parents=True)
    file.write_bytes(content[damage])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    status = main(arguments(file))
    output = "".join(capsys.readouterr())
    assert status == (Exit.OK if command == "report" else Exit.NOTHING), output
    assert "Traceback" not in output
    (line,) = [
        line
        for line in output.splitlines()
        if line.partition(": ")[0] in ("refused", "set aside", "failed")
        or " unsupported " in line
        or " failed " in line
    ]
    assert file.stem in line
    assert "suite/config/" not in line, "the fault is in the user's file"
