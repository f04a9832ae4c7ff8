"""Plan search against exhaustive trial, and its lower bound against simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.grid import Grid
from suite.schedule import OneFOneB
from suite.simulate.block_model import SimulationPlan
from suite.simulate.network.machine import Link
from suite.simulate.search import MICROBATCHES, best, check_memory, least_seconds, no_plan, plans, run
from suite.workload import Transformer
from tests.support.drawn import drawn
from tests.support.modelled import TINY, conf, efficiency, machine, shape, simulated, system
from tests.support.refusals import refused

SUMMIT, SAMO = conf("machine", "summit"), conf("efficiency", "summit")
WIDE = Transformer(layers=6, hidden=8, heads=4, sequence=4, vocabulary=16)
CANDIDATES = list(plans(TINY, system(), 4, 8))


@pytest.mark.parametrize("tensor", [False, True])
def test_every_plan_that_divides_is_tried_once(tensor: bool) -> None:
    """12 devices, 6 blocks, 4 heads, 24 sequences: every grid and microbatch is asked whether it can be."""
    tried = list(plans(WIDE, system(tensor=tensor), 12, 24))
    expected = set()
    for inter, split, microbatch in product(range(1, 13), range(1, 13), MICROBATCHES):
        data = 12 // (inter * split)
        whole = data * inter * split == 12 and WIDE.layers % inter == 0 and (tensor or split == 1)
        if whole and WIDE.heads % split == 0 and 24 % (data * microbatch) == 0:
            expected.add((Grid(data=data, inter=inter, tensor=split), microbatch))
    assert {(plan.grid, plan.microbatch) for plan in tried} == expected
    assert len(tried) == len(expected) == (32 if tensor else 10)
    assert {(plan.shape, plan.batch, plan.grid.size) for plan in tried} == {(WIDE, 24, 12)}
    few = plans(WIDE, system(tensor=True), 12, 24, splits=2, microbatches=(3,))
    assert {(plan.grid.tensor, plan.microbatch) for plan in few} == {(1, 3), (2, 3)}


@pytest.mark.parametrize("name", drawn(["axonn", "axonn_no_memopt", "axonn_samo", "deepspeed_3d", "megatron_lm"], n=2))
def test_the_best_plan_is_the_one_that_trying_all_finds(name: str) -> None:
    """XL on 16 devices of Summit."""
    candidates = list(plans(shape("gpt3_xl"), simulated(name), 16, 128, microbatches=(1, 2, 4)))
    fit = [plan for plan in candidates if plan.peak <= SUMMIT.memory]
    fastest = best(iter(candidates), SUMMIT, SAMO)
    seconds = {plan: run(plan, SUMMIT, SAMO).makespan for plan in fit}
    assert all(least_seconds(plan, SUMMIT, SAMO) <= seconds[plan] * (1 + 1e-9) for plan in fit)
    assert fastest.steps[0].seconds == min(seconds.values()) == seconds[fastest.steps[0].plan]
    assert (fastest.fit, fastest.tried) == (len(fit), len(candidates))
    assert fastest.fit > 4


def test_memory_decides_which_plans_there_are() -> None:
    """With less memory fewer plans are left, down to the one that needs least."""
    least = min(CANDIDATES, key=lambda plan: plan.peak)
    for memory in (78_656, 45_000, least.peak):
        fit = [plan for plan in CANDIDATES if plan.peak <= memory]
        found = best(CANDIDATES, machine(memory=memory), efficiency())
        assert (found.fit, found.tried) == (len(fit), 9)
        assert found.steps[0].seconds == min(run(plan, machine(), efficiency()).makespan for plan in fit)
    assert found.steps[0].plan == least
    with refused(DoesNotFit, "devices", 4, rule="the fullest device fits its memory of 1 kB"):
        best(CANDIDATES, machine(memory=1000), efficiency())


def test_plans_that_do_not_fit_or_divide_are_refused() -> None:
    plan = SimulationPlan(TINY, system(), Grid(inter=2), 8, 2)
    check_memory(plan, machine(memory=43_456))
    with refused(DoesNotFit, subject="43.5 kB on a device of small with 43.5 kB") as caught:
        check_memory(plan, machine(memory=43_455))
    assert caught.value.legal == "more than 2 stages, or a microbatch below 2"
    for inter, legal in ((2, "more than 2 stages"), (4, "offloaded or compressed states")):
        with refused(DoesNotFit, legal=legal):
            check_memory(plan.on(Grid(inter=inter), 1), machine(memory=1000))
    assert not list(plans(TINY, system(), 3, 8))
    with refused(InvalidRequest, subject="no plan to choose from") as caught:
        best(plans(TINY, system(), 3, 8), machine(), efficiency())
    assert not isinstance(caught.value, DoesNotFit)
    assert no_plan(3, 8).legal == "a batch of 9"
    assert list(plans(TINY, system(), 3, 9))


# -- the lower bound -----------------------------------------------------------------------------------------------


FLAGS: dict[str, Any] = {"activation_checkpointing": "none", "device_initiated": True}
FAR = machine(peak={"float16": 66560.0}, within=Link(1.0, 1e30), between=Link(1.0, 1e30), memory_bandwidth=1e9)
SLOW = machine(peak={"float16": 1e9}, devices_per_node=1, memory_bandwidth=1e9)  # 6.4 s a message, passes of ms
BLOCKING = system(**FLAGS, blocking_sends=True, schedule=OneFOneB())


@pytest.mark.parametrize(
    ("plan", "on"),
    [
        # messages of 1 s both ways over three links, passes of 0.3 s: with four in flight the first stage waits
        *((SimulationPlan(TINY, system(**FLAGS), Grid(inter=4), count, 1), FAR) for count in (1, 3, 4, 9, 32)),
        # a blocking send counts once per direction: a stage inside sends two messages a microbatch, an end one
        (SimulationPlan(TINY, BLOCKING, Grid(inter=4), 64, 1), SLOW),
    ],
)
def test_the_bound_is_below_and_near_what_is_simulated(plan: SimulationPlan, on: Any) -> None:
    seconds = run(plan, on, efficiency()).makespan
    assert 0.9 * seconds < least_seconds(plan, on, efficiency()) <= seconds * (1 + 1e-9)
    if on is SLOW:
        assert seconds == pytest.approx(64 * 2 * 6.4, rel=0.06)


@pytest.mark.parametrize("field", ["blocking_sends", "sync_before_update", "device_initiated"])
def test_a_run_obeys_its_system(field: str) -> None:
    """Blocking sends and phases apart cost time, and so does a host that comes round to messages late."""
    plan, late = SimulationPlan(TINY, system(), Grid(data=2, inter=4), 16, 1), efficiency(delay=1.0)
    usual = run(plan, machine(), late).makespan
    other = run(replace(plan, system=system(**{field: True})), machine(), late).makespan
    assert other < usual if field == "device_initiated" else other > usual
