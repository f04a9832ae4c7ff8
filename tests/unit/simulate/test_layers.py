"""Layer model against hand sums, and overheads per system.

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
from suite.core.protocols import ExecutorResult
from suite.memory import resident
from suite.runner.executors.registry import without_ranks
from suite.schedule import OneFOneB
from suite.simulate.executor import Simulated, by_layers
from suite.simulate.layer_model import LayerCost, LayerPlan, run
from suite.simulate.network.machine import Link
from suite.weights import Latest, Predict
from suite.workload import LayerShape
from tests.support.configs import altered
from tests.support.modelled import efficiency, machine, system, systems
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
    states = tuple(f"moment_{number}" for number in range(moments))
    usual: dict[str, Any] = {
        "shape": shape or Two(),
        "system": system(name=name, schedule=schedule),
        "grid": Grid(inter=inter),
        "batch": 8 if every is None else 2,
        "microbatch": 2,
        "layout": resident,
        "moments": states,
        "policy": policy,
        "update_interval": every,
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


@pytest.mark.parametrize(
    ("name", "forward", "backward", "update"),
    [
        # one moment: a step moves 20 bytes an entry, a prediction 12, a copy 8; ten entries, thirty
        ("gpipe", (0, 0), (0, 0), (200, 600)),
        ("pipedream", (0, 0), (0, 0), (200 + 80, 600)),
        ("spectrain", (120, 0), (0, 0), (200, 600)),
        ("pipeoptim", (120, 0), (0, 0), (200, 600)),
    ],
)
def test_what_a_policy_asks_is_paid_in_bytes_of_memory(
    name: str, forward: tuple[int, int], backward: tuple[int, int], update: tuple[int, int]
) -> None:
    cost = LayerCost(plan(name), DEVICE, efficiency(states=0.5))
    passes = (4.0, 2.0)
    assert cost.forward == [of_pass + size / 5.0 for of_pass, size in zip(passes, forward, strict=True)]
    assert cost.backward == [3 * of_pass + size / 5.0 for of_pass, size in zip(passes, backward, strict=True)]
    assert [chunk.step for stage in (0, 1) for chunk in cost.update(stage)] == [size / 5.0 for size in update]


def test_a_moment_more_is_moved_by_steps_and_predictions() -> None:
    cost = LayerCost(plan("pipeoptim", moments=2), DEVICE, efficiency())
    assert (cost.step(0), cost.prediction(0), cost.copy(0)) == (10 * 28 / 10, 10 * 16 / 10, 10 * 8 / 10)
    half = LayerCost(plan("pipeoptim", half="float16"), DEVICE, efficiency())
    assert (half.step(0), half.prediction(0), half.copy(0)) == (10 * 24 / 10, 10 * 10 / 10, 10 * 4 / 10)


def test_replicas_reduce_their_gradients() -> None:
    cost = LayerCost(plan("pipeoptim", grid=Grid(data=2, inter=2), batch=4), DEVICE, efficiency())
    assert [chunk.reduce for chunk in cost.update(1)] == [30 * 4]


def test_stream_of_four_stages_avoids_the_bubble_of_a_flush() -> None:
    """Four equal stages: 7 passes for four microbatches, or 4. Free updates: the gain is 75 percent to the last bit
    that floating point keeps; the step makes it less, as a stream makes one for each mini-batch."""
    free = {name: plan(name, Alike(), inter=4, moments=0, split="even") for name in POLICIES}
    fast = machine(peak={"float32": 100.0}, memory_bandwidth=1e30, devices_per_node=4, within=DEVICE.within)
    quick = wireless(fast)
    rates = {name: each.batch / each.seconds(run(each, quick, efficiency())) for name, each in free.items()}
    for name in ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim"):
        assert rates[name] / rates["gpipe"] == pytest.approx(7 / 4, rel=1e-9), name
    slow = wireless(machine(peak={"float32": 100.0}, memory_bandwidth=2000.0, devices_per_node=4))
    paid = {name: each.batch / each.seconds(run(each, slow, efficiency())) for name, each in free.items()}
    assert 1 < paid["pipeoptim"] / paid["gpipe"] < 7 / 4
    assert paid["pipeoptim"] < paid["pipedream_2bw"], "a prediction for every mini-batch, an update for every fourth"


def wireless(device: Any) -> Any:
    """The device, with messages that take no time."""
    return replace(device, within=Link(0.0, 1e30))


def test_memory_has_versions_and_what_is_computed_again() -> None:
    """The first stage keeps its input of no layer, so nothing; the last one what it was sent. Two versions of ten
    entries with PipeDream and PipeOptim, one with a flush."""
    assert plan("gpipe").versions() == 30 * 4
    assert plan("pipedream").versions() == max(2 * 10 * 4, 30 * 4)
    assert plan("pipedream_2bw").versions() == 2 * 30 * 4
    deep = {name: plan(name, Alike(), inter=4, split="even") for name in POLICIES}
    assert {name: own.versions() / (4 * 50) for name, own in deep.items()} == {
        **{"gpipe": 1, "pipedream": 4, "pipedream_2bw": 2, "spectrain": 2, "pipeoptim": 2}
    }
    budget = plan("pipeoptim").budget(1)
    assert (budget.activations, budget.in_flight, budget.waiting, budget.drains) == (2 * 8, 1, 2 * 8, False)
    assert budget.working == 2 * 4 + 2 * 4  # what is kept of a microbatch while it is computed again, and a transient


def test_what_cannot_be_is_refused() -> None:
    with refused(Unsupported, "grid.tensor", "2"):
        plan("gpipe", grid=Grid(inter=2, tensor=2))
    with refused(
        InvalidRequest,
        subject="a batch of 7 on 1 replicas with microbatches of 2",
        rule="replicas * microbatch divides the batch",
        legal="a batch of 6",
    ):
        plan("gpipe", batch=7)
    with refused(
        InvalidRequest, subject="update_interval=1", rule="an update sums at least as many microbatches as there"
    ):
        _ = plan("pipedream_2bw", update_interval=1).overheads


# -- the executor ----------------------------------------------------------------------------------------------------

ASKED = ("executor=simulated", "machine=machine_b", "model=vgg_19", "optimizer=sgd", "grid.inter=4", "split=pipedream")


@cache
def resolved(*overrides: str) -> RunConfig:
    return resolve([*ASKED, *overrides])


def simulated(*overrides: str, **changes: Any) -> tuple[Simulated, RunConfig]:
    """changes: 'batch__size'=32 sets batch.size."""
    config = altered(resolved(*overrides), **changes)
    executor = without_ranks(config.executor)
    assert isinstance(executor, Simulated)
    executor.check(config)
    return executor, config


def rates(*overrides: str, **changes: Any) -> tuple[float, ExecutorResult]:
    executor, config = simulated(*overrides, **changes)
    carried = executor.run(config)
    return carried.metrics["samples_per_second"].values[0], carried


def test_a_system_that_streams_runs_beside_one_that_drains() -> None:
    """Two rates, full and drained; the record holds the content of its stages."""
    flush, _ = rates("system=gpipe", "weights.graph=recompute", batch__size=128, batch__microbatch=32)
    full, carried = rates("system=pipeoptim", batch__size=32, batch__microbatch=32)
    assert 1.2 * flush < full < 1.75 * flush
    drained = carried.metrics["samples_per_second_drained"].values[0]
    assert full > drained > 0.8 * full
    assert carried.metrics["batch_time"].values[0] == pytest.approx(32 / full)
    assert carried.metrics["images_per_batch"].values == (32.0,)
    assert carried.metrics["peak_flops"].values == (4 * 9.3e12,)
    assert any(note.startswith("4 stages of layers 0-") for note in carried.notes)


def test_flushed_gpts_are_modelled_by_blocks_by_default() -> None:
    gpt = {"_target_": "suite.workload.Transformer", "layers": 4, "hidden": 64, "heads": 4, "sequence": 8}
    gpt |= {"vocabulary": 32, "tied": False}
    flush = {"model__shape": gpt, "batch__size": 8, "batch__microbatch": 1, "precision__half": "float16"}
    executor, config = simulated("system=gpipe", "weights.graph=recompute", **flush)
    assert not by_layers(config, executor.account)
    assert simulated("system=gpipe", "weights.graph=recompute", **flush, executor__account="layers")
    stream = {"model__shape": gpt, "batch__size": 1, "batch__microbatch": 1}
    executor, config = simulated("system=pipeoptim", **stream)
    assert by_layers(config, executor.account)
    with refused(Unsupported, subject="a stream of a GPT's blocks", rule="layers stream"):
        simulated("system=pipeoptim", **stream, executor__account="blocks")
    with refused(Unsupported, "executor.plan", "search"):
        simulated("system=pipeoptim", **stream, executor__plan="search")


def test_every_policy_of_the_papers_is_modelled() -> None:
    assert set(POLICIES) <= set(systems())
