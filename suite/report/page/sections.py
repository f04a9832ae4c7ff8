"""Section of one experiment on one machine.

A section is planned before anything is drawn. The page counts the pictures and rows of all sections and splits its
size limits among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from suite.claims import load
from suite.claims.claim import Judged
from suite.core.record import Source
from suite.report import derive, expectations
from suite.report.load import StoredRecord, text_at
from suite.report.page import page_budget
from suite.report.panels import figure_panels, learning_curves, sweep_panels, winner_maps
from suite.report.plots import plots
from suite.report.plots.plots import Draft, PanelPlot, Picture
from suite.report.tables import claim_tables, record_tables, scorecard


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment on one machine.

    Attributes:
        panels: Panels of published figures without a place in a paper.
        swept: Sweep panels.
        unswept: Remarks on sweep panels that cannot be drawn.
        learned: Panels of an accuracy study.
        unlearned: Remarks on the study.
        maps: Maps of winners.
        wins: Table of the points that systems win in the maps; None without maps.
        drafts: Pictures of the runs, drawn after the panels.
        said: Remarks on omissions.
    """

    anchor: str
    title: str
    machine: str
    question: str
    paper: str
    where: str
    score: str
    sources: str
    panels: tuple[PanelPlot, ...]
    swept: tuple[PanelPlot, ...]
    unswept: tuple[tuple[str, str], ...]
    learned: tuple[PanelPlot, ...]
    unlearned: tuple[tuple[str, str], ...]
    maps: tuple[winner_maps.DrawnMap, ...]
    wins: record_tables.Table | None
    asked: tuple[record_tables.Table, ...]
    tables: tuple[record_tables.Table, ...]
    failures: tuple[tuple[str, str, str], ...]
    remarks: tuple[tuple[str, str], ...]
    runs: tuple[record_tables.Table, ...]
    said: tuple[str, ...]
    entries: tuple[StoredRecord, ...] = field(repr=False)
    drafts: tuple[Draft, ...] = field(repr=False)
    pictures: tuple[Picture, ...] = ()
    gantts: tuple[tuple[str, Picture], ...] = ()
    said_gantts: str = ""


@dataclass(frozen=True, slots=True)
class PageContext:
    """Data shared by all sections.

    Attributes:
        rows: Numbers of a record by its file.
        exports: Perfetto file by record file.
    """

    groups: Sequence[derive.ExperimentGroup]
    rows: Mapping[str, derive.RecordRow]
    exports: Mapping[str, str]
    judged: Sequence[Judged]
    claim_context: claim_tables.ClaimContext


def plan(
    salt: str,
    group: derive.ExperimentGroup,
    findings: Sequence[expectations.Expectation],
    shown: page_budget.ShownRuns,
    context: PageContext,
) -> Section:
    """The section of an experiment, with nothing drawn yet.

    Args:
        salt: Anchor of the section, and prefix of the ids in its pictures.
        group: The experiment.
        findings: Its judged expectations.
        shown: The runs that the page shows.
        context: Data shared by all sections.
    """
    config, claim_context = group.lead.record.config, context.claim_context
    runs, entries = claim_context.runs, shown.entries
    rows = [context.rows[entry.file] for entry in entries]
    reference = group.reference.record.label if group.reference else ""
    labels = {entry.record.label: runs[entry.file] for entry in entries}
    files = {entry.file for entry in (*group.entries, *group.earlier)}
    section_claims = claim_tables.of_experiment(context.judged, group.name, files)
    claims_by_id = {verdict.claim.id: verdict.claim for verdict in context.judged}
    experiment_tables = (
        record_tables.expectations(findings, labels),
        claim_tables.beside(section_claims, claim_context),
    )
    # a figure has panels and no batches; analytic runs have no times to compare
    ran = [
        row
        for row, entry in zip(rows, entries, strict=True)
        if row.batch_time_n or not (row.source == Source.SIMULATED or figure_panels.read(entry.record))
    ]
    has_runs = any(row.source != Source.ANALYTIC for row in ran)
    best = expectations.quickest(entries)
    systems_table = record_tables.systems(ran, reference, runs, best.file if best else "")
    tables = (systems_table, record_tables.memory(entries, runs)) if has_runs else ()
    # panels of a published figure appear in the section of its paper
    panels = [one for entry in entries for one in figure_panels.build_panels(entry, runs) if not one.panel.figure]
    several, unswept = sweep_panels.read(group, claims_by_id, runs)
    studied, unlearned = learning_curves.read(group, context.groups, claim_context.settings, runs, salt)
    systems = dict.fromkeys(name for one in (*panels, *several) for name in one.panel.systems)
    looks = {name: number for number, name in enumerate(systems)}
    section = (
        record_tables.runs(entries, context.exports, "Runs and the commands that make them", runs, shown.said),
        record_tables.runs(
            shown.earlier,
            context.exports,
            "Earlier records of the same labels",
            runs,
            shown.said_earlier,
            beside=next(iter(entries), None),
        ),
    )
    return Section(
        anchor=salt,
        title=text_at(config, "experiment", "title") or group.name,
        machine=group.machine,
        question=text_at(config, "experiment", "question"),
        paper=load.titles().get(paper := text_at(config, "experiment", "paper"), paper),
        where=text_at(config, "experiment", "paper_ref"),
        score=_score_text(findings, section_claims),
        sources=", ".join(sorted({row.source for row in rows})),
        panels=tuple(plots.of_panels(panels, looks, f"{salt}-panel")),
        swept=tuple(plots.of_panels(several, looks, f"{salt}-swept")),
        unswept=tuple(unswept),
        learned=tuple(
            PanelPlot(one.title, (), Draft(one.caption, one.draw, one.legend) if one.draw else None, one.table)
            for one in studied
        ),
        unlearned=tuple(unlearned),
        maps=tuple(winner_maps.draw(entries, looks)),
        wins=winner_maps.summary(entries),
        asked=tuple(table for table in experiment_tables if table is not None),
        tables=tuple(
            table_with_values for table in tables if (table_with_values := record_tables.with_values(table)) is not None
        ),
        failures=tuple(page_budget.failures(entries)),
        remarks=tuple(_remarks(entries, set(claims_by_id))),
        runs=tuple(table for table in section if table is not None),
        said=(shown.said,) if shown.said else (),
        entries=entries,
        drafts=tuple(plots.of_runs(entries, salt)),
    )


