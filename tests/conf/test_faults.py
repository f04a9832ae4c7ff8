"""Faults in a user's own files: each run leaves a record that names the line, and the others go on."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

from suite.cli.run import main
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record

RAISES = 'raise LookupError("my own fault")'
SCHEDULE = """from baselines.gpipe import GPipe

class Mine(GPipe):
    def {method}:
        {body}
"""
POLICY = """from baselines.pipedream import Stash

class Mine(Stash):
    def {method}:
        {body}
"""
SHAPE = """from dataclasses import dataclass
from suite.workload import Transformer

@dataclass(frozen=True)
class Mine(Transformer):
    def {method}:
        {body}
"""
EXECUTOR = """class Mine:
    def check(self, config): {check}
    def run(self, config): {body}
"""
SYSTEM = """# @package _global_
defaults: [override /{group}: null]
{group}: {{_target_: {module}.Mine}}
system: {{_target_: suite.engine.system.EngineSystem, name: mine, description: a test}}
"""
NAMES = count()


def folder(tmp_path: Path, code: str, group: str) -> list[str]:
    """Overrides of a run that has this code in the place of its `group`."""
    module = f"faulty_{next(NAMES)}"  # Python keeps what it has imported
    mine = tmp_path / "mine"
    if group in ("schedule", "weights"):
        (mine / "system").mkdir(parents=True)
        text = SYSTEM.format(group=group, module=module)
        (mine / "system" / "mine.yaml").write_text(text + ("update_interval: 1\n" if group == "weights" else ""))
        chosen = ["system=mine"]
    else:
        (mine / group).mkdir(parents=True)
        body = {
            "executor": f"kind: plugin\nname: mine\n_target_: {module}.Mine\n",
            "model": f"defaults: [gpt_tiny]\nname: mine\nshape: {{_target_: {module}.Mine}}\n",
        }
        (mine / group / "mine.yaml").write_text(body[group])
        chosen = [f"{group}=mine"]
    (mine / f"{module}.py").write_text(code)
    return [f"launch.python_path=[{mine}]", *chosen, "grid.inter=2", f"reports={tmp_path / 'reports'}"]


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("schedule", SCHEDULE.format(method="program(self, place, interval)", body=RAISES)),
        ("schedule", SCHEDULE.format(method="program(self, place, interval)", body=f"yield from (); {RAISES}")),
        ("schedule", SCHEDULE.format(method="in_flight(self, place, interval)", body=RAISES)),
        ("schedule", SCHEDULE.format(method="__init__(self)", body=RAISES)),
        ("schedule", f"{RAISES}\n"),
        ("schedule", "def program(:\n"),
        ("weights", POLICY.format(method="check(self, stages, update_interval)", body=RAISES)),
        ("model", SHAPE.format(method="shapes(self)", body=RAISES)),
        ("executor", EXECUTOR.format(check=RAISES, body="pass")),
        ("executor", EXECUTOR.format(check="pass", body=RAISES)),
    ],
)
def test_fault_in_a_user_file_is_recorded_with_its_line(
    group: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(folder(tmp_path, code, group)) == Exit.NOTHING
    (file,) = (tmp_path / "reports" / "records").glob("*.json")
    record = Record.read(file)
    assert record.outcome is Outcome.FAILED
    message = "SyntaxError" if "def program(:" in code else "LookupError: my own fault"
    assert message in record.reason
    assert "Traceback (most recent call last):" in record.reason
    (line,) = [number for number, text in enumerate(code.splitlines(), 1) if RAISES in text or "(:" in text]
    output = capsys.readouterr()
    (printed,) = [text for text in (output.out + output.err).splitlines() if message in text]
    assert f"{tmp_path}/mine/faulty_" in printed
    assert f".py, line {line}" in printed
    assert "Traceback" not in output.out + output.err


@pytest.mark.parametrize("result", ["None", "7", "{}"])
def test_unrecordable_result_is_a_failed_run(result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = EXECUTOR.format(check="pass", body=f"return {result}")
    assert main(folder(tmp_path, code, "executor")) == Exit.NOTHING
    (file,) = (tmp_path / "reports" / "records").glob("*.json")
    assert Record.read(file).outcome is Outcome.FAILED


def test_value_that_a_user_class_refuses_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = SCHEDULE.format(method="__init__(self)", body='raise ValueError("too few waves")')
    assert main(folder(tmp_path, code, "schedule")) == Exit.NOTHING
    (file,) = (tmp_path / "reports" / "records").glob("*.json")
    record = Record.read(file)
    assert record.outcome is Outcome.UNSUPPORTED
    assert "too few waves" in record.reason
    assert ".py, line 5 in __init__" in record.reason


def test_illegal_order_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = SCHEDULE.format(method="in_flight(self, place, interval)", body="return 1")
    main(folder(tmp_path, code, "schedule"))
    output = capsys.readouterr()
    (line,) = [text for text in (output.out + output.err).splitlines() if "unsupported" in text]
    assert "the schedule promised 1" in line


def test_command_reports_a_user_fault_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from suite.cli.draw import main as draw

    monkeypatch.setattr(sys, "path", list(sys.path))
    overrides = folder(tmp_path, SCHEDULE.format(method="program(self, place, interval)", body=RAISES), "schedule")[:3]
    assert draw(overrides) == Exit.NOTHING
    (line,) = capsys.readouterr().err.splitlines()
    assert "LookupError: my own fault (" in line
    monkeypatch.setenv("SUITE_TRACEBACK", "1")
    assert draw(overrides) == Exit.NOTHING
    assert "Traceback (most recent call last):" in capsys.readouterr().err


def test_a_fault_of_the_suite_ends_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from suite.runner.launch import signals

    monkeypatch.setattr(signals, "raised_in_user_code", lambda error: False)
    assert signals.run_command(lambda arguments: 1 // len(arguments), []) == Exit.FAULT
    assert "ZeroDivisionError" in capsys.readouterr().err
