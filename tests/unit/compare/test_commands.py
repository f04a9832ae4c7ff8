"""Whatever ends a command that reads records, a script can tell it from what the command found."""

from __future__ import annotations

import runpy
import sys

import pytest

from suite.bench import interrupt
from suite.core.exits import Exit


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # what it is to be run twice
@pytest.mark.parametrize(
    ("module", "called", "arguments"),
    [
        ("suite.compare", "suite.compare.sets.read", ["a", "b"]),
        ("suite.nightly", "suite.nightly.settings.read", []),
        ("suite.bundle", "suite.bundle.make.make", ["--no-doctor"]),
    ],
)
@pytest.mark.parametrize(
    ("error", "status", "told"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ZeroDivisionError("why"), Exit.FAULT, "ZeroDivisionError: why")],
)
def test_an_interrupt_and_a_fault_have_a_status_of_their_own(
    module: str,
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
    monkeypatch.setattr(interrupt, "is_users", lambda _: False)  # it is this file that raises
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"{module}.__main__", run_name="__main__")
    assert ended.value.code == status
    assert told in capsys.readouterr().err
