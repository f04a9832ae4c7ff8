"""Worker in virtual time: the schedules of real ranks, op by op on a modelled clock.

A rank runs the first ready op that its program accepts, as the engine's worker does. The cost model gives its seconds
and bytes, and the network model the arrival of its message. Data-parallel replicas do the same at the same time, so one
replica is simulated and stands for all. `symmetric=False` simulates every rank, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Program, feeds, needs
from suite.core.protocols import Chunk, CostModel, Schedule
from suite.core.trace import CATEGORY, INSIDE, REDUCE, STEP, TIE, WAIT
from suite.schedule.placement import check_one_stage_per_rank
from suite.simulate.cost.efficiency import Stack
from suite.simulate.kernel import Kernel
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import Fabric, Lane, Ring
from suite.simulate.simulation import Simulation

__all__ = ["NetworkModel", "Simulation", "Simulator", "Slower", "simulate"]

Slower = Callable[[int, Op], float]  # factor on an op's seconds, by rank: stragglers and jitter


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Model of messages and reductions.

    Attributes:
        link: Link between two ranks.
        fabric: Makes the shared resources of collectives for one simulation.
        ring: All-reduce ring of a data-parallel group.
        blocking: Whether a stage that sends is busy until the message has arrived.
        apart: Whether no stage updates before every stage has drained, as in measurements of single phases.
    """

    link: Callable[[int, int], Link]
    fabric: Callable[[Kernel], Fabric] | None = None
    ring: Callable[[Sequence[int], int], Ring] | None = None
    blocking: bool = False
    apart: bool = False

    @classmethod
    def of(
        cls,
        machine: Machine,
        stack: Stack,
        ranks: int,
        *,
        blocking: bool = False,
        direct: bool = False,
        apart: bool = False,
    ) -> NetworkModel:
        """Network model of `ranks` devices.

        Args:
            direct: Whether messages leave at once and at the full rate of the link.
        """

        def link(first: int, second: int) -> Link:
            link_between = machine.link(first, second)
            return (
                link_between
                if direct
                else Link(link_between.latency + stack.delay, min(link_between.bandwidth, stack.lane))
            )

        return cls(
            link,
            lambda kernel: Fabric(kernel, machine, stack, ranks),
            lambda column, beside: Ring.of(column, machine, beside),
            blocking,
            apart,
        )


class _Rank:
    """One stage of one replica while its program runs."""

    __slots__ = (
        *("accepted", "bound", "here", "idle_since", "in_flight", "lanes", "peers", "program", "rank", "sent"),
        *("peak", "replica", "stage"),
    )

    def __init__(self, rank: int, stage: int, replica: int, program: Program, bound: int) -> None:
        self.rank, self.stage, self.replica, self.program, self.bound = rank, stage, replica, program, bound
        self.here: set[Op] = set()  # own ops whose message has arrived
        self.accepted: tuple[Op, ...] = next(program, ())
        self.idle_since: float | None = 0.0
        self.in_flight = self.peak = self.sent = 0
        self.lanes: list[Lane | None] = [None, None]  # to the stage before, to the stage after
        self.peers: list[_Rank | None] = [None, None]


