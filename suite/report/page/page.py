"""Write the pages of the report: a site of HTML files without external resources.

The front page tells the story. Each paper, the simulator's accuracy, the claims, the list of experiments and each
experiment have a page. All pages share report.css and report.js. A content security policy forbids network requests.
Everything from records is escaped, so that markup in an untrusted record appears as text.
"""

from __future__ import annotations

import gc
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from suite.claims import claim_text, judge, load
from suite.claims.claim import Decision, Judged, Settings
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.record import Record
from suite.core.resources import PACKAGE
from suite.report import derive, expectations, records
from suite.report.files import inert, templates, write
from suite.report.load import Aside, ReportStore, SetAside, StoredRecord, read_store
from suite.report.names import named
from suite.report.page import front, sections
from suite.report.panels import published_figures
from suite.report.panels.accuracy_section import AccuracySection, accuracy_section
from suite.report.plots import perfetto, svg
from suite.report.tables import claim_tables, provenance_table, record_tables, scorecard
from suite.report.whatif_links import WhatIfLinks
from suite.simulate.validation import tables

INDEX, ACCURACY, CLAIMS, EXPERIMENTS = "index.html", "accuracy.html", "claims.html", "experiments.html"
STYLE, SCRIPT = "report.css", "report.js"  # of all pages
_EXPERIMENT = "experiment-{}.html"
_PAGES = ("paper-*.html", ACCURACY, CLAIMS, _EXPERIMENT.format("*"))  # which a later report may not have
_TEMPLATES = PACKAGE / "report" / "templates"
_INSIDE_NAMES = re.compile(r"(?<=\w_)(?=\w)|(?<=\w\.)(?=[A-Za-z])")
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ID, _LINK = re.compile(r' id="([^"]+)"'), re.compile(r' href="#([^"]+)"')


def write_report(folder: Path, changed: Callable[[Record], str] = lambda _: "") -> Path:
    """Read the records in `folder`; write its pages, records.csv, claims.csv, claims.json and
    traces/*.perfetto.json.gz. changed: as in suite.report.load.read_store

    Returns the path of the front page. Raises OSError where the folder cannot be written, InvalidRequest where its
    traces folder is a link that leaves it.
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
    except InvalidRequest as error:  # costs its own page only, like a damaged record
        accuracy, aside = None, SetAside(tables.ACCURACY, Aside.ACCURACY, str(error))
        store = replace(store, aside=(*store.aside, aside))
    sys.stderr.writelines(f"set aside: {file.name}: {file.kind.value}: {file.reason}\n" for file in store.aside)
    settings = load.settings()
    judged = judge.judge(load.claims(), store)
    judged = load.with_sensitivity(judged, load.sensitivities())
    content = layout(store, judged)
    table = records.tabled(content.numbers, store)
    write(folder, "records.csv", table.map(inert).to_csv(index=False, lineterminator="\n"))
    claim_text.write_claims(folder, judged)
    claim_text.write_json(folder, judged)
    exports = _export(folder, [entry for shown in content.shown for entries in shown for entry in entries])
    pages = render(
        store,
        exports,
        judged=judged,
        decisions=load.decisions(),
        settings=settings,
        held=content,
        accuracy=accuracy,
    )
    for old in (path for pattern in _PAGES for path in folder.glob(pattern) if path.name not in pages):
        old.unlink()
    for name, text in pages.items():
        write(folder, name, text)
    return folder / INDEX


def write_experiment(folder: Path, name: str, changed: Callable[[Record], str] = lambda _: "") -> Path:
    """Write the page of one experiment alone, with the claims that it answers. Returns its path.

    Raises:
        UnknownName: `folder` holds no record of the experiment.
    """
    store = read_store(folder, changed)
    mine = tuple(entry for entry in store.entries if entry.record.experiment == name)
    if not mine:
        raise UnknownName("experiment", name, {entry.record.experiment for entry in store.entries})
    asked = [claim for claim in load.claims() if any(answer.experiment == name for answer in claim.answers)]
    store = replace(store, entries=mine)
    pages = render(store, judged=judge.judge(asked, store), alone=True)
    for page in (experiment_page(name), STYLE, SCRIPT):
        write(folder, page, pages[page])
    return folder / experiment_page(name)


def read_accuracy_section(folder: Path) -> AccuracySection | None:
    """The section of `folder`/accuracy.csv; None where there is no such file.

    Raises:
        InvalidRequest: The file is damaged.
    """
    frames = tables.read(folder)
    return accuracy_section(*frames) if frames else None


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Content of the pages.

    Attributes:
        groups: The experiments.
        numbers: Numbers of the records (suite.report.records.numbers).
        findings: Judged expectations of each experiment.
        shown: Shown runs and superseded records of each experiment.
    """

    groups: Sequence[derive.ExperimentGroup]
    numbers: pd.DataFrame
    findings: Sequence[Sequence[expectations.Expectation]]
    shown: Sequence[tuple[Sequence[StoredRecord], Sequence[StoredRecord]]]


def layout(store: ReportStore, judged: Sequence[Judged]) -> PageLayout:
    """Select the runs that each section shows. Runs behind verdicts have priority over newer runs."""
    groups = derive.groups(store)
    findings = [expectations.findings(group) for group in groups]
    shown = [sections.shown(group, found, judged) for group, found in zip(groups, findings, strict=True)]
    return PageLayout(groups, records.numbers(groups), findings, shown)


