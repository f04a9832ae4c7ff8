"""Schedule files of torch.distributed.pipelining: read and write its CSV format.

A file has one row per rank and one cell per action, for example `0F3`, `2I0`, `2W0` or `1B4`. A pair of actions that
torch overlaps is one cell, `(0F4;3B1)OVERLAP_F_B`. A file of the format `compute_comms` also lists messages
(`0SEND_F3`, `1RECV_F3`) and sharding (`0UNSHARD`). This suite derives messages from the order of ops, so a
`ListedSchedule` leaves them out; `suite.schedule.csv_laws` checks them. The format has no updates: a file is one flush.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, FlushInterval, Kind, Op, Place, Program, feeds, needs

SENDS = {Kind.FORWARD: "SEND_F", Kind.BACKWARD: "SEND_B"}
RECEIVES = {Kind.FORWARD: "RECV_F", Kind.BACKWARD: "RECV_B"}
FORMATS = ("compute_only", "compute_comms")
_ACTION = re.compile(r"(\d{1,9})(?:([FIBW]|(?:SEND|RECV)_[FB])(\d{1,9})|(UNSHARD|RESHARD|REDUCE_GRAD))", re.ASCII)
T = TypeVar("T")
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


@dataclass(frozen=True, slots=True)
class Action:
    """Action of a file, and where it is.

    Attributes:
        stage: Stage that the action names.
        kind: `F`, `I`, `B` or `W`, a message such as `SEND_F`, or a sharding action such as `UNSHARD`.
        index: Microbatch; None for a sharding action.
        rank: Number of the row, from 0.
        column: Number of the cell in its row, from 1.
    """

    stage: int
    kind: str
    index: int | None
    rank: int
    column: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.index is None else self.index}"

    @property
    def op(self) -> Op | None:
        """Op of the suite; None for an action without computation."""
        return Op(self.stage, Kind(self.kind), self.index or 0) if len(self.kind) == 1 else None

    @property
    def where(self) -> str:
        """Row, rank and column, for messages."""
        return f"row {self.rank + 1} (rank {self.rank}), column {self.column}"


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """Static schedule of a file.

    Attributes:
        orders: Ops of each rank, for microbatches 0, 1, ... .
        homes: Rank of each stage.
    """

    orders: tuple[tuple[Op, ...], ...]
    homes: tuple[int, ...]

    @property
    def split(self) -> bool:
        """Whether weight gradients are ops of their own."""
        return any(op.kind is Kind.WEIGHT for order in self.orders for op in order)

    @property
    def microbatches(self) -> int:
        """Microbatches of the flush."""
        return 1 + max(op.index for order in self.orders for op in order)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for microbatches in interval.groups():
            if len(microbatches) != self.microbatches:
                raise InvalidRequest(
                    f"microbatches per update and replica with a schedule file: {len(microbatches)}",
                    rule="the number of microbatches in the file",
                    legal=str(self.microbatches),
                )
            for op in self.orders[place.rank]:
                yield (op._replace(index=microbatches[op.index]),)
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(microbatches[0])),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        activations = peak = 0
        for op in self.orders[place.rank]:
            activations += (op.kind is Kind.FORWARD) - (op.kind in COMPLETES_MICROBATCH)
            peak = max(peak, activations)
        return peak


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """Actions of a file, row by row. The two actions of an overlapped pair have one column.

    Attributes:
        rows: Actions of each rank.
        homes: Rank of each stage.
    """

    rows: tuple[tuple[Action, ...], ...]
    homes: tuple[int, ...]

    @property
    def form(self) -> str:
        """`compute_comms` for a file with messages or sharding, else `compute_only`."""
        return FORMATS[any(action.op is None for row in self.rows for action in row)]

    @property
    def computations(self) -> tuple[tuple[Action, ...], ...]:
        """The actions that are ops, row by row."""
        return tuple(tuple(action for action in row if action.op is not None) for row in self.rows)

    @property
    def schedule(self) -> ListedSchedule:
        """The order of the ops, without messages and sharding."""
        orders = ((action.op for action in row) for row in self.rows)
        return ListedSchedule(tuple(tuple(op for op in order if op is not None) for order in orders), self.homes)


def read_text(path: Path) -> str:
    """Text of a schedule file. Raises InvalidRequest for a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        rule = "a schedule file of torch.distributed.pipelining"
        legal = "suite draw schedule=zbv grid.inter=2 --csv zbv.csv"
        raise InvalidRequest(f"{path}: {reason}", rule=rule, legal=legal) from error


def read(text: str, name: str = "schedule") -> ListedSchedule:
    """Order of the ops in a schedule file. Raises as `parse`."""
    return parse(text, name).schedule


