"""Worker: the preferred ready op runs, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import pytest
import torch

from suite.core.errors import IllegalSchedule
from suite.core.op import Op, Program
from suite.core.trace import BACKWARD, EVALUATE, FORWARD, WAIT, Trace
from suite.engine.worker import run_program, run_to_end


def ops(*texts: str) -> tuple[Op, ...]:
    return tuple(Op.parse(text) for text in texts)


class Scripted:
    """A transport with scripted values, which records its requests.

    `later` holds values that arrive only during a wait, one per wait, in order.
    """

    any_order = True

    def __init__(self, here: Sequence[str] = (), later: Sequence[str] = ()) -> None:
        self.here, self.later = list(ops(*here)), list(ops(*later))
        self.requests: list[tuple[tuple[str, ...], float | None]] = []
        self.sent: list[tuple[str, int]] = []

    def send(self, op: Op, value: tuple[torch.Tensor, ...]) -> None:
        self.sent.append((str(op), len(value)))

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, tuple[torch.Tensor, ...]] | None:
        self.requests.append((tuple(map(str, ops)), timeout))
        if timeout is None and not any(op in self.here for op in ops):
            self.here.append(self.later.pop(0))
        for op in ops:
            if op in self.here:
                self.here.remove(op)
                return op, (torch.full((2,), float(op.index)),)
        return None

    def progress(self) -> None: ...

    def close(self) -> None: ...


def program(*steps: tuple[Op, ...], ran: list[str]) -> Program:
    for step in steps:
        ran.append(str((yield step)))


def driven(
    transport: Scripted, *steps: tuple[Op, ...], stages: int = 3, bound: int = 9
) -> tuple[list[str], list[tuple[str, list[float]]], Trace, int]:
    """Ops sent to the program, executed ops with their inputs, spans, and the peak."""
    ran: list[str] = []
    executed: list[tuple[str, list[float]]] = []
    trace = Trace()

    def execute(op: Op, value: Any) -> Any:
        executed.append((str(op), [float(tensor[0]) for tensor in value]))
        return (torch.zeros(3), torch.zeros(2, dtype=torch.int64))

    homes = range(3, 3 + stages)
    options: Any = {"rank": 4, "homes": homes, "bound": bound, "trace": trace, "clock": perf_counter}
    peak = run_to_end(run_program(program(*steps, ran=ran), execute, transport, **options))
    return ran, executed, trace, peak


@pytest.mark.parametrize(
    ("accepted", "here", "later", "executed", "requests"),
    [
        # the first op whose message is here runs, with the value that it needs
        ("1B5 1F0 1B1", "0F0 2B1 0F2", "", ("1F0", [0.0]), [(("2B5", "0F0", "2B1"), None)]),
        # program order is preference order
        ("1B0 1F0", "0F0 2B0", "", ("1B0", [0.0]), [(("2B0", "0F0"), None)]),
        ("1F0 1B0", "0F0 2B0", "", ("1F0", [0.0]), [(("0F0", "2B0"), None)]),
        # the last stage's backward is free and comes first, so no message is requested for a later forward
        ("2B0 2F1", "1F1", "", ("2B0", []), []),
        # a preferred op is polled before a free one
        ("0B0 0F1 0B1", "1B1", "", ("0F1", []), [(("1B0",), 0)]),
        ("0B0 0F1 0B1", "1B0", "", ("0B0", [0.0]), [(("1B0",), 0)]),
        # the worker waits only without a ready op
        ("1F0 1B0", "", "2B0", ("1B0", [0.0]), [(("0F0", "2B0"), None)]),
    ],
)
def test_preferred_ready_op_runs(accepted: str, here: str, later: str, executed: Any, requests: Any) -> None:
    transport = Scripted(here.split(), later.split())
    ran, actual, _, _ = driven(transport, ops(*accepted.split()))
    assert ran == [executed[0]]
    assert actual == [executed]
    assert transport.requests == requests


def test_in_flight_bound_is_enforced_and_peak_returned() -> None:
    steps = [ops(op) for op in ("0F0", "0F1", "0B0", "0F2", "0B1", "0B2")]
    here = ["1B0", "1B1", "1B2"]
    assert driven(Scripted(here), *steps, bound=2)[3] == 2
    with pytest.raises(IllegalSchedule, match="0F1 would be forward number 2 in flight, 1 were promised"):
        driven(Scripted(here), *steps, bound=1)
    ran, _, trace, peak = driven(Scripted(), ops("0E0"), ops("0E1"), bound=0)  # evaluation opens no forward pass
    assert (ran, peak) == (["0E0", "0E1"], 0)
    assert [span.category for span in trace] == [EVALUATE, EVALUATE]
    assert driven(Scripted())[0] == []


def test_outputs_are_sent_and_traced() -> None:
    transport = Scripted(here=["0F0"], later=["2B0"])
    ran, _, trace, peak = driven(transport, ops("1F0"), ops("1B0"), ops("1U0"))
    assert ran == ["1F0", "1B0", "1U0"]
    assert transport.sent == [("1F0", 2), ("1B0", 2), ("1U0", 2)]
    assert peak == 1
    forward, backward = ops("1F0", "1B0")
    # a wait span has the op whose message ended it; an update records its spans itself
    spans = [(WAIT, forward, 0), (FORWARD, forward, 28), (WAIT, backward, 0), (BACKWARD, backward, 28)]
    assert [(span.category, span.op, span.bytes) for span in trace] == spans
    assert {span.rank for span in trace} == {4}
    times = [time for span in trace for time in (span.start, span.end)]
    assert times == sorted(times)
    _, _, trace, _ = driven(Scripted(), ops("0F0"), ops("0B0"), stages=1)
    assert [(span.category, span.bytes) for span in trace] == [(FORWARD, 0), (BACKWARD, 0)]
