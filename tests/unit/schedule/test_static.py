"""Static order of a transport without wait-any, over several batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baselines.gpipe import GPipe
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.schedule.static import fixed
from tests.support.cases import gpt_case


def test_ops_are_counted_on_from_the_work() -> None:
    order = [Op(1, Kind.FORWARD, 0), Op(1, Kind.FORWARD, 1), Op(1, Kind.BACKWARD, 0), Op(1, Kind.UPDATE, 0)]
    program = fixed(order, FlushInterval(10, 2, None, 7))
    assert [str(op) for (op,) in program] == ["1F10", "1F11", "1B10", "1U7"]


@pytest.mark.parametrize("schedule", [MessageDriven(pipeline_limit=5, prefer="forward"), OneFOneB(), GPipe()], ids=str)
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
