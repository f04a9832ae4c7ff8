"""How long a batch takes where every op takes about a millisecond: the suite's engine beside the real packages.

Systems run as `python -m suite` runs them, in turns A B A B; the samples of their records are the samples here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import measured_elsewhere, play, tell
from tools import needs

from suite.bench.experiment import expand
from suite.bench.measure import measure
from suite.bench.progress import Progress
from suite.core.record import Outcome, Record

PLAN = ["model=gpt_overhead", "batch.size=32", "batch.microbatch=1"]
PLAN += ["measure.warm_up=3", "measure.turns=5", "measure.batches=6", "measure.evaluate=0"]
SLOWEST = "one batch, the slowest rank's perf_counter; systems take turns of 6 batches, the first of a turn not timed"
PEERS = ("pytorch", "deepspeed_3d", "torch_1f1b", "torch_gpipe")
ONE = {"axonn": ["system=axonn"], "pytorch": ["system=pytorch"]}
TWO = {
    "axonn": ["system=axonn", "grid.inter=2", "schedule.pipeline_limit=4"],
    "axonn on gloo": ["system=axonn", "grid.inter=2", "schedule.pipeline_limit=4", "comm.transport=gloo"],
    **{name: [f"system={name}", "grid.inter=2"] for name in ("one_f_one_b", *PEERS[1:])},
}
SETTINGS = ("system", "schedule", "comm", "batch", "model", "optimizer", "launch")
Records = Mapping[str, Record]


def records(systems: Mapping[str, Sequence[str]], folder: Path) -> Records:
    runs = [run for own in systems.values() for run in expand([*PLAN, *own, f"reports={folder}"])]
    return dict(zip(systems, measure(runs, Progress(60)), strict=True))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return records(ONE, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Records:
    needs("mpiexec")
    return records(TWO, tmp_path_factory.mktemp("two"))


def show(benchmark: Any, record: Record) -> None:
    """The record's samples and settings as a benchmark's."""
    if record.outcome is Outcome.MISSING_DEPENDENCY:
        pytest.skip(f"{record.system.partition('_')[0]}: {record.reason}")
    assert record.outcome is Outcome.OK, record.reason
    samples = record.metrics["batch_time"].values
    assert len(samples) == 30
    play(benchmark, samples)
    config, found = record.config, record.provenance
    tell(
        benchmark,
        peer=record.system in PEERS,
        timing=SLOWEST,
        ranks=config["grid"]["inter"],
        label=record.label,
        backend=found["carrier"],
        order=found["order"],
        settings={
            part: config[part] for part in ("system", "schedule", "comm", "batch", "model", "optimizer", "launch")
        },
        losses=record.series["loss"],
        note=record.metrics["batch_time"].note,
    )


@measured_elsewhere
@pytest.mark.parametrize("system", ONE)
def test_a_batch_of_one_process(benchmark: Any, one: Records, system: str) -> None:
    benchmark.group = "a batch of one process"
    show(benchmark, one[system])


@measured_elsewhere
@pytest.mark.parametrize("system", TWO)
def test_a_batch_of_two_stages(benchmark: Any, two: Records, system: str) -> None:
    benchmark.group = "a batch of two stages on two ranks"
    show(benchmark, two[system])
