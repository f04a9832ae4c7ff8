"""Load a script as a module, as examples and programs in documents are no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.support.ranks import ROOT


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
