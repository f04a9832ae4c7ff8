"""pytest plugin: processor seconds of every test, its child processes included, and the budget of the ordinary run.

The root conftest.py loads it. A run ends with its total, its seconds by folder and its ten slowest tests.
`--seconds=FILE` writes `seconds, test` for all of them; `--done=FILE` adds each test that passes to the file at once,
so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from statistics import fmean

import pytest

from tests.support.waiting import loop_seconds

KEY = "processor_seconds"
LOOP = "reference_seconds"
EVERY = 5.0  # seconds between two reference loops of a process that runs tests
SLOW = 5.0  # seconds, on the machine of REFERENCE, that a test may take without the marker `slow`
BUDGET = 400.0  # seconds of the ordinary run on the machine of REFERENCE
REFERENCE = 0.009  # processor seconds of the reference loop on one idle core of a Xeon of 2023


def _used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def reference() -> float:
    """Processor seconds that the reference loop takes here, the shortest of twenty-five."""
    return min(loop_seconds(time.process_time) for _ in range(25))


class Seconds:
    """The seconds of all tests; with pytest-xdist, from the reports that workers send."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.seconds, self.slow = config, defaultdict[str, float](float), set[str]()
        self.loops: list[float] = []  # seconds of reference loops between tests
        self.next_loop = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.user_properties.append((KEY, _used()))  # the start, until the report of the teardown has the difference
        if item.get_closest_marker("slow"):
            item.user_properties.append(("slow", True))
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        begin = next((value for key, value in item.user_properties if key == KEY), None)
        report.user_properties = [pair for pair in report.user_properties if pair[0] != KEY]
        if report.when == "teardown" and isinstance(begin, float):
            report.user_properties.append((KEY, _used() - begin))
            if time.monotonic() > self.next_loop:
                report.user_properties.append((LOOP, loop_seconds(time.perf_counter)))
                self.next_loop = time.monotonic() + EVERY
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if "slow" in properties:
            self.slow.add(report.nodeid)
        if report.when == "teardown" and KEY in properties:
            self.seconds[report.nodeid] += float(properties[KEY])  # type: ignore[arg-type]
            self.loops.extend(value for key, value in report.user_properties if key == LOOP)  # type: ignore[misc]
        done = self.config.getoption("done")
        if done and report.when == "call" and report.passed and not hasattr(self.config, "workerinput"):
            with Path(done).open("a") as stream:
                stream.write(f"{report.nodeid}\n")

    def lines(self) -> list[str]:
        """Total, seconds by folder, and the ten slowest tests."""
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])
        folders = "; ".join(f"{folder} {value:.0f}" for folder, value in by_folder(self.seconds).items() if value >= 1)
        return [
            f"processor seconds: {sum(self.seconds.values()):.0f} ({folders})",
            *(f"{value:7.1f} s  {name}" for name, value in slowest[:10] if value >= 1),
        ]

    def over_budget(self, whole: bool) -> list[str]:
        """Faults of an ordinary run: slow tests without a reason, and a whole run a quarter over the budget.

        Beside other processes, or on a busy host, the same work takes more processor seconds, most of all ranks that
        poll for messages. The reference loops between the tests last longer then too, and budgets follow their mean.
        """
        total = sum(self.seconds.values())
        if max(self.seconds.values(), default=0.0) <= 4 * SLOW and not (whole and total > 1.25 * BUDGET):
            return []
        scale = max(1.0, fmean(self.loops or [reference()]) / REFERENCE)
        faults = [
            f"{name} took {value:.1f} processor seconds: mark it slow(reason), or make it quicker than {SLOW:g} s"
            for name, value in self.seconds.items()
            if value > 4 * SLOW * scale and name not in self.slow  # four times: other processes slow a test down
        ]
        if whole and total > 1.25 * BUDGET * scale:
            faults.append(f"the run took {total:.0f} processor seconds; its budget is {BUDGET * scale:.0f} here")
        return faults

    def write(self) -> None:
        if path := self.config.getoption("seconds"):
            rows = sorted(self.seconds.items(), key=lambda item: -item[1])
            Path(path).write_text("".join(f"{value:.3f}\t{name}\n" for name, value in rows))


def by_folder(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by the folder of the test, tests/unit by its subfolders, the most first."""
    folders: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        parts = Path(name.partition("::")[0]).parent.parts
        folders["/".join(parts[1:3]) or "tests"] += value
    return dict(sorted(folders.items(), key=lambda item: -item[1]))
