"""Flags and last lines of the root conftest.py: benchmarks, skips, drawn cells, seconds, and the order of tests.

Each project is a temporary folder with the conftest.py and the settings of this repository.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.drawn import cells

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from tests.support.drawn import cells
from tests.support.tools import needs

def test_browser(monkeypatch):
    monkeypatch.setenv("PATH", "")
    needs("chromium")

@pytest.fixture
def peer(monkeypatch):
    monkeypatch.setattr("tests.support.tools.find_spec", lambda name: None)
    needs("deepspeed")

@pytest.mark.parametrize("stages", [1, 2])
def test_peer(peer, stages): pass

@pytest.mark.skip(reason="another\\n   reason")
def test_other(): pass

@pytest.mark.parametrize(("a", "b"), cells(range(3), range(4), n=2, always=[(0, 0)]))
def test_cell(a, b): assert (a, b) != (0, 0), "the cell that is always drawn"

@pytest.mark.parametrize("turn", [pytest.param(n, marks=pytest.mark.slow(f"reason {n}")) for n in range(30)])
def test_slow(turn): pass
"""


def run_in(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and output lines of pytest in a project."""
    line = [sys.executable, "-m", "pytest", "-p", "no:hydra_pytest", "-p", "no:anyio", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SUITE_TEST"))}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, (done.stderr + done.stdout).strip().splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    ini = ["[pytest]", "testpaths = checks", f"pythonpath = {ROOT}", f"addopts = {settings['addopts']}", "markers ="]
    (folder / "pytest.ini").write_text("\n".join([*ini, *(f"    {marker}" for marker in settings["markers"])]))
    (folder / "checks/benchmarks").mkdir(parents=True)  # a folder named tests would hide the package of helpers
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "checks/benchmarks/test_speed.py").write_text("def test_speed(benchmark): pass")
    (folder / "checks/test_plain.py").write_text(TESTS)
    return folder


@pytest.fixture(scope="module")
def conftest() -> Any:
    """The module at the root."""
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ordinary_run_draws_cells_and_ends_with_skips_and_commands(project: Path, tmp_path: Path) -> None:
    code, lines = run_in(project, "--seed=7", f"--seconds={tmp_path / 'seconds'}", "checks")
    assert code == 1
    (passed,) = {int(found[1]) for line in lines if (found := re.search(r"1 failed, (\d+) passed", line))}
    assert 4 <= passed - 2 <= 12, "a quarter of the slow tests"
    start = lines.index("skipped:")
    assert lines[start + 1 : start + 5] == [
        "     3  for want of deepspeed (2): make install; chromium (1): apt-get install chromium",
        f"    {32 - passed}  exhaustive: pytest -m exhaustive runs them",
        "     1  benchmarks: pytest --benchmark runs them",
        "     1  another reason",
    ]
    assert lines[-1] == "repeat: python -m pytest --seed=7 'checks/test_plain.py::test_cell[0-0]'"
    names = [line.split("\t")[1] for line in (tmp_path / "seconds").read_text().splitlines()]
    assert sum("test_cell" in name for name in names) == 3


def test_seed_alone_decides_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(seed: int) -> str:
        monkeypatch.setenv("SUITE_TEST_SEED", str(seed))
        return str([cell.values for cell in cells(range(9), range(9), n=3, always=[(4, 4)])])

    monkeypatch.delenv("SUITE_TEST_EXHAUSTIVE", raising=False)
    assert names(7) == names(7) != names(8)
    assert "(4, 4)" in names(7)
    assert len(cells(range(9), range(9), n=3, always=[(4, 4)])) == 4


def test_exhaustive_run_has_the_other_cells_and_goes_on_where_it_stopped(project: Path, tmp_path: Path) -> None:
    names = [f"checks/test_plain.py::test_cell[{a}-{b}]" for a in range(3) for b in range(4)]
    done = tmp_path / "done"
    done.write_text("\n".join(names[-4:]) + "\n")
    code, lines = run_in(project, "--seed=7", "-m", "exhaustive", f"--done={done}", "checks")
    assert code == 0, lines
    after = done.read_text().splitlines()
    assert len(after) == len({*after}) >= 12 - 3, "none again, and all but the three that were drawn"
    assert names[0] not in after
    assert any(f"{len(after) - 4} passed" in line for line in lines), lines


def test_missing_required_tool_fails_the_test(project: Path) -> None:
    code, lines = run_in(project, "--no-skip=deepspeed", "checks/test_plain.py", "-k", "not cell")
    assert code == 1, lines
    assert len([line for line in lines if line.startswith(("FAILED", "ERROR"))]) == 2, lines
    assert any("for want of chromium (1)" in line for line in lines), lines
    assert "     1  another reason" in lines, "a skip for another reason stays a skip"


def test_lasting_ranks_run_first_and_timed_tests_last(conftest: Any) -> None:
    scheduler = conftest.pytest_xdist_make_scheduler(SimpleNamespace(getvalue=lambda _: ["popen", "popen"]), None)
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert [start for start in (*conftest.RANKS, *conftest.LONG, *conftest.TIMED) if not (ROOT / start).exists()] == []
    sharing = {name for name, text in files.items() if "import on_ranks" in text and "test_conftest" not in name}
    scope = {name: scheduler._split_scope(f"{name}::test_x[a-b]") for name in files}
    assert {name for name in files if scope[name] == "ranks"} == sharing, "lasting ranks belong to one worker"
    order = sorted(files, key=conftest._position)
    assert scope[order[0]] == "ranks"
    assert scope[order[-1]] == "timed"
