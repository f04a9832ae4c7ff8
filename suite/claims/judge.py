"""Verdicts on published claims, from the records of a reports folder.

A claim may have several answers. The values of an answer come from a metric whose name is the id of the claim, or from
the series or medians of the runs that the answer names. suite.claims.verdict_rules holds the rules for verdicts. The
headline of a claim is the answer with the strongest evidence, in the order measured, derived, emulated, simulated,
printed; the page shows the other answers too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean

from suite.claims import printed
from suite.claims.claim import AnswerRow, Check, Claim, Evidence, Judged, Verdict
from suite.claims.claim_text import terms
from suite.claims.verdict_rules import Basis, controlled, held_back, verdict
from suite.core.errors import InvalidRequest
from suite.core.expression import evaluate, symbols
from suite.core.record import Outcome, Record, Source
from suite.report import derive
from suite.report.load import ReportStore, StoredRecord, real, text_at
from suite.stats import inference

BEST_FIRST = (Source.MEASURED, Source.EMULATED, Source.SIMULATED, Source.ANALYTIC)
NEEDS: Mapping[str, str] = {  # of a claim that was not run, by its reach
    "analytic": "a record computed from the suite's own formulas",
    "cpu": "a run on a CPU",
    "gpu": "a run on a GPU",
    "cluster": "a simulated or measured run of the cluster",
    "data": "a run on the data set, or on a stand-in for it",
}
Case = tuple[float, ...]
# evidence of a metric that states none, by the source of its record; of runs, the first
_POSSIBLE_EVIDENCE = {
    Source.MEASURED: (Evidence.MEASURED,),
    Source.EMULATED: (Evidence.EMULATED,),
    Source.SIMULATED: (Evidence.SIMULATED, Evidence.DERIVED, Evidence.MEASURED),
    Source.ANALYTIC: (Evidence.DERIVED,),
}
_HEADLINE = list(Evidence)  # the strongest first


@dataclass(frozen=True, slots=True)
class _StoredAnswer:
    """Stored values of an answer.

    Attributes:
        entries: Records that hold the values.
        cases: A value per term for each case.
        fault: Why the values cannot be used; empty if they can.
        samples: Repeats behind the value of each term; empty for an exact count.
    """

    entries: tuple[StoredRecord, ...] = ()
    cases: tuple[Case, ...] = ()
    fault: str = ""
    samples: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _StoreIndex:
    """Contents of the store by the keys that answers use.

    Attributes:
        holders: By name of a metric, the last run of each label among the runs here with this metric.
        ran: By experiment, the last run of each label.
        claims: Claims by id.
    """

    holders: Mapping[str, Sequence[StoredRecord]]
    ran: Mapping[str, Sequence[StoredRecord]]
    claims: Mapping[str, Claim]


def judge(claims: Iterable[Claim], store: ReportStore, *, hold: bool = True) -> list[Judged]:
    """Verdict of every claim, in the given order.

    Args:
        claims: The claims.
        store: Records of a reports folder.
        hold: Whether to reduce a verdict in favour of a claim to `consistent` if no registered mutation changes it.
    """
    published = {claim.id: claim for claim in claims}
    holders: dict[str, list[StoredRecord]] = {}
    ran: dict[str, list[StoredRecord]] = {}
    for entry in _newest(store.entries):
        ran.setdefault(entry.record.experiment, []).append(entry)
        for name in () if entry.machine else entry.record.metrics:  # a function may have changed since
            holders.setdefault(name, []).append(entry)
    answers = _StoreIndex(holders, ran, published)
    verdicts = {
        name: _headline(claim, [_judge_answer(claim, row, answers, hold=hold) for row in claim.answers])
        for name, claim in published.items()
    }
    return [controlled(one, verdicts) for one in verdicts.values()]


def _headline(claim: Claim, found: Sequence[Judged]) -> Judged:
    """The answer with the strongest evidence among those with a value, and the other answers."""
    if not found:
        return Judged(claim, Verdict.NOT_RUN, f"nothing here answers it: it needs {NEEDS[claim.reach]}")
    ranked = sorted(found, key=lambda one: (one.verdict is Verdict.NOT_RUN, _rank(one)))
    return replace(ranked[0], others=tuple(ranked[1:]))


def _rank(judged: Judged) -> int:
    return _HEADLINE.index(judged.evidence) if judged.evidence else len(_HEADLINE)


# Content of the store


def _newest(entries: Iterable[StoredRecord]) -> list[StoredRecord]:
    """The last run of each label, whatever its outcome: an older success must not hide a newer failure."""
    newest: dict[tuple[object, ...], StoredRecord] = {}
    for entry in sorted(entries, key=_precedence):
        newest[entry.machine, entry.record.source, entry.record.experiment, entry.record.label] = entry
    return list(newest.values())


def _values_of_metric(claim: Claim, answer: AnswerRow, holders: Mapping[str, Sequence[StoredRecord]]) -> _StoredAnswer:
    """Our values from the metric with the claim's id. holders: as in _StoreIndex."""
    matching = [entry for entry in holders.get(claim.id, ()) if _has_evidence(entry, claim, answer.evidence)]
    if not matching:
        return _StoredAnswer(fault=f"no record holds it: it needs {NEEDS[claim.reach]}")
    if not (fit := [entry for entry in matching if entry.record.outcome is Outcome.OK]):
        return _StoredAnswer(fault=f"no run of it ended well: {_outcomes(matching)}")
    entry = max(fit, key=_precedence)
    metric = entry.record.metrics[claim.id]
    if metric.unit != claim.unit:
        return _StoredAnswer((entry,), fault=f"its record counts in {metric.unit!r}, the claim in {claim.unit!r}")
    values, width = metric.values, len(terms(claim))
    if not values or len(values) % width:
        return _StoredAnswer((entry,), fault=f"its record has {len(values)} values; rule: {width} per case")
    return _StoredAnswer((entry,), tuple(values[i : i + width] for i in range(0, len(values), width)))


