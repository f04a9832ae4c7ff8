"""A busy machine: it is measured again, named, and does not replace the file of a quieter one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.core import load
from suite.doctor import measure as measuring
from suite.doctor.measure import FILE, TRIES, measure
from suite.simulate.network.machine import measured

GOOD = {"rate": 6e10, "copied": 1e10, "latency": 0.47e-6, "bandwidth": 9e9}
BAD = {"rate": 2e10, "copied": 4e9, "latency": 1.99e-3, "bandwidth": 1e9}
BUSY = [(BAD, 1.5)] * TRIES  # results of measurements, and the cores that others use during each


def without_load(file: Path) -> None:
    content = json.loads(file.read_text())
    del content["foreign_cores"]
    file.write_text(json.dumps(content))


def of_another_machine(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"source": "another machine"}))


@pytest.mark.parametrize(
    ("earlier", "change", "now", "busy", "stays"),
    [
        ([(GOOD, 0.05)], None, BUSY, True, GOOD),
        ([(GOOD, 0.05)], Path.unlink, BUSY, True, BAD),  # as the line says, to force it
        ([(GOOD, 0.0)], without_load, BUSY, True, GOOD),
        ([(GOOD, 0.0)], of_another_machine, BUSY, True, BAD),
        (BUSY, None, [(GOOD, 0.8)] * TRIES, True, GOOD),
        (BUSY, None, [(BAD, 1.5), (GOOD, 0.1)], False, GOOD),  # a busy moment is measured again
    ],
)
def test_busy_machine_keeps_the_better_file_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: list[tuple[dict[str, float], float]],
    change: Callable[[Path], None] | None,
    now: list[tuple[dict[str, float], float]],
    busy: bool,
    stays: dict[str, float],
) -> None:
    plan = [*earlier, *now]
    monkeypatch.setattr(measuring, "_measure_once", lambda: dict(plan[0][0]))
    monkeypatch.setattr(load, "foreign_cores", lambda before, after: plan.pop(0)[1])
    assert ("busy: " in measure(tmp_path)) is (earlier is BUSY)
    if change is not None:
        change(tmp_path / FILE)
    assert ("busy: " in measure(tmp_path)) is busy
    assert measured(name="local", file=str(tmp_path / FILE)).within.latency == stays["latency"]
    assert not plan, "as many measurements, no more"
