"""Decides whether what an experiment expects is met: ours beside the target, and a verdict with its reason.

An experiment's config says what it expects of its systems. A row is judged only from runs that ended well and whose
times are comparable; everything else is "not comparable" and says why, never silently met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from suite.report import derive
from suite.report.asked import LONG, told
from suite.report.load import real, text_at

KINDS = ("ratio", "loss", "prediction", "share")


class Judgement(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One expectation: `ours` should be at most `target`. kind: one of KINDS.

    A ratio is one of median batch times; of one to several systems the quickest counts, and `versus` names it. A
    prediction is compared with the clock of its own run, and without a system the worst of all runs is named. A share
    is what the times `of` a run, added up, are of its batch time: of medians, from 0 to 1."""

    what: str
    kind: str
    system: str
    versus: str
    ours: float
    target: float
    judgement: Judgement
    why: str = ""


def findings(group: derive.Group) -> list[Finding]:
    """The expectations that the group's newest config states, in its order."""
    experiment = group.lead.record.config.get("experiment")
    rows = experiment.get("expect") if isinstance(experiment, dict) else None
    return [judge(group, row) for row in rows] if isinstance(rows, list) else []


def judge(group: derive.Group, row: Any) -> Finding:
    """One expectation against the runs of its group."""
    what, kind, system, versus = (text_at(row, name) for name in ("what", "kind", "system", "versus"))
    rivals = row.get("versus") if isinstance(row, dict) else None
    target = row.get("at_most") if isinstance(row, dict) else None
    limit = real(target)
    ours, why = derive.NAN, ""
    if math.isnan(limit):
        why = f"at_most is {target!r}; rule: a finite number; legal: 1.0"
    elif kind not in KINDS:
        why = f"kind is {kind!r}; rule: {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    elif kind == "share":
        versus = "its batch time"
        ours, why = _share(group, system, row.get("of") if isinstance(row, dict) else None)
    elif kind == "prediction":
        ours, system, versus, why = _prediction(group, system, text_at(row, "of") or derive.BATCH_TIME)
    elif kind == "loss" and not system:
        ours, why = _worst(group)
        system, versus = "every system", group.reference.record.label if group.reference else ""
    elif isinstance(rivals, list):
        ours, versus, why = _to_the_quickest(group, kind, system, rivals)
    else:
        ours, why = _ours(group, kind, system, versus)
    if why:
        judgement = Judgement.NOT_COMPARABLE
    else:
        judgement = Judgement.MET if ours <= limit else Judgement.NOT_MET
    return Finding(what, kind, system, versus, ours, limit, judgement, why)


def _worst(group: derive.Group) -> tuple[float, str]:
    """The largest loss difference of any run to the reference; a run that did not end well leaves none."""
    reference = group.reference
    others = [entry for entry in group.entries if entry is not reference]
    values = []
    for entry in (reference, *others):
        if why := derive.usable(entry):
            return derive.NAN, f"{entry.record.label if entry else 'the reference'}: {why}"
        if reference is not None and entry is not None and entry is not reference:
            values.append(
                derive.loss_difference(entry.record.series.get("loss", []), reference.record.series.get("loss", []))
            )
    if not values or any(math.isnan(value) for value in values):
        return derive.NAN, "no batch that all ran"
    return max(values), ""


def _prediction(group: derive.Group, system: str, of: str) -> tuple[float, str, str, str]:
    """|ours / simulated - 1| of one system, or of the one that is worst: value, system, versus, why there is none."""
    if of not in derive.PREDICTED:
        return derive.NAN, system, "", f"of is {of!r}; rule: one of {', '.join(derive.PREDICTED)}"
    entries = [group.find(system)] if system else list(group.entries)
    found: list[tuple[float, str]] = []
    for entry in entries:
        label = entry.record.label if entry else system
        if entry is None or (why := derive.usable(entry)):
            return derive.NAN, label, "", f"{label}: {why if entry else derive.usable(None)}"
        apart = derive.prediction_error(entry.record, of)
        if math.isnan(apart):
            return derive.NAN, label, "", f"{label}: no {of} beside {derive.PREDICTED[of]}"
        found.append((abs(apart), label))
    value, label = max(found, key=lambda one: one[0])
    return value, label, "its simulation" + (f", worst of {len(found)}" if len(found) > 1 else ""), ""


def _share(group: derive.Group, system: str, of: Any) -> tuple[float, str]:
    """What the times `of` one run are of its batch, or why that is not known: what was not timed is no zero."""
    if not (isinstance(of, list) and of and all(isinstance(name, str) for name in of)):
        return derive.NAN, f"of is {told(of)}; rule: a list of metrics; legal: [update_time]"
    entry = group.find(system)
    if entry is None or derive.usable(entry):
        return derive.NAN, f"{system}: {derive.usable(entry)}"
    if not derive.comparable(entry.record):
        return derive.NAN, f"{system}: {derive.note(entry.record, derive.BATCH_TIME)}"
    for name in (*of, derive.BATCH_TIME):
        if name not in entry.record.metrics or entry.record.metrics[name].unit != "s":
            return derive.NAN, f"{system}: no seconds of {name[:LONG]}"
    parts = sum(derive.samples(entry.record, name).median for name in of)
    value = derive.ratio(parts, derive.samples(entry.record, derive.BATCH_TIME).median)
    return value, "" if math.isfinite(value) else f"{system}: no times"


def _to_the_quickest(group: derive.Group, kind: str, system: str, rivals: list[Any]) -> tuple[float, str, str]:
    """The ratio to the quickest of `rivals`, which one that is, or why there is none: all of them have to be there."""
    if kind != "ratio" or not rivals or not all(isinstance(label, str) for label in rivals):
        return derive.NAN, "", "several systems in versus; rule: a ratio, and a list of labels"
    found: list[tuple[float, str]] = []
    for label in rivals:
        value, why = _ours(group, kind, system, label)
        if why:
            return derive.NAN, label, why
        found.append((value, label))
    value, label = max(found)  # the larger our time is beside theirs, the quicker they are
    return value, f"{label}, the quickest of {len(found)}", ""


def _ours(group: derive.Group, kind: str, system: str, versus: str) -> tuple[float, str]:
    """Our value, or why there is none."""
    ours, theirs = group.find(system), group.find(versus)
    for label, entry in ((system, ours), (versus, theirs)):
        if why := derive.usable(entry):
            return derive.NAN, f"{label}: {why}"
        if kind == "ratio" and entry is not None and not derive.comparable(entry.record):
            return derive.NAN, f"{label}: {derive.note(entry.record, derive.BATCH_TIME)}"
    assert ours is not None
    assert theirs is not None
    if kind == "ratio":
        if apart := derive.not_in_turns((ours.record, theirs.record)):
            return derive.NAN, apart
        value = derive.ratio(
            derive.samples(ours.record, derive.BATCH_TIME).median,
            derive.samples(theirs.record, derive.BATCH_TIME).median,
        )
        return value, "" if math.isfinite(value) else "no batch times"
    value = derive.loss_difference(ours.record.series.get("loss", []), theirs.record.series.get("loss", []))
    return value, "no batch that both ran" if math.isnan(value) else ""
