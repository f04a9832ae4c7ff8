"""Given costs: used as given, and refused when missing."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Chunk, CostModel
from suite.core.trace import BACKWARD, FORWARD, REDUCE, STEP, TIE, WAIT, Span, Trace
from suite.runner.store import Store
from suite.schedule import OneFOneB
from suite.simulate.cost.measured import Fixed, Profiled, recorded
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import FREE, machine
from tests.support.refusals import refused


def op(text: str) -> Op:
    return Op.parse(text)


def test_the_same_on_every_stage() -> None:
    cost: CostModel = Fixed(1.0, 2.5, message_bytes=7, step=0.5, reduce_bytes=9)
    assert [cost.compute(op(text)) for text in ("0F0", "9F3", "4E1", "0B0", "9B7")] == [1.0, 1.0, 1.0, 2.5, 2.5]
    assert cost.message(op("0F0")) == cost.message(op("3B1")) == 7
    assert cost.update(0) == cost.update(5) == (Chunk(9, 0.5),)


def test_one_per_stage() -> None:
    cost = Fixed([1.0, 2.0], (3.0, 4.0, 5.0))
    assert [cost.compute(op(text)) for text in ("0F4", "1F0", "0B0", "2B2")] == [1.0, 2.0, 3.0, 5.0]
    with refused(InvalidRequest, subject="no cost of 2F0: costs for 2 stages", rule="one per stage", legal="3 costs"):
        cost.compute(op("2F0"))
    with refused(InvalidRequest, subject="no cost of 2F0", rule="one per stage"):
        simulate(OneFOneB(), Grid(inter=3), FlushInterval(0, 1, None, 0), cost, FREE)


@pytest.mark.parametrize("name", ["forward", "backward", "message_bytes", "step", "reduce_bytes"])
@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_a_cost_is_finite_and_not_negative(name: str, value: float) -> None:
    usual: dict[str, Any] = {"forward": 1.0, "backward": 2.0}
    with refused(InvalidRequest, f"cost.{name}", str(value), legal=f"cost.{name}=0"):
        Fixed(**{**usual, name: value})
    if name in usual:
        with refused(InvalidRequest, f"cost.{name}"):
            Fixed(**{**usual, name: [1.0, value]})


# -- of a trace --------------------------------------------------------------------------------------------------------

GRID = Grid(data=2, inter=2)  # ranks 0 and 1, 2 and 3
TRACE = Trace(
    [
        Span(2, FORWARD, 0.0, 1.0, op("0F8"), 40),
        Span(2, FORWARD, 1.0, 1.5, op("0F9"), 44),
        Span(3, FORWARD, 1.0, 3.0, op("1F8")),
        Span(3, WAIT, 0.0, 1.0, op("1F8")),  # in whichever order
        Span(3, BACKWARD, 3.0, 7.0, op("1B8"), 48),
        Span(3, FORWARD, 7.0, 9.0, op("1F9")),
        Span(3, BACKWARD, 9.0, 12.0, op("1B9"), 48),
        Span(2, WAIT, 1.5, 7.0, op("0B8")),
        Span(2, BACKWARD, 7.0, 9.0, op("0B8")),
        Span(2, BACKWARD, 12.0, 13.0, op("0B9")),
        Span(3, REDUCE, 12.0, 12.5, op("1U4")),
        Span(3, TIE, 12.5, 12.75, op("1U4")),
        Span(3, STEP, 12.75, 13.0, op("1U4")),
        Span(2, STEP, 13.0, 14.0, op("0U4")),
        Span(0, FORWARD, 0.0, 99.0, op("0F8"), 1),  # another replica
        Span(2, "checkpoint", 14.0, 20.0),  # no op: not asked for
    ]
)


def test_profiled_costs_are_counted_from_the_first_microbatch() -> None:
    cost = Profiled.of(TRACE, GRID, replica=1)
    seconds = {text: cost.compute(op(text)) for text in ("0F0", "0F1", "1F0", "1B0", "1B1", "0B0", "0B1")}
    assert seconds == {"0F0": 1.0, "0F1": 0.5, "1F0": 2.0, "1B0": 4.0, "1B1": 3.0, "0B0": 2.0, "0B1": 1.0}
    assert [cost.message(op(text)) for text in ("0F0", "0F1", "1B0", "1F0", "0B0")] == [40, 44, 48, 0, 0]
    assert cost.update(1) == (Chunk(0, 1.0),)  # all three of its parts
    assert cost.update(0) == (Chunk(0, 1.0),)
    assert Profiled.of(TRACE, GRID).compute(op("0F0")) == 99.0


def test_medians_stand_for_every_microbatch() -> None:
    cost = Profiled.of(TRACE, GRID, replica=1).medians()
    assert [cost.compute(op(text)) for text in ("0F0", "0F7", "1F3", "1B5", "0B2")] == [0.75, 0.75, 2.0, 3.5, 1.5]
    assert cost.message(op("1B77")) == 48
    assert cost.update(1) == (Chunk(0, 1.0),)


def test_several_updates_of_a_trace_have_their_mean() -> None:
    spans = [Span(0, FORWARD, 0.0, 1.0, op("0F3")), *(Span(0, STEP, 0.0, t, op(f"0U{t}")) for t in (1, 2, 6))]
    assert Profiled.of(spans, Grid()).update(0) == (Chunk(0, 3.0),)
    assert Profiled.of(spans, Grid()).update(1) == (Chunk(0, 0.0),)


def test_a_missing_op_is_refused_by_name() -> None:
    cost = Profiled.of(TRACE, GRID, replica=1)
    for missing in ("0F2", "2F0", "0E0"):
        subject = f"no cost of {missing} in a table of 8 ops on 2 stages"
        with refused(InvalidRequest, subject=subject, legal="a trace of a whole batch, or its medians()"):
            cost.compute(op(missing))
    with refused(InvalidRequest, subject="no cost of 2F4 in a table of 4 ops on 2 stages", rule="a cost for every op"):
        cost.medians().compute(op("2F4"))
    with refused(InvalidRequest, subject="in a table of 0 ops on 0 stages", rule="a cost for every op"):
        Profiled.of([], GRID).compute(op("0F0"))
    with refused(InvalidRequest, subject="no cost of 0F2", rule="a cost for every op"):
        simulate(OneFOneB(), Grid(inter=2), FlushInterval(0, 3, None, 0), cost, FREE)


@pytest.mark.parametrize("replica", [0, 1])
def test_the_costs_of_a_simulated_trace_give_that_simulation_again(replica: int) -> None:
    """Law 6 on the virtual clock: no op's time is lost on the way, whatever number its first microbatch has."""
    cost = Fixed([1.0, 2.0, 0.5], [2.0, 3.5, 1.25], message_bytes=30, step=0.25)
    network = NetworkModel(lambda first, second: machine(between=machine().within).link(first, second))
    grid, interval = Grid(data=2, inter=3), FlushInterval(12, 5, None, 3)
    simulation = simulate(OneFOneB(), grid, interval, cost, network, symmetric=False, traced=True)
    again = simulate(
        OneFOneB(),
        grid,
        FlushInterval(0, 5, None, 0),
        Profiled.of(simulation.trace, grid, replica),
        network,
        traced=True,
    )
    assert again.makespan == pytest.approx(simulation.makespan, rel=1e-12)
    assert again.sent == simulation.sent
    medians = Profiled.of(simulation.trace, grid, replica).medians()
    assert all(medians.compute(Op(stage, Kind.FORWARD, 3)) == cost.forward[stage] for stage in range(3))  # type: ignore[index]


