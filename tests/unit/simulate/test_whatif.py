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
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.record import Outcome, Record, Source
from suite.core.trace import (
    BACKWARD,
    COMPRESS,
    FORWARD,
    MESSAGE,
    RECOMPUTE,
    TENSOR_REDUCE,
    TIE,
    breakdown,
)
from suite.report.derive import shares
from suite.report.load import read_store
from suite.runner import interleave
from suite.runner.progress import Progress
from suite.runner.runs import freeze
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.executor import dominating, first_replica
from suite.simulate.search import best, plans, run
from suite.workload import flops
from tests.support.modelled import conf, shape, simulated

pytestmark = pytest.mark.usefixtures("no_ranks")

OVERRIDES = (
    "executor=simulated",
    "efficiency=summit",
    "model=gpt3_xl",
    "grid.inter=2",
    "grid.data=8",
    "batch.size=128",
)


@cache
def resolved(*overrides: str) -> dict[str, Any]:
    return composed([*OVERRIDES, "batch.microbatch=1", *overrides])


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


def measured(settings: dict[str, Any]) -> Record:
    (record,) = interleave.measure([freeze(settings, "suite run")], Progress(1.0, io.StringIO()))
    return record


def plan(grid: Grid, microbatch: int = 1, batch: int = 128) -> SimulationPlan:
    return SimulationPlan(shape("gpt3_xl"), simulated("axonn"), grid, batch, microbatch)


SUMMIT, SAMO = conf("machine", "summit"), conf("efficiency", "summit")


def test_a_simulated_run_leaves_a_record(tmp_path: Path) -> None:
    record = measured(config(tmp_path))
    assert (record.outcome, record.source, record.reason) == (Outcome.OK, Source.SIMULATED, "")
    expected_plan = plan(Grid(data=8, inter=2))
    simulation = run(expected_plan, SUMMIT, SAMO)
    values = {name: metric.values[0] for name, metric in record.metrics.items()}
    times = {name: values.pop(name) for name in list(values) if name.startswith("time_")}
    assert sum(times.values()) == pytest.approx(simulation.makespan)
    assert values == {
        "batch_time": simulation.makespan,
        "tokens_per_batch": 128 * 2048,
        "flops_per_batch": flops.training(expected_plan.shape, 128),
        "flops_per_batch_recompute": flops.training(expected_plan.shape, 128, recompute=True),
        "peak_flops": 16 * 125e12,
        "events": simulation.events,
    }
    assert record.metrics["batch_time"].better == "lower"
    assert record.metrics["batch_time"].unit == "s"
    predicted = record.memory["predicted"]
    assert [sum(parts) for parts in zip(*predicted.values(), strict=True)] == [
        expected_plan.budget(s).peak for s in range(2)
    ]
    assert any(
        note.startswith(f"of {simulation.makespan:.3g} s ") and "most is lost to" in note for note in record.notes
    )
    assert f"efficiency.launch {SAMO.reasons['launch']}" in record.notes
    assert not read_store(tmp_path).aside


def test_what_was_calibrated_stands_in_the_provenance(tmp_path: Path) -> None:
    cells = measured(config(tmp_path)).provenance["calibrated_on"]
    assert cells == list(SAMO.calibrated_on)
    assert "samo.table2.sputnik.gpus_256" in cells
    usual = measured(config(tmp_path, of=("efficiency=usual",)))
    assert usual.outcome is Outcome.OK
    assert "calibrated_on" not in usual.provenance


def test_one_replica_keeps_its_trace(tmp_path: Path) -> None:
    record = measured(config(tmp_path, grid__data=1))
    assert record.trace is not None
    trace = read_store(tmp_path).entries[0].trace
    assert trace is not None
    assert max(span.end for span in trace.spans) == pytest.approx(record.metrics["batch_time"].values[0])
    assert measured(config(tmp_path)).trace is None  # of 16 ranks only 2 would be in it


def test_a_plan_that_does_not_fit_is_an_outcome(tmp_path: Path) -> None:
    record = measured(config(tmp_path, of=("model=gpt3_13b",)))
    assert (record.outcome, record.source) == (Outcome.OOM, Source.SIMULATED)
    assert not record.metrics
    needed, _, rest = record.reason.partition(" on a device of summit with 16.4 GB; ")
    assert float(needed.removesuffix(" GB")) > 16.4
    assert rest.startswith("rule: the fullest stage fits its device; legal: more than 2 stages")


def test_a_system_that_is_not_modelled_is_unsupported(tmp_path: Path) -> None:
    record = measured(config(tmp_path, of=("system=torch_gpipe",)))
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.reason.startswith(
        "system=torch_gpipe on a modelled machine; rule: a system with a block system.simulation"
    )
    assert record.reason.endswith("legal: system=axonn")
    split = measured(config(tmp_path, grid__tensor=2, batch__size=256))
    assert (split.outcome, split.reason.partition(";")[0]) == (Outcome.UNSUPPORTED, "grid.tensor=2 with axonn")


