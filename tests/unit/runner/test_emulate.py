"""Emulated ranks: sleeps, messages and prediction follow the cost model.

Ranks are threads here, which sleep as well as processes; tests/agreement has real ranks and the bound on the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar

import pytest

from suite.comm.p2p import threads
from suite.config.compose import composed, resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.core.protocols import Chunk, CostModel
from suite.core.trace import BACKWARD, FORWARD, REDUCE, STEP, WAIT, Trace
from suite.runner.executors import emulated_rank
from suite.runner.executors.emulated_rank import EmulatedRank, EmulationPlan, hops, metrics, predict
from suite.runner.runs import freeze, validate_run
from suite.schedule.check import check as check_schedule
from suite.schedule.placement import places
from suite.simulate.network.machine import Link
from tests.support.configs import altered, unchecked
from tests.support.refusals import refused

NETWORK = {"latency": 0.001, "bandwidth": 1.0e6}


Result = TypeVar("Result")
Ranks = list[tuple[float, Trace, EmulatedRank]]


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=emulated", "batch.size=4", "batch.microbatch=1"])


def fixed(**costs: Any) -> dict[str, Any]:
    return {"_target_": "suite.simulate.cost.measured.Fixed", "forward": 0.01, "backward": 0.02, **costs}


def emulated(
    config: RunConfig, batches: int = 1, before: Callable[[EmulatedRank], None] = lambda instance: None
) -> Ranks:
    """Seconds and spans of the last of `batches`, and the rank itself, by rank."""

    def rank(world: threads.LoopbackWorld) -> tuple[float, Trace, EmulatedRank]:
        instance = EmulatedRank(world, config)
        before(instance)
        seconds = 0.0
        for _ in range(batches):
            begin = perf_counter()
            instance.train_batch()
            seconds = perf_counter() - begin
        instance.close()
        return seconds, instance.observe(), instance

    return threads.run(config.grid.build().size, rank, deadline=60)


def on_time(
    run: Callable[[], Result], values: Callable[[Result], Sequence[tuple[float, float]]], late: float
) -> Result:
    """The first of at most six runs in which no value exceeds its expectation by the share `late`.

    Other programs may delay a sleeping rank. In no run may a value fall short by as much. `values` maps the result of a
    run to pairs of measured and expected seconds.
    """
    for _ in range(6):
        outputs = run()
        pairs = values(outputs)
        assert pairs
        assert all(took >= (1 - late) * expected for took, expected in pairs), f"quicker than values: {pairs}"
        if all(took <= (1 + late) * expected for took, expected in pairs):
            return outputs
    raise AssertionError(f"late in each of six runs: {pairs}")


def whole(expected: float) -> Callable[[Ranks], Sequence[tuple[float, float]]]:
    """The first rank's last batch."""
    return lambda ranks: [(ranks[0][0], expected)]


def of(category: str, expected: float) -> Callable[[Ranks], Sequence[tuple[float, float]]]:
    """Each span of a category, of all ranks."""
    return lambda ranks: [(span.seconds, expected) for span in spans(ranks) if span.category == category]


def spans(ranks: Ranks) -> Trace:
    return Trace(span for _, trace, _ in ranks for span in trace)


# -- a rank --------------------------------------------------------------------------------------------------------


def test_every_op_is_run_and_its_bytes_are_sent(base: RunConfig) -> None:
    config = altered(base, grid__inter=3, executor__cost=fixed(message_bytes=1000, forward=0.001, backward=0.002))
    outputs = emulated(config, batches=2)
    trace = spans(outputs)
    values = metrics(config, trace)
    assert values["payload_bytes"].values == values["simulated_bytes"].values == (2 * 2 * 4 * 1000.0,)
    for rank, (_, mine, instance) in enumerate(outputs):
        ran = [span.op for span in mine if span.category in (FORWARD, BACKWARD)]
        assert {str(op) for op in ran} == {f"{rank}{kind}{index}" for kind in "FB" for index in range(4, 8)}
        assert [str(span.op) for span in mine if span.category == STEP] == [f"{rank}U1"], "counted on, as in training"
        assert instance.evaluate([]) is None
        assert instance.memory() == (None, {})
    assert len(set(map(id, [instance.buffers[1000] for _, _, instance in outputs]))) == 3


