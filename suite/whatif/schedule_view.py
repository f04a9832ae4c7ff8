"""Schedule view: one pipeline schedule, or two on one time axis, at any op times, link time and jitter."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from statistics import median

from suite.core.errors import InvalidRequest, SuiteError
from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import FlushInterval, Kind
from suite.core.reasons import headline
from suite.simulate.schedule_run import OpTimes, ScheduleRun
from suite.whatif import pasted
from suite.whatif.answer import AnswerChart, AnswerPart, AnswerTable, ChartSeries, OpTimeline
from suite.whatif.catalogue import Catalogue, build, chosen
from suite.whatif.evidence import Point
from suite.whatif.question import Key, ViewQuestion

MOST_RANKS, MOST_MICROBATCHES, MOST_OPS = 256, 4096, 400_000
SEEDS = 5  # draws of the jitter at each point of a sweep
SWEEPS: Mapping[str, Sequence[float]] = {
    "link": [n / 10 for n in range(11)],
    "jitter": [n / 20 for n in range(20)],
    "microbatches": (1, 2, 3, 4, 6, 8, 12, 16),  # times the ranks
    "ranks": (2, 4, 8, 16, 32),
}
_KINDS = "".join(Kind)
Curves = dict[str, dict[float, float]]  # value by the swept key, for each schedule


def keys(catalogue: Catalogue) -> tuple[Key, ...]:
    """Keys of the view, in the order of the form."""
    names = (*sorted(catalogue["schedules"]), pasted.NAME)
    weights = tuple(sorted(catalogue["weights"]))
    return (
        Key("schedule", "choice", "one_f_one_b", "Schedule, or a system with its weights", names, "schedules"),
        Key("versus", "choice", "", "Second schedule on the same time axis", names, "schedules"),
        Key("ranks", "whole", "4", "Pipeline ranks", least=1, most=MOST_RANKS),
        Key("microbatches", "whole", "8", "Microbatches from drain to drain", least=1, most=MOST_MICROBATCHES),
        Key("forward", "number", "1", "Time of a forward pass of a rank"),
        Key("input", "number", "1", "Time of an input gradient"),
        Key("weight", "number", "1", "Time of a weight gradient"),
        Key("link", "number", "0", "Time of a message between two ranks"),
        Key("jitter", "number", "0", "Jitter of op times: 0.2 means a uniform factor from 0.8 to 1.2", most=0.99),
        Key("cap", "number", "", "Limit of activations per rank; marks schedules that hold more"),
        Key("sweep", "choice", "", "Key to vary in a chart", tuple(SWEEPS)),
        Key("pasted", "text", "", "Schedule file of PyTorch, or Python that orders ops"),
        Key("seed", "whole", "0", "Draw of the jitter", most=2**32 - 1, rare=True),
        Key("replicas", "whole", "1", "Data-parallel replicas, which update together", least=1, most=64, rare=True),
        Key("step", "number", "0", "Time of an update", rare=True),
        Key("weights", "choice", "", "Weight policy; empty: its own", weights, "weights", rare=True),
        Key("update", "whole", "", "Microbatches per update; 0: drain before it, empty: its own", rare=True),
        Key("owed", "number", "0.94", "Bytes held until a weight gradient, over a forward pass's", most=1, rare=True),
    )


def timeline(run: ScheduleRun) -> OpTimeline:
    """Ops as columns of numbers, memory and versions over time, and the critical path."""
    row, _, start, end, ops, _ = zip(*run.spans, strict=True)
    stage, kind, index = zip(*ops, strict=True)
    inter, several = run.grid.inter, len(run.rows) > run.grid.inter
    title = "stage" if run.place.stages == inter else "rank"
    codes = {kind: code for code, kind in enumerate(_KINDS)}
    chunks = [run.place.chunk_of(each) for each in range(run.place.stages)]
    columns = {
        "row": row,
        "stage": stage,
        "kind": map(codes.__getitem__, kind),
        "index": index,
        "chunk": map(chunks.__getitem__, stage),
        "start": start,
        "end": end,
        "critical": run.critical,
    }
    return OpTimeline(
        run.name,
        run.simulation.makespan,
        _KINDS,
        [(f"replica {rank // inter} " if several else "") + f"{title} {rank % inter}" for rank in range(len(run.rows))],
        {name: array("d", values) for name, values in columns.items()},
        run.memory,
        run.versions,
        run.explain,
    )


def runs(question: ViewQuestion, catalogue: Catalogue) -> list[ScheduleRun]:
    """The runs of a question: its schedule, and the one to compare if it has one.

    Raises InvalidRequest for what cannot run, and IllegalSchedule for a pasted file that breaks a law.
    """
    return [_run(question, catalogue, question.text(key), key) for key in ("schedule", "versus") if question.text(key)]


def _run(question: ViewQuestion, catalogue: Catalogue, name: str, key: str = "") -> ScheduleRun:
    """The run of a choice, with the arguments of `key`."""
    pastes = name == pasted.NAME
    choice = chosen(catalogue, "schedules", "one_f_one_b" if pastes else name)
    if pastes:
        schedule = pasted.schedule_of(question.text("pasted"), catalogue.get(pasted.NAME))
    else:
        schedule = build(choice["schedule"], key, question.arguments(key) if key else None)
    weights, update, jitter = question.text("weights"), question.text("update"), question.number("jitter")
    policy = chosen(catalogue, "weights", weights) if weights else choice["weights"]
    every = (question.whole("update") or None) if update else choice["update_interval"]
    run = ScheduleRun(
        name,
        schedule,
        Grid(data=question.whole("replicas"), inter=question.whole("ranks")),
        FlushInterval(0, question.whole("microbatches"), every, 0),
        OpTimes(
            **{key: question.number(key) for key in ("forward", "input", "weight", "link", "step", "owed")},
            jitter=Perturbation(question.whole("seed"), "uniform", jitter) if jitter else None,
        ),
        build(policy, "weights", question.arguments("weights")),
        checked=pastes,
    )
    if not run.ideal:
        raise InvalidRequest("forward", question.text("forward"), "the ops of a microbatch take some time", "forward=1")
    if run.ops > MOST_OPS:
        legal = f"microbatches={max(1, run.interval.microbatches * MOST_OPS // run.ops)}"
        raise InvalidRequest("microbatches", run.interval.microbatches, f"{run.ops} ops, at most {MOST_OPS}", legal)
    return run


def sized(question: ViewQuestion) -> ViewQuestion:
    """The question with the ranks and microbatches of a pasted file, if it has one."""
    text = question.text("pasted")
    if pasted.NAME not in (question.text("schedule"), question.text("versus")) or pasted.is_python(text):
        return question
    schedule = pasted.listed(text)
    return question.changed(ranks=len(schedule.orders), microbatches=schedule.microbatches)


def answer(question: ViewQuestion, catalogue: Catalogue) -> AnswerPart:
    """Timelines, quantities, and their difference in words.

    Raises InvalidRequest for what cannot run, and IllegalSchedule for a pasted schedule that breaks a law.
    """
    question = sized(question)
    found, cap = runs(question, catalogue), question.text("cap")
    columns = [_quantities(run) for run in found]
    rows = [[name, *(each[name] for each in columns)] for name in columns[0]]
    rows = [row for row in rows if any(value is not None for value in row[1:])]
    names = [run.name for run in found]
    size = f"{question.text('ranks')} ranks, {question.text('microbatches')} microbatches"
    return AnswerPart(
        title=f"{' and '.join(names)}, {size}",
        words=[*(_sentence(run, cap) for run in found), *([_difference(*found)] if len(found) == 2 else [])],
        tables=[AnswerTable("Quantities", ["quantity", *names], rows)],
        timelines=[timeline(run) for run in found],
    )


def _quantities(run: ScheduleRun) -> Mapping[str, float | None]:
    every, steps = run.interval.update_interval, len(run.simulation.steps[0])
    steady = every is not None and steps >= 4 and run.interval.microbatches % every == 0
    return {
        "makespan": run.simulation.makespan,
        "makespan over the ideal": run.simulation.makespan / run.ideal,
        "idle share of the ranks, %": 100 * run.idle,
        "longest time from the first to the last pass of a rank": run.stage_time,
        "activations of the fullest rank": max(run.peak_activations),
        "messages between ranks per microbatch": run.messages,
        "ops on the critical path": len(run.critical),
        "time per update of a full pipeline": run.simulation.period if steady else None,
        "weight versions on the fullest stage": max((each.peak for each in run.versions), default=1),
        "weight versions on stage 0": run.versions[0].peak if run.versions else None,
    }


def _sentence(run: ScheduleRun, cap: str) -> str:
    most = max(run.peak_activations)
    rank, over = run.peak_activations.index(most), "" if _fits(run, cap) else f", more than cap={cap}"
    legal = "It keeps every law of order. " if run.checked else ""
    return (
        f"{run.name} takes {run.simulation.makespan:g}; the work of a rank takes {run.ideal:g}, and ranks are idle for "
        f"{100 * run.idle:.3g} % of the time. {legal}The fullest rank, {rank}, holds {most:.3g} activations{over}."
    )


def _fits(run: ScheduleRun, cap: str) -> bool:
    return not cap or max(run.peak_activations) <= float(cap) + 1e-9


def _difference(one: ScheduleRun, other: ScheduleRun) -> str:
    share = one.simulation.makespan / other.simulation.makespan - 1
    time = f"{one.name} is {100 * abs(share):.3g} % {'slower' if share > 0 else 'faster'} than {other.name}"
    if not share:
        time = f"{one.name} and {other.name} take equal time"
    held, sent = (
        f"{abs(mine - yours):.3g} {'more' if mine > yours else 'fewer'}" if mine != yours else "equally many"
        for mine, yours in ((max(one.peak_activations), max(other.peak_activations)), (one.messages, other.messages))
    )
    return (
        f"{time}. The fullest rank of {one.name} holds {held} activations, and its ranks send {sent} messages per "
        "microbatch."
    )


def point(question: ViewQuestion, catalogue: Catalogue) -> Point:
    """Features by which claims and runs near the question are found."""
    question, name = sized(question), question.text("schedule")
    own = catalogue["schedules"].get(name, {}).get("weights")
    named = (weights for weights, policy in catalogue["weights"].items() if policy == own)
    weights = question.text("weights") or next(named, None)
    sizes = {key: question.whole(key) for key in ("ranks", "microbatches")}
    return {"schedule": name, "weights": weights, **sizes}


def more(question: ViewQuestion, catalogue: Catalogue) -> Iterator[AnswerPart]:
    """The chart of the swept key, and all schedules at the point of the question, after each simulation."""
    question = sized(question)
    if key := question.text("sweep"):
        yield from _swept(question, catalogue, key)
    found, refused = list[ScheduleRun](), list[str]()
    streams = runs(question, catalogue)[0].interval.update_interval is not None
    for name, choice in catalogue["schedules"].items():
        if (choice["update_interval"] is not None) is streams:
            try:
                own = (key for key in ("schedule", "versus") if question.text(key) == name)
                run = _run(question, catalogue, name, next(own, ""))
                _ = run.simulation
                found.append(run)
            except SuiteError as error:
                refused.append(f"{name}: {headline(str(error))}")
            yield AnswerPart("all", tables=[_league(found, refused, question.text("cap"))])


def _league(found: Sequence[ScheduleRun], refused: Sequence[str], cap: str) -> AnswerTable:
    ordered = sorted(
        found, key=lambda run: (not _fits(run, cap), run.simulation.makespan, max(run.peak_activations), run.name)
    )
    columns = ["schedule", "makespan", "idle share, %", "activations", "messages per microbatch", "fits cap"]
    rows: list[list[str | float | bool]] = [
        [run.name, run.simulation.makespan, 100 * run.idle, max(run.peak_activations), run.messages, _fits(run, cap)]
        for run in ordered
    ]
    most = None if cap else len(columns) - 1
    last = ["Schedules that hold more than cap come last."] if cap else []
    note = " ".join(["Fastest first, at the numbers of the question.", *last, *refused])
    return AnswerTable("All schedules here", columns[:most], [row[:most] for row in rows], note)


def _swept(question: ViewQuestion, catalogue: Catalogue, key: str) -> Iterator[AnswerPart]:
    """Makespans over the ideal while one key changes; with jitter the median of a few draws."""
    curves: Curves = {}
    ranks, microbatches = question.whole("ranks"), question.whole("microbatches")
    for value in SWEEPS[key]:
        point = round(value * ranks) if key == "microbatches" else value
        changes = {key: point} | (
            {"microbatches": max(1, round(microbatches * value / ranks))} if key == "ranks" else {}
        )
        draws: dict[str, list[float]] = {}
        for seed in range(SEEDS if key == "jitter" and value else 1):
            changed = question.changed(seed=question.whole("seed") + seed, **changes)
            for each in filter(question.text, ("schedule", "versus")):
                with suppress(SuiteError):  # a schedule may refuse a number of microbatches or ranks
                    run = _run(changed, catalogue, question.text(each), each)
                    draws.setdefault(run.name, []).append(run.simulation.makespan / run.ideal)
        for name, drawn in draws.items():
            curves.setdefault(name, {})[point] = median(drawn)
        if not curves:
            continue
        series = [ChartSeries(name, [*curve], [*curve.values()]) for name, curve in curves.items()]
        chart = AnswerChart(f"Makespan over {key}", key, "makespan over the ideal", series)
        yield AnswerPart("sweep", words=[*_crossings(key, curves)], charts=[chart])


def _crossings(key: str, curves: Curves) -> Iterator[str]:
    """The values of the swept key at which each of two schedules is the faster one."""
    if len(curves) != 2:
        return
    (one, mine), (other, yours) = curves.items()
    faster = [(at, one if mine[at] < yours[at] else other) for at in mine if at in yours and mine[at] != yours[at]]
    for name, points in groupby(faster, key=lambda each: each[1]):
        values = [at for at, _ in points]
        until = " on" if values[-1] == faster[-1][0] else f" to {key}={values[-1]:g}"
        yield f"{name} is faster from {key}={values[0]:g}{until}."
    equal = [f"{at:g}" for at in mine if mine[at] == yours.get(at)]
    if equal:
        yield f"Both take equal time at {key}={', '.join(equal)}."
