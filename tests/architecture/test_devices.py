"""Only suite/accelerator.py distinguishes kinds of devices, and times their work."""

from __future__ import annotations

import re

from tests.architecture.trees import sources

MODULE = "suite/accelerator.py"
KIND = re.compile(r"torch\.cuda\b|device\.type ==|\.is_cuda\b")
CLOCK = re.compile(r"\bperf_counter\b")
BESIDE_DEVICES = re.compile(r"suite/(engine|gnn|microbench)/|baselines/")


def faults(path: str, text: str) -> list[str]:
    """Lines of a file that break the rule."""
    rules = [KIND, CLOCK] if BESIDE_DEVICES.match(path) else [KIND]
    return [line.strip() for line in text.splitlines() if any(rule.search(line) for rule in rules)]


def test_one_module_knows_devices_and_their_times() -> None:
    found = {path: faults(path, text) for path, text in sources().items()}
    assert {path for path, lines in found.items() if lines} == {MODULE}
