"""Write the page of the report: one HTML file without external resources.

The page contains its style, script and pictures. A content security policy forbids network requests. Everything from
records is escaped, so that markup in an untrusted record appears as text.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup, escape

from suite.claims import claim_text, judge, load
from suite.claims.claim import Decision, Judged, Settings
from suite.core.errors import InvalidRequest
from suite.core.record import Record
from suite.core.resources import PACKAGE
from suite.report import derive, expectations, records
from suite.report.files import inert, templates, write
from suite.report.load import Aside, ReportStore, SetAside, StoredRecord, read_store
from suite.report.page import page_budget, sections
from suite.report.panels import published_figures
from suite.report.panels.accuracy_section import AccuracySection, accuracy_section
from suite.report.plots import perfetto, svg
from suite.report.tables import claim_tables, provenance_table, record_tables, scorecard, summary_tables
from suite.simulate.validation import tables

_TEMPLATES = PACKAGE / "report" / "templates"
_INSIDE_NAMES = re.compile(r"(?<=\w_)(?=\w)|(?<=\w\.)(?=[A-Za-z])")
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


def write_report(folder: Path, changed: Callable[[Record], str] = lambda _: "") -> Path:
    """Read the records in `folder`; write its index.html, records.csv, claims.csv, claims.json and
    traces/*.perfetto.json.gz. changed: as in suite.report.load.read_store

    Returns the page's path. Raises OSError where the folder cannot be written, InvalidRequest where its traces folder
    is a link that leaves it.
    """
    collecting = gc.isenabled()
    gc.disable()  # all records stay alive until the end, and collecting them takes a fifth of the time
    try:
        return _write(folder, changed)
    finally:
        if collecting:
            gc.enable()


def _write(folder: Path, changed: Callable[[Record], str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    store = read_store(folder, changed)
    try:
        accuracy = read_accuracy_section(folder)
    except InvalidRequest as error:  # costs its own section only, like a damaged record
        accuracy, aside = None, SetAside(tables.ACCURACY, Aside.ACCURACY, str(error))
        store = replace(store, aside=(*store.aside, aside))
    sys.stderr.writelines(f"set aside: {file.name}: {file.kind.value}: {file.reason}\n" for file in store.aside)
    settings = load.settings()
    judged = judge.judge(load.claims(), store)
    judged = load.with_sensitivity(judged, load.sensitivities())
    page_layout = layout(store, judged)
    table = records.tabled(page_layout.rows, store)
    write(folder, "records.csv", table.map(inert).to_csv(index=False, lineterminator="\n"))
    claim_text.write_claims(folder, judged)
    claim_text.write_json(folder, judged)
    exports = _export(
        folder, [entry for drawn_group in page_layout.shown for entry in (*drawn_group.entries, *drawn_group.earlier)]
    )
    page = render(
        store,
        exports,
        judged=judged,
        decisions=load.decisions(),
        settings=settings,
        held=page_layout,
        accuracy=accuracy,
    )
    return write(folder, "index.html", page)


def read_accuracy_section(folder: Path) -> AccuracySection | None:
    """The section of `folder`/accuracy.csv; None where there is no such file.

    Raises:
        InvalidRequest: The file is damaged.
    """
    frames = tables.read(folder)
    return accuracy_section(*frames) if frames else None


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Content of the page.

    Attributes:
        groups: The experiments.
        rows: Numbers of a record by its file.
        findings: Judged expectations of each experiment.
        shown: Shown runs of each experiment.
    """

    groups: Sequence[derive.ExperimentGroup]
    rows: Mapping[str, derive.RecordRow]
    findings: Sequence[Sequence[expectations.Expectation]]
    shown: Sequence[page_budget.ShownRuns]


def layout(store: ReportStore, judged: Sequence[Judged]) -> PageLayout:
    """Select the runs that each section shows. Runs behind verdicts have priority over newer runs."""
    groups = derive.groups(store)
    findings = [expectations.findings(group) for group in groups]
    record_files = {claim_verdict.record for claim_verdict in judged}
    for group, group_findings in zip(groups, findings, strict=True):
        labels = {name for one in group_findings for name in (one.system, one.versus)}
        record_files |= {entry.file for entry in group.entries if entry.record.label in labels}
    return PageLayout(groups, derive.rows(groups), findings, page_budget.select_shown_runs(groups, record_files))


def render(
    store: ReportStore,
    exports: Mapping[str, str] | None = None,
    *,
    judged: Sequence[Judged] = (),
    decisions: Sequence[Decision] = (),
    settings: Settings | None = None,
    held: PageLayout | None = None,
    accuracy: AccuracySection | None = None,
) -> str:
    """The page as text.

    Args:
        exports: Perfetto file by record file, in the store's folder.
        settings: Published settings.
        held: Result of `layout` for the same store.
        accuracy: Errors of the simulator on public measurements; None for no such section.
    """
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("table.js", "claims.js"))
    environment = templates(_TEMPLATES)
    environment.filters["breakable"] = breakable
    held = held or layout(store, judged)
    machines = sorted({entry.machine for entry in store.entries})
    runs = {
        entry.file: f"e{number}-r{place}"
        for number, drawn_group in enumerate(held.shown, 1)
        for place, entry in enumerate((*drawn_group.entries, *drawn_group.earlier), 1)
    }
    near = claim_tables.claim_context(store, runs, judged, decisions, settings)
    context = sections.PageContext(held.groups, held.rows, exports or {}, judged, near)
    papers = published_figures.papers(held.groups, judged, near)
    planned = [
        sections.plan(f"e{number}", *of, context)
        for number, of in enumerate(zip(held.groups, held.findings, held.shown, strict=True), 1)
    ]
    papers, planned = published_figures.place_panels(papers, planned)
    return environment.get_template("page.html.j2").render(
        style=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8") + svg.SHEET),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        labels=claim_tables.cards(judged, summary_tables.CARDS),
        overview=provenance_table.overview(store.entries),
        scores=scorecard.scores(judged),
        papers=published_figures.draw_panels(papers),
        measured=summary_tables.measured(judged, near),
        contradicted=summary_tables.contradicted(judged),
        worst=summary_tables.worst(papers),
        accuracy=accuracy,
        turning=summary_tables.turning(judged),
        sections=sections.finished(planned),
        facts=[(name, provenance_table.facts([e for e in store.entries if e.machine == name])) for name in machines],
        contradictions=claim_tables.decisions(decisions, {claim_verdict.claim.id for claim_verdict in judged}),
        claims=claim_tables.claims(judged, near) if judged else None,
        menus=[(name, values) for name, values, _ in claim_tables.filters(judged)],
        aside=record_tables.set_aside(store.aside),
        records=len(store.entries),
    )


def breakable(text: str) -> Markup:
    """`text`, escaped, with line breaks allowed after an underscore and inside a dotted name."""
    return Markup(_INSIDE_NAMES.sub("<wbr>", str(escape(text))))


def _export(folder: Path, entries: Iterable[StoredRecord]) -> dict[str, str]:
    """Write the traces of shown runs for Perfetto. Returns the file by record file."""
    exported = {}
    for entry in entries:
        if entry.trace is None:
            continue
        key = entry.record.key
        if not _SAFE_KEY.fullmatch(key):
            key = "key-" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16]
        if entry.machine:
            key += "-" + hashlib.sha256(entry.machine.encode("utf-8", "replace")).hexdigest()[:8]
        name = f"traces/{key}.perfetto.json.gz"
        write(folder, name, perfetto.packed(entry.trace.spans, entry.trace.grid))
        exported[entry.file] = name
    return exported
