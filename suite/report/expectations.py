"""Expectations of an experiment: a quantity, its limit, and whether it is met.

An experiment's configuration lists the expectations on its systems. A row is judged only from runs that ended well and
whose times are comparable; everything else is "not comparable" and says why, never silently met. Times of a clock are
judged
by their interval over the rounds of the run (suite.stats): where it spans the limit, or there are too few rounds, the
row is undecided. Losses, simulated times and counted bytes are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np

from suite.core.record import Record, Source
from suite.report import derive
from suite.report.load import real, text_at
from suite.report.panels.panel_spec import LONG, told
from suite.stats import inference

MOST_REPEATS = 200  # that are resampled: neighbouring rounds of a longer run are one
KINDS = ("ratio", "loss", "prediction", "share")


class Judgement(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: `ours` should be at most `target`. kind: one of KINDS.

    A ratio is one of median batch times; of one to several systems the quickest counts, and `versus` names it. A
    prediction is compared with the clock of its own run, and without a system the worst of all runs is named. A share
    is what the times `of` a run, added up, are of its batch time: of medians, from 0 to 1. low, high: the interval of a
    quantity with noise; nan of an exact one and where there are too few rounds for one."""

    what: str
    kind: str
    system: str
    versus: str
    ours: float
    target: float
    judgement: Judgement
    why: str = ""
    low: float = derive.NAN
    high: float = derive.NAN


@dataclass(frozen=True, slots=True)
class _Ours:
    """The value of an expectation, or why there is none.

    Attributes:
        noisy: Whether it comes from a clock.
        low, high: Its interval, nan where `few` says why there is none.
    """

    value: float = derive.NAN
    system: str = ""
    versus: str = ""
    why: str = ""
    noisy: bool = False
    low: float = derive.NAN
    high: float = derive.NAN
    few: str = ""


def findings(group: derive.ExperimentGroup) -> list[Expectation]:
    """The expectations that the group's newest config states, in its order."""
    experiment = group.lead.record.config.get("experiment")
    rows = experiment.get("expect") if isinstance(experiment, dict) else None
    return [judge(group, row) for row in rows] if isinstance(rows, list) else []


