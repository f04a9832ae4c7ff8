"""Circumstances of a run on a GPU: the card, its driver and its libraries are part of the key of its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.runner import provenance
from suite.runner.run import ActiveRun
from suite.runner.runs import expand

SMALL = ("system=axonn", "model=gpt_tiny", "grid.inter=1", "launch.memory_check=false")


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """A program nvidia-smi that prints `rows`, and fails for an unknown id."""
    program = folder / "nvidia-smi"
    lines = " ".join(f"'{row}'" for row in rows)
    program.write_text(f"#!/bin/sh\ncase $1 in --id=7) exit 6;; esac\nprintf '%s\\n' {lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    provenance.gpus.cache_clear()


def test_two_cards_share_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (on_gpu,), (on_cpu,) = (expand([*SMALL, f"launch.device={device}"]) for device in ("cuda", "cpu"))
    keys = set()
    for card in ("NVIDIA H100 80GB HBM3, 580.1", "NVIDIA H200, 580.1", "NVIDIA H200, 580.2"):
        smi(tmp_path, monkeypatch, card)
        name, driver = card.split(", ")
        assert provenance.circumstances(on_gpu.config)["gpus"] == [f"{name}, driver {driver}"]
        assert "gpus" not in provenance.circumstances(on_cpu.config)
        notes = [ActiveRun(run, tmp_path, "together")._notes() for run in (on_gpu, on_cpu)]
        assert notes == [(f"on {name}, driver {driver}",), ()], "the page shows the card next to its numbers"
        keys |= {replace(run).key for run in (on_gpu, on_cpu)}
    assert len(keys) == 4
    provenance.gpus.cache_clear()
