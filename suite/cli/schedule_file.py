"""Schedule files of `suite check FILE.csv` and `suite draw FILE.csv`."""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments
from suite.core.errors import IllegalSchedule, InvalidRequest, UnknownName
from suite.core.op import SENDS_GRADIENT, Kind
from suite.core.words import format_count
from suite.schedule.check import Timeline, check_message_order, op_costs
from suite.schedule.csv_laws import check_schedule_file, waits
from suite.schedule.draw import chart
from suite.schedule.torch_csv import ScheduleFile, parse, read_text

DEFAULTS = {"forward": 1, "backward": 2, "weight": 1}  # ticks
UNIT = op_costs(1, 2, 1)


def ticks_of(arguments: Arguments, prefix: str, file: ScheduleFile) -> dict[str, int]:
    """Ticks of F, B and W on the command line, by name.

    Raises InvalidRequest for any other word, because a file has no configuration, and where the input gradient of a
    split backward pass would take no time.
    """
    legal = {f"{prefix}.{name}": name for name in DEFAULTS}
    ticks = dict(DEFAULTS)
    for word in arguments.words:
        key = word.partition("=")[0]
        if key not in legal:
            raise UnknownName("key of a schedule file", key, legal, legal=f"{prefix}.backward=2")
        value = arguments.value(key, "")
        if not (value.isascii() and value.isdecimal() and 1 <= len(value) <= 9 and int(value)):
            raise InvalidRequest(key, value, rule="a whole number of ticks, at least 1", legal=f"{key}=1")
        ticks[legal[key]] = int(value)
    split = any(action.kind == "W" for row in file.rows for action in row)
    if split and ticks["weight"] >= ticks["backward"]:
        rule = f"less than the {ticks['backward']} ticks of the whole backward pass, which include it"
        raise InvalidRequest(f"{prefix}.weight", ticks["weight"], rule=rule, legal=f"{prefix}.backward=2")
    return ticks


def drawing(arguments: Arguments) -> str:
    """Text grid of a legal file. Raises IllegalSchedule for the first broken law."""
    path = Path(arguments.file)
    file = parse(read_text(path), str(path))
    timeline = check_schedule_file(file, str(path), cost=op_costs(**ticks_of(arguments, "draw", file)))
    return f"{chart(timeline.slots, len(timeline.places), place=timeline.places[0])}\n{_memory(timeline)}"


def report(arguments: Arguments) -> str:
    """Size, placement, makespan, bubble, memory and messages of a legal file.

    Raises IllegalSchedule for the first broken law.
    """
    path = Path(arguments.file)
    file = parse(read_text(path), str(path))
    ticks = ticks_of(arguments, "executor.ticks", file)
    unit = check_schedule_file(file, str(path), cost=UNIT)
    schedule = file.schedule
    sizes = (
        format_count(file.rows, "rank"),
        format_count(file.homes, "stage"),
        format_count(schedule.microbatches, "microbatch").replace("hs", "hes"),
        format_count(sum(map(len, file.computations)), "op"),
    )
    lines = [
        f"{path} is legal ({file.form})",
        ", ".join(sizes),
        f"placement: {_placement(file)}",
        *_times(unit, DEFAULTS),
    ]
    if ticks != DEFAULTS:
        lines += _times(check_schedule_file(file, str(path), cost=op_costs(**ticks)), ticks)
    return "\n".join([*lines, _memory(unit), *_messages(file, unit)])


def _placement(file: ScheduleFile) -> str:
    homes, ranks = file.homes, len(file.rows)
    stages = range(len(homes))
    if homes == tuple(stages):
        return "one stage per rank"
    if len(homes) % ranks == 0:
        if homes == tuple(stage % ranks for stage in stages):
            return f"loop, {len(homes) // ranks} stages per rank: stage s on rank s mod {ranks}"
        turns = (divmod(stage, ranks) for stage in stages)
        if homes == tuple(ranks - 1 - place if chunk % 2 else place for chunk, place in turns):
            return f"fold (V), {len(homes) // ranks} stages per rank: every second chunk returns"
    return "table: stages 0, 1, ... on ranks " + " ".join(map(str, homes))


def _times(timeline: Timeline, ticks: dict[str, int]) -> list[str]:
    ranks, makespan = len(timeline.places), timeline.makespan
    idle = [timeline.idle(rank) for rank in range(ranks)]
    return [
        f"makespan: {makespan:g} ticks (F {ticks['forward']}, B {ticks['backward']}, "
        f"I {ticks['backward'] - ticks['weight']}, W {ticks['weight']}; messages take none)",
        f"bubble: {sum(idle) / ranks / makespan:.1%} of all ranks, "
        f"{min(idle):g} of {makespan:g} ticks on the busiest one",
        f"stage time, the longest from the first to the last op of a rank: {timeline.stage_time():g} ticks",
    ]


def _memory(timeline: Timeline) -> str:
    """Peaks per rank, in activations of one stage and microbatch."""
    flights = []
    for place in timeline.places:
        flying = peak = 0
        for op in timeline.order(place.rank):
            flying += (op.kind is Kind.FORWARD) - (op.kind in SENDS_GRADIENT)
            peak = max(peak, flying)
        flights.append(peak)
    rows = [
        ("forward passes in flight (without B or I)", flights),
        ("weight gradients owed (I without W)", timeline.owed),
        ("activations alive (without B or W)", timeline.peak),
    ]
    return "\n".join(f"{name}: at most {', '.join(map(str, peaks))} per rank" for name, peaks in rows)


def _messages(file: ScheduleFile, timeline: Timeline) -> list[str]:
    try:
        check_message_order(timeline)
        order = "neighbouring stages run their passes in one order, so a transport without a choice can run it"
    except IllegalSchedule as error:
        order = f"a transport without a choice cannot run it: {error}"
    lines = [f"messages: {order}"]
    if file.form == "compute_comms":
        for what, stuck in (
            ("receives that wait", waits(file, receives=True)),
            ("receives and sends that wait", waits(file, receives=True, sends=True)),
        ):
            lines.append(f"with {what}: {f'deadlock: {stuck}' if stuck else 'it runs to its end'}")
    return lines
