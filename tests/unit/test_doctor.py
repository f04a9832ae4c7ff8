"""Lines of the doctor: each failure has a state, a reason and a remedy.

The doctor never hangs, prints no traceback and removes no file. One test probes real ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.cli.main import main
from suite.core import load
from suite.doctor import check as checking
from suite.doctor import checks
from suite.doctor import measure as measuring
from suite.doctor.check import ABSENT, BROKEN, UNKNOWN, CheckFailed
from suite.doctor.measure import FILE, MESSAGE, TRIES
from suite.simulate.network.machine import Link, measured
from tests.support.tools import needs
from tests.support.waiting import patience


def fails(state: str) -> Callable[..., str]:
    def look(*_: Any, **__: Any) -> str:
        raise CheckFailed("the\nreason", "the remedy", state)

    return look


def no_writing(**_: Any) -> None:
    raise PermissionError(13, "Permission denied")


# the component, what replaces a name of suite.doctor.checks, and the text of its line
CASES: list[tuple[str, str, Callable[..., Any], str]] = [
    ("torch", "output", lambda *_, **__: 'noise\n["9.9", null, []]\n', "works: 9.9, runs use the CPU: with a GPU"),
    ("torch", "output", lambda *_, **__: '["9.9", "13.0", []]', "torch sees no device"),
    ("torch", "output", lambda *_, **__: '["9.9", "13.0", ["H200", "H200"]]', "works: 9.9, CUDA 13.0, 2 x H200"),
    ("torch", "output", lambda *_, **__: "", f"{BROKEN} because IndexError"),
    ("gloo", "output", fails(UNKNOWN), f"{UNKNOWN} because the reason | do this: the remedy"),
    ("MPI", "two_ranks", lambda _: "", f"{BROKEN} because each of two ranks is alone"),
    ("DeepSpeed", "find_spec", lambda _: None, f"{ABSENT} because it is not installed | do this: DS_BUILD_OPS=0"),
    ("Slurm", "output", lambda *_: "debug* 2\nlong 64\n", "works: partitions and nodes: debug* 2, long 64"),
    ("reports", "tempfile.TemporaryFile", no_writing, f"{BROKEN} because /"),
    ("reports", "shutil.disk_usage", lambda _: SimpleNamespace(free=38e6), "38 MB free | do this:"),
]


def test_line_of_a_check_has_state_reason_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path, replacement, words in CASES:
        with monkeypatch.context() as patch:
            patch.setattr("suite.doctor.checks.shutil.which", lambda name: f"/bin/{name}")
            patch.setattr(f"suite.doctor.checks.{path}", replacement)
            (check,) = [each for each in checks.checks(tmp_path) if each.name == name]
            works, line = check.report()
        assert words in line, line
        assert works is (f"{name:<18} works: " in line) is ("| do this: " not in line), line
        assert "\n" not in line, line


@pytest.mark.slow("probes on real ranks")
def test_doctor_probes_real_ranks_and_prints_a_line_per_component(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network interface gloo fails, and MPI does not."""
    needs("mpiexec")
    monkeypatch.setattr(checking, "PATIENCE", patience(30))
    monkeypatch.setattr(measuring, "measure", lambda folder: f"measured for {folder}")
    monkeypatch.setattr(checks, "deepspeed", lambda: "not imported in this test")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert main(["doctor", f"reports={tmp_path}"]) == 1
    *lines, measured, _, last = capsys.readouterr().out.splitlines()
    assert [line[:18].strip() for line in lines] == [check.name for check in checks.checks(tmp_path)]
    assert measured.endswith(f"measured for {tmp_path}")
    assert last.endswith("needs gloo")


# -- a busy machine: it is measured again, named, and does not replace the file of a quieter one --


def of_machine(latency: float) -> dict[str, Any]:
    messages = {"point_to_point": {MESSAGE: {"latency": latency, "bandwidth": 9e9}}, "all_reduce": {}}
    return {"rate": 6e10, "copied": 1e10, "backends": messages}


GOOD, BAD = of_machine(0.47e-6), of_machine(1.99e-3)
BUSY = [(BAD, 1.5)] * TRIES  # results of measurements, and the cores that others use during each


def of_another_machine(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"source": "another machine"}))


@pytest.mark.parametrize(
    ("earlier", "change", "now", "busy", "stays"),
    [
        ([(GOOD, 0.05)], None, BUSY, True, GOOD),
        ([(GOOD, 0.05)], Path.unlink, BUSY, True, BAD),  # as the line says, to force it
        ([(GOOD, 0.0)], of_another_machine, BUSY, True, BAD),
        (BUSY, None, [(GOOD, 0.8)] * TRIES, True, GOOD),
        (BUSY, None, [(BAD, 1.5), (GOOD, 0.1)], False, GOOD),  # a busy moment is measured again
    ],
)
def test_busy_machine_keeps_the_better_file_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: list[tuple[dict[str, Any], float]],
    change: Callable[[Path], None] | None,
    now: list[tuple[dict[str, Any], float]],
    busy: bool,
    stays: dict[str, Any],
) -> None:
    plan = [*earlier, *now]
    monkeypatch.setattr(measuring, "_measure_once", lambda: plan[0][0])
    monkeypatch.setattr(load, "foreign_cores", lambda before, after: plan.pop(0)[1])
    assert ("busy: " in measuring.measure(tmp_path)) is (earlier is BUSY)
    if change is not None:
        change(tmp_path / FILE)
    assert ("busy: " in measuring.measure(tmp_path)) is busy
    assert measured(name="local", file=str(tmp_path / FILE)).backends["point_to_point"][MESSAGE] == Link(
        **stays["backends"]["point_to_point"][MESSAGE]
    )
    assert not plan, "as many measurements, no more"
