"""Fixtures of all tests: one torch thread, plug-ins of the tests, and a test without ranks.

One thread keeps the order of summation of a rank.
Hypothesis has no deadline, because its default of 200 ms of wall time can pass while another process holds the core.
"""

from __future__ import annotations

from pathlib import Path

import pytest
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
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test that starts a rank."""
    monkeypatch.setattr("suite.runner.launch.processes.RankGroup.start", lambda *_, **__: pytest.fail("a rank started"))
