"""Files that a user hands to a command, damaged in five ways: one sentence names the file, and nothing is a fault.

The readers themselves: tests/unit/test_hostile.py, tests/unit/data, tests/unit/report/test_load.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from suite.cli.main import main
from suite.core.exit_codes import Exit
from tests.support.drawn import cells

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
