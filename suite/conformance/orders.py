"""Laws 1, 5 and 6 without a clock: legality at every size, weight versions, and closed forms.

The simulator's makespan equals the checker's ticks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

from suite.core.errors import SuiteError
from suite.core.expression import evaluate
from suite.core.grid import Grid
from suite.core.op import COMPLETES_MICROBATCH, FlushInterval, Kind, Op, message_of, needs
from suite.core.protocols import Schedule, WeightPolicy
from suite.schedule.check import Timeline, accepts_size, check
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate
from suite.weights.version_table import run_ledgers

STAGES, MICROBATCHES = range(1, 9), range(1, 33)
FREE_MESSAGES = NetworkModel(lambda first, second: Link(0.0, 1e30))  # messages take no time
SPEEDS = (0.0, 0.5, 1.0, 3.7)  # seconds of an op, so that messages arrive in any possible order


def assert_legal(timeline: Timeline, schedule: Schedule, interval: FlushInterval) -> None:
    """Law 1, written independently of the checker: over finished orders instead of running programs."""
    ends = {message_of(slot.op): slot.end for slot in timeline.slots}
    for slot in timeline.slots:
        need = needs(slot.op, timeline.stages)
        assert need is None or ends[need] <= slot.start, f"{slot.op} started before {need} ended"
    indices = range(interval.first, interval.end)
    for place in timeline.places:
        rank, order = place.rank, timeline.order(place.rank)
        position = {op: number for number, op in enumerate(order)}
        updates = [Op(place.stage, Kind.UPDATE, interval.update + number) for number in range(interval.updates)]
        chains = {}  # ops of each microbatch in their order: F B, or F I W
        for stage, index in product(place.held_stages, indices):
            split = Op(stage, Kind.INPUT, index) in position
            kinds = (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT) if split else (Kind.FORWARD, Kind.BACKWARD)
            chains[stage, index] = [Op(stage, kind, index) for kind in kinds]
        expected = {op for chain in chains.values() for op in chain} | {*updates}
        assert set(order) == expected, f"rank {rank} runs {_first_ops(set(order) ^ expected)} too often, or never"
        assert len(order) == len(expected), f"rank {rank} runs {len(order)} ops, {len(expected)} are expected"
        for (stage, index), chain in chains.items():
            update = updates[interval.update_of(index) - interval.update]
            positions = [position[op] for op in (*chain, update)]
            assert positions == sorted(positions), f"stage {stage}: microbatch {index} is out of order"
        in_flight = peak = 0
        for op in order:
            in_flight += (op.kind is Kind.FORWARD) - (op.kind in COMPLETES_MICROBATCH)
            peak = max(peak, in_flight)
        promised = schedule.in_flight(place, interval)
        assert peak == timeline.peak[rank] <= promised, f"rank {rank}: {peak} in flight, {promised} were promised"


def _first_ops(ops: set[Op]) -> str:
    return ", ".join(map(str, sorted(ops)[:4]))


def _sizes(update_interval: int | None) -> Iterator[tuple[int, FlushInterval]]:
    """Every number of stages and microbatches, smallest first."""
    for stages in STAGES:
        for microbatches in MICROBATCHES:
            yield stages, FlushInterval(0, microbatches, update_interval, 0)


def _size_text(stages: int, interval: FlushInterval) -> str:
    group = "" if interval.update_interval is None else f", an update every {interval.update_interval}"
    return f"{stages} stages, {interval.microbatches} microbatches{group}"


def check_every_size(schedule: Schedule, update_interval: int | None, processes: int | None = None) -> int:
    """Law 1 for stages 1 to 8 and microbatches 1 to 32, at equal and at random speeds.

    Args:
        schedule: The schedule.
        update_interval: Microbatches per update; None: a flush.
        processes: Number of stages, if the system requires a fixed number.

    Returns:
        Number of checked sizes. A size that the schedule refuses is left out.

    Raises:
        AssertionError: For the smallest size that breaks the law, with the drawing up to the fault, and for a number of
            stages with which no size is accepted.
    """
    sizes = 0
    left_out: set[int] = set()  # numbers of stages of which no size is checked yet
    for stages, interval in _sizes(update_interval):
        if processes not in (None, stages):
            continue
        if not accepts_size(schedule, stages, interval):
            left_out.add(stages)
            continue
        clock = random.Random(stages * 100 + interval.microbatches)

        def cost(_: Op, clock: random.Random = clock) -> float:
            return clock.choice(SPEEDS)

        try:
            assert_legal(check(schedule, stages, interval), schedule, interval)
            assert_legal(check(schedule, stages, interval, cost=cost), schedule, interval)
        except (AssertionError, SuiteError) as error:
            raise AssertionError(f"{_size_text(stages, interval)}: {error}") from error
        left_out.discard(stages)
        sizes += 1
    most = MICROBATCHES[-1]
    assert not left_out, f"{min(left_out)} stages: {schedule} refuses every number of microbatches up to {most}"
    return sizes


def check_versions(policy: WeightPolicy, schedule: Schedule, update_interval: int | None) -> int:
    """Each pass reads a stored version, at every size that the policy accepts. Predictions start at the newest version.

    Returns the number of checked sizes.
    """
    sizes = 0
    for stages, interval in _sizes(update_interval):
        if interval.microbatches > 2 * STAGES[-1]:
            continue  # a longer batch reads no other versions, as every pipeline is full
        try:
            policy.check(stages, update_interval)
        except SuiteError:
            continue  # the policy refuses this size
        if not accepts_size(schedule, stages, interval):
            continue
        timeline = check(schedule, stages, interval)
        try:
            run_ledgers(policy, [timeline.order(rank) for rank in range(stages)], interval)
        except (SuiteError, KeyError) as error:
            raise AssertionError(f"{_size_text(stages, interval)}: {error}") from error
        sizes += 1
    assert sizes, f"{policy} accepts no size with update_interval={update_interval}"
    return sizes


def order_of_sum(schedule: Schedule, ranks: int, microbatches: int) -> tuple[int, ...]:
    """Order in which every stage adds the gradients of a batch's microbatches; by index where the stages differ."""
    timeline = check(schedule, ranks, FlushInterval(0, microbatches, None, 0))
    orders = set()
    for place in timeline.places:
        completing = [op for op in timeline.order(place.rank) if op.kind in COMPLETES_MICROBATCH]
        orders |= {tuple(op.index for op in completing if op.stage == stage) for stage in place.held_stages}
    return orders.pop() if len(orders) == 1 else tuple(range(microbatches))