def test_single_rank_sleeps_for_the_cost_of_its_ops(base: RunConfig) -> None:
    config = altered(base, executor__cost=fixed(step=0.015))
    ((seconds, trace, _),) = on_time(lambda: emulated(config), whole(4 * 0.03 + 0.015), 0.1)
    assert seconds >= 4 * 0.03 + 0.015
    assert [span.category for span in trace] == [FORWARD, BACKWARD] * 4 + [STEP]


def test_late_wake_up_of_the_host_is_not_timed(base: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Woken 6 ms late from every one of 8 ops: the last one's is all that shows."""
    sleep_until = emulated_rank.sleep_until
    monkeypatch.setattr(emulated_rank, "sleep_until", lambda end, progress: sleep_until(end + 0.006, progress))
    ((seconds, _, _),) = on_time(lambda: emulated(base), whole(0.126), 0.15)
    assert seconds >= 0.126


def test_waiting_op_begins_when_its_message_arrives(base: RunConfig) -> None:
    """Else a rank that has waited would make up for it."""
    config = altered(base, grid__inter=2, batch__size=1, executor__cost=fixed(forward=[0.04, 0.001], backward=0.03))
    values = of(BACKWARD, 0.03), whole(0.101)
    first, second = on_time(lambda: emulated(config), lambda ranks: [*values[0](ranks), *values[1](ranks)], 0.15)
    assert [span.category for span in second[1]] == [WAIT, FORWARD, BACKWARD, STEP]
    assert [span.category for span in first[1]] == [FORWARD, WAIT, BACKWARD, STEP]


def test_ranks_sleep_for_stragglers_and_jitter(base: RunConfig) -> None:
    jitter = {"kind": "uniform", "spread": 0.9}
    config = altered(base, executor__jitter=jitter, executor__stragglers={"0": 2.0}, seed=5)
    slower = EmulationPlan.of(config).perturbation
    expected = sum(
        seconds * slower(0, Op(0, kind, index))
        for kind, seconds in ((Kind.FORWARD, 0.01), (Kind.BACKWARD, 0.02))
        for index in range(4)
    )
    assert abs(expected / 0.24 - 1) > 0.02, "jitter does something"
    on_time(lambda: emulated(config), whole(expected), 0.08)
    on_time(lambda: emulated(config, batches=3), whole(expected), 0.08)  # every batch repeats the first one's ops


def test_update_reduces_over_data_parallel_group_then_steps(base: RunConfig) -> None:
    cost = fixed(forward=0.001, backward=0.001, step=0.02, reduce_bytes=3000)
    config = altered(base, grid__data=4, grid__inter=2, executor__cost=cost)
    outputs = on_time(lambda: emulated(config), of(STEP, 0.02), 0.2)
    for _, trace, instance in outputs:
        (reduce,) = [span for span in trace if span.category == REDUCE]
        assert reduce.bytes == 3000
        assert {buffer.nbytes for buffer in instance.buffers.values()} == {2000}  # 2 (4 - 1) / 4 of it are 3000
    values = metrics(config, spans(outputs))
    assert values["payload_bytes"].values == values["simulated_bytes"].values == (0.0,)  # messages of passes are empty


def test_single_replica_reduces_nothing(base: RunConfig) -> None:
    ((_, trace, instance),) = emulated(
        altered(base, executor__cost=fixed(forward=0.0, backward=0.0, reduce_bytes=3000))
    )
    assert not instance.buffers
    assert REDUCE not in {span.category for span in trace}


class TwoChunks(CostModel):
    """A user's cost model: the reduction of the second chunk overlaps the first one's step."""

    def __init__(self, second: Any = 0, message: Any = 0) -> None:
        self.second, self.size = second, message

    def compute(self, op: Op) -> float:
        return 0.001

    def message(self, op: Op) -> Any:
        return self.size

    def update(self, stage: int) -> tuple[Chunk, ...]:
        return (Chunk(0, 0.01), Chunk(self.second, 0.02))


def test_user_cost_model_is_emulated_and_predicted(base: RunConfig) -> None:
    config = altered(base, executor__cost={"_target_": f"{__name__}.TwoChunks"})
    on_time(lambda: emulated(config), lambda ranks: [(ranks[0][1][-1].seconds, 0.03)], 0.15)
    assert predict(config, Link(**NETWORK)).seconds == pytest.approx(8 * 0.001 + 0.03)


def test_static_order_is_emulated_and_predicted(base: RunConfig) -> None:
    config = altered(base, grid__inter=3)
    plan, static = EmulationPlan.of(config), EmulationPlan.of(config, static=True)
    interval = FlushInterval(4, 4, None, 1)
    order = check_schedule(plan.schedule, 3, FlushInterval(0, 4, None, 0)).order(1)
    program = static.schedule.program(Place(1, 3), interval)
    step = next(program)
    for op in order:
        counted = op._replace(index=1 if op.kind is Kind.UPDATE else op.index + 4)
        assert step == (counted,)
        step = next(program, ())
    assert step == ()
    assert static.schedule.in_flight(Place(1, 3), interval) == plan.schedule.in_flight(Place(1, 3), interval)
    either = {predict(altered(config, comm__order=order), Link(**NETWORK)).seconds for order in ("any", "static")}
    assert len(either) == 1  # even ops: the checker's order equals the order set by messages


# -- what is predicted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_prediction_equals_a_hand_computed_case(base: RunConfig, replicas: int) -> None:
    """GPipe, two stages, two microbatches, 2 ms a message: the first backward comes back at 54 ms, the last at 94."""
    config = altered(
        base,
        schedule={"_target_": "baselines.gpipe.GPipe"},
        grid={"data": replicas, "inter": 2, "tensor": 1},
        batch={"size": 2 * replicas, "microbatch": 1},
        executor__cost=fixed(message_bytes=1000, step=0.005),
    )
    values = predict(config, Link(**NETWORK))
    assert values.seconds == pytest.approx(0.099, abs=1e-9)
    assert values.bytes == 4000 * replicas
    slow = altered(config, executor__stragglers={1: 2.0})
    later = (2 * 0.01 + 2 * 0.02) if replicas == 1 else 0.06  # on the stage that everybody waits for
    assert predict(slow, Link(**NETWORK)).seconds == pytest.approx(0.099 + later, abs=1e-9)


def test_hops_are_waits_from_op_to_op() -> None:
    forward, backward = Op.parse("1F0"), Op.parse("0B0")
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    trace.add(1, WAIT, 0.5, 1.25, forward)  # since before the op ended: a hop of 0.25 s
    trace.add(1, FORWARD, 1.25, 2.0, forward)
    trace.add(1, BACKWARD, 2.0, 3.0, Op.parse("1B0"))
    trace.add(0, WAIT, 3.5, 4.0, backward)  # had other things to do when the op ended
    trace.add(0, BACKWARD, 4.0, 5.0, backward)
    assert hops(trace, Grid(inter=2)) == [0.25]
    assert hops(trace[:2], Grid(inter=2)) == [0.25]
    assert hops(trace[1:], Grid(inter=2)) == []


def test_prediction_without_a_network_uses_measured_hops(base: RunConfig) -> None:
    cost = fixed(forward=0.0, backward=0.0, message_bytes=10**6)
    config = altered(base, grid__inter=2, batch__size=1, executor__cost=cost, executor__network=None)
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    trace.add(1, WAIT, 0.5, 1.25, Op.parse("1F0"))
    assert metrics(config, trace)["simulated_time"].values == (pytest.approx(0.5),)  # there and back
    assert metrics(config, trace)["message_time"].values == (0.25,)
    assert metrics(config, Trace())["simulated_time"].values == (pytest.approx(0.0, abs=1e-9),)
    changed = altered(config, executor__network=NETWORK)
    assert metrics(changed, trace)["simulated_time"].values == (pytest.approx(2 * 1.001),)


# -- what is refused -----------------------------------------------------------------------------------------------


def test_emulation_ignores_model_and_data_limits(base: RunConfig) -> None:
    """More stages than the model has layers, and no text."""
    validate_run(altered(base, grid__inter=16, data__folder="nowhere", model__shape__vocabulary=7))
    assert freeze(altered(base, grid__inter=16).plain(), "").label == "axonn 16x1"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"executor.cost": fixed(forward=-0.01)}, InvalidRequest, ["cost.forward=-0.01", "not negative", "legal: "]),
        ({"executor.cost": fixed(forward=math.nan)}, InvalidRequest, ["forward=nan", "a number"]),
        (
            {"executor.cost": fixed(forward=[0.01, 0.01])},
            InvalidRequest,
            ["2F0", "costs for 2 stages", "legal: 3 costs"],
        ),
        (
            {"executor.cost": {"_target_": "suite.simulate.cost.measured.Profiled", "seconds": {}, "bytes": {}}},
            InvalidRequest,
            ["no cost of 0F0", "a cost for every op"],
        ),
        (
            {"executor.cost": {"_target_": f"{__name__}.TwoChunks", "second": -1}},
            InvalidRequest,
            ["stage 0, bytes: -1"],
        ),
        (
            {"executor.cost": {"_target_": f"{__name__}.TwoChunks", "message": 0.5}},
            InvalidRequest,
            ["0F0, bytes: 0.5", "whole"],
        ),
        ({"executor.cost": {"_target_": f"{__name__}.TwoChunks", "message": -1}}, InvalidRequest, ["0F0, bytes: -1"]),
        ({"executor.stragglers": {3: 1.5}}, InvalidRequest, ["stragglers={3: 1.5}", "3 ranks (3x1)", "from 0 to 2"]),
        ({"executor.stragglers": {1: 10**400}}, InvalidRequest, ["stragglers={1: 1000", "a finite factor above 0"]),
        ({"executor.jitter.spread": -1}, InvalidRequest, ["jitter.spread=-1"]),
        ({"executor.jitter.spread": 10**400}, InvalidRequest, ["jitter.spread=1000", "rule: "]),
        ({"executor.copy": 10**400}, InvalidRequest, ["executor.copy=1000", "rule: "]),
        ({"executor.jitter.kind": "normal"}, InvalidRequest, ["legal: executor.jitter.kind=lognormal"]),
        (
            {"executor.network": {"latency": -1.0, "bandwidth": 1.0}},
            InvalidRequest,
            ["network.latency=-1.0", "at least 0"],
        ),
        (
            {"executor.network": {"latency": 0.0, "bandwidth": -1.0}},
            InvalidRequest,
            ["network.bandwidth=-1.0", "above 0"],
        ),
        (
            {"executor.network": {"latency": 0.0}},
            InvalidRequest,
            ["network.bandwidth", "kind=emulated requires"],
        ),
        (
            {"executor.network": {"latency": "fast", "bandwidth": 1.0}},
            InvalidRequest,
            ["network.latency=fast", "a number"],
        ),
        ({"executor.network": 5}, InvalidRequest, ["executor.network=5", "a group of keys"]),
        ({"system.name": "x", "system._target_": "baselines.pytorch.PyTorch"}, Unsupported, ["legal: system=axonn"]),
        ({"launch.device": "cuda"}, Unsupported, ["legal: launch.device=cpu"]),
        ({"seed": -1}, InvalidRequest, ["seed=-1"]),
        ({"grid.inter": 65}, InvalidRequest, ["65 ranks"]),
        ({"batch.size": 0}, InvalidRequest, ["batch.size=0"]),
    ],
)
def test_impossible_emulation_is_refused_before_ranks_start(
    base: RunConfig, changes: dict[str, Any], kind: type[InvalidRequest], words: list[str]
) -> None:
    validate_run(altered(base, grid__inter=3))
    refusal = freeze(unchecked(base, {"grid.inter": 3, **changes}), "").refusal
    assert isinstance(refusal, kind)
    for word in (*words, "rule: "):
        assert word in str(refusal)


