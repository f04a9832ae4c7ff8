"""Derived numbers of the page, from the raw samples and the trace of a record.

A missing number is nan, never zero, because a missing time must not look like a good one.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from suite.config.experiment import PERPLEXITY, PREDICTED
from suite.core import load
from suite.core.record import Outcome, Record
from suite.core.trace import EXCHANGE, allowed_makespan, breakdown
from suite.report.load import ReportStore, StoredRecord, at, real, text_at

NAN = float("nan")
BATCH_TIME = "batch_time"
OVERSUBSCRIBED = "oversubscribed"  # first word of the note on a run with more ranks than cores
TOKENS = 3e11  # tokens of training in AxoNN's Equation 2


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """Median, minimum, maximum and number of the finite samples of a quantity."""

    median: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0


@dataclass(frozen=True, slots=True)
class ExperimentGroup:
    """The runs of one experiment on one machine.

    Attributes:
        name: Name of the experiment.
        machine: The machine; empty for this one.
        entries: The newest record of each label, the reference first.
        earlier: Records that a newer one of the same label supersedes.
        reference: The run that the others are compared with.
    """

    name: str
    machine: str
    entries: tuple[StoredRecord, ...]
    earlier: tuple[StoredRecord, ...]
    reference: StoredRecord | None

    @property
    def lead(self) -> StoredRecord:
        """The newest entry, whose configuration describes the experiment."""
        return max(self.entries, key=age)

    def find(self, label: str) -> StoredRecord | None:
        return next((entry for entry in self.entries if entry.record.label == label), None)


def groups(store: ReportStore) -> list[ExperimentGroup]:
    """Experiments by name, this machine's first."""
    entries_by_group: dict[tuple[str, str], list[StoredRecord]] = {}
    for entry in store.entries:
        entries_by_group.setdefault((entry.machine, entry.record.experiment), []).append(entry)
    return [group_of(name, machine, entries_by_group[machine, name]) for machine, name in sorted(entries_by_group)]


def group_of(name: str, machine: str, entries: Sequence[StoredRecord]) -> ExperimentGroup:
    """The records of one experiment on one machine."""
    newest: dict[str, StoredRecord] = {}
    for entry in sorted(entries, key=age):
        newest[entry.record.label] = entry
    label = text_at(max(newest.values(), key=age).record.config, "experiment", "reference")
    sorted_entries = sorted(
        newest.values(), key=lambda entry: (entry.record.label != label, natural(entry.record.label))
    )
    earlier = tuple(entry for entry in entries if newest[entry.record.label] is not entry)
    return ExperimentGroup(name, machine, tuple(sorted_entries), earlier, newest.get(label))


def age(entry: StoredRecord) -> tuple[str, str]:
    """Sort key under which the newest is last."""
    return text_at(entry.record.provenance, "started"), entry.file


def natural(text: str) -> list[tuple[int, str]]:
    """Sort key under which 'axonn 2x1' comes before 'axonn 10x1'."""
    return [(int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part) for part in re.split(r"(\d+)", text)]


def summary(values: Iterable[float]) -> SampleSummary:
    """Median, least, largest and number of the finite `values`."""
    finite = [value for value in values if math.isfinite(value)]
    return (
        SampleSummary(statistics.median(finite), min(finite), max(finite), len(finite)) if finite else SampleSummary()
    )


def samples(record: Record, metric: str) -> SampleSummary:
    return summary(record.metrics[metric].values) if metric in record.metrics else SampleSummary()


def note(record: Record, metric: str) -> str:
    return record.metrics[metric].note if metric in record.metrics else ""


def comparable(record: Record) -> bool:
    """Whether ratios of the batch times are meaningful."""
    return not note(record, BATCH_TIME).startswith(OVERSUBSCRIBED)


def busy(record: Record) -> str:
    """The cores that other programs used beside the run, where they may have delayed it; else empty."""
    loads = at(record.provenance, "load")
    foreign = real(at(loads, "foreign"))
    return f"busy: other programs used {foreign:.1f} of {at(loads, 'cores')} cores" if foreign > load.BUSY else ""


def crowded(record: Record, metric: str) -> str:
    """The record's note that it had more ranks than cores, so that times of `metric` are not comparable; else empty."""
    notes = (note(record, BATCH_TIME), note(record, metric), *record.notes)
    return next((text for text in notes if text.startswith(OVERSUBSCRIBED)), "")


def not_in_turns(records: Iterable[Record]) -> str:
    """Reason that ratios of batch times are not meaningful, if the rounds were not interleaved; otherwise empty."""
    calls = {text_at(record.provenance, "turns"): record.label for record in records}
    if len(calls) < 2:
        return ""
    return f"{' and '.join(calls.values())} were not interleaved: rerun=all measures the whole experiment again"


def ratio(above: float, below: float) -> float:
    """above / below; nan if either is not finite or `below` is not positive."""
    return above / below if math.isfinite(above) and math.isfinite(below) and below > 0 else NAN


def percent_of_peak(record: Record, seconds: float) -> float:
    """Flops of a batch, without recomputation, in percent of the measured peak over `seconds`; nan if unknown."""
    return 100 * ratio(samples(record, "flops_per_batch").median, seconds * samples(record, "peak_flops").high)


