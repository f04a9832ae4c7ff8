"""Plans of placed schedules by hand: content, costs, split and memory of ranks with several stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.core.trace import COMPRESS, MESSAGE, RECOMPUTE, WEIGHT
from suite.memory import dense, resident
from suite.memory.held_states import HeldState, held_states
from suite.memory.stage_budget import stage_budget
from suite.schedule import OneFOneB
from suite.schedule.check import check
from suite.schedule.controllable_memory import ControllableMemory
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.message_driven_split import MessageDrivenSplit, MessageDrivenV
from suite.schedule.placement import homes_of, places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.layer_model import LayerCost, LayerPlan, run
from suite.simulate.search import best, plans
from suite.simulate.search import run as run_blocks
from suite.weights import Latest
from suite.workload import LayerShape, Transformer
from suite.workload.split import divide, divide_ranks
from suite.workload.stage_memory import MicrobatchMemory
from tests.support.modelled import TINY, efficiency, machine, simulated, system
from tests.support.refusals import refused

ZB_H1 = Staircase(split=True)
DEVICE = machine(peak={"float32": 100.0, "float16": 400.0}, memory_bandwidth=10.0, devices_per_node=8)


@dataclass(frozen=True)
class Four:
    """Four layers of 100 flops, of which the second and the third have 40 in products with weights."""

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        plain = LayerShape("plain", 10, 100, 3 * width, 2 * width, width, 0)
        linear = replace(plain, name="linear", deferred=40, owed=5 * width)
        return plain, linear, linear, plain


def layers(schedule: Schedule, *, inter: int = 2, shape: Any = None, **changes: Any) -> LayerPlan:
    usual: dict[str, Any] = {
        "shape": shape or Four(),
        "system": system(name="x", schedule=schedule),
        "grid": Grid(inter=inter),
        "batch": 8,
        "microbatch": 2,
        "layout": resident,
        "moments": ("moment_1",),
        "split": "even",
    }
    return LayerPlan(**{**usual, **changes})


def blocks(schedule: Schedule, *, inter: int = 2, batch: int = 8, **changes: Any) -> SimulationPlan:
    modelled = replace(simulated("axonn"), schedule=schedule)
    return SimulationPlan(TINY, modelled, Grid(inter=inter), batch, 1, **changes)


# -- costs -----------------------------------------------------------------------------------------------------------


def test_layers_split_their_backward_pass_by_products_with_weights() -> None:
    """Two samples: 2 s of flops a layer and a launch; W has 0.8 s of them and one launch on a layer with products."""
    cost = LayerCost(layers(ZBV()), DEVICE, efficiency(launch=0.5, message=0.25))
    assert [cost.compute(Op(stage, Kind.WEIGHT, 0)) for stage in range(4)] == [0.0, 1.3, 1.3, 0.0]
    for stage, messages in enumerate((1, 1, 1, 1)):  # stages 1 and 2 share a rank
        assert cost.compute(Op(stage, Kind.FORWARD, 0)) == 2.5 + 0.25 * messages
        whole = cost.compute(Op(stage, Kind.BACKWARD, 0))
        assert whole == 5.0 + 0.25 * messages
        parts = [cost.compute(Op(stage, kind, 0)) for kind in (Kind.INPUT, Kind.WEIGHT)]
        assert sum(parts) == pytest.approx(whole)
    assert cost.message(Op(1, Kind.INPUT, 0)) == cost.message(Op(1, Kind.BACKWARD, 0)) == 16
    loop = LayerCost(layers(Staircase(2, split=True)), DEVICE, efficiency(message=0.25))
    assert [loop.forward[stage] for stage in range(4)] == [2.25, 2.5, 2.5, 2.25]


def test_recomputation_belongs_to_the_input_gradient() -> None:
    cost = LayerCost(layers(ZBV(), policy=Latest("recompute")), DEVICE, efficiency())
    assert cost.compute(Op(1, Kind.INPUT, 0)) == pytest.approx(3 * 2.0 - 0.8)
    assert cost.compute(Op(1, Kind.WEIGHT, 0)) == 0.8
    assert cost.parts(Op(1, Kind.INPUT, 0))[RECOMPUTE] == 2.0
    assert cost.parts(Op(1, Kind.WEIGHT, 0)).get(RECOMPUTE, 0.0) == 0.0


def test_update_of_a_rank_is_that_of_its_stages_together() -> None:
    plan = layers(ZBV(), grid=Grid(data=2, inter=2))
    cost = LayerCost(plan, DEVICE, efficiency())
    assert [plan.entries(rank) for rank in (0, 1)] == [20, 20]
    assert [chunk.reduce for rank in (0, 1) for chunk in cost.update(rank)] == [20 * 4, 20 * 4]
    assert [chunk.step for chunk in cost.update(0)] == [20 * 20 / 10]


def test_blocks_split_their_backward_pass() -> None:
    """The rank of embedding and head in a V; recomputation, sums and messages belong to I, compression to W."""
    plan = blocks(ZBV(), inter=2)
    software = efficiency(message=0.25, launch=0.125)
    cost = PlanCost(plan, machine(), software)
    whole = PlanCost(blocks(Staircase(2)), machine(), software)
    for stage in range(4):
        split = cost.compute(Op(stage, Kind.INPUT, 0)) + cost.compute(Op(stage, Kind.WEIGHT, 0))
        assert split == pytest.approx(cost.compute(Op(stage, Kind.BACKWARD, 0)))
        assert cost.compute(Op(stage, Kind.WEIGHT, 0)) == pytest.approx(whole.compute(Op(stage, Kind.WEIGHT, 0)))
        assert cost.parts(Op(stage, Kind.INPUT, 0))[RECOMPUTE] == cost.parts(Op(stage, Kind.BACKWARD, 0))[RECOMPUTE] > 0
        assert RECOMPUTE not in cost.parts(Op(stage, Kind.WEIGHT, 0))
        assert MESSAGE not in cost.parts(Op(stage, Kind.WEIGHT, 0))
    share = TINY.block().deferred / TINY.block().flops
    products = cost.kernels.block.forward - 0.125
    assert cost.compute(Op(1, Kind.WEIGHT, 0)) == pytest.approx(plan.stages[1].blocks * (share * products + 0.125))
    assert [cost.parts(Op(stage, Kind.FORWARD, 0))[MESSAGE] for stage in range(4)] == [0.25] * 4
    assert [whole.parts(Op(stage, Kind.FORWARD, 0))[MESSAGE] for stage in range(4)] == [0.25, 0.5, 0.5, 0.25]


def test_compression_belongs_to_the_weight_gradient() -> None:
    plan = SimulationPlan(TINY, replace(simulated("axonn_samo"), schedule=ZB_H1), Grid(inter=2), 8, 1)
    cost = PlanCost(plan, machine(), efficiency(compress=0.5))
    expected = 0.5 * plan.entries(1)
    assert cost.parts(Op(1, Kind.WEIGHT, 0))[COMPRESS] == cost.parts(Op(1, Kind.BACKWARD, 0))[COMPRESS] == expected
    assert cost.parts(Op(1, Kind.INPUT, 0))[COMPRESS] == 0.0
    assert cost.compute(Op(1, Kind.WEIGHT, 0)) > expected


def test_rank_with_embedding_and_head_holds_one_copy_of_the_tied_matrix() -> None:
    """In a V both ends are on rank 0, which adds their gradients itself; in a loop two ranks exchange them."""
    v, loop = blocks(ZBV()), blocks(Staircase(2))
    matrix = TINY.head().tied
    assert sum(v.entries(rank) for rank in (0, 1)) == TINY.parameters
    assert sum(loop.entries(rank) for rank in (0, 1)) == TINY.parameters + matrix
    assert (v.parts(0).embedding, v.parts(0).head) == (True, True)
    tied = replace(simulated("axonn"), tied_embeddings=True)
    for schedule, volume in ((ZBV(), 0.0), (Staircase(2), 2.0 * matrix)):
        plan = SimulationPlan(TINY, replace(tied, schedule=schedule), Grid(inter=2), 8, 1)
        assert PlanCost(plan, machine(), efficiency())._exchanged(0) == volume


@pytest.mark.parametrize("schedule", [Staircase(2), ZB_H1, ZBV(), LoopedBFS(2), MessageDrivenV()])
def test_plans_run_and_add_up(schedule: Schedule) -> None:
    plan = blocks(schedule)
    found = run_blocks(plan, machine(), efficiency(message=0.01), traced=True)
    cost = PlanCost(plan, machine(), efficiency(message=0.01))
    busy = sum(
        cost.compute(op) * 8
        for stage in range(len(plan.stages))
        for op in (Op(stage, Kind.FORWARD, 0), Op(stage, Kind.BACKWARD, 0))
    )
    passes = sum(span.seconds for span in found.trace if span.category in ("forward", "backward", WEIGHT))
    assert passes == pytest.approx(busy)
    assert all(
        peak <= schedule.in_flight(place, plan.interval) for peak, place in zip(found.peak, plan.places, strict=True)
    )
    assert run(layers(schedule), DEVICE, efficiency()).makespan > 0


def test_search_leaves_out_stages_that_do_not_divide_blocks() -> None:
    """Four blocks on four devices: two chunks per rank fit on one and two ranks."""
    modelled = replace(simulated("axonn"), schedule=ZBV())
    assert {plan.grid.inter for plan in plans(TINY, modelled, 4, 16)} == {1, 2}
    assert {plan.grid.inter for plan in plans(replace(TINY, layers=6), modelled, 4, 16)} == {1}
    found = best(plans(TINY, modelled, 4, 16), machine(memory=1e12), efficiency())
    assert found.seconds > 0


def test_too_many_stages_are_refused_with_a_legal_number_of_ranks() -> None:
    with refused(
        InvalidRequest, subject="8 stages for 4 blocks", rule="every stage holds at least one block"
    ) as caught:
        blocks(ZBV(), inter=4)
    assert caught.value.legal == "grid.inter=2"


@dataclass(frozen=True)
class Alike:
    """Four layers whose forward pass, input gradient and weight gradient take equal times."""

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        return (LayerShape("linear", 1, 1000, width, width, width, 0, deferred=1000),) * 4


@pytest.mark.parametrize("schedule", [Staircase(split=True, lead=2), ZBV()])
def test_batch_of_a_stream_has_no_bubble(schedule: Schedule) -> None:
    drained, stream = (layers(schedule, shape=Alike(), batch=16, update_interval=every) for every in (None, 8))
    instant = replace(DEVICE, memory_bandwidth=1e9)
    per_batch = [plan.seconds(run(plan, instant, efficiency())) for plan in (drained, stream)]
    cost = LayerCost(stream, instant, efficiency())
    work = sum(cost.compute(op) for op in check(schedule, 2, drained.interval).order(0) if op.kind is not Kind.UPDATE)
    forward = cost.compute(Op(0, Kind.FORWARD, 0))
    assert per_batch == pytest.approx([work + forward, work], rel=1e-3)


# -- split -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "ranks", "slowest", "by_stage"), [(70, 2, 120, 130), (80, 3, 80, 120)])
def test_ranks_of_a_v_balance_embedding_and_head(head: int, ranks: int, slowest: int, by_stage: int) -> None:
    """Rank 0 holds the first and the last stage, with a head of 7 or 8 of the 16 blocks. Equal stages are slower."""

    @dataclass(frozen=True)
    class Heavy:
        def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
            block = LayerShape("block", 1, 10, 1, 1, 1, 1)
            return (replace(block, flops=0), *[block] * 16, replace(block, flops=head))

    shape: Any = Heavy()

    def largest(split: Any) -> int:
        loads = [0] * ranks
        for rank, stage in zip(homes_of(ZBV(), ranks), split, strict=True):
            loads[rank] += sum(shape.shapes()[layer].flops for layer in stage)
        return max(loads)

    assert largest(divide_ranks(shape, homes_of(ZBV(), ranks), "cost")) == slowest
    assert largest(divide(shape, 2 * ranks, "cost")) == by_stage


def test_heavy_head_leaves_no_stage_without_layers() -> None:
    """The rank of the head would be fastest without its other stage."""

    @dataclass(frozen=True)
    class Heavy:
        def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
            block = LayerShape("block", 1, 10, 1, 1, 1, 1)
            return (*[block] * 6, replace(block, flops=500))

    shape: Any = Heavy()
    assert [len(stage) for stage in divide_ranks(shape, homes_of(ZBV(), 2), "cost")] == [1, 3, 2, 1]


def test_every_rule_gives_each_stage_a_layer() -> None:
    shape = Transformer(layers=16, hidden=8, heads=2, sequence=4, vocabulary=16)
    for by in ("even", "cost", "pipedream"):
        for schedule, ranks in ((Staircase(2), 3), (ZBV(), 3), (Staircase(3), 2)):
            split = divide_ranks(shape, homes_of(schedule, ranks), by)
            assert [layer for stage in split for layer in stage] == list(range(18))
            assert all(split)
        assert divide_ranks(shape, (0, 1, 2), by) == divide(shape, 3, by)


def test_even_blocks_stay_even_on_placed_stages() -> None:
    shape = Transformer(layers=8, hidden=8, heads=2, sequence=4, vocabulary=4096)
    for schedule in (Staircase(2), ZBV()):
        split = divide_ranks(shape, homes_of(schedule, 2), "even")
        assert [len(stage) for stage in split] == [3, 2, 2, 3]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_states_of_static_orders_are_the_fronts_of_the_checker() -> None:
    interval = FlushInterval(0, 11, None, 0)
    for schedule in (ZB_H1, Staircase(2, split=True), ZBV(), ControllableMemory("min"), Staircase(3)):
        timeline = check(schedule, 4, interval)
        for place in places(schedule, 4):
            states = held_states(schedule, place, interval)
            pairs = {(sum(state.started), sum(state.owed)) for state in states}
            largest = {pair for pair in pairs if not any(a >= pair[0] and b >= pair[1] for a, b in pairs - {pair})}
            assert largest == timeline.fronts(place.rank)


def test_states_of_a_message_driven_order_are_its_promise() -> None:
    interval = FlushInterval(0, 20, None, 0)
    for place in places(MessageDrivenSplit(cap=5), 4):
        assert held_states(MessageDrivenSplit(cap=5), place, interval) == {HeldState((5,), (0,)), HeldState((0,), (5,))}
    (place, *_) = places(MessageDrivenV(), 3)
    assert HeldState((0, 6), (0, 0)) in held_states(MessageDrivenV(), place, interval)


NOTHING_MORE: dict[str, Any] = {"extra_versions": 0, "reducing": 0, "overlaps_step": False, "scratch_stays": False}
LAYOUT = dense(10, ("velocity",))
SPLIT = MicrobatchMemory(saved=100, transient=20, input=8, owed=30)


def test_split_backward_pass_holds_less_than_all_passes_in_flight() -> None:
    """ZB-H1 on 4 ranks: rank r has at most 4 - r passes in flight, then owes r weight gradients (arXiv 2401.10241)."""
    interval = FlushInterval(0, 12, None, 0)
    for place in places(ZB_H1, 4):
        found = stage_budget(LAYOUT, SPLIT, ZB_H1, place, interval, **NOTHING_MORE)
        states = held_states(ZB_H1, place, interval)
        assert found.held == max(100 * state.started[0] + 30 * state.owed[0] for state in states)
        assert found.held == 100 * (4 - place.rank) + 30 * place.rank
        assert found.peak == 3 * 40 + found.held + 20 + found.waiting
    plain = stage_budget(LAYOUT, SPLIT, OneFOneB(), places(OneFOneB(), 4)[0], interval, **NOTHING_MORE)
    assert (plain.held, plain.peak) == (None, 3 * 40 + 4 * 100 + 20)


def test_stages_of_a_rank_count_with_their_own_bytes() -> None:
    """LoopedBFS holds all microbatches of both stages; a V holds 2 p in all, of which most can be on one stage."""
    interval = FlushInterval(0, 6, None, 0)
    small, large = SPLIT, replace(SPLIT, saved=1000, transient=50, owed=500)
    place = places(LoopedBFS(2), 2)[0]
    found = stage_budget(LAYOUT, [small, large], LoopedBFS(2), place, interval, **NOTHING_MORE)
    assert (found.held, found.working) == (6 * 100 + 6 * 1000, 50)
    for place in places(ZBV(), 2):
        states = held_states(ZBV(), place, interval)
        budgets = [
            stage_budget(LAYOUT, memories, ZBV(), place, interval, **NOTHING_MORE)
            for memories in ([small, large], [large, small])
        ]
        for budget, (first, second) in zip(budgets, ((small, large), (large, small)), strict=True):
            assert budget.held == max(
                first.saved * s.started[0]
                + second.saved * s.started[1]
                + first.owed * s.owed[0]
                + second.owed * s.owed[1]
                for s in states
            )
            assert 4 * 1000 >= (budget.held or 0) > 2 * 100


def test_budget_is_never_below_the_simulated_memory() -> None:
    """At every moment of a run with random costs, the held bytes are at most those of the budget."""
    for schedule in (ZB_H1, Staircase(split=True, lead=2), ZBV(), Staircase(2, split=True), MessageDrivenSplit()):
        interval = FlushInterval(0, 9, None, 0)
        timeline = check(schedule, 3, interval, cost=lambda op: (7 * op.index + 3 * op.stage) % 4 + 0.5)
        for place in timeline.places:
            memories = [SPLIT] * len(place.held_stages)
            budget = stage_budget(LAYOUT, memories, schedule, place, interval, **NOTHING_MORE)
            held = [100 * started + 30 * owed for started, owed in timeline.fronts(place.rank)]
            assert max(held) <= (budget.held or 0)


def test_message_between_stages_of_a_rank_does_not_wait() -> None:
    interval = FlushInterval(0, 12, None, 0)
    for place in places(ZBV(), 4):
        neighbours = [stage for stage in place.held_stages if stage and place.rank_of(stage - 1) != place.rank]
        loud = [replace(SPLIT, input=0 if stage in neighbours else 10**9) for stage in place.held_stages]
        assert stage_budget(LAYOUT, loud, ZBV(), place, interval, **NOTHING_MORE).waiting == 0


def test_plans_of_placed_schedules_budget_every_rank() -> None:
    for schedule in (ZBV(), Staircase(2), ZB_H1):
        for plan in (blocks(schedule), layers(schedule)):
            kinds = [plan.budget(rank).by_kind() for rank in range(2)]
            assert plan.peak == max(sum(each.values()) for each in kinds)
    deep = blocks(LoopedBFS(2))
    saved = [deep.microbatch_memory(stage).saved for stage in range(4)]
    assert saved[3] > saved[1]  # the head
    assert deep.budget(1).held == 8 * (saved[1] + saved[3])


def test_weight_gradients_of_a_block_hold_inputs_and_output_gradients() -> None:
    """32 s b h bytes in half precision (arXiv 2401.10241, Section 3)."""
    shape = Transformer(layers=1, hidden=8, heads=2, sequence=4, vocabulary=16)
    assert shape.block(2).owed == 32 * 4 * 8
    assert shape.block(2).deferred == 24 * 4 * 8 * 8
