"""The front page: the runs of this machine, the quickest system, and the papers' claims with an answer to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.claims import judge, load
from suite.claims.claim import Check, Evidence, Judged, Scope, Verdict
from suite.claims.claim_text import command, terms
from suite.claims.plain_answers import TONES, PlainAnswer, because, plain_answer
from suite.core.record import Record
from suite.core.values import Json
from suite.report import derive, expectations
from suite.report.load import StoredRecord, at, text_at
from suite.report.names import NONE, interval, named, round_number
from suite.report.names import unit as unit_of
from suite.report.panels.published_figures import Paper
from suite.report.plots import figure, plots
from suite.report.plots.plots import Picture
from suite.report.tables import claim_tables
from suite.report.tables.provenance_table import overview

LARGEST_SYSTEMS = 12  # of one race
MOST_TERMS = 3  # of one claim


@dataclass(frozen=True, slots=True)
class Race:
    """An experiment that compares a system with several peers.

    Attributes:
        anchor: Its section.
        setting: Network and batch.
        quickest: Least median batch time, s.
    """

    title: str
    anchor: str
    setting: str
    answer: str
    picture: Picture
    quickest: float


@dataclass(frozen=True, slots=True)
class FrontClaim:
    """A claim of the front page. words: the claim in the paper's words cut short; because: reason of the answer"""

    words: str
    anchor: str
    printed: str
    ours: str
    evidence: str
    answer: str
    because: str
    tone: str


@dataclass(frozen=True, slots=True)
class FrontPaper:
    """A paper on the front page. counts: (number of claims, plain answer, tone)"""

    anchor: str
    title: str
    headlines: tuple[FrontClaim, ...]
    counts: tuple[tuple[int, str, str], ...]
    picture: Picture | None
    figure: str
    caption: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """Claims that were not run, and the command that runs them. needs: the hardware or data that they require"""

    count: int
    needs: str
    command: str


def races(
    groups: Sequence[derive.ExperimentGroup], findings: Sequence[Sequence[expectations.Expectation]]
) -> list[Race]:
    """The experiments of this machine that compare a system with several peers.

    Args:
        groups: The experiments in the order of the sections e1, e2, ...
        findings: Judged expectations of each experiment.
    """
    found = []
    numbered = [(f"e{number}", *pair) for number, pair in enumerate(zip(groups, findings, strict=True), 1)]
    chosen = [one for one in numbered if not one[1].machine and _compares_peers(one[1])]
    labels = dict.fromkeys(entry.record.label for _, group, _ in chosen for entry in group.entries)
    colours = figure.palette(list(labels))
    for anchor, group, judged in chosen:
        ran = sorted((one for one in group.entries if not derive.usable(one)), key=_median)[:LARGEST_SYSTEMS]
        title = text_at(group.lead.record.config, "experiment", "title") or group.name
        if (picture := plots.times(ran, f"race-{anchor}", colours)) is not None:
            said = expectations.answer(group, judged)
            found.append(Race(title, anchor, _setting(group.lead.record), said, picture, _median(ran[0])))
    return sorted(found, key=lambda race: race.quickest)


def committed_on(item: Judged) -> str:
    """The machine of the committed record that a verdict rests on; empty for a run of this machine and for none."""
    folder, _, rest = item.record.partition("/")
    return rest.partition("/")[0] if folder == "measured" else ""


def machine(entries: Sequence[StoredRecord], judged: Sequence[Judged]) -> str:
    """The runs of this machine with its name, those of other machines, and how many verdicts rest on either."""
    here = [entry for entry in entries if not entry.machine]
    made = [entry.record.provenance for entry in here]
    known: Mapping[str, Json] = next((each for each in reversed(made) if text_at(each, "machine", "processor")), {})
    name, cores = text_at(known, "machine", "processor"), at(known, "machine", "cores")
    said = [f"This machine ({name}, {cores} cores): {overview(here)}" if name else overview(here)]
    if others := [entry for entry in entries if entry.machine]:
        said.append(f"Committed with the project: {overview(others)}")
    measured = [item for item in judged if item.evidence in (Evidence.MEASURED, Evidence.EMULATED)]
    places = ((place := committed_on(item)) and f"committed runs ({place})" for item in measured)
    counts = Counter(place or "runs of this machine" for place in places)
    rest = [f"{count} rest on {place}" for place, count in sorted(counts.items(), reverse=True)]
    said += [f"Measured verdicts: {', '.join(rest)}."] if rest else []
    return " ".join(filter(None, said))


def _median(entry: StoredRecord) -> float:
    return derive.samples(entry.record, derive.BATCH_TIME).median


