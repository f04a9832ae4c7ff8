"""Expectations of an experiment: a quantity, its limit, and whether it is met.

An expectation is judged only if its runs have the outcome `ok` and comparable times. Otherwise it is "not comparable",
and the page shows the reason. Measured times are judged by their confidence interval over the rounds of the run
(suite.stats). Such an expectation is undecided if the interval contains the limit, or if the run has too few rounds.
Losses, simulated times and counted bytes are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np

from suite.config.experiment import (
    PREDICTED,
    ExpectationSpec,
    LossSpec,
    PredictionSpec,
    RatioSpec,
    ShareSpec,
    read_expectation,
)
from suite.core.errors import InvalidRequest
from suite.core.record import Outcome, Record, Source
from suite.core.units import si
from suite.report import derive
from suite.report.load import StoredRecord, at, real, text_at
from suite.stats import inference

MOST_RACES = 2  # ratios in an answer
MAX_REPEATS = 200  # medians to resample; neighbouring rounds of a longer run are merged


class Judgement(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Quantity:
    """The value of an expectation, or the reason why there is none.

    Attributes:
        ours: Our value.
        system: Label of the run.
        versus: The run or quantity that it is compared with.
        why: Reason for a judgement of undecided or not comparable.
        noisy: Whether it is a measured time.
        low, high: Ends of its confidence interval; nan for an exact quantity, or with too few rounds.
        too_few: Reason why a measured time has no interval; empty if it has one.
    """

    ours: float = derive.NAN
    system: str = ""
    versus: str = ""
    why: str = ""
    noisy: bool = False
    low: float = derive.NAN
    high: float = derive.NAN
    too_few: str = ""


@dataclass(frozen=True, slots=True)
class Expectation(Quantity):
    """A judged expectation: `ours` should be at most `target`.

    Attributes:
        what: The quantity, in words.
        kind: Kind of the expectation (suite.config.experiment).
        target: Its limit.
        judgement: Whether the expectation is met.
    """

    what: str = ""
    kind: str = ""
    target: float = derive.NAN
    judgement: Judgement = Judgement.NOT_COMPARABLE


def lines(records: Sequence[Record]) -> list[str]:
    """A line for each judged expectation of the runs of one experiment."""
    group = derive.group_of("", "", [StoredRecord(record, record.key) for record in records])
    every = findings(group)
    found = [(one, f"{one.ours:.3g}, at most {one.target:.3g}") for one in every]
    said = [f"  {text}"] if (text := answer(group, every)) else []
    return said + [f"  {one.judgement.value:<12} {one.what}: {one.why or numbers}" for one, numbers in found]


def answer(group: derive.ExperimentGroup, every: Sequence[Expectation]) -> str:
    """The result of an experiment in words. Empty where nothing is expected and no run is the quickest.

    It names the quicker system with the ratio of times, the digits to which the losses agree, and the number of
    expectations that are met.

    every: the judged expectations of the group
    """
    found = [one for one in every if math.isfinite(one.ours)]
    said = []
    races = [one for one in found if one.kind == "ratio"][:MOST_RACES]
    said += [f"{one.system} takes {one.ours:.2f} of the batch time of {one.versus}: {_word(one)}." for one in races]
    best, systems = quickest(group.entries), [one.system for one in races]
    if best and best.record.label not in systems:
        said.append(f"{best.record.label} is the quickest of {len(group.entries)} runs.")
    elif races and not best:
        runs = [one.record for one in group.entries if derive.comparable(one.record)]
        medians = {run.label: derive.samples(run, derive.BATCH_TIME).median for run in runs}
        label = min(filter(lambda name: math.isfinite(medians[name]), medians), key=medians.__getitem__)
        shortest = f"{label} has the shortest median of {len(runs)} runs, {si(medians[label], 's')}"
        said.append(f"{shortest}; none is surely the quickest.")
    losses = max((one.ours for one in found if one.kind == "loss"), default=math.nan)
    if 0 <= losses < 0.01:
        said.append(
            f"All losses agree to {math.floor(-math.log10(losses))} digits." if losses else "All losses are equal."
        )
    if every:
        met = sum(one.judgement is Judgement.MET for one in every)
        said.append(f"Of the {len(every)} expectations of this experiment, {met} {'is' if met == 1 else 'are'} met.")
    return " ".join(said)


def _word(race: Expectation) -> str:
    """Whether a system is quicker than its rival, by the interval of the ratio; exact times have none."""
    if race.judgement is Judgement.UNDECIDED and math.isnan(race.low):
        return race.why
    if math.isnan(race.low):
        return "quicker" if race.ours < 1 else "slower" if race.ours > 1 else "equal"
    word = "quicker" if race.high < 1 else "slower" if race.low > 1 else "not certain"
    return f"{word} ({100 * (1 - inference.LEVEL):g} % interval {race.low:.2f} to {race.high:.2f})"


def findings(group: derive.ExperimentGroup) -> list[Expectation]:
    """The judged expectations of a group, in the order of its newest configuration."""
    rows = at(group.lead.record.config, "experiment", "expect")
    return [judge(group, row) for row in rows] if isinstance(rows, list) else []


def judge(group: derive.ExperimentGroup, row: Any) -> Expectation:
    """Judge one entry of `experiment.expect` by the runs of its group."""
    try:
        spec = read_expectation(row)
    except InvalidRequest as refusal:
        what, kind, system, versus = (text_at(row, name) for name in ("what", "kind", "system", "versus"))
        target = real(at(row, "at_most"))
        return Expectation(what=what, kind=kind, system=system, versus=versus, target=target, why=str(refusal))
    quantity = _quantity(group, spec)
    judgement, why = _judge(quantity, spec.at_most)
    facts = asdict(replace(quantity, why=why))
    return Expectation(**facts, what=spec.what, kind=spec.kind, target=spec.at_most, judgement=judgement)


def _quantity(group: derive.ExperimentGroup, spec: ExpectationSpec) -> Quantity:
    if isinstance(spec, RatioSpec):
        return _batch_time_ratio(group, spec.system, spec.versus)
    if isinstance(spec, PredictionSpec):
        return _prediction_error(group, spec)
    if isinstance(spec, ShareSpec):
        return _share(group, spec)
    if isinstance(spec, LossSpec) and spec.system:
        return _loss_difference(group, spec)
    return _largest_loss_difference(group)


def _judge(quantity: Quantity, limit: float) -> tuple[Judgement, str]:
    """The judgement, with a reason if it is undecided or not comparable."""
    if quantity.why:
        return Judgement.NOT_COMPARABLE, quantity.why
    if quantity.too_few:
        return Judgement.UNDECIDED, quantity.too_few
    met = inference.is_at_most(quantity.low, quantity.high, limit) if quantity.noisy else quantity.ours <= limit
    if met is None:
        return Judgement.UNDECIDED, f"its interval, {quantity.low:.3g} to {quantity.high:.3g}, spans {limit:.3g}"
    return (Judgement.MET if met else Judgement.NOT_MET), ""


# Confidence intervals


def _is_measured_time(record: Record, metric: str) -> bool:
    """Whether the metric is a measured time. Simulated metrics of a record are exact."""
    timed = metric in record.metrics and record.metrics[metric].unit == "s" and metric not in PREDICTED.values()
    return timed and record.source in (Source.MEASURED, Source.EMULATED)


def _repeats(record: Record, metric: str) -> list[float]:
    """The median of the metric in each round; a single value for an exact metric."""
    if not _is_measured_time(record, metric):
        return [derive.samples(record, metric).median]
    rounds = [
        [x for x in round_values if math.isfinite(x)]
        for round_values in inference.samples_by_round(record, record.metrics[metric].values)
    ]
    rounds = [finite for finite in rounds if finite]
    size = math.ceil(len(rounds) / MAX_REPEATS) or 1
    merged = [chain.from_iterable(rounds[first : first + size]) for first in range(0, len(rounds), size)]
    return inference.medians([list(values) for values in merged])


def _with_interval(
    quantity: Quantity, runs: Sequence[tuple[Record, str]], statistic: Callable[[Sequence[Any]], Any]
) -> Quantity:
    """The quantity, with its confidence interval if one of its metrics is a measured time.

    Args:
        quantity: The quantity.
        runs: Records and metrics that determine the quantity.
        statistic: Function that computes the quantity from one median per run.
    """
    repeats = [_repeats(record, metric) for record, metric in runs]
    counts = [len(medians) for medians, run in zip(repeats, runs, strict=True) if _is_measured_time(*run)]
    if not counts or not all(repeats):
        return quantity
    if min(counts) < inference.MIN_REPEATS:
        count = "1 round decides" if min(counts) == 1 else f"{min(counts)} rounds decide"
        reason = f"{count} nothing; rule: {inference.MIN_REPEATS} at least (measure.rounds)"
        return replace(quantity, noisy=True, too_few=reason)
    low, high = inference.bootstrap_interval(repeats, statistic)
    return replace(quantity, noisy=True, low=min(low, quantity.ours), high=max(high, quantity.ours))


def quickest(entries: Sequence[StoredRecord], metric: str = derive.BATCH_TIME) -> StoredRecord | None:
    """The run with the shortest median, if its rounds show that it is quicker than every other run.

    None where runs have more than one source, where the interval of a ratio includes 1, and for a single run.
    """
    runs = [entry for entry in entries if entry.record.outcome is Outcome.OK and derive.comparable(entry.record)]
    times = {entry.file: derive.samples(entry.record, metric).median for entry in runs}
    runs = [entry for entry in runs if math.isfinite(times[entry.file])]
    if len(runs) < 2 or len({entry.record.source for entry in runs}) > 1:
        return None
    first, *others = sorted(runs, key=lambda entry: times[entry.file])
    for other in others:
        ratio = Quantity(derive.ratio(times[first.file], times[other.file]))
        pair = [first.record, other.record]
        ratio = _with_interval(ratio, [(one, metric) for one in pair], lambda medians: medians[0] / medians[1])
        if derive.not_in_turns(pair) or ratio.too_few or not (ratio.high if ratio.noisy else ratio.ours) < 1:
            return None
    return first


# Quantities


def _batch_time_ratio(group: derive.ExperimentGroup, system: str, rivals: Sequence[str]) -> Quantity:
    """The batch time of `system` divided by that of the quickest rival. Every rival must have the outcome `ok`."""
    ratios: list[tuple[float, str]] = []
    for label in rivals:
        value, why = _ratio_of_medians(group, system, label)
        if why:
            return Quantity(system=system, versus=label, why=why)
        ratios.append((value, label))
    value, label = max(ratios)  # the largest ratio is that to the quickest rival
    versus = f"{label}, the quickest of its {len(ratios)} peers" if len(ratios) > 1 else label
    if system in rivals:  # relative to itself
        return Quantity(value, system, versus)
    runs = [(entry.record, derive.BATCH_TIME) for name in (system, *rivals) if (entry := group.find(name))]
    return _with_interval(
        Quantity(value, system, versus), runs, lambda medians: np.max([medians[0] / x for x in medians[1:]], axis=0)
    )


def _ratio_of_medians(group: derive.ExperimentGroup, system: str, versus: str) -> tuple[float, str]:
    """The ratio of two median batch times, or the reason why there is none."""
    if why := _not_usable(group, system, versus):
        return derive.NAN, why
    records = [entry.record for label in (system, versus) if (entry := group.find(label))]
    for record in records:
        if not derive.comparable(record):
            return derive.NAN, f"{record.label}: {derive.note(record, derive.BATCH_TIME)}"
    if why := derive.not_in_turns(records):
        return derive.NAN, why
    value = derive.ratio(*(derive.samples(record, derive.BATCH_TIME).median for record in records))
    return value, "" if math.isfinite(value) else "no batch times"


def _not_usable(group: derive.ExperimentGroup, *labels: str) -> str:
    """Why one of these runs cannot be compared; empty if all can."""
    reasons = ((label, derive.usable(group.find(label))) for label in labels)
    return next((f"{label}: {reason}" for label, reason in reasons if reason), "")


def _loss_difference(group: derive.ExperimentGroup, spec: LossSpec) -> Quantity:
    """The largest relative difference of the losses of two runs."""
    quantity = Quantity(system=spec.system, versus=spec.versus)
    if why := _not_usable(group, spec.system, spec.versus):
        return replace(quantity, why=why)
    curves = [_losses(entry) for label in (spec.system, spec.versus) if (entry := group.find(label))]
    value = derive.loss_difference(*curves)
    return replace(quantity, ours=value, why="no batch that both ran" if math.isnan(value) else "")


def _largest_loss_difference(group: derive.ExperimentGroup) -> Quantity:
    """The largest loss difference between any run and the reference. Every run must have the outcome `ok`."""
    reference = group.reference
    quantity = Quantity(system="every system", versus=reference.record.label if reference else "")
    if reference is None or derive.usable(reference):
        label = reference.record.label if reference else "the reference"
        return replace(quantity, why=f"{label}: {derive.usable(reference)}")
    others = [entry for entry in group.entries if entry is not reference]
    for entry in others:
        if why := derive.usable(entry):
            return replace(quantity, why=f"{entry.record.label}: {why}")
    values = [derive.loss_difference(_losses(entry), _losses(reference)) for entry in others]
    if not values or any(map(math.isnan, values)):
        return replace(quantity, why="no batch that all ran")
    return replace(quantity, ours=max(values))


def _losses(entry: StoredRecord) -> list[float]:
    return entry.record.series.get("loss", [])


def _prediction_error(group: derive.ExperimentGroup, spec: PredictionSpec) -> Quantity:
    """|ours / simulated - 1| of one run, or the largest over all runs."""
    entries = [group.find(spec.system)] if spec.system else list(group.entries)
    errors: list[tuple[float, str]] = []
    runs: list[tuple[Record, str]] = []
    for entry in entries:
        label = entry.record.label if entry else spec.system
        if entry is None or derive.usable(entry):
            return Quantity(system=label, why=f"{label}: {derive.usable(entry)}")
        error = derive.prediction_error(entry.record, spec.of)
        if math.isnan(error):
            return Quantity(system=label, why=f"{label}: no {spec.of} beside {PREDICTED[spec.of]}")
        errors.append((abs(error), label))
        if error or derive.samples(entry.record, spec.of).median:  # 0 predicted as 0 has no noise
            runs += [(entry.record, spec.of), (entry.record, PREDICTED[spec.of])]
    value, label = max(errors, key=lambda pair: pair[0])
    versus = "its simulation" + (f", worst of {len(errors)}" if len(errors) > 1 else "")

    def largest_error(medians: Sequence[Any]) -> Any:
        pairs = zip(medians[::2], medians[1::2], strict=True)
        return np.max([np.abs(ours / simulated - 1) for ours, simulated in pairs], axis=0)

    return _with_interval(Quantity(value, label, versus), runs, largest_error)


def _share(group: derive.ExperimentGroup, spec: ShareSpec) -> Quantity:
    """The sum of the metrics `spec.of` as a fraction of the sum of `spec.over`. A missing one does not count as 0."""
    of_batch = spec.over == [derive.BATCH_TIME]
    quantity = Quantity(system=spec.system, versus="its batch time" if of_batch else " + ".join(spec.over))
    entry = group.find(spec.system)
    if entry is None or derive.usable(entry):
        return replace(quantity, why=f"{spec.system}: {derive.usable(entry)}")
    record = entry.record
    if not derive.comparable(record):
        return replace(quantity, why=f"{spec.system}: {derive.note(record, derive.BATCH_TIME)}")
    names = (*spec.of, *spec.over)
    whole = record.metrics.get(spec.over[0])
    unit = "s" if whole is None else whole.unit
    for name in names:
        if name not in record.metrics or record.metrics[name].unit != unit:
            return replace(quantity, why=f"{spec.system}: no {'seconds' if unit == 's' else unit} of {name}")
    count = len(spec.of)
    values = [derive.samples(record, name).median for name in names]
    value = derive.ratio(sum(values[:count]), sum(values[count:]))
    if not math.isfinite(value):
        return replace(quantity, why=f"{spec.system}: no times")
    return _with_interval(
        replace(quantity, ours=value),
        [(record, name) for name in names],
        lambda medians: np.sum(medians[:count], axis=0) / np.sum(medians[count:], axis=0),
    )