class Simulator:
    """Simulation of one flush interval: a batch, or a stream."""

    def __init__(
        self,
        schedule: Schedule,
        grid: Grid,
        interval: FlushInterval,
        cost: CostModel,
        network: NetworkModel,
        *,
        symmetric: bool = True,
        traced: bool = False,
        slower: Slower | None = None,
    ) -> None:
        check_one_stage_per_rank(schedule, "simulator")
        if symmetric and slower is not None:
            raise InvalidRequest("one replica for all, with ranks that differ", rule="stragglers break the symmetry")
        self.grid, self.cost, self.network, self.slower = grid, cost, network, slower
        self.stages, self.kernel = grid.inter, Kernel()
        self.replicas = 1 if symmetric else grid.data
        self.fabric = network.fabric(self.kernel) if network.fabric else None
        stages = range(grid.inter)
        none = [0.0] * grid.inter
        self.result = Simulation(grid.inter, [*none], [*none], [*none], [0] * grid.inter, [0] * grid.inter)
        self.result.steps = [[] for _ in stages]
        self.trace = self.result.trace if traced else None
        self.ranks = [
            [self._rank(schedule, grid.rank(data=replica, inter=stage), interval) for stage in stages]
            for replica in range(self.replicas)
        ]
        for pipeline in self.ranks:
            for before, after in pairwise(pipeline):
                before.peers[1], after.peers[0] = after, before
                before.lanes[1] = Lane(network.link(before.rank, after.rank))
                after.lanes[0] = Lane(network.link(after.rank, before.rank))
        self.columns = [self._column(stage) for stage in stages]
        self.updates = [cost.update(stage) for stage in stages]
        self.meeting: dict[Op, list[_Rank]] = {}
        self.left = sum(len(pipeline) for pipeline in self.ranks)

    def run(self) -> Simulation:
        """Run every program to its end. Raises IllegalSchedule for a deadlock or a broken promise."""
        for pipeline in self.ranks:
            for rank in pipeline:
                self.kernel.at(0.0, self._start, rank)
        self.kernel.run()
        if self.left:
            stuck = [rank for pipeline in self.ranks for rank in pipeline if rank.accepted]
            wishes = "; ".join(f"stage {r.stage} waits for {' or '.join(map(str, r.accepted))}" for r in stuck[:8])
            raise IllegalSchedule(f"deadlock: {wishes}")
        for pipeline in self.ranks:
            for rank in pipeline:
                self.result.peak[rank.stage] = max(self.result.peak[rank.stage], rank.peak)
                self.result.sent[rank.stage] = rank.sent
        self.result.events = self.kernel.events
        return self.result

    # -- passes ------------------------------------------------------------------------------------------------------

    def _rank(self, schedule: Schedule, number: int, interval: FlushInterval) -> _Rank:
        place = self.grid.place(number)
        program = schedule.program(place, interval)
        return _Rank(number, place.stage, place.replica, program, schedule.in_flight(place, interval))

    def _start(self, rank: _Rank) -> None:
        """Start the first ready op among the accepted ones; without one the rank stays idle."""
        if rank.idle_since is None:
            return  # another message of this instant has started it
        here = rank.here
        for op in rank.accepted:
            if op in here:
                here.discard(op)
            elif needs(op, self.stages) is not None:
                continue
            break
        else:
            return
        kernel = self.kernel
        if self.trace is not None and rank.idle_since is not None and needs(op, self.stages) is not None:
            self.trace.add(rank.rank, WAIT, rank.idle_since, kernel.now, op)
        rank.idle_since = None
        kind = op.kind
        if kind is Kind.UPDATE:
            self._meet(rank, op)
            return
        if kind is Kind.FORWARD:
            rank.in_flight += 1
            if rank.in_flight > rank.peak:
                rank.peak = rank.in_flight
                if rank.in_flight > rank.bound:
                    raise IllegalSchedule(f"{op} would be forward number {rank.in_flight}, {rank.bound} were promised")
        elif kind is Kind.BACKWARD:
            rank.in_flight -= 1
        seconds = self.cost.compute(op)
        if self.slower is not None:
            seconds *= self.slower(rank.rank, op)
        end = kernel.now + seconds
        if self.trace is not None:
            size = int(self.cost.message(op)) if feeds(op, self.stages) is not None else 0
            self.trace.add(rank.rank, CATEGORY[kind], kernel.now, end, op, size)
            self.add_parts(rank, op, kernel.now, end)
        kernel.at(end, self._done, (rank, op))

    def add_parts(self, rank: _Rank, op: Op, start: float, end: float) -> None:
        """Add spans for the parts of a pass or step from `start` to `end`, in order; the last ends at `end`."""
        if self.trace is None:
            return
        for category, seconds in self.cost.parts(op).items():
            if category in INSIDE and seconds > 0:
                begin = max(start, end - seconds)
                self.trace.add(rank.rank, category, begin, end, op)
                end = begin

    def _done(self, state: tuple[_Rank, Op]) -> None:
        """Send the output, report the op to the program, and continue at once or when the message has arrived."""
        rank, op = state
        kernel = self.kernel
        again = kernel.now
        fed = feeds(op, self.stages)
        if fed is not None:
            side = 1 if fed.stage > rank.stage else 0
            lane, peer = rank.lanes[side], rank.peers[side]
            assert lane is not None
            size = self.cost.message(op)
            rank.sent += size
            arrives = lane.arrival(again, size)
            kernel.at(arrives, self._arrived, (peer, fed))
            if self.network.blocking:
                again = arrives
        self._accept(rank, op, again)

    def _accept(self, rank: _Rank, op: Op, again: float) -> None:
        try:
            rank.accepted = rank.program.send(op)
        except StopIteration:
            rank.accepted = ()
            self.left -= 1
            self.result.finished[rank.stage] = max(self.result.finished[rank.stage], self.kernel.now)
            return
        if again > self.kernel.now:
            self.kernel.at(again, self._again, rank)
        else:
            self._again(rank)

    def _again(self, rank: _Rank) -> None:
        rank.idle_since = self.kernel.now
        self.kernel.choose(self._start, rank)

    def _arrived(self, state: tuple[_Rank, Op]) -> None:
        rank, op = state
        rank.here.add(op)
        if rank.idle_since is not None:
            self.kernel.choose(self._start, rank)

    # -- updates -----------------------------------------------------------------------------------------------------

    def _column(self, stage: int) -> Ring | None:
        ranks = self.grid.data_parallel_group(self.grid.rank(data=0, inter=stage))
        return self.network.ring(ranks, self.grid.tensor) if self.network.ring and len(ranks) > 1 else None

    def _meet(self, rank: _Rank, op: Op) -> None:
        """Begin an update when every simulated replica has reached it."""
        there = self.meeting.setdefault(op, [])
        there.append(rank)
        waiting = sum(map(len, self.meeting.values())) if self.network.apart else len(there)
        if waiting < self.replicas * (self.stages if self.network.apart else 1):
            return
        ready = list(self.meeting.items()) if self.network.apart else [(op, there)]
        for update, ranks in ready:
            del self.meeting[update]
            self.result.drained[update.stage] = self.kernel.now
            _Update(self, ranks, update, self.updates[update.stage]).reduce(0)

    def updated(self, ranks: list[_Rank], op: Op) -> None:
        self.result.steps[op.stage].append(self.kernel.now)
        for rank in ranks:
            self._accept(rank, op, self.kernel.now)


