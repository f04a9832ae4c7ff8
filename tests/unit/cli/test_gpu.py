"""Command `suite gpu`: parts within a time, records that survive a kill, and files per card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from suite.cli import gpu
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record, Source
from suite.runner.runs import expand

PARTS = "scale.reproduce=['gpu_training launch.device=cpu model=gpt_tiny batch.size=4 batch.microbatch=2',formulas]"
MADE = Record("k1", "gpu_training", "axonn", "XL", Outcome.OK, Source.MEASURED, provenance={"machine": {}})


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Labels of the runs of each part that the command executes, without runs."""
    parts: list[list[str]] = []

    def execute(runs, progress):  # type: ignore[no-untyped-def]
        parts.append([run.label for run in runs])
        return [replace(MADE, label=run.label) for run in runs]

    monkeypatch.setattr(gpu, "execute", execute)
    return parts


@pytest.mark.slow("all parts for a GPU are composed")
def test_a_part_starts_only_if_its_time_remains(
    tmp_path: Path, executed: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of gpu_training takes 45 s, all of formulas together a few."""
    arguments = [PARTS, f"reports={tmp_path}"]
    assert gpu.main([*arguments, "--seconds", "58"]) == Exit.OK
    assert len(executed) == 1
    assert len(executed[0]) == len(expand(["experiment=formulas"]))
    training = expand(["experiment=gpu_training", "model=gpt_tiny", "launch.device=cpu"])
    assert capsys.readouterr().out.count(" not started: needs 45 s") == len(training)
    executed.clear()
    assert gpu.main([*arguments, "--seconds", "600"]) == Exit.OK
    assert [len(part) for part in executed[:-1]] == [1] * len(training)
    assert "2.7B" in capsys.readouterr().out.splitlines()[2]


def write(folder: Path, *records: Record) -> None:
    for record in records:
        (folder / "records").mkdir(parents=True, exist_ok=True)
        (folder / "records" / f"{record.key}.json").write_text(record.to_json())


def test_records_are_collected_by_card_and_experiment(tmp_path: Path) -> None:
    card = {"machine": {}, "gpus": ["NVIDIA H100 80GB HBM3, driver 580.159"]}
    one = replace(MADE, provenance=card)
    write(tmp_path / "a", one, replace(one, key="k2", label="2.7B", outcome=Outcome.CANCELLED))
    assert gpu.main(["--collect", str(tmp_path / "a"), f"reports={tmp_path}"]) == Exit.OK
    (path,) = (tmp_path / "measured").rglob("*.jsonl")
    assert path == tmp_path / "measured" / "nvidia-h100-80gb-hbm3" / "gpu_training.jsonl"
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["k1"]
    later = replace(one, key="k3"), replace(one, key="k4", label="2.7B")
    write(tmp_path / "b", *later)
    gpu.main(["--collect", str(tmp_path / "b"), f"reports={tmp_path}"])
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["k3", "k4"]
