"""Places of stages, orders of torch's schedules, schedules by name, and static orders on a transport."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import _schedule_visualizer

from baselines.gpipe import GPipe
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.core.protocols import Schedule
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.schedule import ZBV, DualPipeV, LoopedBFS, MessageDriven, MessageDrivenSplit, MessageDrivenV, OneFOneB
from suite.schedule.check import check
from suite.schedule.placement import place_of, places
from suite.schedule.staircase import Staircase
from tests.support.cases import gpt_case
from tests.support.drawn import drawn, generator
from tests.support.refusals import refused
from tests.support.schedules import flush, serves

PEERS: list[tuple[str, Callable[[int], Schedule]]] = [
    ("Interleaved1F1B", Staircase),
    ("LoopedBFS", LoopedBFS),
    ("InterleavedZeroBubble", lambda chunks: Staircase(chunks, split=True)),
    ("ZBVZeroBubble", lambda chunks: ZBV()),
    ("DualPipeV", lambda chunks: DualPipeV()),
]


def torch_order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]] | None:
    """Ops of each rank; None where torch refuses the setting. Overlapped pairs are two ops."""
    try:
        rows = _schedule_visualizer.get_schedule_ops(name, ranks, microbatches, chunks)
    except (ValueError, AssertionError, IndexError, RuntimeError, ZeroDivisionError):
        return None
    return [re.findall(r"\d+[FIBW]\d+", ",".join(str(action) for action in row if action is not None)) for row in rows]


@pytest.mark.parametrize(("name", "make"), PEERS, ids=[name for name, _ in PEERS])
def test_orders_equal_torch(name: str, make: Callable[[int], Schedule]) -> None:
    """Op for op, for drawn sizes among those that torch accepts."""
    every = [(ranks, count, chunks) for ranks in range(1, 9) for count in range(1, 25) for chunks in (2, 3, 4)]
    compared = 0
    for ranks, count, chunks in generator(name).sample(every, len(every)):
        if compared == 8:
            break
        expected = torch_order(name, ranks, count, chunks)
        if expected is not None and serves(make(chunks), ranks, count):
            timeline = check(make(chunks), ranks, flush(count))
            orders = [[str(op) for op in timeline.order(rank) if op.kind is not Kind.UPDATE] for rank in range(ranks)]
            assert orders == expected, (ranks, count, chunks)
            compared += 1
    assert compared == 8


def test_staircase_of_one_chunk_is_one_f_one_b() -> None:
    for ranks in range(1, 9):
        ours, plain = check(Staircase(), ranks, flush(11)), check(OneFOneB(), ranks, flush(11))
        assert [ours.order(rank) for rank in range(ranks)] == [plain.order(rank) for rank in range(ranks)]


def test_loop_and_fold_place_every_stage_once() -> None:
    assert [Place(rank, 3, chunks=2).held_stages for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [Place(rank, 3, chunks=2, fold=True).held_stages for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [Place(rank, 2, homes=(1, 0, 0)).held_stages for rank in range(2)] == [(1, 2), (0,)]
    for place in (Place(0, 3, chunks=4), Place(0, 3, chunks=3, fold=True), Place(0, 2, homes=(1, 0, 0))):
        peers = [Place(rank, place.ranks, 0, 1, place.chunks, place.fold, place.homes) for rank in range(place.ranks)]
        assert sorted(stage for peer in peers for stage in peer.held_stages) == list(range(place.stages))
        assert all(peer.rank_of(stage) == peer.rank for peer in peers for stage in peer.held_stages)
        assert [peer.rank for peer in peers if peer.last] == [place.rank_of(place.stages - 1)]
    assert places(MessageDriven(), 3) == tuple(Place(rank, 3) for rank in range(3))
    assert place_of(ZBV(), Grid(data=2, inter=3, tensor=2), 9) == Place(1, 3, 1, 2, chunks=2, fold=True)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: MessageDrivenSplit(cap=0), "schedule.cap"),
        (lambda: MessageDrivenSplit(late=-1), "schedule.late"),
        (lambda: MessageDrivenV(cap=1), "schedule.cap"),
        (lambda: MessageDrivenV(late=-1), "schedule.late"),
        (lambda: Staircase(0), "schedule.chunks"),
        (lambda: Staircase(lead=3), "schedule.lead"),
        (lambda: LoopedBFS(0), "schedule.chunks"),
    ],
)
def test_illegal_settings_are_refused(make: Callable[[], Schedule], key: str) -> None:
    with refused(InvalidRequest, key) as caught:
        make()
    assert caught.value.legal


# -- static order of a transport without wait-any ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", drawn([MessageDriven(pipeline_limit=5, prefer="forward"), OneFOneB(), GPipe()], n=1)
)
def test_ranks_run_the_order_that_the_checker_found(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three stages, two batches of different length: the trace of every rank is the checked order."""
    case = gpt_case("static", "float32", layers=4)
    monkeypatch.setattr(threads.LoopbackTransport, "any_order", False)

    def rank_main(world: Any) -> list[list[Op]]:
        torch.set_num_threads(1)
        engine = Engine(
            case.layers, loss=case.loss, optimizer=SGD(lr=0.1), microbatch=case.microbatch, grid=Grid(inter=3),
            schedule=schedule, tied=case.ties, world=world,
        )  # fmt: skip
        ran = []
        for number, microbatches in enumerate((6, 3)):
            engine.train_batch(case.batch(number, microbatches, 1))
            ran.append([span.op for span in engine.state.trace if span.category in ("forward", "backward")])
        engine.close()
        return ran

    ran = threads.run(3, rank_main)
    for batch, interval in enumerate((FlushInterval(0, 6, None, 0), FlushInterval(6, 3, None, 1))):
        order = check(schedule, 3, interval)
        for stage in range(3):
            assert ran[stage][batch] == [op for op in order.order(stage) if op.kind is not Kind.UPDATE]