class _Update:
    """One update of a data-parallel group: chunks are reduced in order, and each is stepped after its reduction."""

    def __init__(self, simulator: Simulator, ranks: list[_Rank], op: Op, chunks: Sequence[Chunk]) -> None:
        self.simulator, self.ranks, self.op, self.chunks = simulator, ranks, op, chunks
        self.begin = simulator.kernel.now
        self.free = self.begin  # when the step before is done

    def reduce(self, index: int) -> None:
        simulator, stage = self.simulator, self.op.stage
        kernel = simulator.kernel
        if index == len(self.chunks):
            simulator.result.reduced[stage] = kernel.now
            self._span(REDUCE, self.begin, kernel.now)
            kernel.at(max(kernel.now, self.free), self._finish)
            return
        ring, chunk = simulator.columns[stage], self.chunks[index]
        if ring is None or simulator.fabric is None or not chunk.reduce:
            self._step(index)
        else:
            simulator.fabric.collective(ring, chunk.reduce, 2 * (ring.size - 1), self._step, index)

    def _step(self, index: int) -> None:
        self.free = max(self.free, self.simulator.kernel.now) + self.chunks[index].step
        self.reduce(index + 1)

    def _finish(self, _: object) -> None:
        simulator = self.simulator
        now, begin = simulator.kernel.now, simulator.result.reduced[self.op.stage]
        if simulator.trace is not None:
            tie = simulator.cost.parts(self.op).get(TIE, 0.0)
            if tie:
                tied = min(now, begin + tie)
                self._span(TIE, begin, tied)
                begin = tied
            self._span(STEP, begin, now)
            for rank in self.ranks:
                simulator.add_parts(rank, self.op, begin, now)
        simulator.updated(self.ranks, self.op)

    def _span(self, category: str, start: float, end: float) -> None:
        if self.simulator.trace is not None:
            for rank in self.ranks:
                self.simulator.trace.add(rank.rank, category, start, end, self.op)


def simulate(
    schedule: Schedule,
    grid: Grid,
    interval: FlushInterval,
    cost: CostModel,
    network: NetworkModel,
    *,
    symmetric: bool = True,
    traced: bool = False,
    slower: Slower | None = None,
) -> Simulation:
    """Simulate one flush interval on `grid` in virtual time.

    Raises IllegalSchedule if a program deadlocks or breaks its promise, and InvalidRequest for an op without a cost.
    """
    return Simulator(schedule, grid, interval, cost, network, symmetric=symmetric, traced=traced, slower=slower).run()