# Times without a clock


def costs(forward: float, backward: float) -> Callable[[Op], float]:
    """Ticks of each op; an update takes none. Half of a split backward pass is its weight gradient."""
    half = backward / 2
    ticks = {Kind.FORWARD: forward, Kind.BACKWARD: backward, Kind.INPUT: half, Kind.WEIGHT: backward - half}
    return lambda op: ticks.get(op.kind, 0.0)


def close(value: float, expected: float) -> bool:
    """Whether two times are equal up to rounding."""
    return abs(value - expected) <= 1e-9 * max(1.0, abs(expected))


def assert_closed_form(
    schedule: Schedule, stages: int, microbatches: int, forward: float, backward: float, *, bubble: float | None = None
) -> None:
    """Check that every stage idles for `bubble` times its compute time, by default (S - 1) / M."""
    timeline = check(schedule, stages, FlushInterval(0, microbatches, None, 0), cost=costs(forward, backward))
    busy = microbatches * (forward + backward)
    idle = (stages - 1) / microbatches if bubble is None else bubble
    for stage in range(stages):
        idle_share = timeline.idle(stage) / busy
        assert close(idle_share, idle), f"stage {stage} idles {idle_share:.9g} of its busy time, {idle:.9g} is claimed"
    assert close(timeline.makespan, busy * (1 + idle)), f"{timeline.makespan} for {busy * (1 + idle)}"


def check_claimed_bubble(schedule: Schedule, formula: str) -> int:
    """Check a formula in `stages` and `microbatches` at every size. Returns the number of sizes."""
    sizes = 0
    for stages, interval in _sizes(None):
        idle = evaluate(formula, {"stages": stages, "microbatches": interval.microbatches})
        try:
            assert_closed_form(schedule, stages, interval.microbatches, 1.0, 1.0, bubble=idle)
        except AssertionError as error:
            raise AssertionError(f"{_size_text(stages, interval)}: {error}") from error
        sizes += 1
    return sizes


def check_clocks(schedule: Schedule, update_interval: int | None) -> int:
    """Check that simulator and checker agree if messages take no time. Returns the number of sizes."""
    sizes = 0
    for stages, interval in _sizes(update_interval):
        if interval.microbatches not in (1, 2, 3, 5, 8, 13, 32) or not accepts_size(schedule, stages, interval):
            continue
        ticks = check(schedule, stages, interval, cost=costs(1.0, 2.0)).makespan
        seconds = simulate(schedule, Grid(inter=stages), interval, Fixed(1.0, 2.0), FREE_MESSAGES).makespan
        assert close(seconds, ticks), f"{_size_text(stages, interval)}: simulated {seconds:.9g}, in ticks {ticks:.9g}"
        sizes += 1
    return sizes
