"""Overheads of a weight policy: predictions and copies of weights, counted from its ledger.

The policy of a system runs through the order of its schedule, and its reads are counted once the pipeline is full.
PipeOptim predicts once per microbatch on all stages but the last, SpecTrain in both passes. PipeDream and 2BW keep a
previous version when a step writes a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule, WeightPolicy
from suite.schedule.check import accepts_size, check, check_one_version
from suite.schedule.placement import check_policy, places
from suite.weights import Ledger


@dataclass(frozen=True, slots=True)
class PolicyOverheads:
    """Overheads of one stage in the steady state.

    Attributes:
        forward, backward: Weight predictions per forward and per backward pass.
        copies: Weight copies per update: the previous version stays when a step writes a new one.
        extra_versions: Most versions in memory at once, in addition to the newest.
        recomputes: Whether a backward pass runs its forward pass again.
    """

    forward: float
    backward: float
    copies: float
    extra_versions: int
    recomputes: bool


def policy_overheads(
    policy: WeightPolicy, schedule: Schedule, ranks: int, interval: FlushInterval
) -> tuple[PolicyOverheads, ...]:
    """Overheads of each stage over one flush interval.

    Raises InvalidRequest if the policy cannot serve the pipeline. Raises Unsupported for several stages per rank or a
    split backward pass with an asynchronous policy, or with an update between the passes of a microbatch.
    """
    stages = places(schedule, ranks)[0].stages
    check_policy(policy, schedule)
    policy.check(stages, interval.update_interval)
    short = FlushInterval(interval.first, min(interval.microbatches, 2 * ranks), None, interval.update)
    if interval.update_interval is None and accepts_size(schedule, ranks, short):
        interval = short  # in a flush all microbatches after the first are alike
    timeline = check(schedule, ranks, interval)
    check_one_version(schedule, timeline, interval.update_interval)
    return tuple(_stage_overheads(policy, order, interval, stages) for order in timeline.stage_orders())


def counting_interval(microbatches: int, update_interval: int | None, stages: int) -> FlushInterval:
    """Flush interval to count overheads in: a whole flush, or at least three updates per stage of a stream."""
    if update_interval is None:
        return FlushInterval(0, microbatches, None, 0)
    return FlushInterval(0, update_interval * 3 * max(2, stages), update_interval, 0)


def _stage_overheads(
    policy: WeightPolicy, order: Sequence[Op], interval: FlushInterval, stages: int
) -> PolicyOverheads:
    ledger = Ledger(policy, interval, stages)
    predicted = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    counted = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    updates = copies = 0
    recomputes = False
    # the middle third of a stream: the pipeline fills before it and drains after it
    window = (
        range(interval.updates // 3, 2 * interval.updates // 3)
        if interval.update_interval
        else range(interval.updates + 1)
    )
    for op in order:
        read = ledger.run(op)
        recomputes = recomputes or (read is not None and op.kind is Kind.BACKWARD and read.backward_mode == "recompute")
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
        recomputes,
    )
