"""Classes that only ranks import are compared with the protocol of their place by their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config.locate import search
from suite.runner.runs import expand

SYSTEM = """
from suite.config.protocols import System

class Whole(System):
    @classmethod
    def probe(cls, config): ...

class Half:
    def train_batch(self, batch): ...
    close = print

class Quarter(Half):
    memory: object = None

class Unknown(unseen.Base):
    pass
"""


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("suite.core.grid.Grid", "which has no probe() and no train_batch()"),
        ("own_systems.Half", "which has no probe() and no evaluate() and no observe() and no memory() and no stream()"),
        ("own_systems.Quarter", "which has no probe() and no evaluate() and no observe() and no stream()"),
        ("own_systems.Whole", ""),
        ("own_systems.Unknown", ""),  # its base cannot be read
    ],
)
def test_system_without_methods_is_refused_before_ranks_start(path: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "own_systems.py").write_text(SYSTEM)
    search([str(tmp_path)])
    (run,) = expand([f"system._target_={path}", f"launch.python_path=[{tmp_path}]"])
    message = str(run.refusal)
    assert (missing in message and "its place requires a System" in message) if missing else "has no" not in message