def test_world_of_another_size_is_refused(base: RunConfig) -> None:
    with refused(InvalidRequest, subject="a grid of 3 ranks (3x1) in a world of 1", rule="one rank per place"):
        EmulatedRank(threads.LoopbackWorld(threads.Hub(1), 0), altered(base, grid__inter=3))


# -- a system that streams -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streaming() -> RunConfig:
    """A prediction of 10 ms on the first of two stages, an update of 5 ms after every microbatch."""
    config = resolve(["executor=emulated", "system=pipeoptim", "optimizer=sgd", "grid.inter=2", "batch.size=2"])
    cost = fixed(forward=0.01, backward=0.02, step=0.005)
    return altered(
        config,
        batch__microbatch=1,
        executor__cost=cost,
        executor__prediction=0.01,
        measure__discard_first=0,
        measure__batches=4,
    )


def streamed(config: RunConfig, *lengths: int) -> list[tuple[list[float], Trace]]:
    """By rank, how long after the one before each batch of the last stream ended, and the spans of that stream."""

    def rank(world: threads.LoopbackWorld) -> tuple[list[float], Trace]:
        instance = EmulatedRank(world, config)
        assert instance.streams
        for length in lengths:
            losses, ends = instance.stream([()] * length)
            assert losses == []
        instance.close()
        return [after - before for before, after in pairwise(ends)], instance.observe()

    return threads.run(config.grid.build().size, rank, deadline=60)


