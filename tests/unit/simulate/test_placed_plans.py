"""Plans of placed schedules by hand: content, costs, split and memory of ranks with several stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.core.trace import COMPRESS, MESSAGE, RECOMPUTE, TIE, WEIGHT
from suite.memory.held_states import HeldState, held_states
from suite.memory.layout import dense, resident
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
from tests.support.schedules import flush

ZB_H1 = Staircase(split=True)
DEVICE = machine(peak={"float32": 100.0, "float16": 400.0}, memory_bandwidth=10.0, devices_per_node=8)
PLAIN = LayerShape("plain", 10, 100, 12, 8, 4, 0)
LINEAR = replace(PLAIN, name="linear", deferred=40, owed=20)  # 40 of 100 flops are in products with weights
ALIKE = LayerShape("linear", 1, 1000, 4, 4, 4, 0, deferred=1000)  # F, I and W take equal times
BLOCK = LayerShape("block", 1, 10, 1, 1, 1, 1)


@dataclass(frozen=True)
class Layers:
    held: tuple[LayerShape, ...]

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        return self.held


FOUR = Layers((PLAIN, LINEAR, LINEAR, PLAIN))


def layers(schedule: Schedule, shape: Any = FOUR, **changes: Any) -> LayerPlan:
    usual: dict[str, Any] = {
        **{"shape": shape, "system": system(name="x", schedule=schedule), "grid": Grid(inter=2), "batch": 8},
        **{"microbatch": 2, "layout": resident, "moments": ("moment_1",), "split": "even"},
    }
    return LayerPlan(**{**usual, **changes})


def blocks(schedule: Schedule, *, inter: int = 2, name: str = "axonn", **changes: Any) -> SimulationPlan:
    modelled = replace(simulated(name), schedule=schedule, **changes)
    return SimulationPlan(TINY, modelled, Grid(inter=inter), 8, 1)


# -- costs -------------------------------------------------------------------------------------------------------------


def seconds(cost: LayerCost | PlanCost, kind: Kind) -> list[float]:
    return [cost.compute(Op(stage, kind, 0)) for stage in range(4)]


def test_layers_split_their_backward_pass_by_products_with_weights() -> None:
    """Two samples: 2 s of flops a layer and a launch; W has 0.8 s of them and one launch on a layer with products."""
    cost = LayerCost(layers(ZBV()), DEVICE, efficiency(launch=0.5, message=0.25))
    assert seconds(cost, Kind.WEIGHT) == [0.0, 1.3, 1.3, 0.0]
    assert seconds(cost, Kind.FORWARD) == [2.75] * 4  # a message each: stages 1 and 2 share a rank
    assert seconds(cost, Kind.BACKWARD) == [5.25] * 4
    assert seconds(cost, Kind.INPUT) == pytest.approx([5.25, 3.95, 3.95, 5.25])
    assert cost.message(Op(1, Kind.INPUT, 0)) == cost.message(Op(1, Kind.BACKWARD, 0)) == 16
    loop = LayerCost(layers(Staircase(2, split=True)), DEVICE, efficiency(message=0.25))
    assert seconds(loop, Kind.FORWARD) == [2.25, 2.5, 2.5, 2.25]
    again = LayerCost(layers(ZBV(), policy=Latest("recompute")), DEVICE, efficiency())
    assert again.compute(Op(1, Kind.INPUT, 0)) == pytest.approx(3 * 2.0 - 0.8)
    assert again.compute(Op(1, Kind.WEIGHT, 0)) == 0.8
    assert [again.parts(Op(1, kind, 0)).get(RECOMPUTE, 0.0) for kind in (Kind.INPUT, Kind.WEIGHT)] == [2.0, 0.0]


def test_update_of_a_rank_is_that_of_its_stages_together() -> None:
    plan = layers(ZBV(), grid=Grid(data=2, inter=2))
    cost = LayerCost(plan, DEVICE, efficiency())
    for rank in (0, 1):
        assert plan.entries(rank) == 20
        assert [(chunk.reduce, chunk.step) for chunk in cost.update(rank)] == [(20 * 4, 20 * 20 / 10)]


def test_blocks_split_their_backward_pass() -> None:
    """The rank of embedding and head in a V; recomputation, sums and messages belong to I, compression to W."""
    plan, software = blocks(ZBV()), efficiency(message=0.25)
    cost, loop = PlanCost(plan, machine(), software), PlanCost(blocks(Staircase(2)), machine(), software)
    whole = [a + b for a, b in zip(seconds(cost, Kind.INPUT), seconds(cost, Kind.WEIGHT), strict=True)]
    assert whole == pytest.approx(seconds(cost, Kind.BACKWARD))
    assert seconds(cost, Kind.WEIGHT) == pytest.approx(seconds(loop, Kind.WEIGHT))
    for stage in range(4):
        parts = {kind: cost.parts(Op(stage, kind, 0)) for kind in (Kind.INPUT, Kind.BACKWARD, Kind.WEIGHT)}
        assert parts[Kind.INPUT][RECOMPUTE] == parts[Kind.BACKWARD][RECOMPUTE] > 0
        assert not {RECOMPUTE, MESSAGE} & set(parts[Kind.WEIGHT])
    assert cost.compute(Op(1, Kind.WEIGHT, 0)) == pytest.approx(plan.blocks[1] * cost.kernels.block.weight)
    for one, messages in ((cost, [0.25] * 4), (loop, [0.25, 0.5, 0.5, 0.25])):
        assert [one.parts(Op(stage, Kind.FORWARD, 0))[MESSAGE] for stage in range(4)] == messages
    pruned = blocks(ZB_H1, name="axonn_samo")
    compressing = PlanCost(pruned, machine(), efficiency(compress=0.5))
    for kind, share in ((Kind.WEIGHT, 0.5), (Kind.BACKWARD, 0.5), (Kind.INPUT, 0.0)):
        assert compressing.parts(Op(1, kind, 0))[COMPRESS] == share * pruned.entries(1)


def test_rank_with_embedding_and_head_holds_one_copy_of_the_tied_matrix() -> None:
    """In a V both ends are on rank 0, which adds their gradients itself; in a loop two ranks exchange them."""
    matrix = TINY.head().tied
    for schedule, copies in ((ZBV(), 0), (Staircase(2), matrix)):
        plan = blocks(schedule, tied_embeddings=True)
        assert sum(plan.entries(*place.held_stages) for place in plan.places) == TINY.parameters + copies
        exchanged = PlanCost(plan, machine(), efficiency()).parts(Op(0, Kind.UPDATE, 0))[TIE]
        assert (exchanged > 0) is (copies > 0)


@pytest.mark.parametrize("schedule", [Staircase(2), ZB_H1, ZBV(), LoopedBFS(2), MessageDrivenV()])
def test_plans_run_and_add_up(schedule: Schedule) -> None:
    plan, software = blocks(schedule), efficiency(message=0.01)
    found, cost = run_blocks(plan, machine(), software, traced=True), PlanCost(plan, machine(), software)
    ops = [Op(stage, kind, 0) for stage in range(len(plan.blocks)) for kind in (Kind.FORWARD, Kind.BACKWARD)]
    passes = sum(span.seconds for span in found.trace if span.category in ("forward", "backward", WEIGHT))
    assert passes == pytest.approx(8 * sum(map(cost.compute, ops)))
    promised = [schedule.in_flight(place, plan.interval) for place in plan.places]
    assert all(peak <= most for peak, most in zip(found.peak, promised, strict=True))
    for one in (plan, layers(schedule)):
        assert one.peak == max(sum(one.budget(rank).by_kind().values()) for rank in range(2))
    assert run(layers(schedule), DEVICE, efficiency()).makespan > 0


def test_stages_must_divide_blocks() -> None:
    """Four blocks on four devices: two chunks per rank fit on one and two ranks."""
    modelled = replace(simulated("axonn"), schedule=ZBV())
    assert {plan.grid.inter for plan in plans(TINY, modelled, 4, 16)} == {1, 2}
    assert {plan.grid.inter for plan in plans(replace(TINY, layers=6), modelled, 4, 16)} == {1}
    assert best(plans(TINY, modelled, 4, 16), machine(memory=1e12), efficiency()).steps[0].seconds > 0
    with refused(InvalidRequest, subject="8 stages for 4 blocks", legal="grid.inter=2"):
        blocks(ZBV(), inter=4)


@pytest.mark.parametrize("schedule", [Staircase(split=True, lead=2), ZBV()])
def test_batch_of_a_stream_has_no_bubble(schedule: Schedule) -> None:
    shape, instant = Layers((ALIKE,) * 4), replace(DEVICE, memory_bandwidth=1e9)
    drained, stream = (layers(schedule, shape, batch=16, update_interval=every) for every in (None, 8))
    per_batch = [plan.seconds(run(plan, instant, efficiency())) for plan in (drained, stream)]
    cost, order = LayerCost(stream, instant, efficiency()), check(schedule, 2, drained.interval).order(0)
    work = sum(cost.compute(op) for op in order if op.kind is not Kind.UPDATE)
    assert per_batch == pytest.approx([work + cost.compute(order[0]), work], rel=1e-3)


# -- split -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "ranks", "slowest", "by_stage"), [(70, 2, 120, 130), (80, 3, 80, 120)])
def test_ranks_of_a_v_balance_embedding_and_head(head: int, ranks: int, slowest: int, by_stage: int) -> None:
    """Rank 0 holds the first and the last stage, with a head of 7 or 8 of the 16 blocks. Equal stages are slower."""
    shape: Any = Layers((replace(BLOCK, flops=0), *[BLOCK] * 16, replace(BLOCK, flops=head)))
    homes = homes_of(ZBV(), ranks)
    for split, expected in (
        (divide_ranks(shape, homes, "cost"), slowest),
        (divide(shape, 2 * ranks, "cost"), by_stage),
    ):
        loads = [0] * ranks
        for rank, stage in zip(homes, split, strict=True):
            loads[rank] += sum(shape.held[layer].flops for layer in stage)
        assert max(loads) == expected


def test_every_rule_gives_each_stage_a_layer() -> None:
    """A heavy head: its rank would be fastest without its other stage."""
    heavy: Any = Layers((*[BLOCK] * 6, replace(BLOCK, flops=500)))
    assert [len(stage) for stage in divide_ranks(heavy, homes_of(ZBV(), 2), "cost")] == [1, 3, 2, 1]
    shape = Transformer(layers=16, hidden=8, heads=2, sequence=4, vocabulary=16)
    for by in ("even", "cost", "pipedream"):
        for schedule, ranks in ((Staircase(2), 3), (ZBV(), 3), (Staircase(3), 2)):
            split = divide_ranks(shape, homes_of(schedule, ranks), by)
            assert [layer for stage in split for layer in stage] == list(range(18))
            assert all(split)
        assert divide_ranks(shape, (0, 1, 2), by) == divide(shape, 3, by)
    wide = Transformer(layers=8, hidden=8, heads=2, sequence=4, vocabulary=4096)
    for schedule in (Staircase(2), ZBV()):
        assert [len(stage) for stage in divide_ranks(wide, homes_of(schedule, 2), "even")] == [3, 2, 2, 3]


# -- memory ------------------------------------------------------------------------------------------------------------

SMALL = MicrobatchMemory(saved=100, transient=20, input=8, owed=30)
LARGE = replace(SMALL, saved=1000, transient=50, owed=500)


def budget_of(schedule: Schedule, ranks: int, rank: int, interval: FlushInterval, memories: Any) -> Any:
    nothing_more = {"extra_versions": 0, "reducing": 0, "overlaps_step": False, "scratch_stays": False}
    place = places(schedule, ranks)[rank]
    return stage_budget(dense(10, ("velocity",)), memories, schedule, place, interval, **nothing_more)


def test_states_of_static_orders_are_the_fronts_of_the_checker() -> None:
    for schedule in (ZB_H1, Staircase(2, split=True), ZBV(), ControllableMemory("min"), Staircase(3)):
        timeline = check(schedule, 4, flush(11))
        for place in places(schedule, 4):
            states = held_states(schedule, place, flush(11))
            pairs = {(sum(state.started), sum(state.owed)) for state in states}
            largest = {pair for pair in pairs if not any(a >= pair[0] and b >= pair[1] for a, b in pairs - {pair})}
            assert largest == timeline.fronts(place.rank)


def test_states_of_a_message_driven_order_are_its_promise() -> None:
    for place in places(MessageDrivenSplit(cap=5), 4):
        states = held_states(MessageDrivenSplit(cap=5), place, flush(20))
        assert states == {HeldState((5,), (0,)), HeldState((0,), (5,))}
    v = held_states(MessageDrivenV(), places(MessageDrivenV(), 3)[0], flush(20))
    assert HeldState((0, 6), (0, 0)) in v


def test_held_bytes_of_split_passes_by_hand() -> None:
    """ZB-H1 on 4 ranks: rank r has at most 4 - r passes in flight, then owes r weight gradients (arXiv 2401.10241)."""
    for rank in range(4):
        found = budget_of(ZB_H1, 4, rank, flush(12), SMALL)
        assert found.held == 100 * (4 - rank) + 30 * rank
        assert found.peak == 3 * 40 + found.held + 20 + found.waiting
    plain = budget_of(OneFOneB(), 4, 0, flush(12), SMALL)
    assert (plain.held, plain.peak) == (400, 3 * 40 + 4 * 100 + 20)
    deep = blocks(LoopedBFS(2))
    saved = [deep.microbatch_memory(stage).saved for stage in range(4)]
    assert saved[3] > saved[1]  # the head
    assert deep.budget(1).held == 8 * (saved[1] + saved[3])
    # 32 s b h bytes of a block in half precision (arXiv 2401.10241, Section 3)
    assert (TINY.block(2).owed, TINY.block(2).deferred) == (32 * 4 * 8, 24 * 4 * 8 * 8)


def test_stages_of_a_rank_count_with_their_own_bytes() -> None:
    """LoopedBFS holds all microbatches of both stages; a V holds 2 p in all, of which most can be on one stage."""
    found = budget_of(LoopedBFS(2), 2, 0, flush(6), [SMALL, LARGE])
    assert (found.held, found.working) == (6 * 100 + 6 * 1000, 50)
    for place in places(ZBV(), 2):
        states = held_states(ZBV(), place, flush(6))
        for memories in ([SMALL, LARGE], [LARGE, SMALL]):
            saved, owed = [each.saved for each in memories], [each.owed for each in memories]
            held = [sum(a * b for a, b in zip(saved + owed, s.started + s.owed, strict=True)) for s in states]
            assert budget_of(ZBV(), 2, place.rank, flush(6), memories).held == max(held)
            assert 200 < max(held) <= 4 * 1000
