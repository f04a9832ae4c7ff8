"""Load a script as a module, as examples and programs in documents are no packages, or run it in its own process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests.support.ranks import ROOT
from tests.support.waiting import patience


def printed(*line: str, cwd: Path = ROOT, **environment: str) -> str:
    """Standard output of Python with the arguments `line`. The test fails with the errors of a program that fails."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, *line], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_script(path: Path) -> ModuleType:
    """The script at `path` as a new module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name: str) -> ModuleType:
    """The script examples/`name`.py as a new module. It imports other examples as it does on a command line."""
    if str(folder := ROOT / "examples") not in sys.path:
        sys.path.append(str(folder))
    return load_script(folder / f"{name}.py")