def test_stream_does_not_drain_between_batches(streaming: RunConfig) -> None:
    """Of four batches of two: 45 ms a microbatch on the first stage, which predicts; the second one waits for it."""

    def values(ranks: list[tuple[list[float], Trace]]) -> list[tuple[float, float]]:
        forward = [span for span in ranks[0][1] if span.category == FORWARD]
        return [*((took[1], 0.09) for took, _ in ranks), (forward[3].seconds, 0.02)]

    outputs = on_time(lambda: streamed(streaming, 1, 4), values, 0.15)
    for number, (_, trace) in enumerate(outputs):
        ran = [str(span.op) for span in trace if span.category in (FORWARD, BACKWARD)]
        assert sorted(ran) == sorted(f"{number}{kind}{index}" for kind in "FB" for index in range(2, 10))
        assert [str(span.op) for span in trace if span.category == STEP] == [f"{number}U{i}" for i in range(2, 10)]
    assert ran[:4] == ["1F2", "1B2", "1F3", "1B3"], "the last stage alternates from the first microbatch on"


def test_stream_is_predicted_for_a_full_pipeline(streaming: RunConfig) -> None:
    free = Link(latency=0.0, bandwidth=1e18)
    assert predict(streaming, free).seconds == pytest.approx(2 * 0.045)
    long = altered(streaming, measure__batches=20)
    assert predict(long, free).seconds == pytest.approx(2 * 0.045)
    assert predict(long, free).bytes == 5 * predict(streaming, free).bytes


