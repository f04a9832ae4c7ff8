"""Executor `check`: ticks, bubble, passes in flight and weight versions of a schedule.

The `check` executor drives the schedule of the system without ranks, tensors or a clock. All replicas run the same
order, so it drives a single one. The model, the data and messages do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.config.executor import Ticks
from suite.config.rules import check_microbatches, check_streams, schedule_of
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval
from suite.core.protocols import ExecutorResult, Schedule
from suite.core.record import Metric, Source
from suite.schedule.check import SHORT, check, check_one_version, check_size, op_costs
from suite.schedule.placement import check_policy, is_split, places
from suite.simulate.policy_overheads import counting_interval
from suite.weights.version_table import PASSES, entries, run_ledgers

_MAX_LISTED = 16  # stages in a note


class ScheduleCheck:
    """Executor that checks a schedule, with these ticks for each kind of op."""

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks

    def reads(self, config: RunConfig) -> Sequence[str]:
        keys = ("batch", "grid.data", "grid.inter", "schedule", "weights", "update_interval")
        return (*keys, "system.name", "system._target_")

    def check(self, config: RunConfig) -> None:
        """Raises Unsupported for a system of unknown order, and InvalidRequest for an impossible batch or stream."""
        grid, interval = config.grid, flush_interval(config)
        schedule = schedule_of(config)
        check_streams(config)
        check_ticks(schedule, self.ticks.backward, self.ticks.weight)
        check_size(interval.microbatches, places(schedule, grid.inter)[0].stages, SHORT)
        policy = config.weights.build()
        check_policy(policy, schedule)
        policy.check(grid.inter, interval.update_interval)

    def run(self, config: RunConfig) -> ExecutorResult:
        """Drive the schedule. Raises IllegalSchedule for an order that breaks a law."""
        ranks, interval, ticks = config.grid.inter, flush_interval(config), self.ticks
        cost = op_costs(ticks.forward, ticks.backward, ticks.weight, ticks.update)
        schedule = config.schedule.build()
        timeline = check(schedule, ranks, interval, cost=cost)
        check_one_version(schedule, timeline, interval.update_interval)
        busy = sum(slot.end - slot.start for slot in timeline.slots)
        idle, row = 100 * (1 - busy / (ranks * timeline.makespan)), "stage" if timeline.stages == ranks else "rank"
        microbatches = f"{interval.microbatches} microbatches per replica"
        metrics = {
            "makespan": Metric("tick", "lower", (timeline.makespan,), microbatches),
            "idle": Metric("percent", "lower", (idle,), "of all stages"),
        }
        counts: dict[str, tuple[str, str, Sequence[int]]] = {  # unit, what, and values by rank
            "in_flight": ("microbatch", f"alive per {row}", timeline.peak)
        }
        if any(timeline.owed):
            counts["owed"] = "microbatch", "whose weight gradient is owed per rank", timeline.owed
        if interval.update_interval is not None:
            ledgers = run_ledgers(config.weights.build(), timeline.stage_orders(), interval)
            gaps, copies = [max(rank) for rank in timeline.gaps], [ledger.peak for ledger in ledgers]
            counts["version_gap"] = "update", f"between the passes of a microbatch per {row}", gaps
            counts["weight_copies"] = "copy", "of the weights per stage", copies
            read = [entry.read for ledger in ledgers for kind in PASSES for entry in entries(ledger, kind)]
            ahead = float(max(each.predict_steps for each in read))
            metrics["predicted_ahead"] = Metric("update", "", (ahead,), "at most, once the pipeline is full")
        for name, (unit, what, values) in counts.items():
            metrics[name] = Metric(unit, "lower", (float(max(values)),), f"{what} at most")
        return ExecutorResult(
            Source.ANALYTIC,
            metrics=metrics,
            series={name: list(map(float, values)) for name, (*_, values) in counts.items()},
            notes=tuple(f"{unit} {what}, at most {_format_values(values)}" for unit, what, values in counts.values()),
        )


def _format_values(values: Sequence[int]) -> str:
    """The values of all stages, or of the first and the last of many. The series of the record holds all."""
    texts = [str(value) for value in values]
    half = _MAX_LISTED // 2
    return ", ".join(texts if len(texts) <= _MAX_LISTED else [*texts[:half], "...", *texts[-half:]])


def flush_interval(config: RunConfig) -> FlushInterval:
    """A batch of a flushing schedule, or a stream long enough to fill the pipeline.

    Raises InvalidRequest for a batch size that is no multiple of the microbatch size.
    """
    check_microbatches(config)
    return counting_interval(config.microbatches, config.update_interval, config.grid.inter)


def check_ticks(schedule: Schedule, backward: int, weight: int) -> None:
    """Raise InvalidRequest where the input gradient of a split backward pass would take no time.

    Args:
        schedule: Schedule that may split backward passes.
        backward: Ticks of a whole backward pass.
        weight: Ticks of the weight gradient.
    """
    if is_split(schedule) and weight >= backward:
        rule = f"less than the {backward} ticks of the whole backward pass, which include it"
        raise InvalidRequest("executor.ticks.weight", weight, rule, f"executor.ticks.backward={weight + 1}")
