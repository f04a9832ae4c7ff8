"""Given costs: used as given, counted from a trace, read from a file, and refused when missing."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Chunk, CostModel, Schedule
from suite.core.trace import BACKWARD, FORWARD, REDUCE, STEP, TIE, WAIT, Span, Trace
from suite.runner.store import Store
from suite.schedule import ZBV, OneFOneB
from suite.simulate.cost.measured import Fixed, Profiled, recorded
from suite.simulate.worker import simulate
from tests.support.modelled import FREE, Drawn, network
from tests.support.refusals import refused

GRID = Grid(data=2, inter=2)  # ranks 0 and 1, 2 and 3
PART = "tensor_reduce"  # inside a pass, and no cost of its own
TRACE = Trace(
    Span(rank, kind, start, end, Op.parse(text) if text else None, size)
    for rank, kind, start, end, text, size in (
        *((2, FORWARD, 0.0, 1.0, "0F8", 40), (2, FORWARD, 1.0, 1.5, "0F9", 44), (3, FORWARD, 1.0, 3.0, "1F8", 0)),
        *((3, WAIT, 0.0, 1.0, "1F8", 0), (3, BACKWARD, 3.0, 7.0, "1B8", 48), (3, FORWARD, 7.0, 9.0, "1F9", 0)),
        *((3, BACKWARD, 9.0, 12.0, "1B9", 48), (2, WAIT, 1.5, 7.0, "0B8", 0), (2, BACKWARD, 7.0, 9.0, "0B8", 0)),
        *((3, PART, 5.0, 6.0, "1B8", 0), (2, BACKWARD, 12.0, 13.0, "0B9", 0), (3, REDUCE, 12.0, 12.5, "1U4", 0)),
        *((3, TIE, 12.5, 12.75, "1U4", 0), (3, STEP, 12.75, 13.0, "1U4", 0), (2, STEP, 13.0, 14.0, "0U4", 0)),
        *((0, FORWARD, 0.0, 99.0, "0F8", 1), (2, "checkpoint", 14.0, 20.0, "", 0)),
    )
)


def seconds(cost: CostModel, texts: str) -> list[float]:
    return [cost.compute(Op.parse(text)) for text in texts.split()]


def sizes(cost: CostModel, texts: str) -> list[int]:
    return [cost.message(Op.parse(text)) for text in texts.split()]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (Fixed(1.0, 2.5), [1.0, 1.0, 2.5, 1.25, 1.25]),
        (Fixed(1.0, 2.0, weight=0.5), [1.0, 1.0, 2.0, 1.5, 0.5]),
        (Fixed([1.0, 2.0], [2.0, 6.0], weight=[1.0, 4.0]), [1.0, 2.0, 6.0, 2.0, 4.0]),
        (Fixed(1.0, [2.0, 6.0], weight=2.0), [1.0, 1.0, 6.0, 4.0, 2.0]),
        (Fixed(1.0, 2.0, weight=0.0), [1.0, 1.0, 2.0, 2.0, 0.0]),
    ],
)
def test_fixed_costs_by_stage_and_kind(cost: Fixed, expected: list[float]) -> None:
    assert seconds(cost, "0F0 1F3 1B3 1I3 1W3") == expected
    assert seconds(Fixed(1.0, 2.5), "4E1") == [1.0]
    sized = Fixed(1.0, 2.5, message_bytes=7, step=0.5, reduce_bytes=9)
    assert sizes(sized, "0F0 3B1") == [7, 7]
    assert sized.update(0) == sized.update(5) == (Chunk(9, 0.5),)


def test_impossible_costs_are_refused() -> None:
    usual: dict[str, Any] = {"forward": 1.0, "backward": 2.0}
    for name in ("forward", "backward", "message_bytes", "step", "reduce_bytes"):
        for value in (-1, math.inf, math.nan):
            with refused(InvalidRequest, name, value, legal=f"{name}=0"):
                Fixed(**{**usual, name: value})
    with refused(InvalidRequest, "forward"):
        Fixed(**{**usual, "forward": [1.0, -1]})
    for weight in (-1.0, 3.0, "x"):
        with refused(InvalidRequest, "weight") as caught:
            Fixed(**usual, weight=weight)
        assert caught.value.legal
    with refused(InvalidRequest, subject="no cost of 2F0", legal="3 costs"):
        simulate(OneFOneB(), Grid(inter=3), FlushInterval(0, 1, None, 0), Fixed([1.0, 2.0], 3.0), FREE)


def test_profiled_costs_are_counted_from_the_first_microbatch() -> None:
    cost = Profiled.of(TRACE, GRID, replica=1)
    assert seconds(cost, "0F0 0F1 1F0 1B0 1B1 0B0 0B1") == [1.0, 0.5, 2.0, 4.0, 3.0, 2.0, 1.0]
    assert sizes(cost, "0F0 0F1 1B0 1F0 0B0") == [40, 44, 48, 0, 0]
    assert cost.update(1) == cost.update(0) == (Chunk(0, 1.0),)  # all three of its parts
    assert Profiled.of(TRACE, GRID).compute(Op.parse("0F0")) == 99.0
    medians = cost.medians()
    assert seconds(medians, "0F0 0F7 1F3 1B5 0B2") == [0.75, 0.75, 2.0, 3.5, 1.5]
    assert (sizes(medians, "1B77"), medians.update(1)) == ([48], (Chunk(0, 1.0),))
    steps = (Span(0, STEP, 0.0, t, Op.parse(f"0U{t}")) for t in (1, 2, 6))
    mean = Profiled.of([Span(0, FORWARD, 0.0, 1.0, Op.parse("0F3")), *steps], Grid())
    assert [mean.update(stage) for stage in (0, 1)] == [(Chunk(0, 3.0),), (Chunk(0, 0.0),)]


def test_a_missing_op_is_refused_by_name() -> None:
    cost = Profiled.of(TRACE, GRID, replica=1)
    for missing in ("0F2", "2F0", "0E0"):
        with refused(InvalidRequest, subject=f"no cost of {missing} in a table of 8 ops on 2 stages"):
            cost.compute(Op.parse(missing))
    with refused(InvalidRequest, subject="no cost of 2F4 in a table of 4 ops on 2 stages"):
        cost.medians().compute(Op.parse("2F4"))
    with refused(InvalidRequest, subject="in a table of 0 ops on 0 stages"):
        Profiled.of([], GRID).compute(Op.parse("0F0"))


@pytest.mark.parametrize(("schedule", "inter"), [(OneFOneB(), 3), (ZBV(), 2)])
def test_the_costs_of_a_simulated_trace_give_that_simulation_again(schedule: Schedule, inter: int) -> None:
    """Law 6 on the virtual clock: no op's time is lost on the way, whatever number its first microbatch has."""
    cost = Drawn(4, times=(0.5, 1.0, 2.0), sizes=(3, 5), chunks=[Chunk(0, 1.5)])
    grid, interval = Grid(data=2, inter=inter), FlushInterval(12, 5, None, 3)
    simulation = simulate(schedule, grid, interval, cost, network(0.0, 10.0), symmetric=False, traced=True)
    for replica in (0, 1):
        profile = Profiled.of(simulation.trace, grid, replica)
        again = simulate(schedule, grid, FlushInterval(0, 5, None, 0), profile, network(0.0, 10.0))
        assert again.makespan == pytest.approx(simulation.makespan, rel=1e-12)
        assert again.sent == simulation.sent
        assert set(profile.updates.values()) == {1.5}
        whole = [cost.compute(Op(1, Kind.FORWARD, index)) for index in range(12, 17)]
        assert profile.medians().compute(Op(1, Kind.FORWARD, 9)) == median(whole)


