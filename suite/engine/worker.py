"""Worker of one rank: run the first accepted op that is ready, send its output, advance the schedule.

The schedule determines the order, the transport determines which ops are ready, and `execute` computes. The loop is a
generator, so that a stream of batches can be suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from suite.comm.p2p.message import receiver
from suite.core.errors import IllegalSchedule
from suite.core.op import COMPLETES_MICROBATCH, Kind, Op, Program, message_of, needs
from suite.core.protocols import Transport, Value
from suite.core.trace import CATEGORY, WAIT, Trace

Execute = Callable[[Op, Value], Value]


def run_program(
    program: Program,
    execute: Execute,
    transport: Transport,
    *,
    rank: int,
    homes: Sequence[int],
    bound: int,
    trace: Trace | None,
    patience: float | None = None,
    clock: Callable[[], float] = float,
) -> Generator[Op, None, int]:
    """Run `program` to its end. Yields each op after it has run.

    Args:
        execute: Computes an op from its message, which is empty if it needs none, and returns the tensors to send.
        rank: This rank, for the trace and the transport.
        homes: Rank of each stage of the pipeline.
        bound: Most forward passes that may be open at once. Raises IllegalSchedule for more.
        patience: Seconds between two calls of the transport while a rank waits for a message; None for one call.
        clock: Marks a time of the trace, see accelerator.Clock; by default all are 0.

    Returns:
        The most forward passes that were open at once.
    """
    in_flight = peak = 0
    mark = clock if trace is not None else float
    stages = len(homes)
    accepted = next(program, ())
    while accepted:
        begin = mark()
        while (ready := _next_ready(accepted, transport, stages, patience)) is None:
            pass
        op, value, received = ready
        start = mark()
        if trace is not None and received:
            trace.add(rank, WAIT, begin, start, op)
        if op.kind is Kind.FORWARD:
            in_flight += 1
            peak = max(peak, in_flight)
            if in_flight > bound:
                raise IllegalSchedule(f"{op} would be forward number {in_flight} in flight, {bound} were promised")
        elif op.kind in COMPLETES_MICROBATCH:
            in_flight -= 1
        output = execute(op, value)
        end = mark()
        if trace is not None and op.kind is not Kind.UPDATE:  # an update records its reduction and step itself
            sent = sum([tensor.nbytes for tensor in output]) if receiver(op, homes) not in (None, rank) else 0
            trace.add(rank, CATEGORY[op.kind], start, end, op, sent)
        if op.kind is not Kind.WEIGHT:  # nothing consumes it
            transport.send(message_of(op), output)
        yield op
        try:
            accepted = program.send(op)
        except StopIteration:
            accepted = ()
    return peak


def run_to_end(ops: Generator[Op, None, int]) -> int:
    """Run all ops of `run_program`, whose result it returns."""
    while True:
        try:
            next(ops)
        except StopIteration as end:
            return int(end.value)


def _next_ready(
    accepted: tuple[Op, ...], transport: Transport, stages: int, patience: float | None
) -> tuple[Op, Value, bool] | None:
    """The first op of `accepted` whose message is here, or that needs none, with its message, and whether it has one.

    Waits only if no op is ready."""
    waiting: dict[Op, Op] = {}
    free = None
    for op in accepted:
        need = needs(op, stages)
        if need is None:
            free = op  # ops after it are never requested
            break
        waiting[need] = op
    arrival = transport.recv_any(tuple(waiting), patience if free is None else 0) if waiting else None
    if arrival is not None:
        return waiting[arrival[0]], arrival[1], True
    return None if free is None else (free, (), False)
