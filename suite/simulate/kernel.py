"""Event queue in virtual time.

Events of one instant run in the order in which they were added. The heap holds (time, number, action, argument). The
number makes ties deterministic, so a simulation gives the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from suite.core.errors import InvalidRequest

Action = Callable[[Any], None]


class Kernel:
    """A clock that jumps from event to event.

    Attributes:
        now: Time in seconds.
        events: Number of events that have run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._entered = 0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._choices: list[tuple[Action, Any]] = []

    def at(self, time: float, action: Action, argument: Any = None) -> None:
        """Call `action(argument)` at `time`. Raises InvalidRequest for a time in the past, or NaN."""
        if not time >= self.now:
            raise InvalidRequest(f"an event at {time:g} s, now is {self.now:g} s", rule="time does not run backwards")
        self._entered += 1
        heappush(self._heap, (time, self._entered, action, argument))

    def choose(self, action: Action, argument: Any = None) -> None:
        """Call `action(argument)` now, after all other events of this instant, so that a choice sees all of them."""
        self._choices.append((action, argument))

    def run(self) -> float:
        """Run every event. Returns the time of the last one."""
        heap = self._heap
        while heap or self._choices:
            if self._choices and not (heap and heap[0][0] <= self.now):
                choices, self._choices = self._choices, []
                for action, argument in choices:
                    action(argument)
                continue
            self.now, _, action, argument = heappop(heap)
            self.events += 1
            action(argument)
        return self.now