def finished(planned: Sequence[Section]) -> list[Section]:
    """The sections with their pictures and tables, within the size limits of the page."""
    offered = page_budget.shares([len(_drafts(one)) for one in planned], page_budget.PICTURES)
    boxes = page_budget.shares([plots.boxes(one.entries) for one in planned], page_budget.BOXES)
    rows = iter(
        page_budget.cut([table for one in planned for panel in _panels(one) for table in (panel.table, panel.more)])
    )
    return [
        _draw(_with_tables(one, [(next(rows), next(rows)) for _ in _panels(one)]), count, most)
        for one, count, most in zip(planned, offered, boxes, strict=True)
    ]


def _panels(section: Section) -> tuple[PanelPlot, ...]:
    return (*section.panels, *section.swept, *section.learned)


def _drafts(section: Section) -> list[Draft]:
    """Possible pictures, the most informative first."""
    return [*(panel.draft for panel in _panels(section) if panel.draft), *section.drafts]


def _with_panels(section: Section, changed: Sequence[PanelPlot]) -> Section:
    """The section with its panels replaced."""
    first, second = len(section.panels), len(section.panels) + len(section.swept)
    return replace(
        section,
        panels=tuple(changed[:first]),
        swept=tuple(changed[first:second]),
        learned=tuple(changed[second:]),
    )


def _with_tables(
    section: Section, tables: Sequence[tuple[record_tables.Table | None, record_tables.Table | None]]
) -> Section:
    return _with_panels(
        section,
        [
            replace(panel, table=record_tables.with_values(table or panel.table), more=record_tables.with_values(more))
            for panel, (table, more) in zip(_panels(section), tables, strict=True)
        ],
    )


def _draw(section: Section, count: int, boxes: int) -> Section:
    """The section with its first `count` pictures, and timelines of at most `boxes` boxes."""
    drafts = _drafts(section)
    pictures = {id(draft): draft.drawn() for draft in drafts[:count]}
    gantts, said_gantts = plots.in_time(section.entries, boxes)
    said = section.said
    if omitted := len(drafts) - count:
        said += (f"{omitted} of {len(drafts)} pictures are not drawn: a page holds at most {page_budget.PICTURES}.",)
    return replace(
        _with_panels(
            section, [replace(p, picture=pictures.get(id(p.draft)) if p.draft else None) for p in _panels(section)]
        ),
        pictures=tuple(pictures[id(draft)] for draft in section.drafts if id(draft) in pictures),
        gantts=tuple(gantts),
        said_gantts=said_gantts,
        said=said,
    )


def _score_text(findings: Sequence[expectations.Expectation], section_claims: Sequence[Judged]) -> str:
    """'2 met, 1 not met; claims: 3 reproduced': results of expectations and claims."""
    met = [(sum(f.judgement is verdict for f in findings), verdict.value) for verdict in expectations.Judgement]
    holding = [(count.count, count.name) for count in scorecard.counts(section_claims)]
    texts = [", ".join(f"{count} {name}" for count, name in counts if count) for counts in (met, holding)]
    parts = [texts[0]] if texts[0] else []
    parts += [f"claims: {texts[1]}"] if texts[1] else []
    return "; ".join(parts) or "nothing expected"


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
