"""Write a schedule as a generator of ops, check it against the laws, and draw it."""

from dataclasses import dataclass

from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.schedule.check import check
from suite.schedule.draw import chart


@dataclass(frozen=True)
class OneAtATime:
    """Forward and backward pass of one microbatch before the next one starts."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for index in range(interval.first, interval.end):
            yield (Op(place.stage, Kind.FORWARD, index),)
            yield (Op(place.stage, Kind.BACKWARD, index),)
            if interval.completes_update(index):
                yield (Op(place.stage, Kind.UPDATE, interval.update_of(index)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return 1


timeline = check(OneAtATime(), 3, FlushInterval(0, 3, None, 0))
print(chart(timeline.slots, 3))
print(f"makespan {timeline.makespan:g}, idle per stage {timeline.idle(0):g}")
