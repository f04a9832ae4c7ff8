"""Event queue: order in time, and order of entry at one instant.

A tie that fell otherwise would make another schedule, so two runs of one config would differ.
"""

from __future__ import annotations

import math
import random

import pytest

from suite.core.errors import InvalidRequest
from suite.simulate.kernel import Kernel
from tests.support.refusals import refused


def test_events_happen_in_the_order_of_time_not_of_entry() -> None:
    kernel, seen = Kernel(), list[tuple[str, float]]()
    for time, name in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        kernel.at(time, lambda n: seen.append((n, kernel.now)), name)
    assert kernel.run() == kernel.now == 3.0
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_of_one_instant_the_event_entered_first_is_first() -> None:
    """The arguments are not compared, whatever they are."""
    kernel, seen = Kernel(), list[object]()
    arguments = [object(), "z", 1, None, object()]
    kernel.at(2.0, seen.append, "later")
    for argument in arguments:
        kernel.at(1.0, seen.append, argument)
    kernel.run()
    assert seen == [*arguments, "later"]


def test_a_choice_sees_every_event_of_its_instant() -> None:
    """Also those that are entered while the instant lasts; and a choice may make events of its own instant."""
    kernel, seen = Kernel(), list[str]()

    def choose(name: str) -> None:
        seen.append(f"{name} chosen")
        if name == "first":
            kernel.at(kernel.now, seen.append, "made by the choice")
            kernel.choose(choose, "second")

    kernel.at(1.0, lambda _: kernel.choose(choose, "first"))
    kernel.at(1.0, lambda _: kernel.at(1.0, seen.append, "made by an event"))
    kernel.at(1.0, seen.append, "event")
    kernel.at(2.0, seen.append, "next instant")
    kernel.run()
    assert seen == [
        *("event", "made by an event", "first chosen"),
        *("made by the choice", "second chosen", "next instant"),
    ]


def test_a_choice_without_events_is_made() -> None:
    kernel, seen = Kernel(), list[str]()
    kernel.choose(seen.append, "alone")
    assert kernel.run() == 0.0
    assert seen == ["alone"]


@pytest.mark.parametrize("time", [0.999, -1.0, math.nan])
def test_time_does_not_run_backwards(time: float) -> None:
    kernel = Kernel()
    kernel.at(1.0, lambda _: kernel.at(time, print))
    with refused(InvalidRequest, subject="now is 1 s", rule="time does not run backwards"):
        kernel.run()


def test_events_are_counted_and_choices_are_none() -> None:
    """A thousand events in any order: the clock only grows, and each is counted once."""
    kernel, clock, seen = Kernel(), random.Random(5), list[float]()

    def happen(depth: int) -> None:
        seen.append(kernel.now)
        kernel.choose(lambda _: None)
        if depth:
            kernel.at(kernel.now + clock.choice((0.0, 0.25, 1.0)), happen, depth - 1)

    for _ in range(100):
        kernel.at(clock.random() * 10, happen, 9)
    end = kernel.run()
    assert len(seen) == kernel.events == 1000
    assert seen == sorted(seen)
    assert end == seen[-1]
    assert Kernel().run() == 0.0
