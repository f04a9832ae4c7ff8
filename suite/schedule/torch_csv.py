"""Schedule files of torch.distributed.pipelining: read, check and write its CSV format.

A file has one row per rank and one cell per action, for example `0F3`, `2I0`, `2W0` or `1B4`. A pair of actions that
torch overlaps is one cell, `(0F4;3B1)OVERLAP_F_B`. A file of the format `compute_comms` also lists messages
(`0SEND_F3`, `1RECV_F3`) and sharding (`0UNSHARD`). The suite derives messages from the order of ops, as torch does for
a file without them, so these cells are counted and left out. The format has no updates: a file is one flush.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path

from suite.core.errors import IllegalSchedule, InvalidRequest, refuse
from suite.core.op import FlushInterval, Kind, Op, Place, message_of, needs
from suite.schedule.check import Timeline, check, check_size, ticks
from suite.schedule.ordered import Ordered, Pass

_ACTION = re.compile(r"(\d{1,9})(?:([FIBW]|(?:SEND|RECV)_[FB])(\d{1,9})|(UNSHARD|RESHARD|REDUCE_GRAD))", re.ASCII)
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_RULE = (
    "stage, one of F I B W and microbatch; or a pair (0F1;0B0)OVERLAP_F_B of a forward and a backward pass; or a "
    "message such as 0SEND_F0, or sharding such as 0UNSHARD, which are left out"
)


@dataclass(frozen=True, slots=True)
class ScheduleCell:
    """Ops of one cell: one, or the two of an overlapped pair. row and column: from 1"""

    ops: tuple[Op, ...]
    row: int
    column: int

    def __str__(self) -> str:
        return " and ".join(map(str, self.ops)) + f" (row {self.row}, column {self.column})"


@dataclass(frozen=True)
class ListedSchedule(Ordered):
    """Static schedule of a file.

    Attributes:
        orders: Ops of each rank, for microbatches 0, 1, ... .
        homes: Rank of each stage.
    """

    orders: tuple[tuple[Op, ...], ...]
    homes: tuple[int, ...]

    @property
    def split(self) -> bool:  # type: ignore[override]
        return any(op.kind in (Kind.INPUT, Kind.WEIGHT) for order in self.orders for op in order)

    @property
    def microbatches(self) -> int:
        """Microbatches of the flush."""
        return 1 + max(op.index for order in self.orders for op in order)

    def order(self, place: Place, microbatches: int) -> Iterable[Pass]:
        what = f"microbatches per update and replica with a schedule file: {microbatches}"
        other = microbatches != self.microbatches
        refuse([(other, what, "the number of microbatches in the file", f"{self.microbatches}")])
        return ((op.kind, op.stage, op.index) for op in self.orders[place.rank])


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A parsed file.

    Attributes:
        name: Name of the file, for messages.
        rows: Cells of each rank that hold ops.
        homes: Rank of each stage.
        left_out: Number of messages and sharding actions.
    """

    name: str
    rows: tuple[tuple[ScheduleCell, ...], ...]
    homes: tuple[int, ...]
    left_out: int

    @property
    def schedule(self) -> ListedSchedule:
        """The order of the ops."""
        return ListedSchedule(tuple(tuple(op for cell in row for op in cell.ops) for row in self.rows), self.homes)