def test_weight_copy_costs_where_a_version_is_stashed(streaming: RunConfig) -> None:
    stash = {"_target_": "baselines.pipedream.Stash", "graph": "recompute"}
    plan = EmulationPlan.of(altered(streaming, weights=stash, executor__copy=0.25))
    assert [[chunk.step for chunk in plan.cost.update(stage)] for stage in (0, 1)] == [[0.255], [0.005]]
    assert [plan.cost.compute(Op(stage, Kind.FORWARD, 3)) for stage in (0, 1)] == [0.01, 0.01]


@pytest.mark.parametrize("name", ["prediction", "copy"])
@pytest.mark.parametrize("value", [-1.0, math.nan, "often"])
def test_overheads_of_a_policy_are_not_negative(streaming: RunConfig, name: str, value: Any) -> None:
    refusal = freeze(unchecked(streaming, {f"executor.{name}": value}), "").refusal
    assert isinstance(refusal, InvalidRequest)
    assert str(refusal).startswith(f"executor.{name}={value}; rule: ")
    assert str(refusal).endswith(f"legal: executor.{name}=0.01")


def test_each_stream_has_its_own_static_order(streaming: RunConfig) -> None:
    def rank(world: threads.LoopbackWorld) -> list[str]:
        instance = EmulatedRank(world, streaming)
        instance.plan = EmulationPlan.of(streaming, static=True)
        instance.stream([()] * 3)
        instance.close()
        return [str(span.op) for span in instance.observe() if span.category in (FORWARD, BACKWARD)]

    first, _ = threads.run(2, rank, deadline=60)
    assert first[:4] == ["0F0", "0F1", "0B0", "0F2"]
    assert len(first) == 12


# -- several stages per rank, split backward passes -----------------------------------------------------------------


PLACED = {
    "zb_h1": {"_target_": "suite.schedule.staircase.Staircase", "split": True},
    "interleaved": {"_target_": "suite.schedule.staircase.Staircase", "chunks": 2},
    "zbv": {"_target_": "suite.schedule.zbv.ZBV"},
    "axonn_zb_v": {"_target_": "suite.schedule.message_driven_split.MessageDrivenV"},
}