# -- of a file ---------------------------------------------------------------------------------------------------------


def test_the_costs_of_a_stored_trace_are_its_medians(tmp_path: Path) -> None:
    spans = Trace(span._replace(rank=span.rank - 2) for span in TRACE if GRID.place(span.rank).replica == 1)
    stored = Store(tmp_path).write_trace("key", Grid(inter=2), spans)
    cost = recorded(trace=str(tmp_path / stored))
    assert [cost.compute(op(text)) for text in ("0F0", "0F7", "1F3", "1B5", "0B2")] == [0.75, 0.75, 2.0, 3.5, 1.5]
    assert (cost.message(op("1B0")), cost.update(1)) == (48, (Chunk(0, 1.0),))


def packed(content: object) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)  # the name of a test


GOOD = packed({"grid": {"data": 1, "inter": 2, "tensor": 1}, "spans": [[0, "forward", 0.0, 1.0, "0F0", 4]]})


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        GOOD[:-12],
        GOOD[:10] + bytes([GOOD[10] ^ 255]) + GOOD[11:],
        gzip.compress(b"no json", mtime=0),
        packed([]),
        packed({"spans": []}),
        packed({"grid": {"rows": 2}, "spans": []}),
        packed({"grid": {}, "spans": [[0, "forward"]]}),
        packed({"grid": {}, "spans": []}),
        packed({"grid": {}, "spans": [[0, "forward", 0.0, 1.0, "what", 4]]}),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key.json.gz"
    with refused(
        InvalidRequest, "cost.trace", subject="key.json.gz", rule="a trace of a run", legal="reports/traces/KEY.json.gz"
    ):
        recorded(trace=str(file))
    file.write_bytes(GOOD)
    assert recorded(trace=str(file)).compute(op("0F5")) == 1.0
    file.write_bytes(content)
    with pytest.raises(InvalidRequest) as refusal:
        recorded(trace=str(file))
    assert refusal.value.rule
    assert refusal.value.legal


def test_part_of_a_pass_is_not_counted_as_the_pass() -> None:
    trace = Trace()
    trace.add(0, "backward", 2.0, 6.0, Op.parse("0B0"))
    trace.add(0, "tensor_reduce", 5.0, 6.0, Op.parse("0B0"))
    assert Profiled.of(trace, Grid()).seconds == {Op.parse("0B0"): 4.0}
