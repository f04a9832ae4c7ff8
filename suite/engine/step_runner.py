"""Run one flush interval of an engine: the computation of each op, and the losses.

In a pipeline that drains for every update a batch is a work, and its loss is added up at the end. In a stream the
losses are reduced every few batches, without blocking: a rank begins the reduction after its backward passes of
those batches, and returns the losses when it is complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from suite.comm.p2p.polling import wait_for
from suite.core.errors import InvalidRequest, RankError
from suite.core.op import FlushInterval, Kind, Op, Program
from suite.core.protocols import Handle, Value
from suite.core.trace import Trace
from suite.engine.batch_slicing import parts
from suite.engine.batch_source import END, BatchSource
from suite.engine.batch_stream import BatchStream
from suite.engine.optim.update import check_attached
from suite.engine.recorded_order import Recorded
from suite.engine.worker import Executing, driving
from suite.schedule import evaluation
from suite.schedule.check import check
from suite.schedule.static import fixed

if TYPE_CHECKING:
    from suite.engine.engine import Engine

TOGETHER = 8  # batches whose losses travel at once


class Running:
    """One work of one rank."""

    def __init__(self, engine: Engine, stream: BatchStream, *, step: bool = True) -> None:
        self.engine, self.stream, self.steps = engine, stream, step
        self.interval = FlushInterval(engine.microbatches, stream.microbatches, engine.update_every, engine.updates)
        self.scale = engine.scale
        self.losses: dict[int, list[torch.Tensor]] = {}  # by batch, on the last stage
        self.done = 0  # backward passes
        # losses under way, and behind them the digests of the batches that are listed
        self.coming: deque[tuple[Handle, torch.Tensor, int, list[int]]] = deque()
        self.fault: InvalidRequest | None = None  # batches differ between ranks
        self.told = 0  # batches whose losses are under way or known

    def ops(self) -> Iterator[float | None]:
        """Runs every op; yields the losses of batches as they become known, and None where the rank waits."""
        engine, interval = self.engine, self.interval
        check_attached(engine.state)  # before a pass adds to gradients that are another engine's
        order = order_of(engine, interval)
        program = fixed(order, interval) if order else engine.schedule.program(engine.place, interval)
        engine.trace, engine.drained, engine.ended = Trace(), False, []
        engine.store.begin(interval)
        engine.copies.follow_modes()
        trace = engine.trace if engine.traced else None
        ops = _driving(engine, program, self.execute, engine.schedule.in_flight(engine.place, interval), trace)
        while True:
            try:
                op = next(ops)
            except StopIteration as end:
                engine.peak = end.value
                break
            except RankError:  # the other rank may have ended because its batches differ
                engine.agreement.look()
                raise
            if op is None:
                engine.agreement.look()
                yield None
            elif engine.update_every is not None:
                yield from self._streamed(op)
        if engine.update_every is not None:
            self._finish()
            yield from self._shared(len(self.stream.ends), wait=True)
            self.stream.finish()
            return
        loss = (yield from engine.sharing(self.losses.pop(0, ()))) / self.scale
        self._finish()
        yield loss

    def _finish(self) -> None:
        """Nothing is in flight any more: the work counts."""
        engine, interval = self.engine, self.interval
        engine.drained = True
        engine.agreement.calls.end()
        engine.copies.write_buffers()
        if self.steps:
            engine.microbatches += interval.microbatches
            engine.updates += interval.updates
            if engine.pruning is not None:
                engine.pruning.look(engine, since=interval.update)

    def execute(self, op: Op, value: Value) -> Generator[None, None, Value]:
        """Result of `op` with the weights that the policy selects; what to send."""
        engine, interval, place = self.engine, self.interval, self.engine.place
        read = engine.store.run(op)
        if op.kind is Kind.UPDATE:
            engine.agreement.settle()
            yield from engine.step(op, self.steps)
            return ()
        if op.kind is Kind.BACKWARD:
            with engine.store.lent(op, read):
                gradients = engine.stage.backward(op.index, value)
            engine.parts(perf_counter())
            return gradients
        assert read is not None
        self.stream.reach(op.index)
        with engine.store.lent(op, read):
            output = engine.stage.forward(
                op.index,
                self.stream.inputs(op.index) if place.first else value,
                targets=self.stream.targets(op.index) if place.last else (),
                sample=op.index * place.replicas + place.replica,
                scale=self.scale / (interval.group_size(op.index) * place.replicas),
                read=read,
            )
        if place.last:
            self.losses.setdefault(self.stream.batch_of(op.index), []).append(self._of_batch(op.index, output[0]))
        self.stream.passed(op.index)
        return output

    def _of_batch(self, index: int, loss: torch.Tensor) -> torch.Tensor:
        """A microbatch's part of its batch's mean, where an update is not made of one batch."""
        share, batch_count = self.interval.group_size(index), self.stream.counts[self.stream.batch_of(index)]
        return loss if share == batch_count else loss * (share / batch_count)

    # -- losses of a stream ------------------------------------------------------------------------------------------

    def _streamed(self, op: Op) -> Iterator[float | None]:
        """An op has run: what is known by it."""
        ends = self.stream.ends
        if op.kind is Kind.BACKWARD:
            self.done += 1
        elif op.kind is Kind.UPDATE:
            now = perf_counter()
            while len(self.engine.ended) < len(ends) and self.done >= ends[len(self.engine.ended)]:
                self.engine.ended.append(now)
        due = self.told + TOGETHER
        if self.engine.grid.size == 1:
            due = self.told + 1
        if due < len(ends) and self.done >= ends[due - 1] and op.kind is Kind.BACKWARD:  # the last are told at the end
            yield from self._shared(due, wait=False)
        elif self.coming:
            yield from self._arrived(wait=False)

    def _shared(self, upto: int, *, wait: bool) -> Iterator[float | None]:
        """The losses of the batches before number `upto` set out.

        Raises InvalidRequest here for batches that differ: every rank has then passed on what the others need to come
        here."""
        if any(compared for _, _, _, compared in self.coming):
            yield from self._arrived(wait=True)
        self._check()
        if upto > self.told:
            batch_losses = [self.losses.pop(batch, ()) for batch in range(self.told, upto)]
            sums = torch.stack(
                [
                    torch.stack(list(one)).double().sum() if one else torch.zeros((), dtype=torch.float64)
                    for one in batch_losses
                ]
            )
            batches = range(self.told, upto)
            self.told = upto
            if self.engine.grid.size == 1:
                yield from (sums / self.scale).tolist()
            else:
                compared, digests = self.engine.agreement.numbers(batches)
                numbers = torch.cat([sums, digests.to(sums.device)]).to(self.engine.world.device)
                handle = self.engine.agreement.reduce(numbers)
                self.coming.append((handle, numbers, len(batches), compared))
        yield from self._arrived(wait=wait)
        if wait:
            self._check()

    def _check(self) -> None:
        if self.fault is not None:
            self.engine.agreement.calls.end()  # this rank has sent what the others need to raise too
            raise self.fault

    def _arrived(self, *, wait: bool) -> Iterator[float | None]:
        while self.coming and (wait or self.coming[0][0].done()):
            handle, numbers, count, compared = self.coming.popleft()
            yield from wait_for(handle, self.engine.transport)
            self.fault = self.fault or self.engine.agreement.fault(compared, numbers[count:])
            if self.fault is None:
                yield from (numbers[:count] / self.scale).tolist()


def scoring(engine: Engine, source: BatchSource) -> Generator[dict[str, float] | None, None, None]:
    """The mean loss and scores over all samples of the batches of `source`, once, and None where the rank waits. A
    microbatch counts by its samples: the last one of a batch may be short."""
    names, place = ("loss", *engine.score_names), engine.place
    if not engine.drained:
        what = "an evaluation within a stream, or after one that was broken off"
        raise InvalidRequest(
            what, rule="stages stand at different updates until the pipeline drains", legal="after the stream"
        )
    total, weights, unit = [0.0] * len(names), 0.0, 0
    agreement = engine.agreement
    while (batch := agreement.next(source, "evaluation")) is not END:
        agreement.settle()
        inputs, targets = parts(batch)
        samples, first, rows = inputs[0].shape[0], engine.evaluated, engine.rows
        microbatches, most = rows.evaluated(inputs)
        outputs: list[torch.Tensor] = []

        def execute(op: Op, value: Value) -> Generator[None, None, Value]:
            yield from ()
            at = op.index - first  # noqa: B023 - called within this turn of the loop
            output = engine.stage.evaluate(
                rows.inputs(inputs, at) if place.first else value,  # noqa: B023
                rows.of(targets, at) if place.last else (),  # noqa: B023
                sample=op.index * place.replicas + place.replica,
            )
            if place.last:
                if output[0].numel() != len(names):
                    what = f"{output[0].numel() - 1} scores for score_names={list(engine.score_names)}"
                    raise InvalidRequest(what, rule="scores= gives a number for each of score_names=")
                outputs.append(output[0] / (samples / rows.size(at, samples)))  # noqa: B023
            return output

        if microbatches:
            program = evaluation(place, FlushInterval(first, microbatches, None, 0))
            yield from (None for op in _driving(engine, program, execute, 0) if op is None)
        engine.evaluated += most
        unit = unit or samples
        weight = samples / unit
        for at in range(len(names)):
            column = [one if len(names) == 1 else one[at] for one in outputs]
            total[at] += weight * (yield from engine.sharing(column))
        weights += weight
        agreement.calls.end()
    if not weights:
        raise InvalidRequest("an evaluation of no batches", rule="at least 1 batch")
    yield {name: one / weights for name, one in zip(names, total, strict=True)}


def _driving(
    engine: Engine, program: Program, execute: Executing, bound: int, trace: Trace | None = None
) -> Generator[Op | None, None, int]:
    """Run a program on this rank: see worker.driving."""
    patience = engine.agreement.patience
    return driving(
        program,
        execute,
        engine.transport,
        rank=engine.rank,
        stages=engine.grid.inter,
        bound=bound,
        trace=trace,
        patience=patience,
    )


def order_of(engine: Engine, interval: FlushInterval) -> tuple[Op, ...]:
    """This stage's checked order of the ops of `work`, counted from 0; nothing where it may choose."""
    free, every = engine.transport.any_order, engine.update_every
    if isinstance(engine.schedule, Recorded):  # it has run
        return ()
    # where ranks choose, the law is looked at once, on as much of a stream as fills and drains a pipeline
    count = (
        interval.microbatches
        if every is None or not free
        else min(interval.microbatches, 4 * engine.grid.inter + every)
    )
    if count not in engine.legal:
        checked = check(engine.schedule, engine.grid.inter, FlushInterval(0, count, every, 0))
        engine.legal[count] = checked.order(engine.place.stage)
    return () if free else engine.legal[count]
