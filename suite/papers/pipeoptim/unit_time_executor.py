"""Executor with unit times: a system's schedule on stages of equal duration (PipeOptim's Figure 1).

A mini-batch takes equally long on every stage; messages and updates take no time. executor=simulated models a
machine instead."""

from __future__ import annotations

from collections.abc import Sequence

from suite.config.rules import check_microbatches
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.core.trace import CATEGORY, Trace
from suite.papers.equations import FREE
from suite.schedule.check import SHORT, check_size
from suite.simulate.cost.measured import Fixed
from suite.simulate.worker import simulate

PASSES = (CATEGORY[Kind.FORWARD], CATEGORY[Kind.BACKWARD])


class UnitTimeExecutor:
    """Executor of a unit-time timeline.

    Attributes:
        forward, backward: Time units of a mini-batch through the network, divided evenly over stages and microbatches.
        batches: Mini-batches of a run.
    """

    def __init__(
        self,
        *,
        forward: float,
        backward: float,
        batches: int,
    ) -> None:
        self.forward, self.backward, self.batches = forward, backward, batches

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ("batch", "grid.data", "grid.inter", "schedule", "update_interval", "system.name")

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for zero batches, an indivisible batch, or a combination that the policy rejects."""
        if self.batches < 1:
            raise InvalidRequest(f"executor.batches={self.batches}", rule="at least 1", legal="executor.batches=8")
        check_microbatches(config)
        check_size(self.batches * config.microbatches, config.grid.inter, SHORT)
        policy = config.weights.build()
        policy.check(config.grid.inter, config.update_interval)

    def run(self, config: RunConfig) -> ExecutorResult:
        trace = self.timeline(config)
        stages = config.grid.inter
        busy = sum(span.seconds for span in trace if span.category in PASSES)
        idle = 100 * (1 - busy / (stages * trace.makespan))
        return ExecutorResult(
            Source.SIMULATED,
            metrics={
                "makespan": Metric("unit", "lower", (trace.makespan,), f"{self.batches} mini-batches"),
                "idle": Metric("percent", "lower", (idle,), "share of all stages' time, filling and draining included"),
            },
            trace=trace,
            notes=("every mini-batch takes equally long on every stage; messages and updates take no time",),
        )

    def timeline(self, config: RunConfig) -> Trace:
        """Spans of one replica."""
        stages, pieces, every = config.grid.inter, config.microbatches, config.update_interval
        schedule = config.schedule.build()
        cost = Fixed(self.forward / stages / pieces, self.backward / stages / pieces)
        if every is not None:
            interval = FlushInterval(0, self.batches * pieces, every, 0)
            return simulate(schedule, Grid(inter=stages), interval, cost, FREE, traced=True).trace
        one = simulate(schedule, Grid(inter=stages), FlushInterval(0, pieces, None, 0), cost, FREE, traced=True)
        trace = Trace()
        for batch in range(self.batches):  # a flush: the first stage ends a batch and begins the next
            later = batch * one.makespan
            for span in one.trace:
                op = span.op and _moved(span.op, batch, pieces)
                trace.append(span._replace(start=span.start + later, end=span.end + later, op=op))
        return trace


def _moved(op: Op, batch: int, pieces: int) -> Op:
    return op._replace(index=op.index + batch * (1 if op.kind is Kind.UPDATE else pieces))
