"""The wheel works without the repository, make, Open MPI, DeepSpeed and the packages of tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.waiting import patience

pytestmark = pytest.mark.exhaustive  # builds a wheel, and starts an interpreter for each command
ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("deepspeed", "pytest", "hypothesis", "xdist")
SIMULATED = ["executor=simulated", "machine=summit", "system=axonn", "model=gpt3_xl", "grid.inter=4", "batch.size=64"]
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, and a sitecustomize that hides the packages of the extras."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"-m pip wheel --quiet --no-deps --no-build-isolation -w {folder} ."
    subprocess.run([sys.executable, *build.split()], cwd=ROOT, check=True, timeout=patience(100))
    (wheel,) = folder.glob("*.whl")
    home = folder / "home"
    zipfile.ZipFile(wheel).extractall(home)
    (home / "sitecustomize.py").write_text(BLOCKER)
    return home


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "usage: "),
        (["draw", "system=axonn", "grid.inter=3"], "stage 0"),
        (["run", "system=axonn", "grid.inter=3", "executor=check"], " ok "),
        (["run", *SIMULATED], " ok "),
    ],
    ids=["help", "draw", "check", "simulated"],
)
def test_wheel_runs_without_a_checkout(installed: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"}
    line = [sys.executable, "-m", "suite", *arguments]
    done = subprocess.run(
        line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout + done.stderr  # progress goes to standard error


def test_wheel_holds_types_and_configurations_but_no_tests(installed: Path) -> None:
    for file in ("suite/py.typed", "baselines/py.typed", "suite/conf/config.yaml"):
        assert (installed / file).is_file()
    assert not (installed / "tests").exists()
    conf = installed / "suite" / "conf"
    shipped = {path.relative_to(conf) for path in conf.rglob("*.yaml")}
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
