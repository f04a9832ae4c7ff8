"""Fixtures of all tests: one torch thread, plug-ins of the tests, and a test without ranks.

One thread keeps the order of summation of a rank.
Hypothesis has no deadline, because its default of 200 ms of wall time can pass while another process holds the core.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from suite.runner.launch.signals import ENDING_SIGNALS

with suppress(ModuleNotFoundError):  # a machine with a GPU that runs tests/cuda alone may lack it
    from hypothesis import settings

    settings.register_profile("shared cores", deadline=None)
    settings.load_profile("shared cores")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _plugin_folders() -> None:
    """Allow configurations to name the plug-ins of tests, as `launch.python_path` does for a user's folder."""
    from suite.config.locate import search

    search([Path(__file__).parents[1], Path(__file__).parent / "plugins"])


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Handlers as in a new process, also under nohup; after the test they are as before."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test that starts a rank."""
    monkeypatch.setattr("suite.runner.launch.processes.RankGroup.start", lambda *_, **__: pytest.fail("a rank started"))
