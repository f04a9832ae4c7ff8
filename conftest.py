"""Test selection, order of tests, and the last lines of a run.

    pytest                            # the ordinary run: tests, and the drawn cells of large products
    pytest --seed=20261126            # the cells that were drawn on that day
    pytest -m exhaustive              # the other cells of all products
    pytest -m exhaustive --minutes=3  # some of them, in a random order of the seed, until three minutes are over
    pytest -m exhaustive --done=FILE  # those that FILE does not list; a test that passes is added to FILE
    pytest --benchmark                # run the benchmarks only, and print the name of the file of their numbers
    pytest --no-skip=chromium,mpiexec # fail a test that is skipped because one of these tools is missing
    pytest --seconds=FILE             # write the processor seconds of every test (tests/support/seconds.py)
    pytest -n 2 --dist loadfile --no-loadscope-reorder   # make test: the order of RANKS, LONG and TIMED

A test that requires a missing tool skips with a reason that starts with the tool's name and a colon
(tests/support/tools.py).
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import pytest

TOOLS = ("chromium", "mpiexec", "slurm", "deepspeed", "pyodide")  # legal values of --no-skip
# first, in one worker: these tests share lasting ranks (tests/support/ranks.py)
RANKS = (
    "tests/laws/test_memory.py",
    *(f"tests/distributed/test_{name}.py" for name in ("ranks", "placed", "transports", "asynchronous", "batches")),
    *(f"tests/distributed/test_{name}.py" for name in ("training", "graphs", "torch_schedules", "rings")),
    "tests/agreement/test_schedule_peers.py",
)
# next, the longest first: a file of half a minute that began last would delay the end of the run
LONG = (
    "tests/distributed/",
    "tests/agreement/",
    "tests/unit/test_conftest.py",
    "tests/unit/test_jobs.py",
    "tests/slurm/",
    "tests/conf/",
    "tests/laws/",
    "tests/unit/report/",
    "tests/unit/claims/",
    "tests/unit/papers/",
)
# last, in one worker: these tests compare times
TIMED = ("tests/unit/runner/test_emulate.py", "tests/agreement/test_clock.py")
_EXHAUSTIVE = "exhaustive"  # marker of the cells that are not drawn today (tests/support/drawn.py)
_TURNS = 4  # a slow test runs in every fourth ordinary run
_PER_MINUTE = 200  # more tests than two workers finish in a minute; the others are not handed out
_BEGIN = time.monotonic()
_BENCHMARK = "Skipping benchmark"  # start of the reason that pytest-benchmark gives
_STORAGE = "file://./.benchmarks"  # default storage of pytest-benchmark


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    with suppress(ValueError):  # a later pytest-benchmark may define a flag of this name
        group.addoption(
            "--benchmark", dest="run_benchmarks", action="store_true", default=False, help="run the benchmarks only"
        )
    group.addoption(
        "--no-skip",
        default="",
        metavar="TOOLS",
        help=f"fail a test that is skipped because one of these is missing (any of {','.join(TOOLS)})",
    )
    group.addoption("--seed", default="", metavar="N", help="draw the cells of that seed; today's date without it")
    group.addoption("--minutes", type=float, default=0.0, help="run tests in random order until these are over")
    group.addoption("--done", default="", metavar="FILE", help="leave out the tests that FILE lists, and add to it")
    group.addoption("--seconds", default="", metavar="FILE", help="write the processor seconds of every test")


@pytest.hookimpl(tryfirst=True)  # pytest-benchmark reads its options in its own pytest_configure
def pytest_configure(config: pytest.Config) -> None:
    unknown = set(_never_skipped(config)) - set(TOOLS)
    if unknown:
        raise pytest.UsageError(f"--no-skip={','.join(sorted(unknown))}: any of {','.join(TOOLS)}")
    from tests.support.drawn import EXHAUSTIVE, SEED
    from tests.support.seconds import Seconds

    os.environ.setdefault(SEED, f"{datetime.now(UTC):%Y%m%d}")
    if seed := config.getoption("seed"):
        os.environ[SEED] = seed
    if _is_exhaustive(config):
        os.environ[EXHAUSTIVE] = "yes"

    config.pluginmanager.register(Seconds(config), "seconds")
    option = config.option
    if not getattr(option, "run_benchmarks", False):
        return
    option.benchmark_only, option.benchmark_skip = True, False
    option.benchmark_save = option.benchmark_save or _commit()
    option.benchmark_save_data = True  # store the samples as well as their statistics
    if option.benchmark_storage == _STORAGE:
        option.benchmark_storage = f"file://{config.rootpath / 'reports' / 'benchmarks'}"


def _commit() -> str:
    """Name of a benchmark file: the commit hash, with `-dirty` if the tree differs from the commit."""
    from suite.runner.provenance import commit

    head = commit()
    return f"{head['hash']}{'-dirty' if head['dirty'] else ''}" if head else "no-commit"


def _never_skipped(config: pytest.Config) -> Sequence[str]:
    return [name.strip() for name in str(config.getoption("no_skip")).split(",") if name.strip()]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark, deselect the tests, because hundreds of skips would hide the numbers.

    Without it, put the longest tests first and the timed tests last, or all in random order with --minutes. Slow tests
    take turns: a quarter of them runs, chosen by the seed and the reason that their markers give.
    """
    from tests.support.drawn import generator, seed

    for item in items:
        slow = item.get_closest_marker("slow")
        waits = slow is not None and (crc32(repr(slow.args).encode()) + seed()) % _TURNS
        if waits and not item.get_closest_marker(_EXHAUSTIVE):
            item.add_marker(_EXHAUSTIVE)
    kept = items[:]
    if getattr(config.option, "run_benchmarks", False):
        kept = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    elif (minutes := config.getoption("minutes")) > 0:
        kept = [item for item in items if (_EXHAUSTIVE in item.keywords) == _is_exhaustive(config)]
        generator("order").shuffle(kept)
        del kept[int(minutes * _PER_MINUTE) :]
    else:
        kept.sort(key=lambda item: _position(item.nodeid))
    if (done := Path(config.getoption("done") or os.devnull)).is_file():
        passed = set(done.read_text().splitlines())
        kept = [item for item in kept if item.nodeid not in passed]
    selected = set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in selected])
    items[:] = kept