def parse(text: str, name: str = "schedule") -> ScheduleFile:
    """Parse a schedule file.

    Args:
        text: Content of the file.
        name: Name of the file, for messages.

    Raises:
        InvalidRequest: for a file without ops, a cell that is no action, a pair that is not a forward and a backward
            pass, a row without ops, a stage on two ranks, or a missing stage.
    """
    try:
        lines = list(csv.reader(StringIO(text.removeprefix("\ufeff")), strict=True))
    except csv.Error as error:
        raise InvalidRequest(f"{name} is not a CSV file: {error}", rule="a row per rank", legal="0F0,0B0") from error
    rows = tuple(
        tuple(
            action
            for column, cell in enumerate(line, 1)
            for action in _actions(cell.strip(), rank, column, f"{name}, row {rank + 1} (rank {rank}), column {column}")
        )
        for rank, line in enumerate(lines)
    )
    first: dict[int, Action] = {}
    for rank, row in enumerate(rows):
        if not any(action.op for action in row):
            rule = "one row per rank, with its ops"
            raise InvalidRequest(f"{name}, row {rank + 1} has no op", rule=rule, legal="0F0,0B0, or no row")
        for action in row:
            other = first.setdefault(action.stage, action)
            if other.rank != rank:
                raise InvalidRequest(
                    f"{name}, {action.where} has {action}",
                    rule=f"a stage is on one rank, and {other.where} has {other}",
                    legal=f"{action} in row {other.rank + 1}",
                )
    stages = {action.stage for row in rows for action in row if action.op}
    missing = next((stage for stage in range(len(first)) if stage not in stages), None)
    if not first or missing is not None:
        where = f"its {len(first)} stages end with {max(first)}" if first else "it is empty"
        raise InvalidRequest(
            f"{name} has no op of stage {missing or 0}, and {where}",
            rule="stages 0, 1, ... without a gap",
            legal=f"{missing or 0}F0",
        )
    return ScheduleFile(rows, tuple(first[stage].rank for stage in range(len(first))))


def write(orders: Sequence[Sequence[Op]], form: str = "compute_only") -> str:
    """Text of a schedule file. Updates are left out, because the format has none.

    Args:
        orders: Ops of each rank, of one flush, in a legal order.
        form: One of FORMATS. `compute_comms` adds what torch's own lowering adds: each receive as early as its send,
            one gathering and one reduction per stage.
    """
    flush = [[op for op in order if op.kind is not Kind.UPDATE] for order in orders]
    rows = [[str(op) for op in order] for order in flush] if form == "compute_only" else _with_messages(flush)
    return "".join(",".join(row) + "\n" for row in rows)


def _with_messages(orders: Sequence[Sequence[Op]]) -> list[list[str]]:
    homes = {op.stage: rank for rank, order in enumerate(orders) for op in order}
    remaining = [{stage: sum(op.stage == stage for op in order) for stage in homes} for order in orders]
    rows: list[list[str]] = [[] for _ in orders]
    positions = [0 for _ in orders]
    done: set[Op] = set()
    gathered: set[int] = set()

    def add(rank: int, op: Op) -> None:
        if op.stage not in gathered:
            gathered.add(op.stage)
            rows[rank].append(f"{op.stage}UNSHARD")
        rows[rank].append(str(op))
        sent = op._replace(kind=Kind.BACKWARD) if op.kind in SENDS_GRADIENT else op
        done.add(sent)
        reader = feeds(op, len(homes))
        if reader is not None and homes[reader.stage] != rank:
            rows[rank].append(f"{op.stage}{SENDS[sent.kind]}{op.index}")
            rows[homes[reader.stage]].append(f"{reader.stage}{RECEIVES[sent.kind]}{op.index}")
        remaining[rank][op.stage] -= 1
        if not remaining[rank][op.stage]:
            rows[rank] += [f"{op.stage}REDUCE_GRAD", f"{op.stage}RESHARD"]

    run_in_turn(orders, positions, lambda op: (need := needs(op, len(homes))) is None or need in done, add)
    if positions != [len(order) for order in orders]:
        raise IllegalSchedule("the order of the ops is a deadlock, so its messages have no order", ran=positions)
    return rows


def run_in_turn(
    rows: Sequence[Sequence[T]], positions: list[int], ready: Callable[[T], bool], run: Callable[[int, T], None]
) -> None:
    """Run the next item of each row in turn, as long as any is ready. `positions` is advanced in place."""
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if positions[rank] < len(row) and ready(row[positions[rank]]):
                run(rank, row[positions[rank]])
                positions[rank] += 1
                moved = True


def _actions(cell: str, rank: int, column: int, where: str) -> Iterator[Action]:
    pair = _PAIR.fullmatch(cell)
    parts = [part.strip() for part in pair[1].split(";")] if pair else [cell]
    actions = []
    for part in parts:
        if not part and not pair:
            return
        match = _ACTION.fullmatch(part)
        if match is None:
            rule = (
                "stage, one of F I B W, SEND_F, RECV_F, SEND_B or RECV_B, and microbatch; or stage and one of UNSHARD,"
            )
            rule += " RESHARD or REDUCE_GRAD; or a pair (0F1;0B0)OVERLAP_F_B"
            raise InvalidRequest(f"{where} is {cell!r}", rule=rule, legal=_nearest(part))
        kind, index = match[2] or match[4], match[3]
        actions.append(Action(int(match[1]), kind, None if index is None else int(index), rank, column))
    if pair and sorted("B" if action.kind == "I" else action.kind for action in actions) != ["B", "F"]:
        rule = "a pair overlaps one forward pass with one backward pass"
        raise InvalidRequest(f"{where} is {cell!r}", rule=rule, legal="(0F1;0B0)OVERLAP_F_B")
    yield from actions


def _nearest(part: str) -> str:
    """The action that a malformed cell begins with, as torch reads it, or an example."""
    match = _ACTION.match(part)
    return match[0] if match else "0F0"
