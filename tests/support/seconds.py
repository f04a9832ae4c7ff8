"""pytest plugin: processor seconds of every test, its child processes included.

Loaded by the root conftest.py. Every run ends with its total, its seconds by folder and its ten slowest tests;
`--seconds=FILE` writes `seconds, test` for all of them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

KEY = "processor_seconds"


def _used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Seconds:
    """Collects the seconds of all tests; under xdist, from the reports that workers send."""

    def __init__(self) -> None:
        self.of: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.user_properties.append((KEY, _used()))  # the start, until the teardown's report replaces it
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        begin = next((value for key, value in item.user_properties if key == KEY), None)
        report.user_properties = [pair for pair in report.user_properties if pair[0] != KEY]
        if report.when == "teardown" and begin is not None:
            report.user_properties.append((KEY, _used() - begin))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, value in report.user_properties:
            if key == KEY and report.when == "teardown":
                self.of[report.nodeid] += value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        path = session.config.getoption("seconds")
        if path and not hasattr(session.config, "workerinput"):
            lines = [f"{value:.3f}\t{name}\n" for name, value in sorted(self.of.items(), key=lambda item: -item[1])]
            Path(path).write_text("".join(lines))


def by_folder(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by the folder of the test, `tests/unit` by its subfolders, the most first."""
    folders: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        parts = Path(name.partition("::")[0]).parent.parts
        folders["/".join(parts[1:3]) or "tests"] += value
    return dict(sorted(folders.items(), key=lambda item: -item[1]))
