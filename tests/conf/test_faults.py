"""Faults in a user's own files: each run leaves a record that names the line, and the others go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from suite.cli.draw import main as draw
from suite.cli.run import main
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record

RAISES = 'raise LookupError("my own fault")'
CLASS = """from {module} import {base}

class Mine({base}):
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
YAML = {
    "executor": "kind: plugin\nname: mine\n_target_: {module}.Mine\n",
    "model": "defaults: [gpt_tiny]\nname: mine\nshape: {{_target_: {module}.Mine}}\n",
}
CHECK = "check(self, stages, update_interval)"
PROGRAM, IN_FLIGHT = (f"{name}(self, place, interval)" for name in ("program", "in_flight"))
NAMES = count()


def schedule(method: str, body: str = RAISES) -> str:
    return CLASS.format(module="baselines.gpipe", base="GPipe", method=method, body=body)


def folder(tmp_path: Path, code: str, group: str) -> list[str]:
    """Overrides of a run that has this code in the place of its `group`."""
    module = f"faulty_{next(NAMES)}"  # Python keeps what it has imported
    chosen = group if group in YAML else "system"
    file = tmp_path / "mine" / chosen / "mine.yaml"
    file.parent.mkdir(parents=True)
    text = YAML.get(group, SYSTEM).format(group=group, module=module)
    file.write_text(text + "update_interval: 1\n" * (group == "weights"))
    (tmp_path / "mine" / f"{module}.py").write_text(code)
    mine = f"launch.python_path=[{tmp_path / 'mine'}]"
    return [mine, f"{chosen}=mine", "grid.inter=2", f"reports={tmp_path / 'reports'}"]


Ended = Callable[[str, str], tuple[Record, str]]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """The only record of a run with this code in the place of its group, and what the command printed."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def end(group: str, code: str) -> tuple[Record, str]:
        assert main(folder(tmp_path, code, group)) == Exit.NOTHING
        (file,) = (tmp_path / "reports" / "records").glob("*.json")
        return Record.read(file), "".join(capsys.readouterr())

    return end


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("schedule", schedule(PROGRAM)),
        ("schedule", schedule(PROGRAM, f"yield from (); {RAISES}")),
        ("schedule", schedule(IN_FLIGHT)),
        ("schedule", schedule("__init__(self)")),
        ("schedule", f"{RAISES}\n"),
        ("schedule", "def program(:\n"),
        ("weights", CLASS.format(module="baselines.pipedream", base="Stash", method=CHECK, body=RAISES)),
        ("model", CLASS.format(module="suite.workload", base="Transformer", method="shapes(self)", body=RAISES)),
        ("executor", EXECUTOR.format(check=RAISES, body="pass")),
        ("executor", EXECUTOR.format(check="pass", body=RAISES)),
    ],
)
def test_fault_in_a_user_file_is_recorded_with_its_line(group: str, code: str, ended: Ended, tmp_path: Path) -> None:
    record, output = ended(group, code)
    assert record.outcome is Outcome.FAILED
    message = "SyntaxError" if "def program(:" in code else "LookupError: my own fault"
    assert message in record.reason
    assert "Traceback (most recent call last):" in record.reason
    (line,) = [number for number, text in enumerate(code.splitlines(), 1) if RAISES in text or "(:" in text]
    (printed,) = [text for text in output.splitlines() if message in text]
    assert f"{tmp_path}/mine/faulty_" in printed
    assert f".py, line {line}" in printed
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("group", "code", "outcome", "parts"),
    [
        ("executor", EXECUTOR.format(check="pass", body="return None"), Outcome.FAILED, ()),
        ("executor", EXECUTOR.format(check="pass", body="return {}"), Outcome.FAILED, ()),
        (
            "schedule",
            schedule("__init__(self)", 'raise ValueError("too few waves")'),
            Outcome.UNSUPPORTED,
            ("too few waves", ".py, line 5 in __init__"),
        ),
        ("schedule", schedule(IN_FLIGHT, "return 1"), Outcome.UNSUPPORTED, ("the schedule promised 1",)),
    ],
)
def test_unusable_result_is_recorded(
    group: str, code: str, outcome: Outcome, parts: tuple[str, ...], ended: Ended
) -> None:
    record, _ = ended(group, code)
    assert record.outcome is outcome
    assert [part for part in parts if part not in record.reason] == []


def test_command_reports_a_user_fault_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    overrides = folder(tmp_path, schedule(PROGRAM), "schedule")[:3]
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
