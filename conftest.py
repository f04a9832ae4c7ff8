"""Decides what pytest's own flags here mean (--benchmark, --no-skip), that a run ends with what it left out, and which
tests run beside others or only when asked for.

    pytest                            # the tests; benchmarks are skipped
    pytest --benchmark                # the benchmarks alone; ends with the file of their numbers
    pytest -m exhaustive              # the cells of large products that are skipped otherwise
    pytest --no-skip=chromium,mpiexec # a test that is skipped because one of these is missing fails
    pytest -n 2 --dist loadfile --no-loadscope-reorder   # make test: the order of RANKS, LONG and TIMED

A test that wants a tool skips with a reason that starts with the tool's name and a colon (tests/support/tools.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

TOOLS = ("chromium", "mpiexec", "slurm", "deepspeed")  # what --no-skip may name
# first and in one worker: they start ranks, and the processes that stand by for the next program are a worker's own
RANKS = ("tests/laws/test_memory.py", "tests/distributed/", "tests/slurm/")
# next, the longest first: a file that took a minute would end long after the others if it began last
LONG = (
    "tests/laws/test_mutations.py",
    "tests/laws/test_blind.py",
    "tests/unit/test_jobs.py",
    "tests/conf/",
    "tests/laws/",
    "tests/unit/papers/",
)
# last, in this order and in one worker: they time what they start
TIMED = (
    "tests/unit/test_doctor.py",
    "tests/unit/runner/test_emulate.py",  # its ranks are threads, whose sleeps it times
    "tests/agreement/test_traffic.py",
    "tests/agreement/test_peers.py",
    "tests/agreement/test_clock.py",
)
_EXHAUSTIVE = "exhaustive"  # the marker of what a covering choice leaves out (tests/support/pairwise.py)
_BENCHMARK = "Skipping benchmark"  # how pytest-benchmark begins its reason
_STORAGE = "file://./.benchmarks"  # where pytest-benchmark saves unless told otherwise


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    with suppress(ValueError):  # the plugin may grow a flag of this name: then it is the plugin's
        group.addoption(
            "--benchmark", dest="run_benchmarks", action="store_true", default=False, help="run the benchmarks alone"
        )
    group.addoption(
        "--no-skip",
        default="",
        metavar="TOOLS",
        help=f"a test that is skipped for want of one of these fails (any of {','.join(TOOLS)})",
    )


@pytest.hookimpl(tryfirst=True)  # pytest-benchmark reads its options in its own pytest_configure
def pytest_configure(config: pytest.Config) -> None:
    unknown = set(_never_skipped(config)) - set(TOOLS)
    if unknown:
        raise pytest.UsageError(f"--no-skip={','.join(sorted(unknown))}: any of {','.join(TOOLS)}")
    option = config.option
    if not getattr(option, "run_benchmarks", False):
        return
    option.benchmark_only, option.benchmark_skip = True, False
    option.benchmark_save = option.benchmark_save or _commit()
    option.benchmark_save_data = True  # the samples, not their statistics alone
    if option.benchmark_storage == _STORAGE:
        option.benchmark_storage = f"file://{config.rootpath / 'reports' / 'benchmarks'}"


def _commit() -> str:
    """Names a file of numbers: the commit, and whether the tree differs from it."""
    from suite.runner.provenance import commit

    found = commit()
    return f"{found['hash']}{'-dirty' if found['dirty'] else ''}" if found else "no-commit"


def _never_skipped(config: pytest.Config) -> Sequence[str]:
    return [name.strip() for name in str(config.getoption("no_skip")).split(",") if name.strip()]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark the tests are not chosen at all: hundreds of skips would bury the numbers. Without it what takes
    longest comes first, and what is timed last."""
    if not getattr(config.option, "run_benchmarks", False):
        items.sort(key=lambda item: _place(item.nodeid))
        return
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen["benchmark" in getattr(item, "fixturenames", ())].append(item)
    items[:] = chosen[True]
    config.hook.pytest_deselected(items=chosen[False])


def _place(nodeid: str) -> tuple[int, int]:
    """Where a test stands: among RANKS, among LONG, behind these, or among TIMED."""
    for group, starts in ((0, RANKS), (1, LONG), (3, TIMED)):
        for place, start in enumerate(starts):
            if nodeid.startswith(start):
                return group, place
    return 2, 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A worker has a file at a time, or all tests that start ranks, or all that time what they start."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = {0: "ranks", 3: "timed"}.get(_place(nodeid)[0])
            return together or super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # no fixture is set up for a test that is left out
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(_EXHAUSTIVE) and _EXHAUSTIVE not in item.config.getoption("markexpr"):
        pytest.skip(f"{_EXHAUSTIVE}: pytest -m {_EXHAUSTIVE} runs them")


# -- skips ----------------------------------------------------------------------------------------------------------


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a report is skipped."""
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return why.removeprefix("Skipped: ")


def _forbid(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """A skip for want of a tool that must be here is a failure."""
    why = _reason(report) if report.outcome == "skipped" else ""
    for tool in _never_skipped(config):
        if why.startswith(f"{tool}: "):
            report.outcome = "failed"
            report.longrepr = f"skipped, which --no-skip={tool} forbids: {why}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid(report, item.config)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips as a whole does so while it is collected."""
    report = yield
    _forbid(report, collector.config)
    return report


# -- the last lines -------------------------------------------------------------------------------------------------


def left_out(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line per reason, the most frequent first; all benchmarks are one."""
    reasons = Counter(
        "benchmarks: pytest --benchmark runs them" if why.startswith(_BENCHMARK) else " ".join(why.split())
        for why in map(_reason, reports)
    )
    if not reasons:
        return ["skipped: none"]
    return ["skipped:", *(f"{count:6}  {why}" for why, count in reasons.most_common())]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Behind everything that others print: what was skipped and why; after benchmarks, where the numbers are."""
    before = _saved(session.config)
    result = yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        lines = left_out(terminal.stats.get("skipped", []))
        made = sorted(_saved(session.config) - before)
        if getattr(session.config.option, "run_benchmarks", False):
            here = session.config.invocation_params.dir
            names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in made]
            lines.append(f"benchmarks: {', '.join(names) or 'nothing was saved'}")
        for line in lines:
            terminal.write_line(line)
    return result


def _saved(config: pytest.Config) -> set[Path]:
    """The files in pytest-benchmark's storage."""
    session = getattr(config, "_benchmarksession", None)
    folder = getattr(getattr(session, "storage", None), "path", None)
    return set(folder.rglob("*.json")) if folder is not None else set()
