"""Perfetto export: fields, nesting on every track, one name per op, and own tracks for what overlaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Op
from suite.core.trace import (
    BACKWARD,
    COMPRESS,
    EXCHANGE,
    EXPAND,
    FORWARD,
    MESSAGE,
    PRODUCT,
    REDUCE,
    STEP,
    TENSOR_REDUCE,
    WAIT,
    WEIGHT,
    Trace,
)
from suite.engine.optim.optimizer import AdamW
from suite.engine.pruning.settings import Pruning
from suite.memory.layout import compressed
from suite.report.load import read_store
from suite.report.plots.figure import COLOURS
from suite.report.plots.gantt import gantt
from suite.report.plots.perfetto import events
from suite.schedule.zbv import ZBV
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate
from tests.support.cases import gpt_case
from tests.support.chrome import faults, overlaps
from tests.support.masked import FixedMask, random_mask
from tests.support.resuming import engine_of

ROOT = Path(__file__).parents[3]
CASE = gpt_case("tied", "float32")
TICKET = random_mask(CASE, 0.8)


def slices(chrome_events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["name"]: event for event in chrome_events if event["ph"] == "X"}


def tracks(chrome_events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in chrome_events if event["name"] == "thread_name"}


def traced(grid: Grid, **more: Any) -> Trace:
    """The second batch of a pruned network, on threads."""

    def rank(world: threads.LoopbackWorld) -> Trace:
        with_ticket = {"memory": compressed, "pruning": Pruning(FixedMask(TICKET), 0.8)}
        engine = engine_of(CASE, world, grid, optimizer=AdamW(0.01), **with_ticket, **more)
        for number in range(2):
            engine.state.trace.clear()
            engine.train_batch(CASE.batch(number, 4, grid.data))
        return engine.state.trace

    return Trace(span for spans in threads.run(grid.size, rank) for span in spans).shifted()


@pytest.mark.parametrize(
    ("grid", "more"),
    [
        (Grid(), {}),
        (Grid(inter=2), {"half": "bfloat16"}),
        (
            Grid(data=2),
            {"half": "bfloat16", "bucket_numel": 500, "buckets_per_reduction": 2},
        ),  # steps overlap reductions
    ],
    ids=["one process", "two stages", "two replicas"],
)
def test_pruned_run_nests_on_every_track(grid: Grid, more: dict[str, Any]) -> None:
    trace = traced(grid, **more)
    assert {COMPRESS, EXPAND} <= {span.category for span in trace}
    for rank in range(grid.size):
        of_rank = [span for span in trace if span.rank == rank]
        steps = [span for span in of_rank if span.category == STEP]
        for part in (span for span in of_rank if span.category == EXPAND):
            assert any(whole.start <= part.start and part.end <= whole.end for whole in steps), "as it is recorded"
    chrome_events = events(trace, grid)
    assert not faults(chrome_events)
    assert len(tracks(chrome_events)) == grid.size, "parts lie in their step or pass, not on tracks of their own"


def test_part_that_outlasts_its_step_is_moved_into_it() -> None:
    """Older traces hold such parts: the clock was read once more behind the step."""
    trace = Trace()
    trace.add(0, STEP, 1.0, 1.5, Op.parse("0U0"))
    trace.add(0, EXPAND, 1.250004, 1.500004)
    drawn = slices(events(trace, Grid()))
    assert (drawn[EXPAND]["ts"], drawn[EXPAND]["dur"]) == (1.25e6, 0.25e6)


def test_asynchronous_spans_have_their_own_track() -> None:
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    trace.add(0, BACKWARD, 1.0, 3.0, Op.parse("0B0"))
    trace.add(0, REDUCE, 2.5, 4.0, Op.parse("0U0"))  # begins during the pass
    trace.add(0, STEP, 3.5, 5.0, Op.parse("0U0"))
    trace.add(1, EXCHANGE, 0.0, 2.0)
    trace.add(1, PRODUCT, 0.5, 1.0)  # inside in time, but no part of it
    chrome_events = events(trace, Grid(data=2))
    assert not faults(chrome_events)
    by_name = slices(chrome_events)
    names = tracks(chrome_events)
    assert names[by_name["reduce 0U0"]["tid"]] == "rank 0, stage 0, overlapping"
    assert names[by_name["step 0U0"]["tid"]] == "rank 0, stage 0"
    assert names[by_name[PRODUCT]["tid"]] == "rank 1, stage 0, overlapping"
    order = [e["args"]["sort_index"] for e in chrome_events if e["name"] == "thread_sort_index"]
    assert len(set(order)) == len(order) == 4


def test_arrows_lead_from_an_op_to_its_consumer() -> None:
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F12"), 64)
    trace.add(0, TENSOR_REDUCE, 0.5, 0.75, Op.parse("0F12"))  # part of the pass: no arrow leads from it
    trace.add(1, WAIT, 0.0, 1.5, Op.parse("1F12"))
    trace.add(1, FORWARD, 1.5, 2.5, Op.parse("1F12"))
    chrome_events = events(trace, Grid(inter=2))
    start, finish = [event for event in chrome_events if event["ph"] in "sf"]
    assert (start["ph"], start["tid"], start["ts"]) == ("s", 1, pytest.approx(1e6, abs=0.2))
    assert (finish["ph"], finish["tid"], finish["ts"]) == ("f", 2, 1.5e6)
    assert start["id"] == finish["id"]
    assert start["name"] == finish["name"] == "forward 0F12"
    by_name = slices(chrome_events)
    assert {"forward 0F12", "forward 1F12", "wait 1F12"} <= by_name.keys()
    assert (by_name["forward 1F12"]["ts"], by_name["forward 1F12"]["dur"]) == (1.5e6, 1e6)


def test_rounding_breaks_no_nesting() -> None:
    """Spans end to end: whatever a viewer rounds, none overlaps the next."""
    for start in (0.0, 1e-9, 0.1, 1234.5678901):
        trace = Trace()
        for number in range(300):
            trace.add(0, STEP, start + number * 1.00137e-6, start + (number + 1) * 1.00137e-6)
            trace.add(0, EXPAND, start + number * 1.00137e-6, start + (number + 1) * 1.00137e-6)
        chrome_events = events(trace, Grid())
        assert not faults(chrome_events)
        assert len(tracks(chrome_events)) == 1


def test_committed_traces_nest() -> None:
    stored = [entry.trace for entry in read_store(ROOT / "reports").entries if entry.machine and entry.trace]
    assert stored
    for trace in stored:
        assert not faults(events(trace.spans, trace.grid)), trace.file


def test_checker_sees_an_overlap() -> None:
    one = {"name": "a", "ts": 0.0, "dur": 1.0}
    assert overlaps([one, {"name": "b", "ts": 0.5, "dur": 1.0}]) == ["b outlasts a by 500 ns"]
    assert overlaps([one, {"name": "b", "ts": 0.5, "dur": 0.5}, {"name": "c", "ts": 1.0, "dur": 1.0}]) == []


def test_parts_of_any_pass_lie_inside_it() -> None:
    trace = Trace()
    for category, op in ((FORWARD, "0F0"), (BACKWARD, "0B0")):
        begin = 0.0 if category == FORWARD else 10.0
        trace.add(0, category, begin, begin + 10.0, Op.parse(op))
        trace.add(0, TENSOR_REDUCE, begin + 7.0, begin + 10.0, Op.parse(op))
        trace.add(0, MESSAGE, begin + 8.0, begin + 10.0, Op.parse(op))
    chrome_events = events(trace, Grid())
    assert faults(chrome_events) == []
    assert list(tracks(chrome_events).values()) == ["rank 0, stage 0"]


# -- several stages per rank, split backward passes -----------------------------------------------------------------


def placed_trace() -> Trace:
    network = NetworkModel(lambda first, second: Link(0.25, 1e9))
    cost = Fixed(1.0, 2.0, message_bytes=8)
    return simulate(ZBV(), Grid(inter=2), FlushInterval(0, 3, None, 0), cost, network, traced=True).trace


def test_ranks_of_a_v_name_their_stages_and_arrows_follow_the_messages() -> None:
    """Six forward and six gradient messages per boundary of three; none from a weight gradient."""
    found = events(placed_trace(), Grid(inter=2))
    names = [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert names == ["rank 0, stages 0, 3", "rank 1, stages 1, 2"]
    sent = [event["name"] for event in found if event["ph"] == "s"]
    assert len(sent) == len(set(sent)) == 3 * 3 * 2
    assert {"forward 0F0", "backward 3I2", "forward 1F1", "backward 2I0"} <= set(sent)
    assert not [name for name in sent if name.startswith(WEIGHT)]
    assert not faults(found)


def test_timeline_marks_weight_gradients_and_chunks() -> None:
    """Weight gradients have their own colour; a microbatch number has a prime on the second stage of its rank."""
    picture = gantt(placed_trace(), Grid(inter=2), "zbv")
    assert COLOURS[WEIGHT] in picture
    assert COLOURS[WEIGHT] not in {colour for name, colour in COLOURS.items() if name != WEIGHT}
    assert ">2'</text>" in picture
    assert ">2</text>" in picture
    assert ">2''</text>" not in picture
    assert "rank 0: weight_gradient 3W0" in picture