def _setting(record: Record) -> str:
    """'A GPT of 8 blocks of width 64; 16 sequences of 64 tokens a batch.'; empty for another network."""
    shape = at(record.config, "model", "shape")
    size = at(record.config, "batch", "size")
    if not isinstance(shape, dict) or not {"layers", "hidden", "heads", "sequence"} <= shape.keys():
        return ""
    layers, hidden, sequence = (shape[name] for name in ("layers", "hidden", "sequence"))
    return f"A GPT of {layers} blocks of width {hidden}; {size} sequences of {sequence} tokens a batch."


def _compares_peers(group: derive.ExperimentGroup) -> bool:
    rows = at(group.lead.record.config, "experiment", "expect")
    peers = [at(row, "versus") for row in rows if at(row, "kind") == "ratio"] if isinstance(rows, list) else []
    return any(isinstance(names, list) and len(names) > 1 for names in peers)


def papers(judged: Sequence[Judged], found: Sequence[Paper]) -> list[FrontPaper]:
    """The headline claims and the picture of each paper that has a front.yaml. found: the published figures"""
    by_id = {item.claim.id: item for item in judged}
    pages = {paper.name: paper for paper in found}
    shown = []
    for paper, row in load.fronts().items():
        title = load.titles()[paper]
        mine = [item for item in judged if item.claim.paper == paper]
        if not mine:
            continue
        counts = Counter(plain_answer(item.verdict, item.evidence) for item in mine)
        displays = pages[title].displays if title in pages else ()
        panels = [panel for one in displays if one.short == row.picture for panel in one.panels if panel.picture]
        panel = next((one for one in panels if one.title == row.panel), panels[0] if panels else None)
        shown.append(
            FrontPaper(
                pages[title].anchor if title in pages else "",
                title,
                tuple(_headline(words, by_id[name]) for name, words in row.claims.items() if name in by_id),
                tuple((counts[answer], answer.value, TONES[answer]) for answer in PlainAnswer if counts[answer]),
                panel.picture if panel else None,
                row.picture,
                panel.title if panel else "",
            )
        )
    return shown


def _headline(words: str, item: Judged) -> FrontClaim:
    answer = plain_answer(item.verdict, item.evidence)
    exact, unit = isinstance(item.claim.value, float | tuple), unit_of(item.claim.unit)
    value = item.claim.value
    printed = (
        interval(value, round_number)
        if isinstance(value, tuple)
        else round_number(value)
        if isinstance(value, float)
        else ""
    )
    evidence = [" on ".join(filter(None, (item.evidence, committed_on(item))))] if item.evidence else []
    evidence += ["stand-in"] if item.evidence and item.scope is Scope.STAND_IN else []
    return FrontClaim(
        words,
        claim_tables.anchor(item.claim.id),
        f"{printed} {unit}".strip() if exact else NONE,
        _ours(item, unit) if item.ours else NONE,
        ", ".join(evidence),
        answer.value,
        because(item),
        TONES[answer],
    )


def _ours(item: Judged, unit: str) -> str:
    """The ends of our values, or the first ones by name: '11.8 to 26.2', 'AxoNN 99.3, DeepSpeed-3D 125'."""
    if isinstance(item.claim.value, float | tuple):
        values = [value for case in item.ours for value in case]
        ends = [round_number(end) for end in (min(values), max(values))]
        return f"{' to '.join(dict.fromkeys(ends))} {unit}".strip()
    if item.claim.check is Check.FORMULA:
        points = [value for case in item.ours for value in case]
        return f"equal at {len(points)} points" if item.verdict is Verdict.REPRODUCED else "not equal"
    if item.claim.check is Check.EQUAL and item.verdict in (Verdict.REPRODUCED, Verdict.TREND_ONLY):
        return "equal"
    pairs = list(zip(terms(item.claim), item.ours[0], strict=False))
    more = ", …" if len(pairs) > MOST_TERMS or len(item.ours) > 1 else ""
    return (
        ", ".join(f"{named(name)} {round_number(value)}" for name, value in pairs[:MOST_TERMS])
        + f"{more} {unit}".rstrip()
    )


def missing(judged: Sequence[Judged]) -> list[NotRun]:
    """The claims that were not run, by what they need, the most first, each with its most common command."""
    commands: dict[str, list[str]] = {}
    for item in judged:
        if item.verdict is Verdict.NOT_RUN:
            commands.setdefault(judge.NEEDS[item.claim.reach], []).append(command(item))
    found = [NotRun(len(lines), needs, Counter(lines).most_common(1)[0][0]) for needs, lines in commands.items()]
    return sorted(found, key=lambda one: -one.count)
