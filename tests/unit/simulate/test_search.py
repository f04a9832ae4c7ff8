"""Plan search against exhaustive trial."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate import search
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.network.machine import Link
from suite.simulate.search import (
    MICROBATCHES,
    NEAR,
    SIMULATED,
    best,
    check_memory,
    divisors,
    estimate,
    no_plan,
    plans,
    run,
)
from suite.workload import Transformer
from tests.support.modelled import TINY, conf, efficiency, machine, shape, simulated, system
from tests.support.refusals import refused

SUMMIT = conf("machine", "summit")
SAMO = conf("efficiency", "summit")
WIDE = Transformer(layers=6, hidden=8, heads=4, sequence=4, vocabulary=16)

# -- all plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [False, True])
def test_every_plan_that_divides_is_tried_once(tensor: bool) -> None:
    """12 devices, 6 blocks, 4 heads, 24 sequences: every grid and microbatch is asked whether it can be."""
    modelled = system(tensor=tensor)
    tried = list(plans(WIDE, modelled, 12, 24))
    expected = set()
    for inter, split, microbatch in product(range(1, 13), range(1, 13), MICROBATCHES):
        data = 12 // (inter * split)
        whole = data * inter * split == 12 and WIDE.layers % inter == 0 and (tensor or split == 1)
        if whole and WIDE.heads % split == 0 and 24 % (data * microbatch) == 0:
            expected.add((Grid(data, inter, split), microbatch))
    assert {(plan.grid, plan.microbatch) for plan in tried} == expected
    assert len(tried) == len(expected) == (32 if tensor else 10)
    assert {(plan.shape, plan.batch, plan.grid.size) for plan in tried} == {(WIDE, 24, 12)}


def test_a_layer_is_split_over_as_many_ranks_as_allowed() -> None:
    candidates = plans(WIDE, system(tensor=True), 12, 24, splits=2, microbatches=(3,))
    assert {(plan.grid.tensor, plan.microbatch) for plan in candidates} == {(1, 3), (2, 3)}
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


# -- the best ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["axonn", "axonn_no_memopt", "axonn_samo", "deepspeed_3d", "megatron_lm"])
def test_the_best_plan_is_the_one_that_trying_all_finds(name: str) -> None:
    """XL on 16 devices of Summit."""
    candidates = list(plans(shape("gpt3_xl"), simulated(name), 16, 128, microbatches=(1, 2, 4)))
    fit = [plan for plan in candidates if plan.peak <= SUMMIT.memory]
    seconds = {id(plan): run(plan, SUMMIT, SAMO).makespan for plan in fit}
    fastest = best(iter(candidates), SUMMIT, SAMO)
    assert fastest.seconds == min(seconds.values())
    assert fastest.seconds == seconds[id(fastest.plan)]
    assert (fastest.fit, fastest.tried) == (len(fit), len(candidates))
    assert fastest.fit > 4


@pytest.mark.parametrize(
    ("model", "devices", "batch"),
    [("gpt3_xl", 64, 512), ("gpt3_2_7b", 64, 512), ("gpt3_6_7b", 128, 1024), ("gpt3_13b", 320, 2560)],
)
def test_compressed_states_are_spread_over_fewer_stages(model: str, devices: int, batch: int) -> None:
    """SAMO IV-B, its four GPTs on Summit. 40 blocks of 13B divide into few counts of stages of the published 256."""
    dense, pruned = (
        best(plans(shape(model), simulated(name), devices, batch), SUMMIT, SAMO)
        for name in ("axonn_no_memopt", "axonn_samo")
    )
    assert pruned.plan.grid.inter < dense.plan.grid.inter
    assert pruned.seconds < dense.seconds
    assert pruned.fit > dense.fit


def test_among_near_equals_the_simulation_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were all plans equal on paper, the quickest of the first few would be found by simulating them."""
    monkeypatch.setattr(search, "estimate", lambda *_: 1.0)
    candidates = list(plans(TINY, system(), 4, 8))
    seconds = [run(plan, machine(), efficiency()).makespan for plan in candidates[:SIMULATED]]
    assert len(set(seconds)) > 1
    assert best(candidates, machine(), efficiency()).seconds == min(seconds)
    assert best(candidates, machine(), efficiency(), simulated=1).seconds == seconds[0]


