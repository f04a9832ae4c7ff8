"""SAMO's closed forms of a pipeline, held against the checker, which runs the schedule; and its counts of flops."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, feeds, needs
from suite.papers.samo.closed_forms import (
    bubble,
    messages,
    messages_per_microbatch,
    microbatches,
    percent_of_peak,
    weighted,
)
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.workload import Transformer
from suite.workload.flops import attention
from tests.support.drawn import drawn
from tests.support.refusals import refused

ORDERS = ((MessageDriven(), 8.0, 16.0), (OneFOneB(), 8.0, 16.0), (OneFOneB(), 8.0, 20.0))
CASES = [(*order, stages) for order in ORDERS for stages in (1, 2, 3, 5, 8)]


@pytest.mark.parametrize(("schedule", "forward", "backward", "stages"), drawn(CASES, n=4))
def test_bubble_is_the_idle_time_of_the_schedule(
    schedule: MessageDriven | OneFOneB, forward: float, backward: float, stages: int
) -> None:
    """A message-driven order keeps it where a backward is twice a forward, as in the figure; 1F1B always does."""
    cost = {Kind.FORWARD: forward / stages, Kind.BACKWARD: backward / stages, Kind.UPDATE: 0.0}
    timeline = check(schedule, stages, FlushInterval(0, 11, None, 0), cost=lambda op: cost[op.kind])
    for stage in range(stages):
        assert timeline.idle(stage) == pytest.approx(float(bubble(forward, backward, stages)), abs=1e-9)


@pytest.mark.parametrize("stages", [1, 3])
def test_messages_are_those_that_the_ops_of_a_batch_exchange(stages: int) -> None:
    """Counted once as sent and once as received, over all ops that the checker saw run."""
    count, slots = Counter[int](), check(MessageDriven(), stages, FlushInterval(0, 7, None, 0)).slots
    for op in (slot.op for slot in slots):
        count[op.stage] += (needs(op, stages) is not None) + (feeds(op, stages) is not None)
    assert [count[stage] for stage in range(stages)] == [7 * messages_per_microbatch(s, stages) for s in range(stages)]


def test_closed_forms_by_hand() -> None:
    """SAMO Figure 3: three stages, a forward of 1 and a backward of 2 ticks on each: 6 ticks idle.

    Equation 10 sends 4 * B / mbs * G_inter / G messages. Scores and values are 4 * 16 * 8 = 512 flops a block, and
    half the weights halve the rest. 48 V100s of 125 Tflop/s: 12e15 flops in 4 s are half of their 6e15 flop/s.
    """
    assert bubble(3, 6, 3) == 6
    assert bubble(1, 2, 1) == 0
    assert bubble(Fraction(1, 2), 0.25, 4) == Fraction(9, 16)
    assert microbatches(2048, 8, 1) == 256
    assert microbatches(512, 64, 16) == Fraction(1, 2)
    assert messages(batch=2048, microbatch=2, gpus=48, stages=6) == 4 * 1024 * Fraction(6, 48)
    assert messages(batch=2048, microbatch=2, gpus=48, stages=Fraction(1, 2)) == 4 * 1024 * Fraction(1, 96)
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert attention(shape) == 3 * 512
    assert weighted(shape) == 20608 - 1536 == 2 * 4 * (3 * 12 * 64 + 8 * 10)
    assert (weighted(shape, Fraction(1, 2)), weighted(shape, 0)) == (9536, 0)
    assert percent_of_peak(12e15, 4.0, 48 * 125e12) == pytest.approx(50.0, rel=1e-12)
    for seconds, peak in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with refused(InvalidRequest, rule="above zero"):
            percent_of_peak(1.0, seconds, peak)
