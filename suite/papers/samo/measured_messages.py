"""Answers to SAMO's claims on messages, counted on the transports of ranks in one batch.

Ranks are threads of one process with one linear layer each. The schedule and the engine are the same as in
ordinary runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from suite.claims.answer import Cases, Question
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.papers.measured import PassMessages, before
from suite.papers.samo.measured import engine

WIDTH = 3


class Counts(NamedTuple):
    """Messages of passes and forward passes of one rank in one batch."""

    stage: int
    messages: int
    forwards: int


def batch(grid: Grid, samples: int, microbatch: int) -> list[Counts]:
    """Counts of each rank in one batch of `samples` samples."""

    def rank(world: Any) -> Counts:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(grid.inter)]
        trained = engine(layers, world=world, grid=grid, microbatch=microbatch, half=None)
        messages, forwards = PassMessages.of(trained), list[int]()
        before(trained.state.stage, "forward", lambda index, *_, **__: forwards.append(index))
        trained.train_batch((torch.ones(samples, WIDTH), torch.ones(samples, WIDTH)))
        return Counts(trained.place.stage, len(messages.all), len(forwards))

    rank_counts: list[Counts] = threads.run(grid.size, rank)
    return rank_counts


def per_microbatch(question: Question, source: Any, *, stages: int, microbatches: int) -> tuple[Cases, str]:
    """Messages per microbatch of every stage, because the paper claims a number for each GPU."""
    counts = batch(Grid(inter=stages), microbatches, 1)
    values = [rank.messages / microbatches for rank in counts]
    counts_text = ", ".join(f"{value:g}" for value in values)
    return [[value] for value in values], f"sent and received by {stages} ranks, the first stage first: {counts_text}"


def send_time(samples: int, microbatch: int, gpus: int, stages: int) -> int:
    """Messages that each inner rank sends and receives in a batch, each taking the same time."""
    counts = batch(Grid(data=gpus // stages, inter=stages), samples, microbatch)
    (value,) = {rank.messages for rank in counts if 0 < rank.stage < stages - 1}
    return value


def microbatches(samples: int, microbatch: int, replicas: int) -> int:
    """Forward passes of each rank in a batch, on two stages."""
    (value,) = {rank.forwards for rank in batch(Grid(data=replicas, inter=2), samples, microbatch)}
    return value