def test_memory_decides_which_plans_there_are() -> None:
    """The quickest of all needs more than there is: with less memory a slower plan is found, with more stages."""
    candidates = list(plans(TINY, system(), 4, 8))
    quick = {"between": Link(0.0, 1e6), "within": Link(0.0, 1e6), "memory_bandwidth": 1e9}
    free = best(candidates, machine(memory=78_656, **quick), efficiency())
    assert (free.fit, free.tried) == (9, 9)
    assert free.plan.grid == Grid(data=4)
    tight = best(candidates, machine(memory=45_000, **quick), efficiency())
    assert (tight.fit, tight.tried) == (6, 9)
    assert (tight.plan.grid, tight.plan.microbatch) == (Grid(data=2, inter=2), 1)
    assert tight.seconds > free.seconds


def test_where_none_fits_the_least_that_one_needs_is_told() -> None:
    candidates = list(plans(TINY, system(), 4, 8))
    least = min(plan.peak for plan in candidates)
    assert least == 22_208
    with refused(
        DoesNotFit,
        subject="no plan of 9 fits: the smallest needs 22.2 kB of 1 kB",
        rule="the fullest stage fits its device",
        legal="more devices, or offloaded or compressed states",
    ):
        best(candidates, machine(memory=1000), efficiency())
    assert best(candidates, machine(memory=least), efficiency()).plan.peak == least


def test_where_nothing_divides_there_is_nothing_to_fit() -> None:
    assert not list(plans(TINY, system(), 3, 8))
    with refused(InvalidRequest, subject="no plan to choose from", rule="stages divide") as caught:
        best(plans(TINY, system(), 3, 8), machine(), efficiency())
    assert not isinstance(caught.value, DoesNotFit)
    refusal = str(no_plan(3, 8))
    assert refusal.endswith(
        "3 devices and a batch of 8; rule: stages divide blocks and devices, replicas and microbatch "
        "the batch; legal: a batch of 9"
    )
    assert list(plans(TINY, system(), 3, 9))


def test_plan_that_does_not_fit_names_both_numbers() -> None:
    plan = SimulationPlan(TINY, system(), Grid(inter=2), 8, 2)
    assert plan.peak == 43456
    check_memory(plan, machine(memory=43456))
    with refused(
        DoesNotFit,
        subject="43.5 kB on a device of small with 43 kB",
        rule="the fullest stage fits its device",
        legal="more than 2 stages, or a microbatch below 2",
    ):
        check_memory(plan, machine(memory=43_000))
    for other, legal in (
        (Grid(inter=2), "more than 2 stages"),
        (Grid(inter=4), "offloaded or compressed states"),
    ):
        with refused(DoesNotFit, legal=legal):
            check_memory(plan.on(other, 1), machine(memory=1000))


# -- the closed form that sorts them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name", "grid", "microbatch"),
    [  # AxoNN Table II, on its batch of weak scaling
        ("transformer_12b", "axonn", Grid(8, 6), 8),
        ("transformer_24b", "axonn", Grid(8, 12), 4),
        ("transformer_12b", "axonn_no_memopt", Grid(2, 24), 4),
        ("transformer_12b", "deepspeed_3d", Grid(8, 2, 3), 2),
        ("transformer_12b", "megatron_lm", Grid(1, 16, 3), 8),
        ("transformer_24b", "megatron_lm", Grid(2, 16, 3), 8),
        ("transformer_24b", "one_f_one_b", Grid(2, 48), 4),
    ],
)
def test_the_estimate_is_near_what_is_simulated(model: str, name: str, grid: Grid, microbatch: int) -> None:
    plan = SimulationPlan(shape(model), simulated(name), grid, 8192, microbatch)
    for software in (SAMO, conf("efficiency", "usual")):
        assert 1 / NEAR < estimate(plan, SUMMIT, software) / run(plan, SUMMIT, software).makespan < NEAR


