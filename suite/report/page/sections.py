"""Section of one experiment on one machine.

A section shows a bounded number of runs, pictures and boxes of timelines, so that a page stays below two megabytes. It
names what it leaves out. The numbers of all runs are in records.csv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from suite.claims import load
from suite.claims.claim import Judged
from suite.claims.plain_answers import in_words, plain_answer
from suite.core.record import Outcome, Source
from suite.report import derive, expectations
from suite.report.load import StoredRecord, text_at
from suite.report.panels import figure_panels, learning_curves, sweep_panels, winner_maps
from suite.report.plots import plots
from suite.report.plots.plots import PanelPlot, Picture
from suite.report.tables import claim_tables, record_tables
from suite.report.whatif_links import WhatIfLinks

# of one experiment on one machine
RUNS = 160  # runs in tables and pictures, the newest and those behind verdicts
EARLIER = 40  # superseded records
BOXES = 300  # boxes of all timelines
LINES = 40  # lines of the reason of a failed run


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment on one machine.

    Attributes:
        answer: Result of the experiment in words.
        panels: Panels of published figures without a place in a paper.
        swept: Sweep panels.
        unswept: Remarks on sweep panels that cannot be drawn.
        learned: Panels of an accuracy study.
        unlearned: Remarks on the study.
        maps: Maps of winners.
        wins: Table of the points that systems win in the maps; None without maps.
        claims: Anchor, id and plain answer of the claims that these runs answer.
        said: Remarks on omissions.
        whatif: Words of the point of its runs on the what-if page.
    """

    anchor: str
    name: str
    title: str
    machine: str
    question: str
    answer: str
    paper: str
    where: str
    sources: str
    panels: tuple[PanelPlot, ...]
    swept: tuple[PanelPlot, ...]
    unswept: tuple[tuple[str, str], ...]
    learned: tuple[PanelPlot, ...]
    unlearned: tuple[tuple[str, str], ...]
    maps: tuple[winner_maps.DrawnMap, ...]
    wins: record_tables.Table | None
    asked: record_tables.Table | None
    claims: tuple[tuple[str, str, str], ...]
    tables: tuple[record_tables.Table, ...]
    failures: tuple[tuple[str, str, str, str], ...]
    remarks: tuple[tuple[str, str], ...]
    runs: tuple[record_tables.Table, ...]
    said: tuple[str, ...]
    whatif: Sequence[str]
    pictures: tuple[Picture, ...]
    gantts: tuple[tuple[str, Picture], ...]
    said_gantts: str


@dataclass(frozen=True, slots=True)
class PageContext:
    """Data shared by all sections.

    Attributes:
        numbers: Numbers of the records (suite.report.records.numbers).
        exports: Perfetto file by record file.
        alone: Whether the pages of papers are left out.
        links: Links to the what-if page.
    """

    groups: Sequence[derive.ExperimentGroup]
    numbers: pd.DataFrame
    exports: Mapping[str, str]
    judged: Sequence[Judged]
    claim_context: claim_tables.ClaimContext
    alone: bool = False
    links: WhatIfLinks = field(default_factory=WhatIfLinks)


def shown(
    group: derive.ExperimentGroup, findings: Sequence[expectations.Expectation], judged: Sequence[Judged]
) -> tuple[tuple[StoredRecord, ...], tuple[StoredRecord, ...]]:
    """The shown runs of a group and its shown superseded records: those behind verdicts first, then the newest."""
    labels = {name for one in findings for name in (one.system, one.versus)}
    wanted = {verdict.record for verdict in judged}
    wanted |= {entry.file for entry in group.entries if entry.record.label in labels or entry is group.reference}
    return _newest(group.entries, RUNS, wanted), _newest(group.earlier, EARLIER, ())


def _newest(entries: Sequence[StoredRecord], most: int, first: Collection[str]) -> tuple[StoredRecord, ...]:
    """At most `most` entries in their order: those in `first`, then the newest."""
    by_age = sorted(entries, key=lambda entry: (entry.file in first, derive.age(entry)), reverse=True)
    newest = {entry.file for entry in by_age[:most]}
    return tuple(entry for entry in entries if entry.file in newest)


def _omission_remark(entries: Sequence[StoredRecord], shown_entries: Sequence[StoredRecord], noun: str) -> str:
    """Remark on the number and the outcomes of omitted runs."""
    if len(shown_entries) == len(entries):
        return ""
    own_files = {entry.file for entry in shown_entries}
    counts = Counter(entry.record.outcome.value for entry in entries if entry.file not in own_files)
    counts_text = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    return f"{len(shown_entries)} of {len(entries)} {noun} are shown. The others ({counts_text}) are in records.csv."


