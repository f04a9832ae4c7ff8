"""Overrides that make a measured run as short as possible."""

from __future__ import annotations

from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"


def short(*, rounds: int = 2, batches: int = 1, evaluated: int = 1, warm_up: int = 1) -> list[str]:
    """A run of some rounds, none of which is discarded."""
    counts = {"warm_up": warm_up, "discard_first": 0, "rounds": rounds, "batches": batches, "eval_batches": evaluated}
    return [f"measure.{name}={count}" for name, count in counts.items()]


def faulty(fault: str) -> list[str]:
    """The system of tests/plugins/faulty.py, whose last rank has this fault in its third batch."""
    system = ["system._target_=faulty.Faulty", "system.name=faulty", f"+system.fault={fault}"]
    return [*system, f"launch.python_path=[{PLUGINS}]"]


def deadly(folder: Path, how: str) -> list[str]:
    """The executor of tests/plugins/deadly.py, which starts no ranks. `folder` gets the records and a log."""
    log = f"executor.log={folder / 'log'}"
    return [f"launch.python_path=[{PLUGINS}]", "executor=deadly", f"executor.how={how}", log, f"reports={folder}"]
