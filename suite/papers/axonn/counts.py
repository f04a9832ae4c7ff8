"""Answers to AxoNN's claims from counts on schedules, layouts and shapes.

Law 4 keeps the bytes of these layouts equal to allocated bytes, and ranks run the same schedules. measured.py counts
bytes, messages and ops of real ranks."""

from __future__ import annotations

from collections.abc import Sequence

from suite.claims.answer import Cases, Question
from suite.claims.cluster_runs import Lab
from suite.core.op import Kind, Op
from suite.core.protocols import Schedule
from suite.papers.equations import flush
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.cost.measured import Fixed
from suite.workload import Transformer

MICROBATCHES = 32


def idle(schedule: Schedule, stages: int, share: float = 1.0) -> float:
    """Idle time of a stage in a batch whose forward passes take `share` and backward passes twice as long."""
    cost = Fixed(share, 2 * share)
    return flush(schedule, stages, MICROBATCHES, cost).makespan - 3.0 * share * MICROBATCHES


def answered(ops: Sequence[Op]) -> list[int]:
    """Microbatches in flight on the first stage after each forward pass that follows a backward pass."""
    in_flight, counts, previous = 0, [], None
    for op in ops:
        in_flight += {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(op.kind, 0)
        if op.kind is Kind.FORWARD and previous is Kind.BACKWARD:
            counts.append(in_flight)
        previous = op.kind
    return counts


def idle_grows(question: Question, lab: Lab) -> Cases:
    """Makespan minus passes of a stage, in 1F1B and message-driven order; then with shares of one model."""
    stages = [int(term.split()[0]) for term in question.terms]
    orders = (OneFOneB(), MessageDriven())
    values = [[idle(order, count) for count in stages] for order in orders]
    values += [[idle(order, count, 1 / count) for count in stages] for order in orders]
    return values


def table_1(layers: int, hidden: int, heads: int, sequence: int, vocabulary: int) -> int:
    """Parameters counted layer by layer, with the tied matrix once."""
    return Transformer(layers, hidden, heads, sequence=sequence, vocabulary=vocabulary).parameters


def gpt2_small(
    question: Question, lab: Lab, *, vocabulary: Sequence[int], positions: Sequence[int]
) -> tuple[Cases, str]:
    """Parameters of 12 blocks of width 768 with 12 heads and a tied embedding, as published with GPT-2."""
    shapes = [Transformer(12, 768, 12, *sizes) for sizes in zip(positions, vocabulary, strict=True)]
    sizes = " and ".join(f"{shape.vocabulary} words, {shape.sequence} positions" for shape in shapes)
    return [[shape.parameters] for shape in shapes], f"12 layers, 768 wide, the tied matrix once; {sizes}"