@pytest.mark.parametrize("name", PLACED)
def test_placed_schedules_are_emulated_and_predicted(base: RunConfig, name: str) -> None:
    """Every op runs on the rank of its stage; the bytes that ranks send are those that the simulator predicts."""
    cost = fixed(message_bytes=1000, forward=0.002, backward=0.004)
    config = altered(base, grid__inter=3, batch__size=6, schedule=PLACED[name], executor__cost=cost)
    timeline = check_schedule(config.schedule.build(), 3, FlushInterval(0, 6, None, 0))
    results = emulated(config)
    for place, (_, trace, _) in zip(timeline.places, results, strict=True):
        ran = [span.op for span in trace if span.category not in (WAIT, REDUCE)]
        assert sorted(map(str, ran)) == sorted(str(op) for op in timeline.order(place.rank))
        if name in ("zb_h1", "interleaved", "zbv"):
            assert ran == list(timeline.order(place.rank))
    values = metrics(config, spans(results))
    crossings = sum(
        place.rank_of(stage) != place.rank_of(stage + 1)
        for place in timeline.places[:1]
        for stage in range(timeline.stages - 1)
    )
    assert values["payload_bytes"].values == values["simulated_bytes"].values == (2 * 6 * 1000.0 * crossings,)


def test_rank_hands_over_to_its_own_stages_without_a_buffer(base: RunConfig) -> None:
    cost = fixed(message_bytes=1000, forward=0.001, backward=0.002)
    config = altered(base, schedule=PLACED["interleaved"], executor__cost=cost)
    ((_, trace, instance),) = emulated(config)
    assert {span.op.stage for span in trace if span.op is not None} == {0, 1}
    assert not instance.buffers
    assert EmulatedRank.bytes_per_rank(config) == [0]


def test_emulated_v_takes_the_time_of_the_checker(base: RunConfig) -> None:
    config = altered(
        base, grid__inter=2, batch__size=6, schedule=PLACED["zbv"], executor__cost=fixed(forward=0.01, backward=0.02)
    )
    seconds = check_schedule(
        config.schedule.build(),
        2,
        FlushInterval(0, 6, None, 0),
        cost=lambda op: 0.0 if op.kind is Kind.UPDATE else 0.01,
    ).makespan
    assert predict(config, Link(0.0, 1e18)).seconds == pytest.approx(seconds)
    on_time(lambda: emulated(config), whole(seconds), 0.15)


def test_static_order_keeps_the_placement(base: RunConfig) -> None:
    config = altered(base, grid__inter=3, batch__size=6, schedule=PLACED["zbv"])
    either = {predict(altered(config, comm__order=order), Link(**NETWORK)).seconds for order in ("any", "static")}
    static = EmulationPlan.of(config, static=True)
    assert places(static.schedule, 3)[0].held_stages == (0, 5)
    assert len(either) == 1


@pytest.mark.parametrize("schedule", PLACED)
def test_asynchronous_policy_of_placed_schedule_is_refused_before_ranks_start(schedule: str) -> None:
    words = ["executor=emulated", "system=pipedream", "grid.inter=3", f"schedule={schedule}"]
    refusal = freeze(composed(words), "").refusal
    assert isinstance(refusal, Unsupported)
    assert (refusal.key, refusal.value) == ("weights", "Stash")
    assert "one stage per rank and whole backward passes" in refusal.rule
    assert "one_f_one_b" in refusal.legal


def test_emulated_stream_of_a_v_takes_the_stage_time_per_batch(base: RunConfig) -> None:
    cost = fixed(forward=0.01, backward=0.02)
    drained = altered(base, grid__inter=2, batch__size=4, schedule=PLACED["zbv"], executor__cost=cost)
    stream = altered(drained, update_interval=4, measure__batches=3, measure__discard_first=0)
    free = Link(0.0, 1e18)
    assert predict(drained, free).seconds == pytest.approx(0.25)
    assert predict(stream, free).seconds == pytest.approx(0.24)
    on_time(lambda: emulated(stream), whole(0.24), 0.15)
