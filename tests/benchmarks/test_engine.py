"""Time of a batch whose ops take about a millisecond: the suite's engine and the original packages.

The systems and their settings come from `experiment=overhead_bound`, run in interleaved rounds as `suite run` runs
them. The samples of their records are the samples of the benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.core.record import Outcome, Record
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from tests.support.samples import measured_elsewhere, play, tell
from tests.support.tools import needs

TURNS, BATCHES = 5, 6
PLAN = ["experiment=overhead_bound", f"measure.rounds={TURNS}", f"measure.batches={BATCHES}", "measure.eval_batches=0"]
TIMING = f"one batch, the slowest rank's perf_counter; systems take turns of {BATCHES} batches, after one that settles"
PEERS = ("pytorch", "deepspeed_3d", "torch_one_f_one_b", "torch_gpipe")
ONE = ("axonn 1x1", "pytorch 1x1")
TWO = ("axonn 2x1", "axonn 2x1 on gloo", "one_f_one_b 2x1", *(f"{peer} 2x1" for peer in PEERS[1:]))
SETTINGS = ("system", "schedule", "comm", "batch", "model", "optimizer", "launch")
Records = Mapping[str, Record]


def records(labels: Sequence[str], folder: Path) -> Records:
    runs = {run.label: run for run in expand([*PLAN, f"reports={folder}"])}
    runs["axonn 1x1"] = expand([*PLAN, "system=axonn", "grid.inter=1", f"reports={folder}"])[0]
    return dict(zip(labels, measure([runs[label] for label in labels], Progress(60)), strict=True))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return records(ONE, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Records:
    needs("mpiexec")
    return records(TWO, tmp_path_factory.mktemp("two"))


def show(benchmark: Any, record: Record) -> None:
    """Report the samples and settings of a record as those of a benchmark."""
    if record.outcome is Outcome.MISSING_DEPENDENCY:
        pytest.skip(f"{record.system.partition('_')[0]}: {record.reason}")
    assert record.outcome is Outcome.OK, record.reason
    samples = record.metrics["batch_time"].values
    assert len(samples) == TURNS * BATCHES
    play(benchmark, samples)
    config, provenance = record.config, record.provenance
    tell(
        benchmark,
        peer=record.system in PEERS,
        timing=TIMING,
        ranks=config["grid"]["inter"],
        threads=config["launch"]["threads"],
        binding=config["launch"]["binding"],
        label=record.label,
        backend=provenance["carrier"],
        order=provenance["order"],
        settings={part: config[part] for part in SETTINGS},
        losses=record.series["loss"],
        note=record.metrics["batch_time"].note,
    )


@measured_elsewhere
@pytest.mark.parametrize("label", ONE)
def test_a_batch_of_one_process(benchmark: Any, one: Records, label: str) -> None:
    benchmark.group = "a batch of one process"
    show(benchmark, one[label])


@measured_elsewhere
@pytest.mark.parametrize("label", TWO)
def test_a_batch_of_two_stages(benchmark: Any, two: Records, label: str) -> None:
    benchmark.group = "a batch of two stages on two ranks"
    show(benchmark, two[label])
