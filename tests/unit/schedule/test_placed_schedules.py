"""Schedules with several stages per rank or a split backward pass: orders, closed forms, memory and faults."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence

import pytest
from torch.distributed.pipelining import _schedule_visualizer

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import COMPLETES_MICROBATCH, FlushInterval, Kind, Op, Place, message_of, needs
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import Timeline, check, check_message_order
from suite.schedule.controllable_memory import ControllableMemory, bound
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.message_driven_split import MessageDrivenSplit, MessageDrivenV
from suite.schedule.placement import places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from tests.support.schedules import SCHEDULES, STATIC, Script, flush, serves

RANKS, MICROBATCHES = range(1, 9), range(1, 33)
Times = tuple[float, float, float]  # of F, I and W of one chunk
UNIT = (1.0, 1.0, 1.0)
SPEEDS = (0.0, 0.5, 1.0, 3.7)  # messages arrive in any order that ranks could see


def cost(times: Times) -> Callable[[Op], float]:
    forward, backward, weight = times
    seconds = {Kind.FORWARD: forward, Kind.INPUT: backward, Kind.WEIGHT: weight, Kind.BACKWARD: backward + weight}
    return lambda op: seconds.get(op.kind, 0.0)


def assert_legal(timeline: Timeline, schedule: Schedule, interval: FlushInterval) -> None:
    """Check the law on finished orders, independently of the checker."""
    stages = timeline.stages
    ends = {message_of(slot.op): slot.end for slot in timeline.slots}
    for slot in timeline.slots:
        need = needs(slot.op, stages)
        assert need is None or ends[need] <= slot.start, f"{slot.op} started before {need} ended"
    for place in timeline.places:
        order = timeline.order(place.rank)
        position = {op: number for number, op in enumerate(order)}
        assert len(position) == len(order)
        updates = [Op(place.stage, Kind.UPDATE, interval.update + number) for number in range(interval.updates)]
        passes = 0
        for stage in place.held_stages:
            for index in range(interval.first, interval.end):
                ops = {kind: position.get(Op(stage, kind, index)) for kind in "FBIW"}
                run = [number for number in ops.values() if number is not None]
                assert run == sorted(run)
                assert "".join(kind for kind, number in ops.items() if number is not None) in ("FB", "FIW")
                assert run[-1] < position[updates[interval.update_of(index) - interval.update]]
                passes += len(run)
        assert len(order) == passes + len(updates)
        activations = peak = 0
        for op in order:
            activations += (op.kind is Kind.FORWARD) - (op.kind in COMPLETES_MICROBATCH)
            peak = max(peak, activations)
        assert peak == timeline.peak[place.rank] <= schedule.in_flight(place, interval)


def edges(ranks: int) -> list[int]:
    """Numbers of microbatches around the multiples of the ranks, where schedules change their phases."""
    around = [multiple * ranks + more for multiple in (1, 2, 3) for more in (-1, 0, 1)]
    return sorted({count for count in (1, 2, *around) if 1 <= count <= max(MICROBATCHES)})


def assert_every_size_is_legal(name: str, sizes: Callable[[int], Iterable[int]]) -> None:
    schedule = SCHEDULES[name]
    for ranks in RANKS:
        for microbatches in sizes(ranks):
            if not serves(schedule, ranks, microbatches):
                continue
            draw = random.Random(100 * ranks + microbatches).choice
            for interval in (flush(microbatches), FlushInterval(5, microbatches, 2 * ranks, 3)):
                last = interval.group_size(interval.end - 1)
                if serves(schedule, ranks, last):
                    timeline = check(schedule, ranks, interval, cost=lambda _, draw=draw: draw(SPEEDS))
                    assert_legal(timeline, schedule, interval)
                    if name in STATIC:
                        check_message_order(timeline)


@pytest.mark.parametrize("name", SCHEDULES)
def test_sizes_at_phase_changes_are_legal_at_any_speed(name: str) -> None:
    assert_every_size_is_legal(name, edges)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_size_is_legal_at_any_speed(name: str) -> None:
    assert_every_size_is_legal(name, lambda _: MICROBATCHES)


# -- orders of torch -------------------------------------------------------------------------------------------------

PEERS: list[tuple[str, Callable[[int], Schedule], Sequence[int]]] = [
    ("Interleaved1F1B", Staircase, (2, 3, 4)),
    ("LoopedBFS", LoopedBFS, (2, 3)),
    ("InterleavedZeroBubble", lambda chunks: Staircase(chunks, split=True), (2, 3)),
    ("ZBVZeroBubble", lambda chunks: ZBV(), (2,)),
    ("DualPipeV", lambda chunks: DualPipeV(), (2,)),
]


def torch_order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]] | None:
    """Ops of each rank; None where torch refuses the setting. Overlapped pairs are two ops."""
    try:
        rows = _schedule_visualizer.get_schedule_ops(name, ranks, microbatches, chunks)
    except (ValueError, AssertionError, IndexError, RuntimeError, ZeroDivisionError):
        return None
    return [re.findall(r"\d+[FIBW]\d+", ",".join(str(action) for action in row if action is not None)) for row in rows]


def compare_with_torch(
    name: str, make: Callable[[int], Schedule], chunk_counts: Sequence[int], sizes: Callable[[int], Iterable[int]]
) -> int:
    """Compare all orders that torch accepts, op for op. Returns their number."""
    compared = 0
    for ranks in RANKS:
        for microbatches in sizes(ranks):
            for chunks in chunk_counts:
                expected = torch_order(name, ranks, microbatches, chunks)
                if expected is None or not serves(make(chunks), ranks, microbatches):
                    continue
                timeline = check(make(chunks), ranks, flush(microbatches))
                orders = [
                    [str(op) for op in timeline.order(rank) if op.kind is not Kind.UPDATE] for rank in range(ranks)
                ]
                assert orders == expected, (ranks, microbatches, chunks)
                compared += 1
    return compared


@pytest.mark.parametrize(("name", "make", "chunk_counts"), PEERS, ids=[name for name, _, _ in PEERS])
def test_orders_equal_torch_at_phase_changes(
    name: str, make: Callable[[int], Schedule], chunk_counts: Sequence[int]
) -> None:
    assert compare_with_torch(name, make, chunk_counts, edges) >= 30


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "make", "chunk_counts"), PEERS, ids=[name for name, _, _ in PEERS])
def test_orders_equal_torch(name: str, make: Callable[[int], Schedule], chunk_counts: Sequence[int]) -> None:
    assert compare_with_torch(name, make, chunk_counts, lambda _: range(1, 25)) >= 100


def test_staircase_of_one_chunk_is_one_f_one_b() -> None:
    for ranks in RANKS:
        ours, plain = check(Staircase(), ranks, flush(11)), check(OneFOneB(), ranks, flush(11))
        assert [ours.order(rank) for rank in range(ranks)] == [plain.order(rank) for rank in range(ranks)]


# -- closed forms ----------------------------------------------------------------------------------------------------

TIMES: list[Times] = [UNIT, (2.0, 2.0, 1.0), (1.0, 2.0, 1.0), (3.0, 2.0, 4.0), (0.5, 1.0, 0.75), (0.25, 2.0, 1.5)]


def around(ranks: int, times: Times) -> list[int]:
    """Every number of microbatches at unit cost; at other times those around the number of ranks and its multiples."""
    if times == UNIT:
        return list(MICROBATCHES)
    return sorted({m for edge in (1, ranks, 2 * ranks, 32) for m in (edge - 1, edge, edge + 1) if m in MICROBATCHES})


def excess(schedule: Schedule, ranks: int, microbatches: int, times: Times) -> float:
    """Makespan above the time that a rank computes."""
    timeline = check(schedule, ranks, flush(microbatches), cost=cost(times))
    chunks = timeline.stages // ranks
    return timeline.makespan - microbatches * chunks * sum(times)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_bubble_of_unsplit_schedules(chunks: int, times: Times) -> None:
    for ranks in RANKS:
        for microbatches in around(ranks, times):
            expected = (ranks - 1) * sum(times) + max(0, ranks - microbatches) * (chunks - 1) * sum(times)
            for schedule in (Staircase(chunks), LoopedBFS(chunks)):
                assert excess(schedule, ranks, microbatches, times) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_bubble_of_zb_h1_and_interleaved_zero_bubble(chunks: int, times: Times) -> None:
    """(p - 1) max(tf, tb, tf + tb - tw) for at least p microbatches.

    arXiv 2401.10241, Section 2.1, gives the last term, which is the largest where tw is at most tf and tb.
    """
    forward, backward, weight = times
    for ranks in RANKS:
        for microbatches in (m for m in around(ranks, times) if m >= ranks):
            expected = (ranks - 1) * max(forward, backward, forward + backward - weight)
            schedule = Staircase(chunks, split=True)
            assert excess(schedule, ranks, microbatches, times) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("times", TIMES)
def test_bubble_of_zb_h2(times: Times) -> None:
    """(p - 1) max(tf, tb - tf, tf + tb - 2 tw) for at least 2 p - 1 microbatches (arXiv 2401.10241, Section 2.2)."""
    forward, backward, weight = times
    for ranks in RANKS:
        for microbatches in (m for m in around(ranks, times) if m >= 2 * ranks - 1):
            expected = (ranks - 1) * max(forward, backward - forward, forward + backward - 2 * weight)
            assert excess(STATIC["zb_h2"], ranks, microbatches, times) == pytest.approx(expected, abs=1e-9)


def test_zbv_has_no_stage_bubble_at_equal_times() -> None:
    for ranks in range(2, 9):
        for microbatches in range(1, 33):
            timeline = check(ZBV(), ranks, flush(microbatches), cost=cost(UNIT))
            assert timeline.makespan - 6 * microbatches == max(ranks - 1, 2 * (2 * ranks - 1 - microbatches))
            if microbatches >= 2 * ranks - 1:
                assert timeline.stage_time() == 6 * microbatches


def test_v_half_and_v_min_reach_the_published_stage_time() -> None:
    """6 p - 1 - 3 k at unit cost (arXiv 2405.15362, Table 1); V-Min takes 2 more where p mod 3 is 2."""
    for ranks in range(3, 9):
        for memory in ("half", "min"):
            timeline = check(ControllableMemory(memory), ranks, flush(4 * ranks), cost=cost(UNIT))
            extra = 2 if memory == "min" and ranks % 3 == 2 else 0
            expected = 6 * ranks - 1 - 3 * bound(memory, ranks) + extra
            assert timeline.stage_time() - 24 * ranks == expected, (memory, ranks)
            assert max(timeline.peak) == bound(memory, ranks)


@pytest.mark.parametrize(
    ("schedule", "times", "expected"),
    [
        (MessageDrivenSplit(cap=8, late=0), UNIT, 9),
        (MessageDrivenSplit(cap=8, late=1), UNIT, 14),
        (MessageDrivenSplit(), UNIT, 7),
        (MessageDrivenSplit(), (2.0, 2.0, 1.0), 14),
    ],
)
def test_message_driven_order_needs_room_to_match_zb_h2(schedule: Schedule, times: Times, expected: float) -> None:
    assert excess(schedule, 8, 24, times) == expected


@pytest.mark.parametrize(("more", "excess_over_zbv"), [(0, 2), (1, 1), (2, 0)])
def test_message_driven_v_needs_room_to_match_zbv(more: int, excess_over_zbv: int) -> None:
    """At unit cost, two activations above the memory of ZBV suffice for its makespan."""
    worst = max(
        excess(MessageDrivenV(2 * ranks + more), ranks, count, UNIT) - excess(ZBV(), ranks, count, UNIT)
        for ranks in range(2, 9)
        for count in (2 * ranks, 3 * ranks, 4 * ranks, 4 * ranks + 1)
    )
    assert worst == excess_over_zbv


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: MessageDrivenSplit(cap=0), "schedule.cap"),
        (lambda: MessageDrivenSplit(late=-1), "schedule.late"),
        (lambda: MessageDrivenV(cap=1), "schedule.cap"),
        (lambda: MessageDrivenV(late=-1), "schedule.late"),
    ],
)
def test_limits_of_message_driven_orders(make: Callable[[], Schedule], key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.key == key


# -- faults ----------------------------------------------------------------------------------------------------------


V = {"chunks": 2, "fold": True, "split": True}
LAST = "1F0 2F0 2I0 1I0 2W0 1W0 1U0"


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ("0F0 3F0 3I0 3W0 0I0 0U0", "0U0 comes before the weight gradient of microbatch 0"),
        ("0F0 3F0 3I0 3W0 0I0", "the weight gradient of microbatch 0 never runs"),
        ("0F0 1F0", "1F0 belongs to stage 1, not 0 and 3"),
    ],
)
def test_broken_splits_are_named(order: str, fault: str) -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(fault)):
        check(Script((order, LAST), **V), 2, flush(1))


def test_drawing_marks_the_chunk_of_an_op() -> None:
    with pytest.raises(IllegalSchedule) as caught:
        check(Script(("0F0 3F0 3W0", LAST), **V), 2, flush(1))
    assert str(caught.value).splitlines()[1:] == [
        "rank 0 | F0    .     .     F0'   [W0']",
        "rank 1 | .     F0    F0'   .     .",
    ]


def test_channels_without_choice_need_one_order() -> None:
    swapped = {0: "0F0 0F1 0B0 0B1 0U0", 1: "1F1 1F0 1B0 1B1 1U0"}
    timeline = check(Script(swapped, split=True), 2, flush(2))
    with pytest.raises(IllegalSchedule, match="1F1 would receive the message of 0F0"):
        check_message_order(timeline)


# -- places ----------------------------------------------------------------------------------------------------------


def test_loop_and_fold_place_every_stage_once() -> None:
    assert [Place(rank, 3, chunks=2).held_stages for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [Place(rank, 3, chunks=2, fold=True).held_stages for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [Place(rank, 2, homes=(1, 0, 0)).held_stages for rank in range(2)] == [(1, 2), (0,)]
    for place in (Place(0, 3, chunks=4), Place(0, 3, chunks=3, fold=True), Place(0, 2, homes=(1, 0, 0))):
        peers = [Place(rank, place.ranks, 0, 1, place.chunks, place.fold, place.homes) for rank in range(place.ranks)]
        assert sorted(stage for peer in peers for stage in peer.held_stages) == list(range(place.stages))
        assert all(peer.rank_of(stage) == peer.rank for peer in peers for stage in peer.held_stages)
        assert [peer.rank for peer in peers if peer.last] == [place.rank_of(place.stages - 1)]


def test_schedules_of_one_stage_per_rank_are_placed_as_before() -> None:
    assert places(MessageDriven(), 3) == tuple(Place(rank, 3) for rank in range(3))


@pytest.mark.parametrize("make", [lambda: Staircase(0), lambda: Staircase(lead=3), lambda: LoopedBFS(0)])
def test_illegal_settings_are_refused(make: Callable[[], Schedule]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.legal
