"""A script can tell an interrupted or failed command from its result."""

from __future__ import annotations

import pytest

from suite.cli.main import main
from suite.core.exit_codes import Exit
from suite.runner.launch import signals


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # what it is to be run twice
@pytest.mark.parametrize(
    ("name", "called", "arguments"),
    [
        ("compare", "suite.regression.compare.record_sets.read", ["a", "b"]),
        ("nightly", "suite.regression.nightly.settings.read", []),
        ("artifact", "suite.artifact.build.make", ["--no-doctor"]),
    ],
)
@pytest.mark.parametrize(
    ("error", "status", "told"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ZeroDivisionError("why"), Exit.FAULT, "ZeroDivisionError: why")],
)
def test_an_interrupt_and_a_fault_have_a_status_of_their_own(
    name: str,
    called: str,
    arguments: list[str],
    error: BaseException,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends(*_: object) -> None:
        raise error

    monkeypatch.setattr(called, ends)
    monkeypatch.setattr(signals, "is_users", lambda _: False)  # it is this file that raises
    assert main([name, *arguments]) == status
    assert told in capsys.readouterr().err