def _has_evidence(entry: StoredRecord, claim: Claim, evidence: Evidence) -> bool:
    """Whether a record's value of the claim has this evidence."""
    stated = entry.record.metrics[claim.id].evidence
    if entry.record.outcome is not Outcome.OK:  # the source of a refused run is not meaningful
        return not stated or stated == evidence.value
    return stated == evidence.value if stated else evidence in _POSSIBLE_EVIDENCE[entry.record.source]


def _values_of_runs(answer: AnswerRow, entries: Sequence[StoredRecord]) -> _StoredAnswer:
    """Values of the runs that the answer names, all from one machine and one source.

    A label with * matches the runs of several seeds; their mean is the value.

    Args:
        answer: The answer.
        entries: Runs of its experiment.
    """
    labels = answer.labels
    of_its_kind = [entry for entry in entries if _POSSIBLE_EVIDENCE[entry.record.source][0] is answer.evidence]
    labelled = [entry for entry in of_its_kind if any(fnmatchcase(entry.record.label, label) for label in labels)]
    sets: dict[tuple[str, Source], list[StoredRecord]] = {}
    for entry in labelled:
        if entry.record.outcome is Outcome.OK:
            sets.setdefault((entry.machine, entry.record.source), []).append(entry)
    whole = [by_label for each in sets.values() if (by_label := _by_label(labels, each))]
    if not whole:
        ended = f" ({_outcomes(labelled)})" if labelled else ""
        return _StoredAnswer(fault=f"experiment {answer.experiment} has no complete set of {', '.join(labels)}{ended}")
    best = max(whole, key=lambda found: max(_precedence(entry) for runs in found for entry in runs))
    chosen = tuple(entry for runs in best for entry in runs)
    if answer.series:
        return _values_of_series(answer, best)
    if answer.value:
        return _value_of_expression(answer.value, best)
    name = answer.metric
    for entry in chosen:
        if name == derive.BATCH_TIME and not derive.comparable(entry.record):
            return _StoredAnswer(chosen, fault=f"{entry.record.label}: {derive.note(entry.record, name)}")
    units = sorted({entry.record.metrics[name].unit for entry in chosen if name in entry.record.metrics})
    if len(units) > 1:
        return _StoredAnswer(chosen, fault=f"the runs count {name} in {' and '.join(map(repr, units))}")
    if name == derive.BATCH_TIME and (apart := derive.not_in_turns(entry.record for entry in chosen)):
        return _StoredAnswer(chosen, fault=apart)
    values = tuple(fmean(_value(entry.record, name) for entry in runs) for runs in best)
    return _StoredAnswer(chosen, (values,), samples=tuple(_repeats(runs, name) for runs in best))


def _value_of_expression(expression: str, chosen: Sequence[Sequence[StoredRecord]]) -> _StoredAnswer:
    """The value of an expression over metrics of the runs, named METRIC_0 for the first label, METRIC_1 and so on."""
    entries = tuple(entry for runs in chosen for entry in runs)
    values = {}
    for symbol in symbols(expression):
        name, _, place = symbol.rpartition("_")
        values[symbol] = fmean(_value(entry.record, name) for entry in chosen[int(place)])
    if missing := sorted(symbol for symbol, value in values.items() if not math.isfinite(value)):
        return _StoredAnswer(entries, fault=f"the runs have no {', '.join(missing)}")
    return _StoredAnswer(entries, ((evaluate(expression, values),),))


def _value(record: Record, name: str) -> float:
    """The median of a metric of the record, or of a quantity derived from its metrics."""
    return (derive.samples(record, name) if name in record.metrics else derive.quantity(record, name)[0]).median


def _by_label(labels: Sequence[str], entries: Sequence[StoredRecord]) -> list[list[StoredRecord]]:
    """The runs of each label; empty unless every label has the same number of runs, at least one."""
    by_label = [[entry for entry in entries if fnmatchcase(entry.record.label, label)] for label in labels]
    return by_label if len({len(runs) for runs in by_label}) == 1 and by_label[0] else []


