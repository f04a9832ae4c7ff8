"""Schedule files of torch.distributed.pipelining: read and write its CSV format.

A file has one row per rank and one cell per action, for example `0F3`, `2I0`, `2W0` or `1B4`. A pair of actions that
torch overlaps is one cell, `(0F4;3B1)OVERLAP_F_B`. Communication and sharding actions of the format `compute_comms` are
skipped, because this suite derives messages from the order of ops. The format has no updates: a file is one flush.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from suite.core.errors import InvalidRequest
from suite.core.op import COMPLETES_MICROBATCH, FlushInterval, Kind, Op, Place, Program

_ACTION = re.compile(r"(\d+)([FIBW])(\d+)")
_SKIPPED = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B)\d+|\d+(UNSHARD|RESHARD|REDUCE_GRAD)")
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


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
                    f"{len(microbatches)} microbatches per update with a schedule file",
                    rule=f"the {self.microbatches} microbatches of the file",
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


def read(text: str) -> ListedSchedule:
    """Parse a schedule file.

    Raises InvalidRequest for a file without ops, a cell that is no action, a stage on two ranks, or a missing stage.
    """
    orders = tuple(
        tuple(op for column, cell in enumerate(row, 1) for op in _ops(cell.strip(), line, column))
        for line, row in enumerate(csv.reader(StringIO(text)), 1)
    )
    homes: dict[int, int] = {}
    for rank, order in enumerate(orders):
        if not order:
            raise InvalidRequest(f"row {rank + 1} of the schedule has no action", rule="one row per rank", legal="0F0")
        for op in order:
            if homes.setdefault(op.stage, rank) != rank:
                raise InvalidRequest(
                    f"row {rank + 1} of the schedule has {op}",
                    rule=f"a stage is on one rank, and stage {op.stage} is on rank {homes[op.stage]}",
                    legal=f"{op} in row {homes[op.stage] + 1}",
                )
    missing = next((stage for stage in range(len(homes)) if stage not in homes), None)
    if not homes or missing is not None:
        stage = missing or 0
        raise InvalidRequest(f"the schedule has no stage {stage}", rule="stages 0, 1, ... without a gap", legal="0F0")
    return ListedSchedule(orders, tuple(homes[stage] for stage in range(len(homes))))


def write(orders: Sequence[Sequence[Op]]) -> str:
    """Text of a schedule file. Updates are left out, because the format has none."""
    rows = ([str(op) for op in order if op.kind is not Kind.UPDATE] for order in orders)
    return "".join(",".join(row) + "\n" for row in rows)


def _ops(cell: str, line: int, column: int) -> Iterator[Op]:
    pair = _PAIR.fullmatch(cell)
    for action in (part.strip() for part in (pair[1] if pair else cell).split(";")):
        if match := _ACTION.fullmatch(action):
            yield Op(int(match[1]), Kind(match[2]), int(match[3]))
        elif action and not _SKIPPED.fullmatch(action):
            raise InvalidRequest(
                f"cell {column} in row {line} of the schedule is {action!r}",
                rule="stage, one of F I B W, microbatch; or an action that communicates",
                legal="0F0",
            )