def _is_exhaustive(config: pytest.Config) -> bool:
    return _EXHAUSTIVE in str(config.getoption("markexpr", ""))


def _position(nodeid: str) -> tuple[int, int]:
    """Sort key of a test: RANKS, then LONG, then all other tests, then TIMED."""
    for group, prefixes in ((0, RANKS), (3, TIMED), (1, LONG)):
        for place, prefix in enumerate(prefixes):
            if nodeid.startswith(prefix):
                return group, place
    return 2, 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a worker one file at a time, or all tests of persistent ranks, or all timed tests."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = {0: "ranks", 3: "timed"}.get(_position(nodeid)[0])
            return scope or super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before any fixture of the test is set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(_EXHAUSTIVE) and not _is_exhaustive(item.config):
        pytest.skip(f"{_EXHAUSTIVE}: pytest -m {_EXHAUSTIVE} runs them")
    minutes = item.config.getoption("minutes")
    if minutes and time.monotonic() > _BEGIN + 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes are over")


# -- skips ----------------------------------------------------------------------------------------------------------


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Reason of a skipped report."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _forbid(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Fail a test that is skipped because a tool of --no-skip is missing."""
    reason = _reason(report) if report.outcome == "skipped" else ""
    for tool in _never_skipped(config):
        if reason.startswith(f"{tool}: "):
            report.outcome = "failed"
            report.longrepr = f"skipped, which --no-skip={tool} forbids: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid(report, item.config)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Apply --no-skip to a module that skips as a whole during collection."""
    report = yield
    _forbid(report, collector.config)
    return report


# -- last lines of a run ---------------------------------------------------------------------------------------------


def skip_summary(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line for all missing tools, and one line per other reason, the most frequent first."""
    from tests.support.tools import INSTALL

    reasons = Counter(
        "benchmarks: pytest --benchmark runs them" if reason.startswith(_BENCHMARK) else " ".join(reason.split())
        for reason in map(_reason, reports)
    )
    missing: Counter[str] = Counter()
    for reason in [reason for reason in reasons if reason.partition(": ")[0] in TOOLS]:
        missing[reason.partition(": ")[0]] += reasons.pop(reason)
    lines = [f"{count:6}  {reason}" for reason, count in reasons.most_common()]
    if missing:
        tools = "; ".join(f"{tool} ({count}): {INSTALL[tool]}" for tool, count in missing.most_common())
        lines.insert(0, f"{missing.total():6}  for want of {tools}")
    return ["skipped:", *lines] if lines else ["skipped: none"]


def repeat_commands(failed: Sequence[str], exhaustive: bool) -> list[str]:
    """The command that runs each failed test alone, with the cells that were drawn today."""
    from tests.support.drawn import seed

    marker = f" -m {_EXHAUSTIVE}" if exhaustive else ""
    return [f"repeat: python -m pytest --seed={seed()}{marker} {shlex.quote(name)}" for name in failed]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Print the last lines: seconds, skipped tests and their reasons, commands of failed tests, and benchmarks."""
    saved_before = _saved(session.config)
    outcome = yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        lines = skip_summary(terminal.stats.get("skipped", []))
        saved = sorted(_saved(session.config) - saved_before)
        if getattr(session.config.option, "run_benchmarks", False):
            folder = session.config.invocation_params.dir
            names = [str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in saved]
            lines.append(f"benchmarks: {', '.join(names) or 'nothing was saved'}")
        failed = [report.nodeid for kind in ("failed", "error") for report in terminal.stats.get(kind, [])]
        seconds = session.config.pluginmanager.get_plugin("seconds")
        if seconds is not None:
            seconds.write()
            lines = [*seconds.lines(), *lines]
            if not _is_exhaustive(session.config) and (faults := seconds.over_budget(_is_whole(session.config))):
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
                lines.extend(faults)
        for line in [*lines, *repeat_commands(failed, _is_exhaustive(session.config))]:
            terminal.write_line(line)
    return outcome


def _is_whole(config: pytest.Config) -> bool:
    """Whether all ordinary tests were selected."""
    return config.args in (["tests"], [str(config.rootpath)]) and not any(
        map(config.getoption, ("keyword", "markexpr"))
    )


def _saved(config: pytest.Config) -> set[Path]:
    """Files in the storage of pytest-benchmark."""
    session = getattr(config, "_benchmarksession", None)
    folder = getattr(getattr(session, "storage", None), "path", None)
    return set(folder.rglob("*.json")) if folder is not None else set()
