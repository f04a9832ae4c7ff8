"""How fast the pieces are that run once per op; `make benchmark`. Plain `pytest` skips them."""

from __future__ import annotations

import pytest
import torch

from baselines.gpipe import GPipe
from suite.comm import loopback
from suite.comm.message import decode, encode
from suite.core.grid import Grid
from suite.core.op import Kind, Op, Work
from suite.core.protocols import Schedule
from suite.engine.optimizer import AdamW
from suite.engine.train import Engine
from suite.models import gpt
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.workload import Transformer


@pytest.mark.parametrize("schedule", [MessageDriven(), OneFOneB(), GPipe()], ids=lambda s: type(s).__name__)
def test_checking_a_schedule(benchmark, schedule: Schedule) -> None:  # type: ignore[no-untyped-def]
    timeline = benchmark(check, schedule, 8, Work(0, 64, None, 0))
    benchmark.extra_info["ops"] = len(timeline.slots)


def test_a_header(benchmark) -> None:  # type: ignore[no-untyped-def]
    op, value = Op(1, Kind.FORWARD, 7), (torch.empty(1, 32, 64),)
    assert benchmark(lambda: decode(encode(op, value, inline=True)))[0] == op


def test_a_batch_of_one_process(benchmark) -> None:  # type: ignore[no-untyped-def]
    shape = Transformer(4, 64, 4, 64, 256)
    engine = Engine(
        gpt.layers(shape),
        loss=gpt.loss,
        optimizer=AdamW(lr=1e-3),
        microbatch=2,
        grid=Grid(),
        tied=gpt.ties(shape),
        world=loopback.LoopbackWorld(loopback.Hub(1), 0),
    )
    tokens = torch.randint(0, 256, (16, 65))
    loss = benchmark(engine.train_batch, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
    assert loss > 0
    benchmark.extra_info["threads"] = torch.get_num_threads()