# -- of a file ---------------------------------------------------------------------------------------------------------


def test_the_costs_of_a_stored_trace_are_its_medians(tmp_path: Path) -> None:
    spans = Trace(span._replace(rank=span.rank - 2) for span in TRACE if GRID.position(span.rank).data == 1)
    cost = recorded(trace=str(tmp_path / Store(tmp_path).write_trace("key", Grid(inter=2), spans)))
    assert seconds(cost, "0F0 0F7 1F3 1B5 0B2") == [0.75, 0.75, 2.0, 3.5, 1.5]
    assert (sizes(cost, "1B0"), cost.update(1)) == ([48], (Chunk(0, 1.0),))


def packed(content: object) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    file, good = tmp_path / "key.json.gz", packed({"grid": {"inter": 2}, "spans": [[0, "forward", 0.0, 1.0, "0F0", 4]]})
    with refused(InvalidRequest, "trace", legal="reports/traces/KEY.json.gz"):
        recorded(trace=str(file))
    file.write_bytes(good)
    assert recorded(trace=str(file)).compute(Op.parse("0F5")) == 1.0
    rows = ([[0, "forward"]], [], [[0, "forward", 0.0, 1.0, "what", 4]])
    contents = ([], {"spans": []}, {"grid": {"rows": 2}, "spans": []}, *({"grid": {}, "spans": row} for row in rows))
    broken = (b"no gzip", good[:-12], good[:10] + bytes([good[10] ^ 255]) + good[11:], gzip.compress(b"no json"))
    for content in (*broken, *map(packed, contents)):
        file.write_bytes(content)
        with pytest.raises(InvalidRequest) as refusal:
            recorded(trace=str(file))
        assert refusal.value.rule, content
        assert refusal.value.legal, content