def plan(
    salt: str,
    group: derive.ExperimentGroup,
    findings: Sequence[expectations.Expectation],
    entries: Sequence[StoredRecord],
    earlier: Sequence[StoredRecord],
    context: PageContext,
) -> Section:
    """The section of an experiment.

    Args:
        salt: Anchor of the section, and prefix of the ids in its pictures.
        group: The experiment.
        findings: Its judged expectations.
        entries: The runs that the page shows.
        earlier: The superseded records that it shows.
        context: Data shared by all sections.
    """
    config, claim_context = group.lead.record.config, context.claim_context
    runs = claim_context.runs
    numbers = context.numbers.loc[[entry.file for entry in entries]]
    reference = group.reference.record.label if group.reference else ""
    labels = {entry.record.label: runs[entry.file] for entry in entries}
    files = {entry.file for entry in (*group.entries, *group.earlier)}
    section_claims = claim_tables.of_experiment(context.judged, group.name, files)
    # a figure has panels and no batches; analytic runs have no times to compare
    figures = pd.Series([bool(figure_panels.read(entry.record)) for entry in entries], numbers.index)
    ran = numbers[(numbers["batch_time_n"] > 0) | (numbers["source"] != Source.SIMULATED) & ~figures]
    has_runs = (ran["source"] != Source.ANALYTIC).any()
    best = expectations.quickest(entries)
    systems_table = record_tables.systems(ran, reference, runs, best.file if best else "")
    tables = (systems_table, record_tables.memory(entries, runs)) if has_runs else ()
    panels = [one for entry in entries for one in figure_panels.build_panels(entry, runs)]
    # panels of a published figure appear on the page of its paper, where there is one
    panels = [one for one in panels if context.alone or not one.panel.figure]
    several, unswept = sweep_panels.read(group, runs)
    learned, unlearned, best_scores = learning_curves.read(group, context.groups, claim_context.settings, runs, salt)
    systems = dict.fromkeys(name for one in (*panels, *several) for name in one.panel.systems)
    looks = {name: number for number, name in enumerate(systems)}
    gantts, said_gantts = plots.in_time(entries, BOXES)
    said = _omission_remark(group.entries, entries, "runs")
    said_earlier = _omission_remark(group.earlier, earlier, "earlier records")
    said_of_all = [expectations.answer(group, findings), best_scores, winner_maps.answer(entries)]
    said_of_all.append(in_words(section_claims))
    ended = sum(one.record.outcome is Outcome.OK for one in group.entries)
    nothing = f"{ended} of {len(group.entries)} runs ended well; nothing is expected of them."
    tables_of_runs = (
        record_tables.runs(entries, context.exports, "Runs and the commands that make them", runs, said),
        record_tables.runs(earlier, context.exports, "Earlier records of the same labels", runs, said_earlier),
    )
    return Section(
        anchor=salt,
        name=group.name,
        title=text_at(config, "experiment", "title") or group.name,
        machine=group.machine,
        question=text_at(config, "experiment", "question"),
        answer=" ".join(filter(None, said_of_all)) or nothing,
        paper=load.titles().get(paper := text_at(config, "experiment", "paper"), paper),
        where=text_at(config, "experiment", "paper_ref"),
        sources=", ".join(sorted(set(numbers["source"]))),
        panels=tuple(plots.of_panels(panels, looks, f"{salt}-panel")),
        swept=tuple(plots.of_panels(several, looks, f"{salt}-swept")),
        unswept=tuple(unswept),
        learned=tuple(learned),
        unlearned=tuple(unlearned),
        maps=tuple(winner_maps.draw(entries, looks)),
        wins=winner_maps.summary(entries),
        asked=record_tables.expectations(findings, labels),
        claims=tuple(
            (claim_tables.anchor(one.claim.id), one.claim.id, plain_answer(one.verdict, one.evidence).value)
            for one in section_claims
        ),
        tables=tuple(filter(None, map(record_tables.with_values, tables))),
        failures=tuple(_failures(entries)),
        remarks=tuple(_remarks(entries, {verdict.claim.id for verdict in context.judged})),
        runs=tuple(filter(None, tables_of_runs)),
        said=(said,) if said else (),
        whatif=context.links.of_runs(entry.record.config for entry in (group.lead, *entries))
        or context.links.of_claims(one.claim.id for one in section_claims),
        pictures=tuple(plots.of_runs(entries, salt)),
        gantts=tuple(gantts),
        said_gantts=said_gantts,
    )


def _failures(entries: Sequence[StoredRecord]) -> list[tuple[str, str, str, str]]:
    """Label, outcome, reason and command of each failed run."""
    return [
        (one.record.label, one.record.outcome.value, reason(one), text_at(one.record.provenance, "command"))
        for one in entries
        if one.record.outcome is not Outcome.OK
    ]


def reason(entry: StoredRecord) -> str:
    """Reason of a failed run; a long text is shortened to its first and last lines, with the file of the whole."""
    text = entry.record.reason or "no reason was recorded"
    lines = [line if len(line) <= 400 else f"{line[:400]} …" for line in text.splitlines()]
    if len(lines) > LINES:
        omitted = len(lines) - LINES
        lines[8 : 8 + omitted] = [f"… {omitted} lines more, in {entry.file} …"]
    elif any(line.endswith(" …") for line in lines):
        lines.append(f"… the full text is in {entry.file}")
    return "\n".join(lines)


def _remarks(entries: Sequence[StoredRecord], claimed: set[str]) -> list[tuple[str, str]]:
    """Each remark once, with the labels of its runs. Remarks on the value of a claim appear next to the claim."""
    remarks: dict[str, list[str]] = {}
    for entry in entries:
        metrics = entry.record.metrics.items()
        notes = [*entry.record.notes, *(f"{name}: {m.note}" for name, m in metrics if m.note and name not in claimed)]
        notes += [*figure_panels.fitted(entry.record), *figure_panels.faults(entry.record)]
        notes += winner_maps.faults(entry.record)
        for note in dict.fromkeys(notes):
            remarks.setdefault(note, []).append(entry.record.label)
    whole = len(entries)
    return [("all" if len(labels) == whole > 1 else ", ".join(labels), note) for note, labels in remarks.items()]
