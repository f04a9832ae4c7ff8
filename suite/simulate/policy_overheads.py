"""Overheads of a weight policy: predictions and copies of weights, counted from its ledger.

No system is named here: the system's own policy is driven through the order of its own schedule, and its requests
are counted once the pipeline is full. PipeOptim predicts once per microbatch on all stages but the last, SpecTrain
in both passes. PipeDream and 2BW keep a previous version when a step writes a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule, WeightPolicy
from suite.schedule.check import check
from suite.weights import Ledger


@dataclass(frozen=True, slots=True)
class PolicyOverheads:
    """Of one stage in the steady state.

    Attributes:
        forward, backward: Predictions per pass.
        copies: Versions per update that are written in addition to the previous one.
        beside: Copies of the weights in addition to the newest, at most.
        again: Whether a backward pass computes its forward pass again.
    """

    forward: float
    backward: float
    copies: float
    beside: int
    again: bool


def asked(
    policy: WeightPolicy, schedule: Schedule, stages: int, interval: FlushInterval
) -> tuple[PolicyOverheads, ...]:
    """By stage, of `work` from drain to drain. Raises InvalidRequest for a policy that such a pipeline cannot serve."""
    policy.check(stages, interval.update_interval)
    if interval.update_interval is None:  # in a flush no microbatch is unlike those before it
        interval = FlushInterval(interval.first, min(interval.microbatches, 2 * stages), None, interval.update)
    order = check(schedule, stages, interval)
    return tuple(_followed(policy, order.order(stage), interval, stages) for stage in range(stages))


def full(microbatches: int, update_interval: int | None, stages: int) -> FlushInterval:
    """A work that is long enough to count in: a flush as it is; a stream of at least three times the stages, and of as
    many updates."""
    if update_interval is None:
        return FlushInterval(0, microbatches, None, 0)
    return FlushInterval(0, update_interval * 3 * max(2, stages), update_interval, 0)


def _followed(policy: WeightPolicy, order: Sequence[Op], interval: FlushInterval, stages: int) -> PolicyOverheads:
    ledger = Ledger(policy, interval, stages)
    predicted = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    counted = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    updates = copies = 0
    again = False
    # of a stream the middle third: before it the pipeline fills, behind it it drains
    window = (
        range(interval.updates // 3, 2 * interval.updates // 3)
        if interval.update_interval
        else range(interval.updates + 1)
    )
    for op in order:
        read = ledger.run(op)
        again = again or (read is not None and op.kind is Kind.BACKWARD and read.backward_mode == "recompute")
        if ledger.updates - interval.update not in window:
            continue
        if op.kind is Kind.UPDATE:
            updates += 1
            copies += (ledger.updates - 1, 0) in ledger.alive
        elif op.kind in counted:
            counted[op.kind] += 1
            predicted[op.kind] += read is not None and read.predict_steps > 0
    return PolicyOverheads(
        predicted[Kind.FORWARD] / max(1, counted[Kind.FORWARD]),
        predicted[Kind.BACKWARD] / max(1, counted[Kind.BACKWARD]),
        copies / max(1, updates),
        ledger.peak - 1,
        again,
    )
