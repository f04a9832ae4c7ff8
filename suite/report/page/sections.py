"""Section of one experiment on one machine.

A section is planned before anything is drawn: what it would hold is counted, and the page shares out what it carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from suite.core.claim import Judged
from suite.core.record import Source
from suite.report import derive, expectations
from suite.report.load import StoredRecord, text_at
from suite.report.page import page_budget
from suite.report.panels import figure_panels, learning_curves, sweep_panels
from suite.report.plots import plots
from suite.report.plots.plots import Draft, PanelPlot, Picture
from suite.report.tables import claim_tables, record_tables, scorecard


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment on one machine.

    Attributes:
        drafts: Of the pictures behind the panels.
        said: Omissions of the section.
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
    """Context shared by all sections.

    Attributes:
        rows: A record's numbers by its file.
        exports: Perfetto file by record file.
    """

    groups: Sequence[derive.ExperimentGroup]
    rows: Mapping[str, derive.RecordRow]
    exports: Mapping[str, str]
    judged: Sequence[Judged]
    near: claim_tables.Around


def plan(
    salt: str,
    group: derive.ExperimentGroup,
    found: Sequence[expectations.Expectation],
    shown: page_budget.ShownRuns,
    held: PageContext,
) -> Section:
    """The section of `group`, nothing drawn yet. found: what was expected of it"""
    config, near = group.lead.record.config, held.near
    runs, entries = near.runs, shown.entries
    rows = [held.rows[entry.file] for entry in entries]
    reference = group.reference.record.label if group.reference else ""
    labels = {entry.record.label: runs[entry.file] for entry in entries}
    files = {entry.file for entry in (*group.entries, *group.earlier)}
    mine = claim_tables.of_experiment(held.judged, group.name, files)
    claims_by_id = {verdict.claim.id: verdict.claim for verdict in held.judged}
    experiment_tables = (record_tables.expectations(found, labels), claim_tables.beside(mine, near))
    # a figure has panels and no batch; where all is analytic there are values alone, and nothing side by side
    ran = [
        row
        for row, entry in zip(rows, entries, strict=True)
        if row.batch_time_n or not (row.source == Source.SIMULATED or figure_panels.read(entry.record))
    ]
    some = any(row.source != Source.ANALYTIC for row in ran)
    tables = (record_tables.systems(ran, reference, runs), record_tables.memory(entries, runs)) if some else ()
    # a record's own panels, and those that the experiment makes of several runs
    # runs of a published figure appear in the section of its paper
    panels = [one for entry in entries for one in figure_panels.shown(entry, runs) if not one.panel.figure]
    several, unswept = sweep_panels.read(group, claims_by_id, runs)
    studied, unlearned = learning_curves.read(group, held.groups, near.settings, runs, salt)
    systems = dict.fromkeys(name for one in (*panels, *several) for name in one.panel.systems)
    looks = {name: number for number, name in enumerate(systems)}
    section = (
        record_tables.runs(entries, held.exports, "Runs and the commands that make them", runs, shown.said),
        record_tables.runs(
            shown.earlier,
            held.exports,
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
        paper=scorecard.PAPERS.get(paper := text_at(config, "experiment", "paper"), paper),
        where=text_at(config, "experiment", "paper_ref"),
        score=_score(found, mine),
        sources=", ".join(sorted({row.source for row in rows})),
        panels=tuple(plots.of_panels(panels, looks, f"{salt}-panel")),
        swept=tuple(plots.of_panels(several, looks, f"{salt}-swept")),
        unswept=tuple(unswept),
        learned=tuple(
            PanelPlot(one.title, (), Draft(one.caption, one.draw, one.legend) if one.draw else None, one.table)
            for one in studied
        ),
        unlearned=tuple(unlearned),
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
    """The sections with their pictures and tables, as far as one page carries them."""
    offered = page_budget.shares([len(_drafts(one)) for one in planned], page_budget.PICTURES)
    boxes = page_budget.shares([plots.boxes(one.entries) for one in planned], page_budget.BOXES)
    rows = iter(
        page_budget.cut([table for one in planned for panel in _panels(one) for table in (panel.table, panel.more)])
    )
    return [
        _drawn(_cut(one, [(next(rows), next(rows)) for _ in _panels(one)]), count, most)
        for one, count, most in zip(planned, offered, boxes, strict=True)
    ]


def _panels(section: Section) -> tuple[PanelPlot, ...]:
    return (*section.panels, *section.swept, *section.learned)


def _drafts(section: Section) -> list[Draft]:
    """Possible plots, the more telling first."""
    return [*(panel.draft for panel in _panels(section) if panel.draft), *section.drafts]


def _with(section: Section, changed: Sequence[PanelPlot]) -> Section:
    """The section with its panels replaced."""
    first, second = len(section.panels), len(section.panels) + len(section.swept)
    return replace(
        section,
        panels=tuple(changed[:first]),
        swept=tuple(changed[first:second]),
        learned=tuple(changed[second:]),
    )


def _cut(section: Section, tables: Sequence[tuple[record_tables.Table | None, record_tables.Table | None]]) -> Section:
    return _with(
        section,
        [
            replace(panel, table=record_tables.with_values(table or panel.table), more=record_tables.with_values(more))
            for panel, (table, more) in zip(_panels(section), tables, strict=True)
        ],
    )


def _drawn(section: Section, count: int, boxes: int) -> Section:
    """The first so many pictures, and one batch in time of the runs that so many boxes show."""
    drafts = _drafts(section)
    pictures = {id(draft): draft.drawn() for draft in drafts[:count]}
    gantts, said_gantts = plots.in_time(section.entries, boxes)
    said = section.said
    if omitted := len(drafts) - count:
        said += (f"{omitted} of {len(drafts)} pictures are not drawn: one page carries {page_budget.PICTURES}.",)
    return replace(
        _with(section, [replace(p, picture=pictures.get(id(p.draft)) if p.draft else None) for p in _panels(section)]),
        pictures=tuple(pictures[id(draft)] for draft in section.drafts if id(draft) in pictures),
        gantts=tuple(gantts),
        said_gantts=said_gantts,
        said=said,
    )


def _score(found: Sequence[expectations.Expectation], mine: Sequence[Judged]) -> str:
    """'2 met, 1 not met; claims: 3 reproduced': results of expectations and claims."""
    met = [(sum(f.judgement is verdict for f in found), verdict.value) for verdict in expectations.Judgement]
    holding = [(count.count, count.name) for count in scorecard.counts(mine)]
    texts = [", ".join(f"{count} {name}" for count, name in counts if count) for counts in (met, holding)]
    parts = [texts[0]] if texts[0] else []
    parts += [f"claims: {texts[1]}"] if texts[1] else []
    return "; ".join(parts) or "nothing expected"


def _remarks(entries: Sequence[StoredRecord], claimed: set[str]) -> list[tuple[str, str]]:
    """Each remark once, with the labels it is about. Remarks on a claim's value appear next to the claim."""
    remarks: dict[str, list[str]] = {}
    for entry in entries:
        metrics = entry.record.metrics.items()
        notes = [*entry.record.notes, *(f"{name}: {m.note}" for name, m in metrics if m.note and name not in claimed)]
        notes += [*figure_panels.fitted(entry.record), *figure_panels.faults(entry.record)]
        for note in dict.fromkeys(notes):
            remarks.setdefault(note, []).append(entry.record.label)
    whole = len(entries)
    return [("all" if len(labels) == whole > 1 else ", ".join(labels), note) for note, labels in remarks.items()]
