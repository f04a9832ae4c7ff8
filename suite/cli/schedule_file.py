"""Schedule files of `suite check FILE.csv` and `suite draw FILE.csv`."""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments
from suite.config.executor import Ticks
from suite.config.refusals import validated
from suite.core.errors import IllegalSchedule, UnknownName
from suite.core.values import Json
from suite.runner.executors.check_executor import check_ticks
from suite.schedule.check import Timeline, check_message_order, op_costs
from suite.schedule.draw import chart
from suite.schedule.torch_csv import ScheduleFile, check_schedule_file, parse, read_text

_TICKS = "executor.ticks"
_DEFAULTS = {"forward": 1, "backward": 2, "weight": 1}


def ticks_of(words: tuple[str, ...], file: ScheduleFile) -> Ticks:
    """Ticks of F, B and W on the command line.

    Raises InvalidRequest for any other word, because a file has no configuration, and where the input gradient of a
    split backward pass would take no time.
    """
    data: dict[str, Json] = {**_DEFAULTS, "update": 0}
    legal = {f"{_TICKS}.{name}": name for name in _DEFAULTS}
    for word in words:
        key, _, value = word.partition("=")
        if key not in legal:
            raise UnknownName("key of a schedule file", key, legal, legal=f"{_TICKS}.backward=2")
        data[legal[key]] = int(value) if value.isdecimal() else value
    ticks = validated(Ticks, data, _TICKS)
    check_ticks(file.schedule, ticks.backward, ticks.weight)
    return ticks


def describe(arguments: Arguments, *, draw: bool) -> str:
    """A legal file as a text grid, or its size, placement, makespan, bubble and messages; then its memory.

    Raises IllegalSchedule for the first broken law.
    """
    path: str = arguments.file
    file = parse(read_text(Path(path)), path)
    ticks = ticks_of(arguments.words, file)
    timeline = check_schedule_file(file, cost=op_costs(ticks.forward, ticks.backward, ticks.weight))
    if draw:
        return f"{chart(timeline.slots, len(timeline.places), place=timeline.places[0])}\n{_memory(timeline)}"
    ranks, makespan = len(file.rows), timeline.makespan
    idle = [timeline.idle(rank) for rank in range(ranks)]
    lines = [
        f"{path} is legal",
        f"ranks {ranks}, stages {len(file.homes)}, microbatches {file.schedule.microbatches}, "
        f"ops {sum(map(len, file.schedule.orders))}",
        f"ranks of stages 0, 1, ...: {' '.join(map(str, file.homes))}",
        f"makespan: {makespan:g} ticks (F {ticks.forward}, B {ticks.backward}, "
        f"I {ticks.backward - ticks.weight}, W {ticks.weight}; messages take none)",
        f"bubble: {sum(idle) / ranks / makespan:.1%} of all ranks, "
        f"{min(idle):g} of {makespan:g} ticks on the busiest one",
        f"stage time, the longest from the first to the last op of a rank: {timeline.stage_time():g} ticks",
    ]
    if file.left_out:
        lines.append(f"left out: {file.left_out} messages and sharding actions, which follow from the order of ops")
    return "\n".join([*lines, _memory(timeline), _messages(timeline)])


def _memory(timeline: Timeline) -> str:
    """Peaks per rank, in activations of one stage and microbatch."""
    rows = {"weight gradients owed (I without W)": timeline.owed, "activations alive (without B or W)": timeline.peak}
    return "\n".join(f"{name}: at most {', '.join(map(str, peaks))} per rank" for name, peaks in rows.items())


def _messages(timeline: Timeline) -> str:
    try:
        check_message_order(timeline)
    except IllegalSchedule as error:
        return f"messages: a transport without a choice cannot run it: {error}"
    return "messages: neighbouring stages run their passes in one order, so a transport without a choice can run it"