def _values_of_series(answer: AnswerRow, chosen: Sequence[Sequence[StoredRecord]]) -> _StoredAnswer:
    """The curve of each term, batch by batch, as the mean over seeds."""
    entries = tuple(entry for runs in chosen for entry in runs)
    curves = [[entry.record.series.get(answer.series, []) for entry in runs] for runs in chosen]
    lengths = [len(curve) for runs in curves for curve in runs]
    if not lengths[0] or len(set(lengths)) > 1:
        lengths_text = ", ".join(
            f"{entry.record.label} {length}" for entry, length in zip(entries, lengths, strict=True)
        )
        return _StoredAnswer(entries, fault=f"the series {answer.series} differ in length: {lengths_text}")
    means = ([fmean(values) for values in zip(*runs, strict=True)] for runs in curves)
    return _StoredAnswer(entries, tuple(zip(*means, strict=True)))


def _repeats(runs: Sequence[StoredRecord], name: str) -> tuple[float, ...]:
    """Samples for a rank test: a value per seed, or per round of a timed run; empty for a count."""
    if len(runs) > 1:
        return tuple(_value(entry.record, name) for entry in runs)
    record = runs[0].record
    if name not in record.metrics or record.metrics[name].unit != "s":
        return ()
    rounds = inference.samples_by_round(record, record.metrics[name].values)
    finite = [[value for value in some if math.isfinite(value)] for some in rounds]
    return tuple(inference.medians([some for some in finite if some]))


def _fewest_repeats(claim: Claim, answer: AnswerRow, samples: Sequence[Sequence[float]]) -> int:
    """Value of Judged.repeats: 0 for an exact value, 1 for a single measurement. A row says which counts are exact."""
    exact = answer.identity or (claim.check in (Check.FORMULA, Check.EQUAL) and not answer.labels)
    return 0 if answer.evidence is not Evidence.MEASURED or exact else min(map(len, samples), default=0) or 1


def _precedence(entry: StoredRecord) -> tuple[int, bool, str, str]:
    """Sort key by which the preferred record is last: the best source, then made on this machine, then the newest."""
    rank = -BEST_FIRST.index(entry.record.source)
    return rank, not entry.machine, text_at(entry.record.provenance, "started"), entry.file


def _outcomes(entries: Iterable[StoredRecord]) -> str:
    return ", ".join(sorted({f"{entry.record.label} {entry.record.outcome}" for entry in entries}))


# Verdict on the claim


def _judge_printed(claim: Claim, answer: AnswerRow, index: _StoreIndex) -> Judged:
    """The judged value of an answer from printed numbers, which needs no record."""
    found = Judged(claim, Verdict.NOT_RUN, "")
    try:
        ours = printed.values(answer, index.claims)
    except InvalidRequest as error:
        return replace(found, why=str(error))
    return verdict(replace(found, evidence=answer.evidence, ours=ours), answer, Basis())


def _judge_answer(claim: Claim, answer: AnswerRow, index: _StoreIndex, *, hold: bool) -> Judged:
    if answer.printed:
        return _judge_printed(claim, answer, index)
    if answer.labels:
        answer_values = _values_of_runs(answer, index.ran.get(answer.experiment, ()))
    else:
        answer_values = _values_of_metric(claim, answer, index.holders)
    outcome = Judged(claim, Verdict.NOT_RUN, answer_values.fault, scope=answer.scope, stand_in=answer.stand_in)
    outcome = replace(outcome, experiment=answer.experiment)
    if not answer_values.entries:
        return outcome
    lead = answer_values.entries[0]
    metric, experiment = lead.record.metrics.get(claim.id), lead.record.config.get("experiment")
    outcome = replace(
        outcome,
        evidence=answer.evidence,
        record=lead.file,
        experiment=lead.record.experiment,
        command=text_at(lead.record.provenance, "command"),
        answer_seconds=_duration(metric.seconds) if metric else None,
        experiment_seconds=_duration(experiment.get("expected_seconds")) if isinstance(experiment, dict) else None,
    )
    if answer_values.fault:
        return outcome
    values = [value for case in answer_values.cases for value in case]
    if broken := sum(not math.isfinite(value) for value in values):
        return replace(outcome, why=f"not finite: {broken} of our {len(values)} values")
    names = dict.fromkeys(name for entry in answer_values.entries for name in _fed_by(claim, entry.record))
    fitted = [index.claims[name] for name in names if name in index.claims]
    basis = Basis(fitted, metric.null if metric else (), answer_values.samples)
    outcome = replace(outcome, ours=answer_values.cases, repeats=_fewest_repeats(claim, answer, answer_values.samples))
    judged = verdict(outcome, answer, basis)
    return held_back(judged, answer) if hold else judged


def _fed_by(claim: Claim, record: Record) -> tuple[str, ...]:
    """Ids of the claims to which constants behind our value were fitted; by default those of the record's model."""
    metric = record.metrics.get(claim.id)
    if metric is not None and metric.evidence:
        return metric.fed_by
    names = record.provenance.get("calibrated_on", [])
    return tuple(map(str, names)) if isinstance(names, list | tuple) else (str(names),)


def _duration(seconds: object) -> float | None:
    """A finite number of seconds; None for anything else that a record may hold in its place."""
    duration = real(seconds)
    return duration if math.isfinite(duration) else None