def useful_percent_of_peak(record: Record, seconds: float) -> float:
    """Flops of sparse products in percent of the measured peak; nan for a system without sparse products.

    In contrast, percent_of_peak counts pruned weights as if they were dense (SAMO V-C).
    """
    return 100 * ratio(samples(record, "useful_flops_per_batch").median, seconds * samples(record, "peak_flops").high)


def percent_of_vendor_peak(record: Record, seconds: float, *, count: str = "flops_per_batch") -> float:
    """Flops of a batch in percent of the vendor's peak (experiment.vendor_peak); nan without it.

    Args:
        count: Metric of the flops: the suite's own count, or flops_per_batch_6nd, which most publications use.
    """
    promised = real(at(record.config, "experiment", "vendor_peak"))
    return 100 * ratio(samples(record, count).median, seconds * promised)


def training_days(record: Record, seconds: float) -> float:
    """AxoNN Equation 2: days of training on 300e9 tokens at `seconds` per batch; nan without a sequence length."""
    batch, sequence = at(record.config, "batch", "size"), at(record.config, "model", "shape", "sequence")
    return ratio(TOKENS * seconds, real(batch) * real(sequence)) / 86400


DERIVED: Mapping[str, tuple[str, Callable[[Record, float], float]]] = {  # unit, and the value at seconds per batch
    "percent_of_peak": ("percent", percent_of_peak),
    "percent_of_vendor_peak": ("percent", percent_of_vendor_peak),
    "percent_of_vendor_peak_6nd": ("percent", partial(percent_of_vendor_peak, count="flops_per_batch_6nd")),
    "useful_percent_of_peak": ("percent", useful_percent_of_peak),
    "training_days": ("day", training_days),
}


def perplexities(record: Record) -> dict[str, float]:
    """Perplexity of each validation, by the number of batches trained before it."""
    scores = record.series.get("validation_loss", [])
    places = [float(len(record.series.get("loss", [])))] * len(scores)
    if text_at(record.config, "measure", "validate") == "every_round":
        first, *turn = (real(at(record.config, "measure", name)) for name in ("warm_up", "discard_first", "batches"))
        places = [first + (number + 1) * sum(turn) for number in range(len(scores))]
    pairs = zip(places, scores, strict=True)
    return {f"{place:.0f}": math.exp(score) for place, score in pairs if math.isfinite(place) and abs(score) < 700}


def quantity(record: Record, metric: str) -> tuple[SampleSummary, str]:
    """Summary and unit of a metric.

    A derived metric is computed at the median, minimum and maximum of the batch time. Perplexity is that of the last
    validation.
    """
    if metric == PERPLEXITY:
        return summary(list(perplexities(record).values())[-1:]), PERPLEXITY
    if metric not in DERIVED:
        return samples(record, metric), record.metrics[metric].unit if metric in record.metrics else ""
    (unit, value), time = DERIVED[metric], samples(record, BATCH_TIME)
    middle, *ends = (value(record, seconds) for seconds in (time.median, time.low, time.high))
    return SampleSummary(middle, min(ends), max(ends), time.n if math.isfinite(middle) else 0), unit


def prediction_error(record: Record, metric: str) -> float:
    """Median of `metric` divided by its prediction, minus 1. 0 if both are zero; nan if one is missing."""
    ours, predicted = samples(record, metric).median, samples(record, PREDICTED[metric]).median
    return 0.0 if ours == predicted else ratio(ours, predicted) - 1


def loss_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Largest |ours - theirs| / |theirs| over the batches of both; inf if a loss is not finite."""
    worst = NAN
    for a, b in zip(ours, theirs, strict=False):
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        difference = 0.0 if a == b else (abs(a - b) / abs(b) if b else math.inf)
        worst = difference if math.isnan(worst) else max(worst, difference)
    return worst


def memory_peak(record: Record, side: str) -> float:
    """Bytes over all kinds on the rank with the most memory. side: `predicted` or `measured`."""
    return float(max((sum(rank) for rank in _ranks(record, side)), default=NAN))


def memory_by_kind(record: Record, side: str) -> dict[str, float]:
    """Bytes by kind on the rank with the most memory."""
    ranks = _ranks(record, side)
    return dict(zip(record.memory[side], max(ranks, key=sum), strict=True)) if ranks else {}


def _ranks(record: Record, side: str) -> list[tuple[float, ...]]:
    return list(zip_longest(*record.memory.get(side, {}).values(), fillvalue=0))


def shares(entry: StoredRecord) -> dict[str, float]:
    """Seconds of one batch by category, mean over the ranks; empty without a trace."""
    return breakdown(entry.trace.spans, entry.trace.grid) if entry.trace else {}


def efficiency(entry: StoredRecord) -> float:
    """Shortest makespan that the op times of the trace allow, divided by the measured makespan; nan without ops."""
    if entry.trace is None or any(span.category == EXCHANGE for span in entry.trace.spans):
        return NAN
    return ratio(allowed_makespan(entry.trace.spans, entry.trace.grid), entry.trace.spans.makespan)


def usable(entry: StoredRecord | None) -> str:
    """Reason that a run cannot be compared; empty if it can."""
    if entry is None:
        return "no record"
    return "" if entry.record.outcome is Outcome.OK else f"outcome {entry.record.outcome.value}"
