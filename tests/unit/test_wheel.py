"""The wheel works without the repository, make, Open MPI, DeepSpeed and the packages of tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        ".",
    ]
    subprocess.run(build, cwd=ROOT, check=True, timeout=200)
    (wheel,) = folder.glob("*.whl")
    home = folder / "home"
    zipfile.ZipFile(wheel).extractall(home)
    (home / "sitecustomize.py").write_text(BLOCKER)
    return home


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["suite", "--help"], "usage: "),
        (["suite", "draw", "system=axonn", "grid.inter=3"], "stage 0"),
        (["suite", "run", "system=axonn", "grid.inter=3", "executor=check"], " ok "),
        (["suite", "run", *SIMULATED], " ok "),
        (["suite", "conformance", "--help"], "usage: "),
    ],
    ids=["help", "draw", "check", "simulated", "conformance"],
)
def test_wheel_runs_without_a_checkout(installed: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout + done.stderr  # progress goes to standard error


def test_wheel_holds_types_and_configurations_but_no_tests(installed: Path) -> None:
    assert (installed / "suite" / "py.typed").is_file()
    assert (installed / "baselines" / "py.typed").is_file()
    assert (installed / "suite" / "conf" / "config.yaml").is_file()
    assert not (installed / "tests").exists()
    shipped = {
        path.relative_to(installed / "suite" / "conf") for path in (installed / "suite" / "conf").rglob("*.yaml")
    }
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
