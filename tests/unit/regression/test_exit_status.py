"""Interrupts and faults of commands have exit statuses that no result has."""

from __future__ import annotations

import pytest

from suite.cli.main import main
from suite.core.exit_codes import Exit
from suite.runner.launch import signals


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_interrupt_and_fault_have_distinct_statuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signals, "raised_in_user_code", lambda _: False)  # the error is raised in this file
    for command, called in (
        (["compare", "a", "b"], "suite.regression.record_sets.read"),
        (["nightly"], "suite.config.nightly.read"),
        (["artifact", "--no-doctor"], "suite.artifact.build.make"),
    ):
        for error, status in ((KeyboardInterrupt(), 130), (ZeroDivisionError("why"), Exit.FAULT)):

            def ends(*_: object, error: BaseException = error) -> None:
                raise error

            monkeypatch.setattr(called, ends)
            assert main(command) == status
            assert ("ZeroDivisionError: why" in capsys.readouterr().err) is (status == Exit.FAULT)
