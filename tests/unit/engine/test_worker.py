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
    """A transport whose neighbours' values are here as the script says, and which writes down what it is asked.

    later: values that come only when somebody waits for them, one per wait, in order.
    """

    any_order = True

    def __init__(self, here: Sequence[str] = (), later: Sequence[str] = ()) -> None:
        self.here, self.later = list(ops(*here)), list(ops(*later))
        self.asked: list[tuple[tuple[str, ...], float | None]] = []
        self.sent: list[tuple[str, int]] = []

    def send(self, op: Op, value: tuple[torch.Tensor, ...]) -> None:
        self.sent.append((str(op), len(value)))

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, tuple[torch.Tensor, ...]] | None:
        self.asked.append((tuple(map(str, ops)), timeout))
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
    """Messages to the program, executed ops with their inputs, the spans, and the peak."""
    ran: list[str] = []
    executed: list[tuple[str, list[float]]] = []
    trace = Trace()

    def execute(op: Op, value: Any) -> Any:
        executed.append((str(op), [float(tensor[0]) for tensor in value]))
        return (torch.zeros(3), torch.zeros(2, dtype=torch.int64))

    peak = run_to_end(program(*steps, ran=ran), execute, transport, rank=4, stages=stages, bound=bound, trace=trace)
    return ran, executed, trace, peak


def test_the_first_op_that_is_ready_runs() -> None:
    transport = Scripted(here=["0F0", "2B1", "0F2"])
    accepted = ops("1B5", "1F0", "1B1")
    ran, executed, _, _ = driven(transport, accepted)
    assert ran == ["1F0"]
    assert executed == [("1F0", [0.0])]  # with the value of the op that it needs
    assert transport.asked == [(("2B5", "0F0", "2B1"), None)]
    assert transport.here == list(ops("2B1", "0F2"))


def test_the_order_of_the_program_is_the_order_of_preference() -> None:
    here = ["0F0", "2B0"]
    assert driven(Scripted(here), ops("1B0", "1F0"))[0] == ["1B0"]
    assert driven(Scripted(here), ops("1F0", "1B0"))[0] == ["1F0"]


def test_an_op_that_needs_nothing_is_not_overtaken_by_one_behind_it() -> None:
    """The last stage's backward stands first: a forward behind it is not even asked for."""
    transport = Scripted(here=["1F1"])
    ran, executed, _, _ = driven(transport, ops("2B0", "2F1"))
    assert ran == ["2B0"]
    assert executed == [("2B0", [])]
    assert transport.asked == []


def test_an_op_in_front_of_a_needless_one_is_polled_for() -> None:
    accepted = ops("0B0", "0F1", "0B1")
    absent = Scripted(here=["1B1"])
    assert driven(absent, accepted)[0] == ["0F1"]
    assert absent.asked == [(("1B0",), 0)]
    present = Scripted(here=["1B0"])
    assert driven(present, accepted)[0] == ["0B0"]
    assert present.asked == [(("1B0",), 0)]


def test_it_waits_only_when_no_op_is_ready() -> None:
    transport = Scripted(later=["2B0"])
    ran, executed, _, _ = driven(transport, ops("1F0", "1B0"))
    assert ran == ["1B0"]
    assert executed == [("1B0", [0.0])]
    assert [timeout for _, timeout in transport.asked] == [None]


def test_every_output_is_offered_to_the_transport_and_the_program_told() -> None:
    transport = Scripted(here=["0F0", "2B0"])
    ran, _, _, peak = driven(transport, ops("1F0"), ops("1B0"), ops("1U0"))
    assert ran == ["1F0", "1B0", "1U0"]
    assert transport.sent == [("1F0", 2), ("1B0", 2), ("1U0", 2)]
    assert peak == 1


def test_the_bound_is_kept_and_the_peak_reported() -> None:
    steps = [ops("0F0"), ops("0F1"), ops("0B0"), ops("0F2"), ops("0B1"), ops("0B2")]
    here = ["1B0", "1B1", "1B2"]
    assert driven(Scripted(here), *steps, bound=2)[3] == 2
    with pytest.raises(IllegalSchedule, match="0F1 would be forward number 2 in flight, 1 were promised"):
        driven(Scripted(here), *steps, bound=1)


def test_an_evaluation_opens_nothing() -> None:
    ran, _, trace, peak = driven(Scripted(), ops("0E0"), ops("0E1"), bound=0)
    assert ran == ["0E0", "0E1"]
    assert peak == 0
    assert [span.category for span in trace] == [EVALUATE, EVALUATE]


def test_spans() -> None:
    transport = Scripted(here=["0F0"], later=["2B0"])
    _, _, trace, _ = driven(transport, ops("1F0"), ops("1B0"), ops("1U0"))
    forward, backward = ops("1F0", "1B0")
    # a wait carries the op whose message ended it; an update writes its two halves itself
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


def test_no_wait_is_written_where_nothing_is_needed_and_no_bytes_where_nothing_is_sent() -> None:
    _, _, trace, _ = driven(Scripted(), ops("0F0"), ops("0B0"), stages=1)
    assert [(span.category, span.bytes) for span in trace] == [(FORWARD, 0), (BACKWARD, 0)]


def test_an_empty_program_is_done() -> None:
    assert driven(Scripted())[0] == []
