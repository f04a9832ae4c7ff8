"""Emulated ranks: sleeps, messages and prediction follow the cost model.

Ranks are threads here, which sleep as well as processes; tests/agreement has real ranks and the bound on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar

import pytest

from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.op import FlushInterval
from suite.core.trace import BACKWARD, FORWARD, REDUCE, STEP, WAIT, Trace
from suite.runner.executors import emulated_rank
from suite.runner.executors.emulated_rank import EmulatedRank, metrics, predict
from suite.schedule.check import check as check_schedule
from suite.simulate.network.machine import Link
from tests.support.configs import altered
from tests.support.drawn import drawn

NETWORK = {"latency": 0.001, "bandwidth": 1.0e6}


Result = TypeVar("Result")
Ranks = list[tuple[float, Trace, EmulatedRank]]


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=emulated", "batch.size=4", "batch.microbatch=1"])


def fixed(**costs: Any) -> dict[str, Any]:
    return {"_target_": "suite.simulate.cost.measured.Fixed", "forward": 0.01, "backward": 0.02, **costs}


def emulated(config: RunConfig, batches: int = 1) -> Ranks:
    """Seconds and spans of the last of `batches`, and the rank itself, by rank."""

    def rank(world: threads.LoopbackWorld) -> tuple[float, Trace, EmulatedRank]:
        instance = EmulatedRank(world, config)
        seconds = 0.0
        for _ in range(batches):
            begin = perf_counter()
            instance.train_batch()
            seconds = perf_counter() - begin
        instance.close()
        return seconds, instance.observe(), instance

    return threads.run(config.grid.build().size, rank)


def on_time(
    run: Callable[[], Result], values: Callable[[Result], Sequence[tuple[float, float]]], late: float
) -> Result:
    """The first of at most six runs in which no value differs from its expectation by more than the share `late`.

    Other programs may delay a sleeping rank, whose next batch then ends sooner after this one. `values` maps the result
    of a run to pairs of measured and expected seconds.
    """
    for _ in range(6):
        outputs = run()
        pairs = values(outputs)
        assert pairs
        if all(abs(took - expected) <= late * expected for took, expected in pairs):
            return outputs
    raise AssertionError(f"early or late in each of six runs: {pairs}")


def spans(ranks: Ranks) -> Trace:
    return Trace(span for _, trace, _ in ranks for span in trace)


# -- a rank --------------------------------------------------------------------------------------------------------


def test_single_rank_sleeps_for_the_cost_of_its_ops(base: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Woken 6 ms late from every one of 9 sleeps: the last one's is all that shows."""
    sleep_until = emulated_rank.sleep_until
    monkeypatch.setattr(emulated_rank, "sleep_until", lambda end, progress: sleep_until(end + 0.006, progress))
    config = altered(base, executor__cost=fixed(step=0.015, reduce_bytes=3000), executor__stragglers={"0": 1.5})
    expected = 4 * 0.03 * 1.5 + 0.015 + 0.006
    ((seconds, trace, instance),) = on_time(lambda: emulated(config), lambda ranks: [(ranks[0][0], expected)], 0.1)
    assert seconds >= expected
    assert [span.category for span in trace] == [FORWARD, BACKWARD] * 4 + [STEP]
    assert not instance.buffers, "a single replica reduces nothing"


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

    return threads.run(config.grid.build().size, rank)


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


# -- several stages per rank, split backward passes -----------------------------------------------------------------


PLACED = {
    "zb_h1": {"_target_": "suite.schedule.staircase.Staircase", "split": True},
    "interleaved": {"_target_": "suite.schedule.staircase.Staircase", "chunks": 2},
    "zbv": {"_target_": "suite.schedule.zbv.ZBV"},
    "axonn_zb_v": {"_target_": "suite.schedule.message_driven_split.MessageDrivenV"},
}


@pytest.mark.parametrize("name", drawn(PLACED, n=2))
def test_placed_schedules_are_emulated_and_predicted(base: RunConfig, name: str) -> None:
    """Every op runs on the rank of its stage; the bytes that ranks send are those that the simulator predicts."""
    cost = fixed(message_bytes=1000, forward=0.002, backward=0.004)
    config = altered(base, grid__inter=3, batch__size=6, schedule=PLACED[name], executor__cost=cost)
    timeline = check_schedule(config.schedule.build(), 3, FlushInterval(0, 6, None, 0))
    results = emulated(config)
    assert [str(span.op) for span in emulated(config, batches=2)[0][1] if span.category == STEP] == ["0U1"], (
        "counted on"
    )
    for place, (_, trace, instance) in zip(timeline.places, results, strict=True):
        assert len(instance.buffers) == 1
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
