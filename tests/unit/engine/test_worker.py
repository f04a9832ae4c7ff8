"""Worker: the preferred ready op runs, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from suite.core.errors import IllegalSchedule
from suite.core.op import Op, Program
from suite.core.trace import BACKWARD, EVALUATE, FORWARD, WAIT, Trace
from suite.engine.worker import run_to_end


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
    peak = run_to_end(program(*steps, ran=ran), execute, transport, rank=4, homes=homes, bound=bound, trace=trace)
    return ran, executed, trace, peak


def test_first_ready_op_runs() -> None:
    transport = Scripted(here=["0F0", "2B1", "0F2"])
    accepted = ops("1B5", "1F0", "1B1")
    ran, executed, _, _ = driven(transport, accepted)
    assert ran == ["1F0"]
    assert executed == [("1F0", [0.0])]  # the value of the op that it needs
    assert transport.requests == [(("2B5", "0F0", "2B1"), None)]
    assert transport.here == list(ops("2B1", "0F2"))


def test_program_order_is_preference_order() -> None:
    here = ["0F0", "2B0"]
    assert driven(Scripted(here), ops("1B0", "1F0"))[0] == ["1B0"]
    assert driven(Scripted(here), ops("1F0", "1B0"))[0] == ["1F0"]


def test_op_without_message_is_not_overtaken() -> None:
    """The last stage's backward is free and comes first, so no message is requested for a later forward."""
    transport = Scripted(here=["1F1"])
    ran, executed, _, _ = driven(transport, ops("2B0", "2F1"))
    assert ran == ["2B0"]
    assert executed == [("2B0", [])]
    assert transport.requests == []


def test_preferred_op_is_polled_before_free_op() -> None:
    accepted = ops("0B0", "0F1", "0B1")
    absent = Scripted(here=["1B1"])
    assert driven(absent, accepted)[0] == ["0F1"]
    assert absent.requests == [(("1B0",), 0)]
    present = Scripted(here=["1B0"])
    assert driven(present, accepted)[0] == ["0B0"]
    assert present.requests == [(("1B0",), 0)]


def test_worker_waits_only_without_ready_op() -> None:
    transport = Scripted(later=["2B0"])
    ran, executed, _, _ = driven(transport, ops("1F0", "1B0"))
    assert ran == ["1B0"]
    assert executed == [("1B0", [0.0])]
    assert [timeout for _, timeout in transport.requests] == [None]


def test_every_output_is_sent_and_op_reported() -> None:
    transport = Scripted(here=["0F0", "2B0"])
    ran, _, _, peak = driven(transport, ops("1F0"), ops("1B0"), ops("1U0"))
    assert ran == ["1F0", "1B0", "1U0"]
    assert transport.sent == [("1F0", 2), ("1B0", 2), ("1U0", 2)]
    assert peak == 1


def test_in_flight_bound_is_enforced_and_peak_returned() -> None:
    steps = [ops("0F0"), ops("0F1"), ops("0B0"), ops("0F2"), ops("0B1"), ops("0B2")]
    here = ["1B0", "1B1", "1B2"]
    assert driven(Scripted(here), *steps, bound=2)[3] == 2
    with pytest.raises(IllegalSchedule, match="0F1 would be forward number 2 in flight, 1 were promised"):
        driven(Scripted(here), *steps, bound=1)


def test_evaluation_opens_no_forward_pass() -> None:
    ran, _, trace, peak = driven(Scripted(), ops("0E0"), ops("0E1"), bound=0)
    assert ran == ["0E0", "0E1"]
    assert peak == 0
    assert [span.category for span in trace] == [EVALUATE, EVALUATE]


def test_trace_spans_of_ops() -> None:
    transport = Scripted(here=["0F0"], later=["2B0"])
    _, _, trace, _ = driven(transport, ops("1F0"), ops("1B0"), ops("1U0"))
    forward, backward = ops("1F0", "1B0")
    # a wait span has the op whose message ended it; an update records its spans itself
    assert [(span.category, span.op) for span in trace] == [
        (WAIT, forward),
        (FORWARD, forward),
        (WAIT, backward),
        (BACKWARD, backward),
    ]
    assert {span.rank for span in trace} == {4}
    assert [span.bytes for span in trace] == [0, 28, 0, 28]
    times = [time for span in trace for time in (span.start, span.end)]
    assert times == sorted(times)


def test_trace_omits_empty_waits_and_sends() -> None:
    _, _, trace, _ = driven(Scripted(), ops("0F0"), ops("0B0"), stages=1)
    assert [(span.category, span.bytes) for span in trace] == [(FORWARD, 0), (BACKWARD, 0)]


def test_empty_program_ends_at_once() -> None:
    assert driven(Scripted())[0] == []