@pytest.mark.parametrize("schedule", [OneFOneB(), MessageDriven()])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 16])
@pytest.mark.parametrize("inter", [1, 2, 4])
def test_without_messages_the_estimate_of_equal_stages_is_the_pipelines(
    schedule: Schedule, microbatches: int, inter: int
) -> None:
    """(m + S - 1) passes, but for the head, a hundredth of a block; and a step."""
    headless = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=1)
    plan = SimulationPlan(
        headless, system(schedule=schedule, activation_checkpointing="none"), Grid(inter=inter), microbatches, 1
    )
    free = machine(within=Link(0.0, 1e30), between=Link(0.0, 1e30))
    step = PlanCost(plan, free, efficiency()).step(min(1, inter - 1))
    passes = (microbatches + inter - 1) * 3 * 6.656 * 4 / inter
    assert estimate(plan, free, efficiency()) - step == pytest.approx(passes, rel=0.01)
    assert max(run(plan, free, efficiency()).drained) == pytest.approx(passes, rel=0.02)


@pytest.mark.parametrize("microbatches", [1, 3, 4, 9, 32])
def test_limit_of_microbatches_in_flight_counts_when_reached(microbatches: int) -> None:
    """Messages of 1 s both ways over three links, passes of 0.3 s: with four in flight the first stage waits."""
    plan = SimulationPlan(
        TINY, system(activation_checkpointing="none", device_initiated=True), Grid(inter=4), microbatches, 1
    )
    far = machine(peak={"float16": 66560.0}, within=Link(1.0, 1e30), between=Link(1.0, 1e30), memory_bandwidth=1e9)
    assert estimate(plan, far, efficiency()) == pytest.approx(run(plan, far, efficiency()).makespan, rel=0.06)


@pytest.mark.parametrize("data", [1, 2, 4])
def test_the_estimate_of_replicas_alone_is_exact(data: int) -> None:
    """Passes, one reduction and one step, one after the other."""
    plan = SimulationPlan(TINY, system(), Grid(data=data), 8, 1)
    assert estimate(plan, machine(), efficiency()) == pytest.approx(
        run(plan, machine(), efficiency()).makespan, rel=1e-9
    )


def test_the_estimate_of_an_update() -> None:
    """Two rings of a node share its adapter; in buckets the longer of reduction and step counts, else both."""
    passes = estimate(
        SimulationPlan(TINY, system(allreduces_per_update=0), Grid(data=2, inter=2), 8, 1), machine(), efficiency()
    )
    sent, step = 2 * 1888, 38 * 1888 / 500  # of the second stage
    for changes, update in (
        ({}, sent / 5 + step),
        ({"bucket_numel": 100, "buckets_per_reduction": 4}, sent / 5),
        ({"bucket_numel": 100, "buckets_per_reduction": 4, "allreduces_per_update": 0}, step),
    ):
        plan = SimulationPlan(TINY, system(**changes), Grid(data=2, inter=2), 8, 1)
        assert estimate(plan, machine(), efficiency()) - (passes - step) == pytest.approx(update, abs=1)


def test_a_send_that_blocks_counts_once_per_direction() -> None:
    """Four equal stages and a slow network: a stage inside sends two messages a microbatch, an end one."""
    blocks = system(activation_checkpointing="none", blocking_sends=True, device_initiated=True, schedule=OneFOneB())
    plan = SimulationPlan(TINY, blocks, Grid(inter=4), 64, 1)
    slow = machine(peak={"float16": 1e6}, devices_per_node=1, memory_bandwidth=1e9)  # 6.4 s a message, 20 ms a pass
    cost = PlanCost(plan, slow, efficiency())
    assert cost.message(Op.parse("0F0")) == 64
    seconds = run(plan, slow, efficiency()).makespan
    assert seconds == pytest.approx(64 * 2 * 6.4, rel=0.06)
    assert estimate(plan, slow, efficiency()) == pytest.approx(seconds, rel=0.04)


@pytest.mark.parametrize("field", ["blocking_sends", "sync_before_update", "device_initiated"])
def test_a_run_obeys_its_system(field: str) -> None:
    """Blocking sends and phases apart cost time, and so does a host that comes round to messages late."""
    plan = SimulationPlan(TINY, system(), Grid(data=2, inter=4), 16, 1)
    late = efficiency(delay=1.0)
    usual = run(plan, machine(), late).makespan
    other = run(replace(plan, system=system(**{field: True})), machine(), late).makespan
    assert other < usual if field == "device_initiated" else other > usual