def judge(group: derive.ExperimentGroup, row: Any) -> Expectation:
    """One expectation against the runs of its group."""
    what, kind, system, versus = (text_at(row, name) for name in ("what", "kind", "system", "versus"))
    rivals = row.get("versus") if isinstance(row, dict) else None
    target = row.get("at_most") if isinstance(row, dict) else None
    limit = real(target)
    ours = _Ours(system=system, versus=versus)
    if math.isnan(limit):
        ours = replace(ours, why=f"at_most is {target!r}; rule: a finite number; legal: 1.0")
    elif kind not in KINDS:
        ours = replace(ours, why=f"kind is {kind!r}; rule: {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    elif kind == "share":
        ours = _share(group, system, row.get("of") if isinstance(row, dict) else None)
    elif kind == "prediction":
        ours = _prediction(group, system, text_at(row, "of") or derive.BATCH_TIME)
    elif kind == "loss" and not system:
        ours = _worst(group)
    elif kind == "loss" and not isinstance(rivals, list):
        ours = _loss(group, system, versus)
    elif isinstance(rivals, list):
        ours = _ratio(group, system, rivals) if kind == "ratio" else replace(ours, why=_SEVERAL)
    else:
        ours = _ratio(group, system, [versus])
    judgement, why = _judged(ours, limit)
    return Expectation(
        what, kind, ours.system, ours.versus, ours.value, limit, judgement, why, low=ours.low, high=ours.high
    )


_SEVERAL = "several systems in versus; rule: a ratio, and a list of labels"


def _judged(ours: _Ours, limit: float) -> tuple[Judgement, str]:
    """The outcome, and its reason where it is neither met nor not met."""
    if ours.why:
        return Judgement.NOT_COMPARABLE, ours.why
    if ours.few:
        return Judgement.UNDECIDED, ours.few
    met = inference.is_at_most(ours.low, ours.high, limit) if ours.noisy else ours.value <= limit
    if met is None:
        return Judgement.UNDECIDED, f"its interval, {ours.low:.3g} to {ours.high:.3g}, spans {limit:.3g}"
    return (Judgement.MET if met else Judgement.NOT_MET), ""


def _clocked(record: Record, metric: str) -> bool:
    """Whether the metric is a time of a clock, with noise. Simulated numbers of a record are exact."""
    timed = metric in record.metrics and record.metrics[metric].unit == "s" and metric not in derive.PREDICTED.values()
    return timed and record.source in (Source.MEASURED, Source.EMULATED)


def _repeats(record: Record, metric: str) -> list[float]:
    """The metric's medians per round; one number where it is exact: what is simulated, computed or counted."""
    if not _clocked(record, metric):
        return [derive.samples(record, metric).median]
    rounds = inference.samples_by_round(record, record.metrics[metric].values)
    finite = [[x for x in some if math.isfinite(x)] for some in rounds]
    finite_groups = [some for some in finite if some]
    size = -(-len(finite_groups) // MOST_REPEATS) or 1
    merged = [chain.from_iterable(finite_groups[at : at + size]) for at in range(0, len(finite_groups), size)]
    return inference.medians([list(some) for some in merged])


def _noise(ours: _Ours, runs: Sequence[tuple[Record, str]], statistic: Callable[[Sequence[Any]], Any]) -> _Ours:
    """`ours` with the interval of `statistic` over the medians of these runs' metrics, where a clock is among them."""
    repeats = [_repeats(record, metric) for record, metric in runs]
    clocks = [len(repeat_values) for repeat_values, run in zip(repeats, runs, strict=True) if _clocked(*run)]
    if not clocks or not all(repeats):
        return ours
    if min(clocks) < inference.MIN_REPEATS:
        count = "1 round decides" if min(clocks) == 1 else f"{min(clocks)} rounds decide"
        return replace(
            ours, noisy=True, few=f"{count} nothing; rule: {inference.MIN_REPEATS} at least (measure.rounds)"
        )
    low, high = inference.bootstrap_interval(repeats, statistic)
    return replace(ours, noisy=True, low=min(low, ours.value), high=max(high, ours.value))


def _worst(group: derive.ExperimentGroup) -> _Ours:
    """The largest loss difference of any run to the reference; a run that did not end well leaves none."""
    reference = group.reference
    ours = _Ours(system="every system", versus=reference.record.label if reference else "")
    others = [entry for entry in group.entries if entry is not reference]
    values = []
    for entry in (reference, *others):
        if why := derive.usable(entry):
            return replace(ours, why=f"{entry.record.label if entry else 'the reference'}: {why}")
        if reference is not None and entry is not None and entry is not reference:
            values.append(
                derive.loss_difference(entry.record.series.get("loss", []), reference.record.series.get("loss", []))
            )
    if not values or any(math.isnan(value) for value in values):
        return replace(ours, why="no batch that all ran")
    return replace(ours, value=max(values))


def _prediction(group: derive.ExperimentGroup, system: str, of: str) -> _Ours:
    """|ours / simulated - 1| of one system, or the largest of several."""
    if of not in derive.PREDICTED:
        return _Ours(system=system, why=f"of is {of!r}; rule: one of {', '.join(derive.PREDICTED)}")
    entries = [group.find(system)] if system else list(group.entries)
    errors: list[tuple[float, str]] = []
    runs: list[tuple[Record, str]] = []
    for entry in entries:
        label = entry.record.label if entry else system
        if entry is None or (why := derive.usable(entry)):
            return _Ours(system=label, why=f"{label}: {why if entry else derive.usable(None)}")
        apart = derive.prediction_error(entry.record, of)
        if math.isnan(apart):
            return _Ours(system=label, why=f"{label}: no {of} beside {derive.PREDICTED[of]}")
        errors.append((abs(apart), label))
        if apart or derive.samples(entry.record, of).median:  # nothing against nothing is no error
            runs += [(entry.record, of), (entry.record, derive.PREDICTED[of])]
    value, label = max(errors, key=lambda one: one[0])
    versus = "its simulation" + (f", worst of {len(errors)}" if len(errors) > 1 else "")

    def apart_of(drawn: Sequence[Any]) -> Any:
        pairs = zip(drawn[::2], drawn[1::2], strict=True)
        return np.max([np.abs(ours / simulated - 1) for ours, simulated in pairs], axis=0)

    return _noise(_Ours(value, label, versus), runs, apart_of)


def _share(group: derive.ExperimentGroup, system: str, of: Any) -> _Ours:
    """The times `of` one run as a share of its batch time, or the reason why it is unknown: an untimed phase is not
    zero.
    """
    ours = _Ours(system=system, versus="its batch time")
    if not (isinstance(of, list) and of and all(isinstance(name, str) for name in of)):
        return replace(ours, why=f"of is {told(of)}; rule: a list of metrics; legal: [update_time]")
    entry = group.find(system)
    if entry is None or derive.usable(entry):
        return replace(ours, why=f"{system}: {derive.usable(entry)}")
    if not derive.comparable(entry.record):
        return replace(ours, why=f"{system}: {derive.note(entry.record, derive.BATCH_TIME)}")
    for name in (*of, derive.BATCH_TIME):
        if name not in entry.record.metrics or entry.record.metrics[name].unit != "s":
            return replace(ours, why=f"{system}: no seconds of {name[:LONG]}")
    parts = sum(derive.samples(entry.record, name).median for name in of)
    value = derive.ratio(parts, derive.samples(entry.record, derive.BATCH_TIME).median)
    if not math.isfinite(value):
        return replace(ours, why=f"{system}: no times")
    runs = [(entry.record, name) for name in (*of, derive.BATCH_TIME)]
    return _noise(replace(ours, value=value), runs, lambda drawn: np.sum(drawn[:-1], axis=0) / drawn[-1])


def _ratio(group: derive.ExperimentGroup, system: str, rivals: list[Any]) -> _Ours:
    """The ratio of batch times to the quickest of `rivals`, or why there is none: all of them have to be there."""
    if not rivals or not all(isinstance(label, str) for label in rivals):
        return _Ours(system=system, why=_SEVERAL)
    ratios: list[tuple[float, str]] = []
    for label in rivals:
        value, why = _times(group, system, label)
        if why:
            return _Ours(system=system, versus=label, why=why)
        ratios.append((value, label))
    value, label = max(ratios)  # the larger our time is relative to theirs, the faster they are
    versus = f"{label}, the quickest of {len(ratios)}" if len(ratios) > 1 else label
    if system in rivals:  # relative to itself
        return _Ours(value, system, versus)
    runs = [(entry.record, derive.BATCH_TIME) for name in (system, *rivals) if (entry := group.find(name))]
    quickest = lambda drawn: np.max([drawn[0] / theirs for theirs in drawn[1:]], axis=0)  # noqa: E731
    return _noise(_Ours(value, system, versus), runs, quickest)


def _ended_well(group: derive.ExperimentGroup, *labels: str) -> str:
    """Why one of these runs can stand in no comparison; empty if all can."""
    faults = ((label, derive.usable(group.find(label))) for label in labels)
    return next((f"{label}: {why}" for label, why in faults if why), "")


def _times(group: derive.ExperimentGroup, system: str, versus: str) -> tuple[float, str]:
    """The ratio of two median batch times, or why there is none."""
    if why := _ended_well(group, system, versus):
        return derive.NAN, why
    records = [entry.record for label in (system, versus) if (entry := group.find(label))]
    for record in records:
        if not derive.comparable(record):
            return derive.NAN, f"{record.label}: {derive.note(record, derive.BATCH_TIME)}"
    if apart := derive.not_in_turns(records):
        return derive.NAN, apart
    value = derive.ratio(*(derive.samples(record, derive.BATCH_TIME).median for record in records))
    return value, "" if math.isfinite(value) else "no batch times"


def _loss(group: derive.ExperimentGroup, system: str, versus: str) -> _Ours:
    """The largest relative difference of the losses of two runs, or why there is none."""
    ours = _Ours(system=system, versus=versus)
    if why := _ended_well(group, system, versus):
        return replace(ours, why=why)
    curves = [entry.record.series.get("loss", []) for label in (system, versus) if (entry := group.find(label))]
    value = derive.loss_difference(*curves)
    return replace(ours, value=value, why="no batch that both ran" if math.isnan(value) else "")