@pytest.mark.parametrize(
    ("account", "rule"), [("auto", "a whole graph"), ("layers", "a whole graph"), ("blocks", "a GPT")]
)
def test_layers_of_a_whole_graph_are_unsupported(tmp_path: Path, account: str, rule: str) -> None:
    record = measured(config(tmp_path, of=("model=gcn",), executor__account=account))
    assert record.outcome is Outcome.UNSUPPORTED
    assert rule in record.reason


def test_a_plan_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    refused = freeze(config(tmp_path, batch__size=100), "").refusal
    assert isinstance(refused, InvalidRequest)
    assert not isinstance(refused, Unsupported)
    assert str(refused).startswith("a batch of 100 on 8 replicas with microbatches of 1; rule: ")
    unknown = freeze(config(tmp_path, executor__plan="serach"), "").refusal
    assert str(unknown) == "executor.plan=serach; rule: one of given, search; legal: executor.plan=search"


def test_bad_figures_of_a_machine_or_an_efficiency_are_refused(tmp_path: Path) -> None:
    settings = config(tmp_path)
    for group, key, value, named in (
        ("machine", "memory", 0, "machine.memory=0; rule: a finite number above 0; legal: "),
        ("efficiency", "products", 1.5, "efficiency.products=1.5; rule: a share above 0 and at most 1; legal: "),
    ):
        changed = copy.deepcopy(settings)
        changed["executor"][group][key] = value
        assert str(freeze(changed, "").refusal).startswith(named)
    settings["executor"]["machine"]["between"]["bandwidth"] = -1.0
    assert str(freeze(settings, "").refusal).startswith("executor.machine.between.bandwidth=-1.0; rule: ")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("machine=sumit", "summit"),
        ("efficiency=sumit", "summit"),
        ("machine.memry=1", "machine.memory"),
        ("efficiency.lain=1", ""),
    ],
)
def test_an_unknown_machine_or_figure_is_told_what_there_is(override: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as caught:
        composed([*OVERRIDES, override])
    assert f"did you mean '{nearest}" in str(caught.value)


def test_a_search_finds_the_best_plan_on_as_many_devices(tmp_path: Path) -> None:
    record = measured(config(tmp_path, executor__plan="search"))
    configured = plan(Grid(data=8, inter=2))
    fastest = best(plans(configured.shape, configured.system, 16, 128), SUMMIT, SAMO)
    assert record.metrics["batch_time"].values == (fastest.seconds,)
    assert fastest.seconds < run(configured, SUMMIT, SAMO).makespan
    note = f"best of {fastest.fit} plans that fit, of {fastest.tried}: {fastest.plan.grid}, "
    note += f"{fastest.plan.microbatch} a time"
    assert note in record.notes
    assert len(record.memory["predicted"]["weights"]) == fastest.plan.grid.inter


def test_search_without_candidates_or_result_is_refused(tmp_path: Path) -> None:
    large = measured(config(tmp_path, of=("model=gpt3_13b", "machine=machine_a"), executor__plan="search"))
    assert large.outcome is Outcome.OOM
    assert large.reason.startswith("no plan of ")
    settings = config(tmp_path, executor__plan="search", grid__data=1, grid__inter=5)
    assert str(freeze(settings, "").refusal).startswith("there is no plan for 5 devices and a batch of 128; rule: ")


@pytest.mark.parametrize("system", ["axonn", "axonn_samo", "deepspeed_3d"])
def test_every_rank_gives_what_one_replica_gives(tmp_path: Path, system: str) -> None:
    one, every = (
        measured(config(tmp_path, of=(f"system={system}",), grid__inter=2, grid__data=3, batch__size=24, **changes))
        for changes in ({}, {"executor__symmetric": False})
    )
    assert one.outcome is every.outcome is Outcome.OK
    assert every.metrics["batch_time"].values == pytest.approx(one.metrics["batch_time"].values, rel=1e-9)
    assert every.metrics["events"].values[0] > one.metrics["events"].values[0]
    assert every.memory == one.memory
    assert every.notes == one.notes


def test_the_schedule_is_the_configs_own(tmp_path: Path) -> None:
    """Systems compared on one machine may differ in order alone: one microbatch at a time leaves three stages idle."""
    usual, one = (
        measured(config(tmp_path, grid__inter=4, grid__data=4, schedule__pipeline_limit=n)) for n in (None, 1)
    )
    assert one.metrics["batch_time"].values[0] > 2 * usual.metrics["batch_time"].values[0]


def test_what_dominates_is_told() -> None:
    parts = {"forward": 4.0, "bubble": 1.0, "transfer": 0.5, "wait": 1.5, "reduce": 0.25, "tie": 0.25}
    assert dominating(parts, 10.0) == (
        "of 10 s 40 percent is computing; most is lost to waiting for other stages: bubble 10 percent, "
        "transfer 5 percent, waiting for other stages 15 percent, collective 5 percent"
    )
    assert "lost to bubble: bubble 38 percent" in dominating({"bubble": 3.0, "wait": 1.0}, 8.0)
    assert "lost to collective" in dominating({"reduce": 0.02}, 0.1)
    assert dominating({"forward": 4.0}, 4.0) == "nothing is lost"
    repeated = {"forward": 1.0, "backward": 2.0, "recompute": 1.0, "tensor_reduce": 5.0, "step": 0.5, "bubble": 0.5}
    assert dominating(repeated, 10.0).startswith(
        "of 10 s 40 percent is computing (10 percent is recomputation); most is lost to tensor-parallel all-reduce: "
    )


def split_layers() -> SimulationPlan:
    return SimulationPlan(shape("gpt3_xl"), simulated("megatron_lm"), Grid(inter=2, tensor=4), 16, 1)


@pytest.mark.parametrize(
    "planned",
    [
        split_layers(),
        SimulationPlan(shape("gpt3_xl"), simulated("axonn_samo"), Grid(data=2, inter=4), 16, 1),
        SimulationPlan(shape("gpt3_xl"), replace(simulated("megatron_lm"), tied_embeddings=True), Grid(inter=4), 16, 1),
    ],
    ids=("split layers", "compressed states", "shared embedding"),
)
def test_every_second_of_a_pass_is_booked_under_its_category(planned: SimulationPlan) -> None:
    efficiency = replace(SAMO, message=1.0e-4)
    simulation = run(planned, SUMMIT, efficiency, traced=True)
    assert simulation.makespan == run(planned, SUMMIT, efficiency).makespan
    parts, cost = (
        breakdown(first_replica(simulation.trace, planned.grid), planned.grid),
        PlanCost(planned, SUMMIT, efficiency),
    )
    count = 16 // planned.grid.data
    blocks, stages = planned.shape.layers / planned.grid.inter, planned.grid.inter
    assert sum(parts.values()) == pytest.approx(simulation.makespan)
    assert parts.get(TENSOR_REDUCE, 0.0) == pytest.approx(count * blocks * 3 * cost.sums())
    kernels = cost.kernels
    assert parts[RECOMPUTE] == pytest.approx(count * blocks * cost.again())
    ends = kernels.head + kernels.embedding
    assert parts[FORWARD] == pytest.approx(count * (blocks * kernels.block.forward + ends.forward / stages))
    assert parts[BACKWARD] == pytest.approx(count * (blocks * kernels.block.backward + ends.backward / stages))
    assert parts[MESSAGE] == pytest.approx(count * 2 * (2 * stages - 2) * efficiency.message / stages)
    assert parts.get(COMPRESS, 0.0) == pytest.approx(
        (planned.system.name == "axonn_samo")
        * count
        * SAMO.compress
        * sum(map(planned.entries, range(stages)))
        / stages
    )
    tied = 2 * planned.shape.head().tied / planned.grid.tensor / SUMMIT.link(0, planned.grid.size - 1).bandwidth
    assert parts.get(TIE, 0.0) == pytest.approx(2 * tied / stages if planned.system.tied_embeddings else 0.0)


def test_tensor_parallel_sums_are_named_where_they_cost_most(tmp_path: Path) -> None:
    of = ("system=megatron_lm", "machine=perlmutter", "efficiency=usual")
    record = measured(config(tmp_path, of=of, grid__tensor=8, grid__data=1))
    assert record.outcome is Outcome.OK
    assert record.metrics["time_tensor_reduce"].values[0] > 0.2 * record.metrics["batch_time"].values[0]
    assert any("lost to tensor-parallel all-reduce" in note for note in record.notes)
    trace = read_store(tmp_path).entries[0]
    assert shares(trace)["tensor_reduce"] == pytest.approx(record.metrics["time_tensor_reduce"].values[0])


def test_predictions_and_copies_of_a_stream_are_booked_apart(tmp_path: Path) -> None:
    """PipeOptim predicts before forward passes; PipeDream copies its weights, and the batch takes what it took."""
    overrides = ("update_interval=1", "model.shape.tied=false", "optimizer=sgd", "optimizer.momentum=0.9")
    for system, category, other in (("pipeoptim", "predict", "copy"), ("pipedream", "copy", "predict")):
        record = measured(
            config(tmp_path, of=(f"system={system}", "grid.data=1", "batch.size=8", "grid.inter=4", *overrides))
        )
        assert record.outcome is Outcome.OK, record.reason
        assert record.metrics[f"time_{category}"].values[0] > 0
        assert f"time_{other}" not in record.metrics


def test_the_executor_is_what_its_file_says(tmp_path: Path) -> None:
    executor = config(tmp_path)["executor"]
    assert (executor["kind"], executor["plan"], executor["symmetric"]) == ("simulated", "given", True)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["batch.size=4000000", "batch.microbatch=1"],
            "4000000 microbatches on 1 ranks; rule: a simulation drives 8000000",
        ),
        (
            ["batch.size=640000", "batch.microbatch=1", "grid.data=64", "grid.inter=4", "executor.symmetric=false"],
            "10000 microbatches on 256 ranks; rule: a simulation drives 5120000 passes, at most 4000000; legal: 7812",
        ),
    ],
)
def test_what_would_be_simulated_for_longer_than_anybody_waits(overrides: list[str], told: str) -> None:
    assert told in str(freeze(composed(["executor=simulated", *overrides]), "").refusal)