def read_text(path: Path) -> str:
    """Text of a schedule file. Raises InvalidRequest for a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        rule = "a schedule file of torch.distributed.pipelining"
        legal = "suite draw schedule=zbv grid.inter=2 --csv zbv.csv"
        raise InvalidRequest(f"{path}: {reason}", rule=rule, legal=legal) from error


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
    cells = [
        [
            ScheduleCell(_ops(cell.strip(), f"{name}, row {row}, column {column}"), row, column)
            for column, cell in enumerate(line, 1)
        ]
        for row, line in enumerate(lines, 1)
    ]
    rows = tuple(tuple(cell for cell in line if cell.ops) for line in cells)
    empty = next((row for row, line in enumerate(rows, 1) if not line), None)
    first: dict[int, ScheduleCell] = {}
    for cell in (cell for line in rows for cell in line):
        for op in cell.ops:
            other = first.setdefault(op.stage, cell)
            refuse(
                [(other.row != cell.row, f"{name}: {cell}", f"a stage is on one rank, and row {other.row} has {other}")]
            )
    gap = next((stage for stage in range(len(first)) if stage not in first), None if first else 0)
    refuse(
        [
            (empty, f"{name}, row {empty} has no op", "one row per rank, with its ops", "0F0,0B0, or no row"),
            (gap is not None, f"{name} has no op of stage {gap}", "stages 0, 1, ... without a gap", f"{gap}F0"),
        ]
    )
    left_out = sum(bool(text.strip()) for line in lines for text in line) - sum(map(len, rows))
    return ScheduleFile(name, rows, tuple(first[stage].row - 1 for stage in range(len(first))), left_out)


def check_schedule_file(file: ScheduleFile, *, cost: Callable[[Op], float] = ticks) -> Timeline:
    """Timeline of the file's ops.

    Args:
        file: A parsed file.
        cost: Duration of each op.

    Raises:
        IllegalSchedule: for the first broken law, with the cell of the op that breaks it.
        InvalidRequest: for a file that is too large to check.
    """
    schedule = file.schedule
    check_size(schedule.microbatches, len(file.homes))
    try:
        timeline = check(schedule, len(file.rows), FlushInterval(0, schedule.microbatches, None, 0), cost=cost)
    except IllegalSchedule as error:
        row = () if error.rank is None else [cell for cell in file.rows[error.rank] for _ in cell.ops]
        where = "".join(f"{cell}: " for cell in row[error.ran[error.rank or 0] :][:1])
        raise IllegalSchedule(f"{file.name}: {where}{error}") from error
    _check_pairs(file)
    return timeline


def _check_pairs(file: ScheduleFile) -> None:
    """Raise IllegalSchedule for a deadlock of pairs, which wait for the values of both of their passes."""
    stages, done = len(file.homes), set[Op]()
    rows = [[*row] for row in file.rows]
    while ready := [row for row in rows if row and {needs(op, stages) for op in row[0].ops} <= {None, *done}]:
        done |= {message_of(op) for row in ready for op in row.pop(0).ops}
    if any(rows):
        waiting = "; ".join(str(row[0]) for row in rows if row)
        raise IllegalSchedule(f"{file.name}: deadlock: these wait for each other: {waiting}")


def from_file(file: str) -> ListedSchedule:
    """The schedule of a file that keeps every law, for `schedule=torch_csv`.

    Raises InvalidRequest for a file that cannot be read, and IllegalSchedule as `check_schedule_file` does.
    """
    return checked_schedule(read_text(Path(file)), file)


@lru_cache(maxsize=4)  # a run builds its schedule several times
def checked_schedule(text: str, name: str) -> ListedSchedule:
    """The schedule of the text of a file that keeps every law. Raises as `parse` and `check_schedule_file` do."""
    file = parse(text, name)
    check_schedule_file(file)
    return file.schedule


def write(orders: Sequence[Sequence[Op]]) -> str:
    """Text of a schedule file. Updates are left out, because the format has none.

    Args:
        orders: Ops of each rank, of one flush, in a legal order.
    """
    return "".join(",".join(str(op) for op in order if op.kind is not Kind.UPDATE) + "\n" for order in orders)


def _ops(cell: str, where: str) -> tuple[Op, ...]:
    """Ops of a cell; none for an empty one, a message or sharding."""
    pair = _PAIR.fullmatch(cell)
    parts = [part.strip() for part in pair[1].split(";")] if pair else [cell] if cell else []
    matches = [_ACTION.fullmatch(part) for part in parts]
    actions = [match for match in matches if match]
    kinds = sorted((match[2] or "").replace("I", "B") for match in actions)
    legal = next((match[0] for part in parts if (match := _ACTION.match(part))), "0F0")
    refuse(
        [
            (len(actions) < len(parts), f"{where} is {cell!r}", _RULE, legal),
            (pair and kinds != ["B", "F"], f"{where} is {cell!r}", _RULE, "(0F1;0B0)OVERLAP_F_B"),
        ]
    )
    computed = [match for match in actions if len(match[2] or "") == 1]
    return tuple(Op(int(match[1]), Kind(match[2]), int(match[3])) for match in computed)
