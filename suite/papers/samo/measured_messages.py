"""Answers to SAMO's claims on messages, counted on the transports of ranks in one batch.

Ranks are threads of one process with one linear layer each. The schedule and the engine are the same as in
ordinary runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from suite.claims.answer import Cases, Question
from suite.comm.p2p import threads
from suite.comm.p2p.message import receiver
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.papers.samo.measured import engine

PASSES = (Kind.FORWARD, Kind.BACKWARD)
WIDTH = 3


@dataclass
class Counts:
    """Messages of passes and forward passes of one rank in one batch."""

    stage: int = 0
    sent: int = 0
    received: int = 0
    forwards: int = 0

    @property
    def messages(self) -> int:
        return self.sent + self.received


def batch(grid: Grid, samples: int, microbatch: int) -> list[Counts]:
    """Counts of each rank in one batch of `samples` samples."""

    def rank(world: Any) -> Counts:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(grid.inter)]
        rank_engine = engine(layers, world=world, grid=grid, microbatch=microbatch, half=None)
        counts = Counts(rank_engine.place.stage)
        transport: Any = rank_engine.state.comm.transport
        stage: Any = rank_engine.state.stage
        send, recv_any, forward = transport.send, transport.recv_any, stage.forward

        def sending(op: Op, value: Any) -> None:
            taker = receiver(op, transport.homes)
            counts.sent += op.kind in PASSES and taker is not None
            send(op, value)

        def receiving(ops: Sequence[Op], timeout: float | None) -> Any:
            arrival = recv_any(ops, timeout)
            counts.received += arrival is not None and arrival[0].kind in PASSES
            return arrival

        def passing(*args: Any, **more: Any) -> Any:
            counts.forwards += 1
            return forward(*args, **more)

        transport.send, transport.recv_any, stage.forward = sending, receiving, passing
        rank_engine.train_batch((torch.ones(samples, WIDTH), torch.ones(samples, WIDTH)))
        return counts

    rank_counts: list[Counts] = threads.run(grid.size, rank)
    return rank_counts


def per_microbatch(question: Question, source: Any, *, stages: int, microbatches: int) -> tuple[Cases, str]:
    """Messages per microbatch of every stage, because the paper claims a number for each GPU."""
    counts = batch(Grid(inter=stages), microbatches, 1)
    values = [rank.messages / microbatches for rank in counts]
    counts_text = ", ".join(f"{value:g}" for value in values)
    return [[value] for value in values], f"sent and received by {stages} ranks, the first stage first: {counts_text}"


def send_time(question: Question, source: Any) -> tuple[Cases, str]:
    """Messages of an inner stage, each taking the same time."""
    values = []
    for point in question.points:
        gpus, stages = int(point["G"]), int(point["G_inter"])
        counts = batch(Grid(data=gpus // stages, inter=stages), int(point["B"]), int(point["mbs"]))
        (value,) = {rank.messages for rank in counts if 0 < rank.stage < stages - 1}
        values.append(value)
    return [values], "messages that each inner rank sends and receives in a batch"


def microbatches(question: Question, source: Any) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        grid = Grid(data=int(point["G_data"]), inter=2)
        (value,) = {rank.forwards for rank in batch(grid, int(point["B"]), int(point["mbs"]))}
        values.append(value)
    return [values], "forward passes of each rank in a batch, on two stages"
