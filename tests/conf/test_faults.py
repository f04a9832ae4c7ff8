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


def of_class(module: str, base: str, method: str, body: str = RAISES) -> str:
    return CLASS.format(module=module, base=base, method=method, body=body)


def schedule(method: str, body: str = RAISES) -> str:
    return of_class("baselines.gpipe", "GPipe", method, body)


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


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


OWN_FAULT, TOO_FEW = "LookupError: my own fault", 'raise ValueError("too few waves")'


@pytest.mark.parametrize(
    ("group", "code", "outcome", "message"),
    [
        ("schedule", schedule(PROGRAM), Outcome.FAILED, OWN_FAULT),
        ("schedule", schedule(IN_FLIGHT), Outcome.FAILED, OWN_FAULT),
        ("schedule", "def program(:\n", Outcome.FAILED, "SyntaxError"),
        ("schedule", schedule("__init__(self)", TOO_FEW), Outcome.UNSUPPORTED, "too few waves"),
        ("schedule", schedule(IN_FLIGHT, "return 1"), Outcome.FAILED, "the schedule promised 1"),
        ("weights", of_class("baselines.pipedream", "Stash", CHECK), Outcome.FAILED, OWN_FAULT),
        ("model", of_class("suite.workload", "Transformer", "shapes(self)"), Outcome.FAILED, OWN_FAULT),
        ("executor", EXECUTOR.format(check=RAISES, body="pass"), Outcome.FAILED, OWN_FAULT),
        ("executor", EXECUTOR.format(check="pass", body=RAISES), Outcome.FAILED, OWN_FAULT),
        ("executor", EXECUTOR.format(check="pass", body="return None"), Outcome.FAILED, ""),
    ],
)
def test_fault_in_a_user_file_is_recorded_with_its_line(
    group: str, code: str, outcome: Outcome, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(folder(tmp_path, code, group)) == Exit.NOTHING
    (file,) = (tmp_path / "reports" / "records").glob("*.json")
    record, output = Record.read(file), "".join(capsys.readouterr())
    assert record.outcome is outcome
    assert message in record.reason
    assert "Traceback" not in output
    for line in [number for number, text in enumerate(code.splitlines(), 1) if "raise " in text or "(:" in text]:
        assert ("Traceback (most recent call last):" in record.reason) is (outcome is Outcome.FAILED)
        (printed,) = [text for text in output.splitlines() if message in text]
        assert f"{tmp_path}/mine/faulty_" in printed
        assert f".py, line {line}" in printed


def test_a_fault_of_the_suite_ends_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from suite.runner.launch import signals

    monkeypatch.setattr(signals, "raised_in_user_code", lambda error: False)
    assert signals.run_command(lambda arguments: 1 // len(arguments), []) == Exit.FAULT
    assert "ZeroDivisionError" in capsys.readouterr().err
