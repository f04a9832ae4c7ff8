"""Worker of one rank: run the first accepted op that is ready, send its output, advance the schedule.

This loop is all there is: order comes from the schedule, readiness from the transport, numbers from `execute`. It is a
generator, so that a stream of batches can be left and gone on with, and ranks of one process can take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter

from suite.core.errors import IllegalSchedule
from suite.core.op import Kind, Op, Program, feeds, needs
from suite.core.protocols import Transport, Value
from suite.core.trace import CATEGORY, WAIT, Trace

Execute = Callable[[Op, Value], Value]
Executing = Callable[[Op, Value], Generator[None, None, Value]]  # stops where it waits for a collective


def driving(
    program: Program,
    execute: Executing,
    transport: Transport,
    *,
    rank: int,
    stages: int,
    bound: int,
    trace: Trace | None,
    patience: Callable[[], float | None] = lambda: None,
) -> Generator[Op | None, None, int]:
    """Runs `program` to its end, and returns the most forwards that were open at once, never above `bound`. Yields
    each op when it has run, and None where its transport does not wait for what is not here, or not longer than the
    seconds of `patience`.

    execute(op, value) computes an op from its message (empty where it needs none) and returns what to send.
    """
    in_flight = peak = 0
    accepted = next(program, ())
    while accepted:
        begin = perf_counter()
        while (op_value := _ready(accepted, transport, stages, patience)) is None:
            yield None
        op, value = op_value
        start = perf_counter()
        if trace is not None and needs(op, stages) is not None:
            trace.add(rank, WAIT, begin, start, op)
        if op.kind is Kind.FORWARD:
            in_flight += 1
            peak = max(peak, in_flight)
            if in_flight > bound:
                raise IllegalSchedule(f"{op} would be forward number {in_flight} in flight, {bound} were promised")
        elif op.kind is Kind.BACKWARD:
            in_flight -= 1
        output = yield from execute(op, value)
        end = perf_counter()
        if trace is not None and op.kind is not Kind.UPDATE:  # an update records its two halves itself
            sent = sum(tensor.nbytes for tensor in output) if feeds(op, stages) else 0
            trace.add(rank, CATEGORY[op.kind], start, end, op, sent)
        transport.send(op, output)
        yield op
        try:
            accepted = program.send(op)
        except StopIteration:
            accepted = ()
    return peak


def drive(
    program: Program, execute: Execute, transport: Transport, *, rank: int, stages: int, bound: int, trace: Trace | None
) -> int:
    """The same without a stop, on a transport that waits, of ops that are functions."""

    def executing(op: Op, value: Value) -> Generator[None, None, Value]:
        yield from ()
        return execute(op, value)

    ops = driving(program, executing, transport, rank=rank, stages=stages, bound=bound, trace=trace)
    while True:
        try:
            next(ops)
        except StopIteration as end:
            return int(end.value)


def _ready(
    accepted: tuple[Op, ...], transport: Transport, stages: int, patience: Callable[[], float | None]
) -> tuple[Op, Value] | None:
    """The first op of `accepted` that needs nothing or whose message is here; waits only when there is none."""
    waiting_for: dict[Op, Op] = {}
    free = None
    for op in accepted:
        need = needs(op, stages)
        if need is None:
            free = op  # later ops are never requested
            break
        waiting_for[need] = op
    arrival = transport.recv_any(tuple(waiting_for), patience() if free is None else 0) if waiting_for else None
    if arrival is not None:
        return waiting_for[arrival[0]], arrival[1]
    return None if free is None else (free, ())
