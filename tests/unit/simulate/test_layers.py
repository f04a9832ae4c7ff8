"""Layer model against hand sums, and overheads of weight policies per system.

Two layers by hand, float32, on 100 flop/s of products and 10 bytes/s of memory:

              parameters   flops   saved   output
    wide              10     200      12        8
    narrow            30     100       4        4
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from baselines.gpipe import GPipe
from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import ExecutorResult, Schedule, WeightPolicy
from suite.memory import resident
from suite.runner.executors.registry import without_ranks
from suite.schedule import OneFOneB
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.placement import places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.executor import Simulated, by_layers
from suite.simulate.layer_model import LayerCost, LayerPlan, run
from suite.simulate.network.machine import Link
from suite.simulate.policy_overheads import PolicyOverheads, counting_interval, policy_overheads
from suite.weights import Latest, Predict
from suite.workload import LayerShape
from tests.support.configs import altered
from tests.support.modelled import efficiency, machine, system
from tests.support.placed import SplitStream
from tests.support.refusals import refused


@dataclass(frozen=True)
class Two:
    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        wide = LayerShape("wide", 10, 200, 3 * width, 2 * width, width, 0)
        return wide, LayerShape("narrow", 30, 100, width, width, width, 0)


@dataclass(frozen=True)
class Alike:
    """Eight layers of one second each at 100 flop/s, 25 parameters."""

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        return (LayerShape("one", 25, 25, width, width, 0, 0),) * 8


POLICIES: dict[str, tuple[Any, Any, int | None]] = {
    "gpipe": (GPipe(), Latest("recompute"), None),
    "pipedream": (OneFOneB(), Stash(), 1),
    "pipedream_2bw": (OneFOneB(), DoubleBuffer(), 4),
    "spectrain": (OneFOneB(), SpecTrain(), 1),
    "pipeoptim": (OneFOneB(), Predict(), 1),
}
DEVICE = machine(peak={"float32": 100.0, "float16": 400.0}, memory_bandwidth=10.0, devices_per_node=8)


def plan(name: str, shape: Any = None, *, inter: int = 2, moments: int = 1, **changes: Any) -> LayerPlan:
    """Microbatches of 2; of a flush four a batch."""
    schedule, policy, every = POLICIES[name]
    usual: dict[str, Any] = {
        **{"shape": shape or Two(), "system": system(name=name, schedule=schedule), "grid": Grid(inter=inter)},
        **{"batch": 8 if every is None else 2, "microbatch": 2, "layout": resident, "policy": policy},
        **{"moments": tuple(f"moment_{number}" for number in range(moments)), "update_interval": every},
    }
    return LayerPlan(**{**usual, **changes})


def test_passes_of_a_layer_by_hand() -> None:
    """Two samples: 4 s of products, 4 + 8 of 12 + 8 bytes read and written twice, a launch; three times that back."""
    cost = LayerCost(plan("gpipe"), DEVICE, efficiency(traffic=1.0, launch=0.5, message=0.25))
    wide, narrow = 2 * 200 / 100 + 2 * 2 * (12 + 8) / 10 + 0.5, 2 * 100 / 100 + 2 * 2 * (4 + 4) / 10 + 0.5
    assert (cost.forward, cost.backward) == ([wide + 0.25, narrow + 0.25], [3 * wide + 0.25, 3 * narrow + 0.25])
    assert [cost.message(Op.parse(op)) for op in ("0F3", "1B3")] == [2 * 8, 2 * 8]
    saved = LayerCost(plan("gpipe", policy=Latest("keep")), DEVICE, efficiency())
    assert saved.backward == [2 * 4.0, 2 * 2.0]
    half = LayerCost(plan("gpipe", half="float16"), DEVICE, efficiency(products=0.5, kernels={"Two": 0.5}))
    assert half.forward == [2 * 200 / (0.25 * 400), 2 * 100 / (0.25 * 400)]
    replicas = LayerCost(plan("pipeoptim", grid=Grid(data=2, inter=2), batch=4), DEVICE, efficiency())
    assert [chunk.reduce for chunk in replicas.update(1)] == [30 * 4]


@pytest.mark.parametrize(
    ("name", "forward", "update"),
    [
        # one moment: a step moves 20 bytes an entry, a prediction 12, a copy 8; ten entries, thirty
        ("gpipe", 0, 200),
        ("pipedream", 0, 200 + 80),
        ("spectrain", 120, 200),
        ("pipeoptim", 120, 200),
    ],
)
def test_overheads_of_a_policy_are_bytes_of_memory(name: str, forward: int, update: int) -> None:
    cost = LayerCost(plan(name), DEVICE, efficiency(states=0.5))
    assert (cost.forward, cost.backward) == ([4.0 + forward / 5.0, 2.0], [3 * 4.0, 3 * 2.0])
    assert [chunk.step for stage in (0, 1) for chunk in cost.update(stage)] == [update / 5.0, 600 / 5.0]


def test_a_moment_more_is_moved_by_steps_and_predictions() -> None:
    for changes, step, prediction, copy in (({"moments": 2}, 28, 16, 8), ({"half": "float16"}, 24, 10, 4)):
        cost = LayerCost(plan("pipeoptim", **changes), DEVICE, efficiency())
        assert (cost.step(0), cost.prediction(0), cost.copy(0)) == (step, prediction, copy)


def test_stream_of_four_stages_avoids_the_bubble_of_a_flush() -> None:
    """Four equal stages: 7 passes for four microbatches, or 4. Free updates: the gain is 75 percent to the last bit
    that floating point keeps; the step makes it less, as a stream makes one for each mini-batch."""

    def rates(memory_bandwidth: float) -> dict[str, float]:
        within = Link(0.0, 1e30)  # messages take no time
        quick = replace(DEVICE, memory_bandwidth=memory_bandwidth, devices_per_node=4, within=within)
        plans = {name: plan(name, Alike(), inter=4, moments=0, split="even") for name in POLICIES}
        return {name: each.batch / each.seconds(run(each, quick, efficiency())) for name, each in plans.items()}

    free, paid = rates(1e30), rates(2000.0)
    for name in ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim"):
        assert free[name] / free["gpipe"] == pytest.approx(7 / 4, rel=1e-9), name
    assert 1 < paid["pipeoptim"] / paid["gpipe"] < 7 / 4
    assert paid["pipeoptim"] < paid["pipedream_2bw"], "a prediction for every mini-batch, an update for every fourth"


def test_memory_has_versions_and_recomputed_activations() -> None:
    """The first stage keeps its input of no layer, so nothing; the last one what it was sent. Two versions of ten
    entries with PipeDream and PipeOptim, one with a flush."""
    versions = [plan(name).versions() for name in ("gpipe", "pipedream", "pipedream_2bw")]
    assert versions == [30 * 4, max(2 * 10 * 4, 30 * 4), 2 * 30 * 4]
    deep = {name: plan(name, Alike(), inter=4, split="even").versions() / (4 * 50) for name in POLICIES}
    assert deep == {"gpipe": 1, "pipedream": 4, "pipedream_2bw": 2, "spectrain": 2, "pipeoptim": 2}
    budget = plan("pipeoptim").budget(1)
    assert (budget.activations, budget.in_flight, budget.waiting, budget.drains) == (2 * 8, 1, 2 * 8, False)
    assert budget.working == 2 * 4 + 2 * 4  # what is kept of a microbatch while it is computed again, and a transient


def test_impossible_layer_plans_are_refused() -> None:
    with refused(Unsupported, "grid.tensor", "2"):
        plan("gpipe", grid=Grid(inter=2, tensor=2))
    with refused(InvalidRequest, subject="a batch of 7", legal="a batch of 6"):
        plan("gpipe", batch=7)
    with refused(InvalidRequest, subject="update_interval=1"):
        _ = plan("pipedream_2bw", update_interval=1).overheads


# -- overheads of weight policies, counted by hand for four stages -----------------------------------------------------

STAGES = 4
FLUSH, STREAM = counting_interval(16, None, STAGES), counting_interval(1, 1, STAGES)
PLACED = (Staircase(2), Staircase(split=True), ZBV())


@pytest.mark.parametrize(
    ("policy", "every", "expected"),
    [
        # a version per microbatch in flight; on the last stage a step is in place
        (Stash(), 1, [(0, 0, 1, 3), (0, 0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 0)]),
        (Stash(graph="keep"), 1, [(0, 0, 1, 3), (0, 0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 0)]),
        (DoubleBuffer(), 4, [(0, 0, 1, 1)] * 4),
        # all stages aim at one version: from the third on the backward pass predicts too
        (SpecTrain(), 1, [(1, 0, 0, 1), (1, 0, 0, 1), (1, 1, 0, 1), (1, 1, 0, 1)]),
        (Predict(), 1, [(1, 0, 0, 1), (1, 0, 0, 1), (1, 0, 0, 1), (0, 0, 0, 0)]),
        (Predict(s="authors"), 1, [(1, 0, 0, 1)] * 4),
        # a graph that is kept holds the weights that it was made with
        (Predict(graph="keep"), 1, [(1, 0, 0, 4), (1, 0, 0, 3), (1, 0, 0, 2), (0, 0, 0, 0)]),
    ],
)
def test_overheads_of_a_full_pipeline(
    policy: WeightPolicy, every: int, expected: list[tuple[float, float, float, int]]
) -> None:
    found = policy_overheads(policy, OneFOneB(), STAGES, counting_interval(1, every, STAGES))
    assert [(one.forward, one.backward, one.copies, one.extra_versions) for one in found] == expected


@pytest.mark.parametrize("schedule", [GPipe(), *PLACED, DualPipeV()], ids=str)
def test_a_flush_has_no_overhead_but_recomputation(schedule: Schedule) -> None:
    for graph in ("keep", "recompute", "swap") if isinstance(schedule, GPipe) else ("keep", "recompute"):
        found = policy_overheads(Latest(graph), schedule, STAGES, FLUSH)
        assert found == (PolicyOverheads(0, 0, 0, 0, recomputes=graph == "recompute"),) * len(found)
        assert len(found) == places(schedule, STAGES)[0].stages


@pytest.mark.parametrize("schedule", PLACED)
def test_placed_schedules_stream_with_one_version_only(schedule: Schedule) -> None:
    found = policy_overheads(Latest(), schedule, STAGES, counting_interval(8, 8, STAGES))
    assert set(found) == {PolicyOverheads(0, 0, 0, 0, recomputes=False)}
    with refused(Unsupported, "weights", "Stash", legal="one_f_one_b"):
        policy_overheads(Stash(), schedule, STAGES, STREAM)
    assert policy_overheads(Stash(), Staircase(), STAGES, STREAM)


def test_a_policy_refuses_a_pipeline_that_it_cannot_serve() -> None:
    with refused(Unsupported, "update_interval", 1, rule="on rank 0, 3 do"):
        policy_overheads(Latest(), SplitStream(), STAGES, STREAM)
    with refused(InvalidRequest, subject="update_interval=2"):
        policy_overheads(DoubleBuffer(), OneFOneB(), STAGES, counting_interval(1, 2, STAGES))
    with refused(InvalidRequest, "update_interval", subject="with a flush"):
        policy_overheads(Predict(), OneFOneB(), STAGES, FLUSH)


# -- the executor ------------------------------------------------------------------------------------------------------

OVERRIDES = ("executor=simulated", "machine=machine_b", "model=vgg_19", "optimizer=sgd", "grid.inter=4")


@cache
def resolved(*overrides: str) -> RunConfig:
    return resolve([*OVERRIDES, "split=pipedream", *overrides])


FLUSHED, STREAMED = ("system=gpipe", "weights.graph=recompute"), ("system=pipeoptim",)


def simulated(*overrides: str, **changes: Any) -> tuple[Simulated, RunConfig]:
    """changes: 'batch__size'=32 sets batch.size."""
    config = altered(resolved(*overrides), **changes)
    executor = without_ranks(config.executor)
    assert isinstance(executor, Simulated)
    executor.check(config)
    return executor, config


def result(*overrides: str, **changes: Any) -> tuple[dict[str, float], ExecutorResult]:
    executor, config = simulated(*overrides, **changes)
    found = executor.run(config)
    return {name: metric.values[0] for name, metric in found.metrics.items()}, found


def test_a_system_that_streams_runs_beside_one_that_drains() -> None:
    """Two rates, full and drained; the record holds the content of its stages."""
    flush, _ = result(*FLUSHED, batch__size=128, batch__microbatch=32)
    values, found = result(*STREAMED, batch__size=32, batch__microbatch=32)
    full, drained = values["samples_per_second"], values["samples_per_second_drained"]
    assert 1.2 * flush["samples_per_second"] < full < 1.75 * flush["samples_per_second"]
    assert full > drained > 0.8 * full
    assert values["batch_time"] == pytest.approx(32 / full)
    assert (values["images_per_batch"], values["peak_flops"]) == (32.0, 4 * 9.3e12)
    assert any(note.startswith("4 stages of layers 0-") for note in found.notes)


def test_flushed_gpts_are_modelled_by_blocks_by_default() -> None:
    gpt = {"_target_": "suite.workload.Transformer", "layers": 4, "hidden": 64, "heads": 4, "sequence": 8}
    gpt |= {"vocabulary": 32, "tied": False}
    flush = {"model__shape": gpt, "batch__size": 8, "batch__microbatch": 1, "precision__half": "float16"}
    stream = {"model__shape": gpt, "batch__size": 1, "batch__microbatch": 1}
    for overrides, changes, expected in ((FLUSHED, flush, False), (STREAMED, stream, True)):
        executor, config = simulated(*overrides, **changes)
        assert by_layers(config, executor.account) is expected
    assert simulated(*FLUSHED, **flush, executor__account="layers")
    with refused(Unsupported, subject="a stream of a GPT's blocks"):
        simulated(*STREAMED, **stream, executor__account="blocks")
    with refused(Unsupported, "executor.plan", "search"):
        simulated(*STREAMED, **stream, executor__plan="search")
