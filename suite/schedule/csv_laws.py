"""Laws of a schedule file: each op once, a legal order, and messages that match.

Every broken law is an IllegalSchedule that names the file, the row, the column and the action. The order of the ops is
checked by `suite.schedule.check`. A file with messages keeps these laws in addition:

- Each value that crosses ranks has one send, after the op that makes it, and one receive, before the op that reads it.
- From one rank to another, values are received in the order in which they are sent, as torch's messages have no tags.
- An op waits until its value is sent, and an overlapped pair waits for both of its values: there is no deadlock.

torch posts receives and sends without waiting. `waits` tells in addition whether a transport could run the file whose
receives wait, or whose sends wait too; neither is a law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from pathlib import Path

from suite.core.errors import IllegalSchedule
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op, feeds, message_of, needs
from suite.schedule.check import Timeline, check, check_size, ticks
from suite.schedule.torch_csv import (
    RECEIVES,
    SENDS,
    Action,
    ListedSchedule,
    ScheduleFile,
    parse,
    read_text,
    run_in_turn,
)

_KIND = {text: kind for table in (SENDS, RECEIVES) for kind, text in table.items()}


def check_schedule_file(file: ScheduleFile, name: str = "schedule", *, cost: Callable[[Op], float] = ticks) -> Timeline:
    """Timeline of the file's ops.

    Args:
        file: A parsed file.
        name: Name of the file, for messages.
        cost: Duration of each op.

    Raises:
        IllegalSchedule: for the first broken law.
        InvalidRequest: for a file that is too large to check.
    """
    schedule = file.schedule
    check_size(schedule.microbatches, len(file.homes))
    _check_each_op_once(file, schedule.microbatches, name)
    try:
        timeline = check(schedule, len(file.rows), FlushInterval(0, schedule.microbatches, None, 0), cost=cost)
    except IllegalSchedule as error:
        raise _located(error, file, name) from error
    _check_messages(file, name)
    if stuck := waits(file):
        raise IllegalSchedule(f"{name}: deadlock: {stuck}")
    return timeline


def from_file(file: str) -> ListedSchedule:
    """The schedule of a file that keeps every law, for `conf/schedule/torch_csv.yaml`.

    Raises InvalidRequest for a file that cannot be read, and IllegalSchedule as `check_schedule_file` does.
    """
    return _checked(read_text(Path(file)), file)


@lru_cache(maxsize=4)  # a run builds its schedule several times
def _checked(text: str, name: str) -> ListedSchedule:
    file = parse(text, name)
    check_schedule_file(file, name)
    return file.schedule


def _located(error: IllegalSchedule, file: ScheduleFile, name: str) -> IllegalSchedule:
    """The error of the checker, with the cell of the op that breaks the law or that each rank waits for."""
    law, _, drawing = str(error).partition("\n")
    heads = [row[ran] if ran < len(row) else None for row, ran in zip(file.computations, error.ran, strict=True)]
    if error.rank is not None:
        head = heads[error.rank]
        where = head.where if head else f"row {error.rank + 1} (rank {error.rank})"
        return IllegalSchedule(f"{name}, {where}: {law}\n{drawing}".rstrip(), error.rank, error.ran)
    waiting = "; ".join(_waiting(head, needs(head.op, len(file.homes))) for head in heads if head and head.op)
    return IllegalSchedule(f"{name}: deadlock: {waiting or law}\n{drawing}".rstrip(), error.rank, error.ran)


def _waiting(action: Action, need: object) -> str:
    return f"{action} ({action.where}) waits for {need}"


def _check_each_op_once(file: ScheduleFile, microbatches: int, name: str) -> None:
    """Each stage runs F and B, or F, I and W, once for each microbatch."""
    found: dict[tuple[int, int], dict[str, Action]] = {}
    last = file.computations[0][0]
    for row in file.computations:
        for action in row:
            last = max(last, action, key=lambda each: each.index or 0)
            ops = found.setdefault((action.stage, action.index or 0), {})
            if action.kind in ops:
                first = ops[action.kind]
                raise IllegalSchedule(f"{name}, {action.where}: {action} runs twice, first in column {first.column}")
            ops[action.kind] = action
            if "B" in ops and action.kind != "F" and ops.keys() & {"I", "W"}:
                other = next(each for kind, each in ops.items() if kind != "F" and each is not action)
                raise IllegalSchedule(
                    f"{name}, {action.where}: {action} follows {other} (column {other.column}), and a microbatch has "
                    "one backward pass: B, or I and W"
                )
    for stage, rank in enumerate(file.homes):
        for index in range(microbatches):
            ops = found.get((stage, index), {})
            if missing := _missing(ops):
                what = " or ".join(f"{stage}{kind}{index}" for kind in missing)
                present = " and ".join(f"{action} (column {action.column})" for action in ops.values())
                reason = f"it has {present}" if present else f"the file has microbatch {index}"
                reason += "" if present or last.index != index else f" ({last}, {last.where})"
                raise IllegalSchedule(f"{name}, row {rank + 1} (rank {rank}): {what} is missing; {reason}")


def _missing(ops: dict[str, Action]) -> tuple[str, ...]:
    """Kinds of which the next op of a microbatch could be; empty if it is complete."""
    if "F" not in ops:
        return ("F",)
    if "I" in ops or "W" in ops:
        return tuple(kind for kind in ("I", "W") if kind not in ops)[:1]
    return () if "B" in ops else ("B", "I")


def _check_messages(file: ScheduleFile, name: str) -> None:
    if file.form == "compute_only":
        return
    stages = len(file.homes)
    sends: dict[Op, Action] = {}
    receives: dict[Op, Action] = {}
    for row in file.rows:
        ran: set[Op] = set()
        for action in row:
            if action.op is not None:
                if (
                    (need := needs(action.op, stages))
                    and file.homes[need.stage] != action.rank
                    and need not in receives
                ):
                    want = f"{action.stage}{RECEIVES[need.kind]}{action.index}"
                    raise IllegalSchedule(f"{name}, {action.where}: {action} comes before its receive {want}")
                ran.add(message_of(action.op))
            elif action.kind in _KIND:
                table = sends if action.kind in SENDS.values() else receives
                message = _message(action, file.homes, name)
                if message in table:
                    first = table[message].column
                    raise IllegalSchedule(f"{name}, {action.where}: {action} runs twice, first in column {first}")
                consumed = feeds(message, stages)
                if table is sends and message not in ran:
                    raise IllegalSchedule(f"{name}, {action.where}: {action} comes before {message}, which it sends")
                if table is receives and consumed in ran:
                    raise IllegalSchedule(f"{name}, {action.where}: {action} comes after {consumed}, which reads it")
                table[message] = action
    for message in sorted(sends.keys() ^ receives.keys()):
        other = sends.get(message) or receives[message]
        if reader := feeds(message, stages) if message in sends else None:
            partner = f"{reader.stage}{RECEIVES[message.kind]}{message.index}"
        else:
            partner, reader = f"{message.stage}{SENDS[message.kind]}{message.index}", message
        row_of = file.homes[reader.stage] + 1
        raise IllegalSchedule(f"{name}, {other.where}: {other} has no partner: {partner} is missing in row {row_of}")
    _check_channels(sends, receives, name)


def _message(action: Action, homes: Sequence[int], name: str) -> Op:
    """The value that an action sends or receives, named by the op that makes it."""
    kind = _KIND[action.kind]
    step = 1 if kind is Kind.FORWARD else -1
    sends = action.kind in SENDS.values()
    peer = action.stage + (step if sends else -step)
    if not 0 <= peer < len(homes):
        end = "first" if action.stage == 0 else "last"
        raise IllegalSchedule(f"{name}, {action.where}: {action}: stage {action.stage} is the {end} one, with no peer")
    if homes[peer] == action.rank:
        reason = f"stage {peer} is on the same rank, which hands the value over without a message"
        raise IllegalSchedule(f"{name}, {action.where}: {action}: {reason}")
    return Op(action.stage if sends else peer, kind, action.index or 0)


def _check_channels(sends: dict[Op, Action], receives: dict[Op, Action], name: str) -> None:
    channels: dict[tuple[int, int], tuple[list[Op], list[Op]]] = {}
    for number, table in enumerate((sends, receives)):
        for message in table:  # in the order of their row
            pair = sends[message].rank, receives[message].rank
            channels.setdefault(pair, ([], []))[number].append(message)
    for sent, received in channels.values():
        for first, second in zip_longest(sent, received):
            if first != second:
                wrong, right = receives[second], sends[first]
                raise IllegalSchedule(
                    f"{name}, {wrong.where}: {wrong} would receive the value of {right} ({right.where}): values from "
                    f"rank {right.rank} to rank {wrong.rank} arrive in the order in which they are sent"
                )


def waits(file: ScheduleFile, *, receives: bool = False, sends: bool = False) -> str:
    """The actions at which every rank waits; empty if all rows run to their end.

    Args:
        file: A file whose messages match.
        receives: A receive waits until its value is sent; otherwise only the op that reads the value waits.
        sends: A send waits until its receive is the next action of the other rank.
    """
    stages, listed = len(file.homes), file.form != "compute_only"
    rows = [[list(pair) for _, pair in groupby(row, key=lambda each: each.column)] for row in file.rows]
    positions = [0] * len(rows)
    sent: set[Op] = set()

    def head(rank: int) -> list[Action]:
        return rows[rank][positions[rank]] if positions[rank] < len(rows[rank]) else []

    def missing(action: Action) -> str:
        """Reason for which an action cannot run now; empty if it can."""
        if action.op is not None:
            need = needs(action.op, stages)
            return "" if need is None or need in sent else str(need)
        if action.kind not in _KIND:
            return ""
        message = _message(action, file.homes, "")
        if action.kind in RECEIVES.values():
            return f"{message.stage}{SENDS[message.kind]}{message.index}" if receives and message not in sent else ""
        reader = feeds(message, stages)
        if not sends or reader is None:
            return ""
        want = f"{reader.stage}{RECEIVES[message.kind]}{message.index}"
        return "" if want in map(str, head(file.homes[reader.stage])) else want

    def run(action: Action) -> None:
        op = action.op
        if op is not None and (op.kind is Kind.FORWARD or op.kind in SENDS_GRADIENT):
            reader = feeds(op, stages)
            if not listed or (reader and file.homes[reader.stage] == action.rank):
                sent.add(message_of(op))
        elif action.kind in SENDS.values():
            sent.add(_message(action, file.homes, ""))

    def run_all(_: int, actions: Sequence[Action]) -> None:
        for action in actions:
            run(action)

    run_in_turn(rows, positions, lambda actions: not any(missing(action) for action in actions), run_all)
    stuck = [next((a, why) for a in head(rank) if (why := missing(a))) for rank in range(len(rows)) if head(rank)]
    return "; ".join(_waiting(action, why) for action, why in stuck)