def render(
    store: ReportStore,
    exports: Mapping[str, str] | None = None,
    *,
    judged: Sequence[Judged] = (),
    decisions: Sequence[Decision] = (),
    settings: Settings | None = None,
    held: PageLayout | None = None,
    accuracy: AccuracySection | None = None,
    alone: bool = False,
) -> dict[str, str]:
    """The text of each page by its file name, with the style and the script that the pages share.

    Args:
        exports: Perfetto file by record file, in the store's folder.
        settings: Published settings.
        held: Result of `layout` for the same store.
        accuracy: Errors of the simulator on public measurements; None for no such page.
        alone: Whether only the pages of the experiments are written, so that they link to no other page.
    """
    environment = templates(_TEMPLATES)
    environment.filters |= {"breakable": breakable, "named": named}
    held = held or layout(store, judged)
    runs = {
        entry.file: f"e{number}-r{place}"
        for number, (entries, earlier) in enumerate(held.shown, 1)
        for place, entry in enumerate((*entries, *earlier), 1)
    }
    near = claim_tables.claim_context(store, runs, judged, decisions, settings)
    links = WhatIfLinks.read(store.folder)
    context = sections.PageContext(held.groups, held.numbers, exports or {}, judged, near, alone, links)
    planned = [
        sections.plan(f"e{number}", group, found, *shown, context)
        for number, (group, found, shown) in enumerate(zip(held.groups, held.findings, held.shown, strict=True), 1)
    ]
    papers = [] if alone else published_figures.papers(held.groups, judged, near, links)
    papers, planned = published_figures.place_panels(papers, planned)
    fronts = front.papers(judged, papers)
    names = {section.name: section.title for section in reversed(planned)}
    titles = {INDEX: "Results"} | {published_figures.page_of(paper.name): paper.name for paper in papers}
    titles |= {ACCURACY: "Simulator accuracy"} if accuracy else {}
    titles |= {CLAIMS: "All claims"} if judged else {}
    titles |= {EXPERIMENTS: "Experiments"}
    environment.globals.update(
        scores=scorecard.scores(judged),
        verdict_columns=scorecard.COLUMNS,
        turning=claim_tables.turning(judged),
        sections=planned,
        records=len(store.entries),
        aside=record_tables.set_aside(store.aside),
        pages={} if alone else titles,
        style=STYLE,
        script=SCRIPT,
    )

    def shown(kind: str, page: str, title: str, **content: object) -> str:
        return environment.get_template(f"{kind}.html.j2").render(page=page, title=title, **content)

    facts = [
        (name, provenance_table.facts([one for one in store.entries if one.machine == name]))
        for name in sorted({entry.machine for entry in store.entries})
    ]
    texts = {
        INDEX: shown(
            "front",
            INDEX,
            titles[INDEX],
            races=front.races(held.groups, held.findings),
            fronts=fronts,
            missing=front.missing(judged),
            here=front.machine(store.entries, judged),
        ),
        EXPERIMENTS: shown("experiments", EXPERIMENTS, titles[EXPERIMENTS], facts=facts),
    }
    if accuracy:
        texts[ACCURACY] = shown("accuracy", ACCURACY, titles[ACCURACY], accuracy=accuracy)
    cards = [one.claims for paper in papers for one in paper.displays]
    if judged:
        menus = [(name, values) for name, values, _ in claim_tables.filters(judged)]
        decided = claim_tables.decisions(decisions, {item.claim.id for item in judged})
        rows = claim_tables.claims(judged, near)
        cards += [rows, decided]
        texts[CLAIMS] = shown("claims", CLAIMS, titles[CLAIMS], claims=rows, menus=menus, contradictions=decided)
    for paper in papers:
        page, own = published_figures.page_of(paper.name), [one for one in fronts if one.title == paper.name]
        texts[page] = shown("paper", page, paper.name, paper=paper, front=own[0] if own else None)
    for name, title in names.items():
        page, own_sections = experiment_page(name), [section for section in planned if section.name == name]
        texts[page] = shown("experiment", page, title, shown=own_sections)
    if alone:
        texts = {experiment_page(name): texts[experiment_page(name)] for name in names}
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8") + claim_tables.headings_of_cards(judged, cards)
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("table.js", "claims.js"))
    return linked(texts) | {STYLE: f"{style}\n{svg.SHEET}\n", SCRIPT: script}


def experiment_page(name: str) -> str:
    """File of an experiment's page. A name from a record may be any text."""
    return _EXPERIMENT.format(
        name if _SAFE_KEY.fullmatch(name) else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    )


def linked(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages, with the file in each link to an id of another page, and without links to ids that no page has."""
    own = {name: set(_ID.findall(text)) for name, text in pages.items()}
    home = {each: name for name, ids in reversed(own.items()) for each in ids}

    def resolved(name: str, text: str) -> str:
        def link(found: re.Match[str]) -> str:
            to = found[1].partition("?")[0]
            return found[0] if to in own[name] else f' href="{home.get(to, "")}#{found[1]}"' if to in home else ""

        return _LINK.sub(link, text)

    return {name: resolved(name, text) for name, text in pages.items()}


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
