"""Run tests in forks of a process that has loaded torch, Hydra, pandas and pytest, one request a line.

    {"mutant": 17, "tests": ["tests/a.py::test_b"], "limit": 60}  ->  [0, ""]  or  [1, "tests/a.py::test_b"]

A request answers pytest's exit status and the first test that failed: status -1 after `limit` seconds, and no test
where the process ended.
"""

import atexit
import contextlib
import importlib
import json
import os
import signal
import sys
import time

import pytest

_PRELOADED = ("torch", "torch.distributed", "hydra", "pydantic", "pandas", "scipy.stats", "hypothesis", "numba")


class _First:
    """The first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _child(request: dict[str, object], out: int) -> None:
    import mutant_switch

    os.setsid()
    os.environ["MUTANT"] = str(request["mutant"])
    mutant_switch.active = int(str(request["mutant"]))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    first = _First()
    line = ["-x", "--no-header", "--tb=no", "-p", "no:xdist", *map(str, request["tests"])]  # type: ignore[call-overload]
    status = int(pytest.main(line, plugins=[first]))
    os.write(out, json.dumps([status, first.name]).encode())
    atexit._run_exitfuncs()  # which end persistent ranks
    os._exit(0)


def answer(request: dict[str, object]) -> list[object]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _child(request, write)
        finally:
            os._exit(1)
    os.close(write)
    late = time.monotonic() + float(str(request["limit"]))
    status, done = 0, 0
    while not done and time.monotonic() < late:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    if not done or status:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
        os.close(read)
        return [-1, ""]
    with os.fdopen(read, "rb") as stream:
        text = stream.read()
    return list(json.loads(text)) if text else [1, ""]


def main() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
