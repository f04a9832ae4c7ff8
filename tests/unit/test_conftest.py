"""Flags of the root conftest.py: benchmarks, skipped tests and required tools, and the order of tests.

Each test runs pytest in a temporary project with the conftest.py and the settings of this repository.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tools import needs

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [0.1, 1 / 3, 2e-7, 5.5, 0.1]
BENCHMARKS = f"""
from tests.support.samples import measured_elsewhere, play, tell

def test_a_sum(benchmark):
    assert benchmark(sum, [1, 2]) == 3
    tell(benchmark, peer=False, timing="own clock", settings="none")

@measured_elsewhere
def test_ranks(benchmark):
    play(benchmark, {SAMPLES})
    tell(benchmark, peer=True, timing="by the ranks", ranks=2, backend="gloo")
"""
TESTS = "def test_plain(): pass\n"


Pytest = Callable[..., tuple[int, list[str]]]


def make_project(folder: Path) -> Path:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    ini = ["[pytest]", "testpaths = checks", f"pythonpath = {ROOT}"]
    (folder / "pytest.ini").write_text("\n".join([*ini, f"addopts = {settings['addopts']}"]))
    (folder / "checks/benchmarks").mkdir(parents=True)  # a folder named tests would hide the package of helpers
    shutil.copy(ROOT / "conftest.py", folder)
    shutil.copy(ROOT / "tests/benchmarks/conftest.py", folder / "checks/benchmarks")
    (folder / "checks/benchmarks/test_speed.py").write_text(BENCHMARKS)
    (folder / "checks/test_plain.py").write_text(TESTS)
    return folder


def run_in(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and output lines of pytest; standard error comes first."""
    line = [sys.executable, "-m", "pytest", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, (done.stderr + done.stdout).strip().splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture
def run(project: Path) -> Pytest:
    return partial(run_in, project)


def saved(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


@pytest.fixture(scope="module")
def benchmarked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[str]]:
    """A project after one `pytest --benchmark`, its exit status and its lines."""
    folder = make_project(tmp_path_factory.mktemp("benchmarked"))
    return folder, *run_in(folder, "--benchmark")


def test_plain_pytest_skips_benchmarks_in_one_line(project: Path, run: Pytest) -> None:
    code, lines = run()
    assert code == 0, lines
    assert "1 passed, 2 skipped" in lines[-3]
    assert lines[-2:] == ["skipped:", "     2  benchmarks: pytest --benchmark runs them"]
    assert not saved(project)


EXHAUSTIVE = """
import pytest
from tests.support.pairwise import cells

@pytest.fixture
def _of_a_cell(): print("set up")

@pytest.mark.usefixtures("_of_a_cell")
@pytest.mark.parametrize(("a", "b"), cells(range(3), range(4)))
def test_cell(a, b): print("ran", a, b)
"""


def test_marker_exhaustive_runs_the_cells_that_are_left_out(project: Path, run: Pytest) -> None:
    (project / "checks/test_plain.py").write_text(EXHAUSTIVE)
    code, lines = run("-s", "checks/test_plain.py")
    assert code == 0, lines
    assert lines[-2:] == ["skipped:", "     8  exhaustive: pytest -m exhaustive runs them"]
    assert sum("set up" in line for line in lines) == 4
    code, lines = run("-m", "exhaustive", "checks/test_plain.py")
    assert code == 0, lines
    assert "8 passed, 4 deselected" in " ".join(lines)
    assert lines[-1] == "skipped: none"


def test_benchmark_flag_runs_benchmarks_only_and_names_the_file(benchmarked: tuple[Path, int, list[str]]) -> None:
    project, code, lines = benchmarked
    assert code == 0, lines
    assert "2 passed, 1 deselected" in lines[-3]
    file = saved(project / "reports" / "benchmarks")[0]
    assert lines[-2:] == ["skipped: none", f"benchmarks: {file.relative_to(project)}"]
    content = json.loads(file.read_text())
    timed, replayed = content["benchmarks"]
    assert [timed["name"], replayed["name"]] == ["test_a_sum", "test_ranks"]
    assert {"peer", "libraries", "threads", "binding", "timing", "ranks"} <= timed["extra_info"].keys()
    assert timed["extra_info"]["libraries"]["torch"]
    assert timed["extra_info"]["settings"] == "none"
    assert "mpiexec" in replayed["extra_info"]["libraries"]
    assert (replayed["extra_info"]["threads"], replayed["extra_info"]["binding"]) == (1, "none")
    assert replayed["extra_info"]["backend"] == "gloo"


def test_benchmark_file_holds_the_samples_of_the_ranks_exactly(benchmarked: tuple[Path, int, list[str]]) -> None:
    """The time of the transfer to the parent is not part of a sample."""
    _, benchmark = json.loads(saved(benchmarked[0])[0].read_text())["benchmarks"]
    assert benchmark["stats"]["data"] == SAMPLES
    assert (benchmark["stats"]["min"], benchmark["stats"]["max"]) == (2e-7, 5.5)
    assert benchmark["stats"]["median"] == 0.1
    assert (benchmark["stats"]["rounds"], benchmark["stats"]["iterations"]) == (len(SAMPLES), 1)
    assert benchmark["options"]["timer"] == "time_taken_by_the_ranks"


def test_benchmark_file_is_named_after_the_commit(benchmarked: tuple[Path, int, list[str]]) -> None:
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    name = saved(benchmarked[0])[0].stem
    assert name.removesuffix("-dirty") == f"0001_{done.stdout.strip() or 'no-commit'}"


def test_flags_of_pytest_benchmark_still_work(benchmarked: tuple[Path, int, list[str]]) -> None:
    """A comparison with the previous run, a name and a storage."""
    project = benchmarked[0]
    code, lines = run_in(project, "--benchmark", "-k", "ranks", "--benchmark-compare", "--benchmark-save=mine")
    assert code == 0, lines
    assert any("(NOW)" in line for line in lines)
    assert lines[-1].endswith("/0002_mine.json")
    code, lines = run_in(project, "--benchmark", "-k", "ranks", "--benchmark-storage=file://elsewhere")
    (other,) = saved(project / "elsewhere")
    assert lines[-1] == f"benchmarks: {other.relative_to(project)}"


def test_benchmark_without_settings_or_with_another_clock_fails(project: Path, run: Pytest) -> None:
    hides = "def test_hides(benchmark): benchmark(sum, [1, 2])\n"
    (project / "checks/benchmarks/test_speed.py").write_text(BENCHMARKS.replace("@measured_elsewhere", "") + hides)
    code, lines = run("--benchmark")
    assert code == 1
    output = "\n".join(lines)
    assert "extra_info lacks peer, libraries, threads, binding, timing" in output
    assert "the test is not marked measured_elsewhere" in output
    assert "2 passed, 1 failed" in output or "1 failed, 2 passed" in output


# -- skips ----------------------------------------------------------------------------------------------------------

SKIPS = """
import pytest
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

@pytest.mark.skip(reason="mpiexec: not here, says a mark")
def test_marked(): pass

@pytest.mark.skip(reason="another\\n   reason")
def test_other(): pass

@pytest.mark.xfail(reason="chromium: an expected failure is no skip")
def test_expected(): assert False
"""


@pytest.fixture
def skipping(project: Path) -> Path:
    (project / "checks/test_skips.py").write_text(SKIPS)
    return project


def test_run_ends_with_skipped_tests_and_reasons(skipping: Path, run: Pytest) -> None:
    code, lines = run()
    assert code == 0, lines
    start = lines.index("skipped:")
    assert "1 passed, 7 skipped, 1 xfailed" in lines[start - 1]
    assert lines[start + 1 :] == [
        "     2  benchmarks: pytest --benchmark runs them",
        "     2  deepspeed: not installed; make install brings it",
        "     1  chromium: no Chromium on the PATH; .ci/run installs it",
        "     1  mpiexec: not here, says a mark",
        "     1  another reason",
    ]


@pytest.mark.parametrize(
    ("tools", "failed"),
    [("mpiexec", 1), ("chromium,mpiexec,deepspeed", 4)],
)
def test_missing_required_tool_fails_the_test(skipping: Path, run: Pytest, tools: str, failed: int) -> None:
    code, lines = run(f"--no-skip={tools}", "checks/test_skips.py")
    assert code == 1, lines
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    assert len(failures) == failed, lines
    assert sum("which --no-skip=" in line for line in lines) >= failed
    assert "     1  another reason" in lines, "a skip for another reason stays a skip"
    assert any("1 xfailed" in line for line in lines)


def test_no_skip_applies_to_skipped_modules(project: Path, run: Pytest) -> None:
    module = "import pytest\npytest.skip('chromium: gone', allow_module_level=True)\n"
    (project / "checks/test_module.py").write_text(module)
    code, lines = run("--no-skip=chromium", "checks/test_module.py")
    assert code != 0
    assert any("--no-skip=chromium forbids: chromium: gone" in line for line in lines)


def test_unknown_tool_is_refused_with_the_known_ones(run: Pytest) -> None:
    code, lines = run("--no-skip=chromum")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --no-skip=chromum: any of chromium,mpiexec,slurm,deepspeed" in lines


def test_installed_tool_has_a_path() -> None:
    assert Path(needs("mpiexec")).exists()
    assert Path(needs("deepspeed")).exists()


# -- continuous integration ----------------------------------------------------------------------------------------


@pytest.fixture
def ci(tmp_path: Path) -> Callable[[str], tuple[int, str]]:
    """Runner of .ci/run with stand-ins: `make` and `apt-get` print their command line, `id -u` prints the user."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env"):
        (programs / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")

    def program(name: str, text: str) -> None:
        (programs / name).write_text(f"#!{programs}/bash\n{text}\n")
        (programs / name).chmod(0o755)

    program("make", 'echo "make $*"')
    program("date", "echo 7")

    def run(user: str, *present: str) -> tuple[int, str]:
        program("id", f"echo {user}")
        for name in present:
            program(name, f'echo "{name} $*"')
        env = {"PATH": str(programs)}
        done = subprocess.run([ROOT / ".ci/run"], env=env, capture_output=True, text=True, check=False, timeout=20)
        return done.returncode, done.stdout + done.stderr

    return run


SLURM = ("munged", "slurmctld", "slurmd", "sbatch")
CI = ["make test STRICT=yes", "make test STRICT=yes TESTS=-m exhaustive tests"]
CI += ["make soak SEED=7 KILLS=12 CONFIGS=400 REAL=6"]


def test_ci_runs_make_test_and_forbids_skips_of_tools(ci: Callable[..., object]) -> None:
    assert ci("1000", "google-chrome", *SLURM) == (0, "\n".join(CI) + "\n")
    plan = subprocess.run(
        ["make", "--dry-run", "test", "STRICT=yes", "INSTALL=no", "PYTHON=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert "--no-loadscope-reorder --no-skip=chromium,mpiexec,slurm,deepspeed tests" in plan


def test_ci_installs_a_browser_as_root_only(ci: Callable[..., tuple[int, str]]) -> None:
    code, output = ci("1000", "apt-get", *SLURM)
    assert (code, "chromium is missing" in output, "make" in output) == (1, True, False)
    code, output = ci("0", "apt-get", *SLURM)
    assert code == 0
    install = "apt-get install -y --no-install-recommends"
    assert output.splitlines() == ["apt-get update", f"{install} chromium", *CI]


def test_ci_installs_a_scheduler_as_root(ci: Callable[..., tuple[int, str]]) -> None:
    code, output = ci("0", "apt-get", "chromium", *SLURM[1:])
    assert code == 0
    install = "apt-get install -y --no-install-recommends"
    assert output.splitlines() == ["apt-get update", f"{install} munge slurmctld slurmd slurm-client", *CI]


def test_ci_without_apt_fails_with_a_reason(ci: Callable[..., tuple[int, str]]) -> None:
    code, output = ci("0", *SLURM)
    assert (code, "chromium is missing" in output, "make" in output) == (1, True, False)


# -- workers --------------------------------------------------------------------------------------------------------


def test_rank_tests_run_first_and_timed_tests_last() -> None:
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    scheduler = conftest.pytest_xdist_make_scheduler(SimpleNamespace(getvalue=lambda _: ["popen", "popen"]), None)
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert [start for start in (*conftest.RANKS, *conftest.LONG, *conftest.TIMED) if not (ROOT / start).exists()] == []
    starts = re.compile(r"^from tests\.support\.(ranks|persistent_ranks) import .*run_(ranks|persistent)", re.M)
    starting = {name for name, text in files.items() if starts.search(text) and "/benchmarks/" not in name}
    assert len(starting) > 10
    scope = {name: scheduler._split_scope(f"{name}::test_x[a-b]") for name in files}
    ranks, timed = ({name for name in files if scope[name] == together} for together in ("ranks", "timed"))
    assert starting <= ranks | timed
    assert "tests/distributed/test_kill.py" in ranks
    assert all(scope[name] == name for name in files.keys() - ranks - timed)
    tests = [SimpleNamespace(nodeid=f"{name}::test_x") for name in sorted(files)]
    conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace()), tests)
    order = [test.nodeid.partition("::")[0] for test in tests]
    assert set(order[: len(ranks)]) == ranks
    assert order[len(ranks)] == conftest.LONG[0], "a file that takes a minute begins early"
    assert set(order[-len(timed) :]) == timed
    assert "agreement" in order[-1], "timed tests run after all others"
