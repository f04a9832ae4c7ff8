"""Interrupts and faults of commands have exit statuses that no result has."""

from __future__ import annotations

import pytest

from suite.cli.main import main
from suite.core.exit_codes import Exit
from suite.runner.launch import signals


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize(
    ("name", "called", "arguments"),
    [
        ("compare", "suite.regression.record_sets.read", ["a", "b"]),
        ("nightly", "suite.config.nightly.read", []),
        ("artifact", "suite.artifact.build.make", ["--no-doctor"]),
    ],
)
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ZeroDivisionError("why"), Exit.FAULT, "ZeroDivisionError: why")],
)
def test_interrupt_and_fault_have_distinct_statuses(
    name: str,
    called: str,
    arguments: list[str],
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends(*_: object) -> None:
        raise error

    monkeypatch.setattr(called, ends)
    monkeypatch.setattr(signals, "raised_in_user_code", lambda _: False)  # the error is raised in this file
    assert main([name, *arguments]) == status
    assert message in capsys.readouterr().err
