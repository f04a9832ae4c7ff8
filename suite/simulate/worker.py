"""Worker in virtual time: the schedules of real ranks, op by op on a modelled clock.

A rank runs the first ready op that its program accepts, as the engine's worker does. The cost model gives its seconds
and bytes, and the network model the arrival of its message. A message between two stages of one rank arrives at once
and sends no bytes. Data-parallel replicas do the same at the same time, so one replica is simulated and stands for all.
`symmetric=False` simulates every rank, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place, Program, feeds, message_of, needs
from suite.core.protocols import Chunk, CostModel, Schedule
from suite.core.trace import CATEGORY, INSIDE, REDUCE, STEP, TIE, WAIT
from suite.schedule.placement import places
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.kernel import Kernel
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import Fabric, Lane, Ring
from suite.simulate.simulation import Simulation

__all__ = ["NetworkModel", "Simulation", "Simulator", "Slower", "simulate"]

_FORWARD, _BACKWARD, _INPUT = Kind.FORWARD, Kind.BACKWARD, Kind.INPUT  # attributes of an enum are slow to read
Slower = Callable[[int, Op], float]  # factor on an op's seconds, by rank: stragglers and jitter


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Model of messages and reductions.

    Attributes:
        link: Link between two ranks.
        fabric: Makes the shared resources of collectives for one simulation.
        ring: All-reduce ring of a data-parallel group.
        blocking: Whether a rank that sends is busy until the message has arrived.
        apart: Whether no rank updates before every rank has drained, as in measurements of single phases.
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
        efficiency: Efficiency,
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
                else Link(link_between.latency + efficiency.delay, min(link_between.bandwidth, efficiency.lane))
            )

        return cls(
            link,
            lambda kernel: Fabric(kernel, machine, efficiency, ranks),
            lambda column, beside: Ring.of(column, machine, beside),
            blocking,
            apart,
        )


class _Rank:
    """One pipeline rank of one replica while its program runs.

    Attributes:
        rank: Number of the rank in the grid.
        position: Pipeline rank.
        here: Messages that have arrived, as the ops that consume them (suite.core.op.feeds).
        in_flight: Forward passes without their backward pass or weight gradient.
        owed: Input gradients without their weight gradient.
        fronts: Pairs (in_flight - owed, owed) before each op that decreases one of them; empty without a split
            backward pass.
        routes: Lane and rank of each neighbouring stage; no lane where the stage is on this rank.
    """

    __slots__ = (
        *("accepted", "bound", "fronts", "here", "idle_since", "in_flight", "owed", "peak", "place", "position"),
        *("program", "rank", "routes", "sent"),
    )

    def __init__(self, rank: int, place: Place, program: Program, bound: int) -> None:
        self.rank, self.place, self.position, self.program, self.bound = rank, place, place.rank, program, bound
        self.here: set[Op] = set()
        self.accepted: tuple[Op, ...] = next(program, ())
        self.idle_since: float | None = 0.0
        self.in_flight = self.owed = self.peak = self.sent = 0
        self.fronts: set[tuple[int, int]] = set()
        self.routes: dict[int, tuple[Lane | None, _Rank]] = {}

    def split(self, kind: Kind) -> None:
        """Count an input gradient or a weight gradient that begins now."""
        if not self.fronts:
            self.fronts.add((self.peak, 0))  # no weight gradient was owed until now
        self.fronts.add((self.in_flight - self.owed, self.owed))
        if kind is _INPUT:
            self.owed += 1
        else:
            self.owed -= 1
            self.in_flight -= 1


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
        if symmetric and slower is not None:
            raise InvalidRequest("one replica for all, with ranks that differ", rule="stragglers break the symmetry")
        self.grid, self.cost, self.network, self.slower = grid, cost, network, slower
        self.replicas = 1 if symmetric else grid.data
        where = [places(schedule, grid.inter, replica, grid.data) for replica in range(self.replicas)]
        self.stages, self.kernel = where[0][0].stages, Kernel()
        self.fabric = network.fabric(self.kernel) if network.fabric else None
        none = [0.0] * grid.inter
        self.result = Simulation(self.stages, [*none], [*none], [*none], [0] * grid.inter, [0] * grid.inter)
        self.result.steps = [[] for _ in none]
        self.trace = self.result.trace if traced else None
        self.parted = type(cost).parts is not CostModel.parts  # whether an op has spans of its parts
        self.ranks = [[self._rank(schedule, place, interval) for place in pipeline] for pipeline in where]
        for pipeline in self.ranks:
            self._connect(pipeline)
        self.columns = [self._column(position) for position in range(grid.inter)]
        self.updates = [cost.update(position) for position in range(grid.inter)]
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
            wishes = "; ".join(
                f"stage {r.place.stage} waits for {' or '.join(map(str, r.accepted))}" for r in stuck[:8]
            )
            raise IllegalSchedule(f"deadlock: {wishes}")
        for pipeline in self.ranks:
            for rank in pipeline:
                self.result.peak[rank.position] = max(self.result.peak[rank.position], rank.peak)
                self.result.sent[rank.position] = rank.sent
        self.result.fronts = [
            _largest(ranks[0].fronts.union(*(rank.fronts for rank in ranks[1:])) or {(peak, 0)})
            for peak, *ranks in zip(self.result.peak, *self.ranks, strict=True)
        ]
        self.result.events = self.kernel.events
        return self.result

    # -- passes ------------------------------------------------------------------------------------------------------

    def _rank(self, schedule: Schedule, place: Place, interval: FlushInterval) -> _Rank:
        number = self.grid.rank(data=place.replica, inter=place.rank)
        return _Rank(number, place, schedule.program(place, interval), schedule.in_flight(place, interval))

    def _connect(self, pipeline: Sequence[_Rank]) -> None:
        """Connect neighbouring stages. All chunks of two ranks share one lane in each direction."""
        lanes: dict[tuple[int, int], Lane] = {}
        held_by = [pipeline[pipeline[0].place.rank_of(stage)] for stage in range(self.stages)]
        for stage, (before, after) in enumerate(pairwise(held_by)):
            for source, goal, target in ((before, after, stage + 1), (after, before, stage)):
                pair = source.rank, goal.rank
                if source is not goal and pair not in lanes:
                    lanes[pair] = Lane(self.network.link(*pair))
                source.routes[target] = lanes.get(pair), goal

    def _start(self, rank: _Rank) -> None:
        """Start the first ready op among the accepted ones; without one the rank stays idle."""
        if rank.idle_since is None:
            return  # another message of this instant has started it
        here = rank.here
        for op in rank.accepted:
            if op in here:
                here.discard(op)
            elif op.kind is _INPUT and message_of(op) in here:
                here.discard(message_of(op))
            elif needs(op, self.stages) is not None:
                continue
            break
        else:
            return
        kernel = self.kernel
        if self.trace is not None and rank.idle_since < kernel.now and needs(op, self.stages) is not None:
            self.trace.add(rank.rank, WAIT, rank.idle_since, kernel.now, op)
        rank.idle_since = None
        kind = op.kind
        if kind is _FORWARD:
            rank.in_flight += 1
            if rank.in_flight > rank.peak:
                rank.peak = rank.in_flight
                if rank.in_flight > rank.bound:
                    raise IllegalSchedule(f"{op} would be forward number {rank.in_flight}, {rank.bound} were promised")
        elif kind is _BACKWARD:
            if rank.fronts:
                rank.fronts.add((rank.in_flight - rank.owed, rank.owed))
            rank.in_flight -= 1
        elif kind is Kind.UPDATE:
            self._meet(rank, op)
            return
        else:
            rank.split(kind)
        seconds = self.cost.compute(op)
        if self.slower is not None:
            seconds *= self.slower(rank.rank, op)
        end = kernel.now + seconds
        if self.trace is not None:
            fed = feeds(op, self.stages)
            leaves = fed is not None and rank.routes[fed.stage][0] is not None
            size = int(self.cost.message(op)) if leaves else 0
            self.trace.add(rank.rank, CATEGORY[kind], kernel.now, end, op, size)
            if self.parted:
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
            lane, peer = rank.routes[fed.stage]
            if lane is None:
                rank.here.add(fed)
            else:
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
            self.result.finished[rank.position] = max(self.result.finished[rank.position], self.kernel.now)
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

    def _column(self, position: int) -> Ring | None:
        ranks = self.grid.data_parallel_group(self.grid.rank(data=0, inter=position))
        return self.network.ring(ranks, self.grid.tensor) if self.network.ring and len(ranks) > 1 else None

    def _meet(self, rank: _Rank, op: Op) -> None:
        """Begin an update when every simulated replica has reached it."""
        there = self.meeting.setdefault(op, [])
        there.append(rank)
        waiting = sum(map(len, self.meeting.values())) if self.network.apart else len(there)
        if waiting < self.replicas * (self.grid.inter if self.network.apart else 1):
            return
        ready = list(self.meeting.items()) if self.network.apart else [(op, there)]
        for update, ranks in ready:
            del self.meeting[update]
            position = ranks[0].position
            self.result.drained[position] = self.kernel.now
            _Update(self, ranks, update, self.updates[position]).reduce(0)

    def updated(self, ranks: list[_Rank], op: Op) -> None:
        self.result.steps[ranks[0].position].append(self.kernel.now)
        for rank in ranks:
            self._accept(rank, op, self.kernel.now)


class _Update:
    """One update of a data-parallel group: chunks are reduced in order, and each is stepped after its reduction."""

    def __init__(self, simulator: Simulator, ranks: list[_Rank], op: Op, chunks: Sequence[Chunk]) -> None:
        self.simulator, self.ranks, self.op, self.chunks = simulator, ranks, op, chunks
        self.begin = simulator.kernel.now
        self.free = self.begin  # when the step before is done

    def reduce(self, index: int) -> None:
        simulator, position = self.simulator, self.ranks[0].position
        kernel = simulator.kernel
        if index == len(self.chunks):
            simulator.result.reduced[position] = kernel.now
            self._span(REDUCE, self.begin, kernel.now)
            kernel.at(max(kernel.now, self.free), self._finish)
            return
        ring, chunk = simulator.columns[position], self.chunks[index]
        if ring is None or simulator.fabric is None or not chunk.reduce:
            self._step(index)
        else:
            simulator.fabric.collective(ring, chunk.reduce, 2 * (ring.size - 1), self._step, index)

    def _step(self, index: int) -> None:
        self.free = max(self.free, self.simulator.kernel.now) + self.chunks[index].step
        self.reduce(index + 1)

    def _finish(self, _: object) -> None:
        simulator = self.simulator
        now, begin = simulator.kernel.now, simulator.result.reduced[self.ranks[0].position]
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


def _largest(pairs: Collection[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Pairs that no other pair exceeds in both numbers."""
    return frozenset(
        pair for pair in pairs if not any(a >= pair[0] and b >= pair[1] for a, b in pairs if (a, b) != pair)
    )


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

    A schedule may place several stages on each of the `grid.inter` pipeline ranks, and may split backward passes.

    Raises IllegalSchedule if a program deadlocks or breaks its promise, and InvalidRequest for an op without a cost.
    """
    return Simulator(schedule, grid, interval, cost, network, symmetric=symmetric, traced=traced, slower=slower).run()
