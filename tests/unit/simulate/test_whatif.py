"""Records of simulated runs, and reasons for missing numbers."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from suite.config.compose import composed
from suite.config.run import checked_run
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.grid import Grid
from suite.core.record import Outcome, Record, Source
from suite.core.trace import BACKWARD, COMPRESS, FORWARD, MESSAGE, RECOMPUTE, TENSOR_REDUCE, TIE, breakdown
from suite.report.load import read_store
from suite.runner import interleave
from suite.runner.progress import Progress
from suite.runner.runs import freeze
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.executor import Simulated, dominating, first_replica
from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds
from suite.simulate.search import best, plans, run
from suite.workload import flops
from tests.support.modelled import conf, shape, simulated
from tests.support.refusals import refused

pytestmark = pytest.mark.usefixtures("no_ranks")

OVERRIDES = ("executor=simulated", "efficiency=summit", "model=gpt3_xl", "grid.inter=2", "grid.data=8")
STREAM = ("update_interval=1", "model.shape.tied=false", "optimizer=sgd", "optimizer.momentum=0.9")
SUMMIT, SAMO = conf("machine", "summit"), conf("efficiency", "summit")


@cache
def resolved(*overrides: str) -> dict[str, Any]:
    return composed([*OVERRIDES, "batch.size=128", "batch.microbatch=1", *overrides])


def config(folder: Path, *, of: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """XL on 16 GPUs of Summit in a batch of 128. changes: 'executor__plan'='search' sets executor.plan."""
    settings = copy.deepcopy(resolved(*of))
    settings["reports"] = str(folder)
    for path, value in changes.items():
        group = settings
        *parents, last = path.split("__")
        for name in parents:
            group = group[name]
        assert last in group, path
        group[last] = value
    return settings


def measured(folder: Path, *, of: tuple[str, ...] = (), **changes: Any) -> Record:
    runs = [freeze(config(folder, of=of, **changes), "suite run")]
    (record,) = interleave.measure(runs, Progress(1.0, io.StringIO()))
    return record


def values(record: Record) -> dict[str, float]:
    assert record.outcome is Outcome.OK, record.reason
    return {name: metric.values[0] for name, metric in record.metrics.items()}


def plan(name: str, grid: Grid, batch: int = 128) -> SimulationPlan:
    return SimulationPlan(shape("gpt3_xl"), simulated(name), grid, batch, 1)


def test_a_simulated_run_leaves_a_record(tmp_path: Path) -> None:
    record, expected_plan = measured(tmp_path), plan("axonn", Grid(data=8, inter=2))
    assert (record.outcome, record.source, record.reason) == (Outcome.OK, Source.SIMULATED, "")
    simulation, found = run(expected_plan, SUMMIT, SAMO), values(record)
    times = {name: found.pop(name) for name in list(found) if name.startswith("time_")}
    assert sum(times.values()) == pytest.approx(simulation.makespan)
    assert found == {
        "batch_time": simulation.makespan,
        "tokens_per_batch": 128 * 2048,
        "flops_per_batch": flops.training(expected_plan.shape, 128),
        "flops_per_batch_recompute": flops.training(expected_plan.shape, 128, recompute=True),
        "peak_flops": 16 * 125e12,
        "events": simulation.events,
    }
    assert (record.metrics["batch_time"].better, record.metrics["batch_time"].unit) == ("lower", "s")
    predicted = [sum(parts) for parts in zip(*record.memory["predicted"].values(), strict=True)]
    assert predicted == [expected_plan.budget(stage).peak for stage in range(2)]
    assert any(note.startswith(f"of {simulation.makespan:.3g} s ") for note in record.notes)
    assert f"efficiency.launch {SAMO.reasons['launch']}" in record.notes
    assert record.provenance["calibrated_on"] == list(SAMO.calibrated_on)
    assert "calibrated_on" not in measured(tmp_path, of=("efficiency=usual",)).provenance
    assert record.trace is None  # of 16 ranks only 2 would be in it
    assert not read_store(tmp_path).aside


def test_one_replica_keeps_its_trace(tmp_path: Path) -> None:
    record, trace = measured(tmp_path, grid__data=1), read_store(tmp_path).entries[0].trace
    assert record.trace is not None
    assert trace is not None
    assert max(span.end for span in trace.spans) == pytest.approx(values(record)["batch_time"])


@pytest.mark.parametrize(
    ("of", "changes", "outcome", "reason"),
    [
        (("model=gpt3_13b",), {}, Outcome.OOM, "more than 2 stages"),
        (("model=gpt3_13b", "machine=machine_a"), {"executor__plan": "search"}, Outcome.OOM, "the smallest of "),
        (("system=torch_pipelining",), {}, Outcome.UNSUPPORTED, "schedule=one_f_one_b on a modelled machine"),
        ((), {"grid__tensor": 2, "batch__size": 256}, Outcome.UNSUPPORTED, "grid.tensor=2"),
        (("model=gcn",), {}, Outcome.UNSUPPORTED, "a whole graph"),
        (("model=gcn",), {"executor__account": "blocks"}, Outcome.UNSUPPORTED, "a GPT"),
    ],
)
def test_run_without_a_number_has_an_outcome(
    tmp_path: Path, of: tuple[str, ...], changes: dict[str, Any], outcome: Outcome, reason: str
) -> None:
    record = measured(tmp_path, of=of, **changes)
    assert (record.outcome, dict(record.metrics)) == (outcome, {})
    assert outcome is Outcome.UNSUPPORTED or record.source is Source.SIMULATED
    assert reason in record.reason


@pytest.mark.parametrize(
    ("changes", "key", "legal"),
    [
        ({"batch__size": 100}, "", ""),
        ({"executor__plan": "serach"}, "executor.plan", "executor.plan=search"),
        ({"executor__plan": "search", "grid__data": 1, "grid__inter": 5}, "", ""),
        ({"executor__machine__memory": 0}, "machine.memory", ""),
        ({"executor__efficiency__products": 1.5}, "efficiency.products", ""),
        ({"executor__machine__between__bandwidth": -1.0}, "executor.machine.between.bandwidth", ""),
        # a simulation drives at most 4,000,000 passes
        ({"grid__data": 1, "grid__inter": 1, "batch__size": 4_000_000}, "", "2000000 microbatches"),
        (
            {"grid__data": 64, "grid__inter": 4, "batch__size": 640_000, "executor__symmetric": False},
            *("", "7812 microbatches"),
        ),
    ],
)
def test_impossible_run_is_refused_before_it_starts(
    tmp_path: Path, changes: dict[str, Any], key: str, legal: str
) -> None:
    with refused(InvalidRequest, key, legal=legal):
        raise freeze(config(tmp_path, **changes), "").refusal or AssertionError("accepted")


@pytest.mark.parametrize("override", ["machine=sumit", "efficiency=sumit", "machine.memry=1", "efficiency.lain=1"])
def test_an_unknown_machine_or_figure_is_refused_with_the_nearest(override: str) -> None:
    with pytest.raises(UnknownName) as caught:
        composed([*OVERRIDES, override])
    assert "did you mean" in caught.value.legal


def test_a_search_finds_the_best_plan_on_as_many_devices(tmp_path: Path) -> None:
    record, configured = measured(tmp_path, executor__plan="search"), plan("axonn", Grid(data=8, inter=2))
    fastest = best(plans(configured.shape, configured.system, 16, 128), SUMMIT, SAMO)
    assert values(record)["batch_time"] == fastest.steps[0].seconds < run(configured, SUMMIT, SAMO).makespan
    assert any(note.startswith(f"best of {fastest.fit} plans that fit, of {fastest.tried}") for note in record.notes)
    assert len(record.memory["predicted"]["weights"]) == fastest.steps[0].plan.grid.inter


@pytest.mark.parametrize("generation", ["unfused", "fused", "megatron", "flash", "compiled"])
@pytest.mark.parametrize("search", [False, True])
def test_scores_are_held_only_by_kernels_that_write_them(generation: str, search: bool) -> None:
    efficiency = replace(conf("efficiency", "usual"), generation=generation)
    executor = Simulated(machine=SUMMIT, efficiency=efficiency)
    settings = checked_run(resolved("model=gpt3_xl"))
    planned = next(executor.candidates(settings)) if search else executor.of(settings)
    writes = generation not in ("flash", "compiled")
    assert (planned.peak > replace(planned, generation="flash").peak) is writes


def test_every_rank_gives_what_one_replica_gives(tmp_path: Path) -> None:
    small = {"of": ("system=axonn_samo",), "grid__data": 3, "batch__size": 24}
    one, every = (measured(tmp_path, **small, executor__symmetric=symmetric) for symmetric in (True, False))
    assert values(every)["batch_time"] == pytest.approx(values(one)["batch_time"], rel=1e-9)
    assert values(every)["events"] > values(one)["events"]
    assert (every.memory, every.notes) == (one.memory, one.notes)


def test_the_schedule_is_the_configs_own(tmp_path: Path) -> None:
    """Systems compared on one machine may differ in order alone: one microbatch at a time leaves three stages idle."""
    four = {"grid__inter": 4, "grid__data": 4}
    usual, one = (values(measured(tmp_path, **four, schedule__pipeline_limit=limit)) for limit in (None, 1))
    assert one["batch_time"] > 2 * usual["batch_time"]


def test_the_note_names_the_dominating_loss() -> None:
    parts = {"forward": 4.0, "bubble": 1.0, "transfer": 0.5, "wait": 1.5, "reduce": 0.25, "tie": 0.25}
    assert dominating(parts, 10.0) == (
        "of 10 s 40 percent is computing; most is lost to waiting for other stages: bubble 10 percent, "
        "transfer 5 percent, waiting for other stages 15 percent, collective 5 percent"
    )
    repeated = {"forward": 1.0, "backward": 2.0, "recompute": 1.0, "tensor_reduce": 5.0, "step": 0.5, "bubble": 0.5}
    for found, makespan, expected in (
        ({"bubble": 3.0, "wait": 1.0}, 8.0, "lost to bubble: bubble 38 percent"),
        ({"reduce": 0.02}, 0.1, "lost to collective"),
        ({"forward": 4.0}, 4.0, "nothing is lost"),
        (repeated, 10.0, "40 percent is computing (10 percent is recomputation)"),
        (repeated, 10.0, "lost to tensor-parallel all-reduce"),
    ):
        assert expected in dominating(found, makespan)


@pytest.mark.parametrize(
    "planned",
    [
        plan("megatron_lm", Grid(inter=2, tensor=4), 16),
        plan("axonn_samo", Grid(data=2, inter=4), 16),
        replace(plan("megatron_lm", Grid(inter=4), 16), system=replace(simulated("megatron_lm"), tied_embeddings=True)),
    ],
    ids=("split layers", "compressed states", "shared embedding"),
)
def test_every_second_of_a_pass_is_booked_under_its_category(planned: SimulationPlan) -> None:
    software = replace(SAMO, message=1.0e-4)
    simulation, cost = run(planned, SUMMIT, software, traced=True), PlanCost(planned, SUMMIT, software)
    assert simulation.makespan == run(planned, SUMMIT, software).makespan
    parts = breakdown(first_replica(simulation.trace, planned.grid), planned.grid)
    assert sum(parts.values()) == pytest.approx(simulation.makespan)
    count, stages, kernels = 16 // planned.grid.data, planned.grid.inter, cost.kernels
    blocks, ends = planned.shape.layers / stages, kernels.head + kernels.embedding
    compressed = SAMO.compress * sum(map(planned.entries, range(stages))) / stages
    matrix, pair = 2 * planned.shape.head().tied / planned.grid.tensor, SpacedRanks(2, planned.grid.size // stages)
    tied = all_reduce_seconds(matrix, pair, SUMMIT, cost.setup.generation)
    expected = {
        TENSOR_REDUCE: count * blocks * 3 * kernels.tensor_parallel[0],
        RECOMPUTE: count * blocks * kernels.recomputed[0],
        FORWARD: count * (blocks * kernels.computation.forward + ends.forward / stages),
        BACKWARD: count * (blocks * kernels.computation.backward + ends.backward / stages),
        MESSAGE: count * 2 * (2 * stages - 2) * software.message / stages,
        COMPRESS: count * compressed if planned.system.name == "axonn_samo" else 0.0,
        TIE: 2 * tied / stages if planned.system.tied_embeddings else 0.0,
    }
    assert {name: parts.get(name, 0.0) for name in expected} == pytest.approx(expected)


def test_predictions_and_copies_of_a_stream_are_booked_apart(tmp_path: Path) -> None:
    """PipeOptim predicts before forward passes; PipeDream copies its weights, and the batch takes what it took."""
    for system, category, other in (("pipeoptim", "predict", "copy"), ("pipedream", "copy", "predict")):
        of = (f"system={system}", "grid.data=1", "batch.size=8", "grid.inter=4", *STREAM)
        found = values(measured(tmp_path, of=of))
        assert found[f"time_{category}"] > 0
        assert f"time_{other}" not in found
