"""Decides what the page holds and writes it: one offline file that shows hostile records as text.

A report is read years later and far away, so the page carries its style, script and pictures inside and asks no network
for anything (a content security policy says so to the browser). Autoescape is on everywhere; the only markup that is
not escaped is what this package made itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from suite import claims
from suite.claims import commands
from suite.core.claim import Judged, Verdict
from suite.core.record import Source
from suite.core.trace import WAIT
from suite.core.units import si
from suite.report import (
    curves,
    derive,
    expect,
    facts,
    figure,
    gantt,
    judge,
    learned,
    panels,
    perfetto,
    scorecard,
    svg,
    swept,
    verdicts,
    view,
)
from suite.report.files import inert, write
from suite.report.load import Entry, Store, read_store, text_at

_TEMPLATES = Path(__file__).with_name("templates")
_INSIDE_NAMES = re.compile(r"(?<=\w_)(?=\w)|(?<=\w\.)(?=[A-Za-z])")
_MOST_PANELS = 40  # of one experiment: a picture of one takes 50 ms
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Picture:
    """An `<svg>` with its caption; legend: (colour, name)."""

    caption: str
    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """The paper's points beside ours; no picture where nothing can be drawn. run, more: as in panels.Shown."""

    title: str
    run: tuple[tuple[str, str], ...]
    picture: Picture | None
    table: view.Table
    more: view.Table | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment on one machine, as the page shows it."""

    anchor: str
    title: str
    machine: str
    question: str
    paper: str
    where: str
    score: str
    sources: str
    panels: tuple[Panel, ...]
    swept: tuple[Panel, ...]
    unswept: tuple[tuple[str, str], ...]
    learned: tuple[Panel, ...]
    unlearned: tuple[tuple[str, str], ...]
    asked: tuple[view.Table, ...]
    tables: tuple[view.Table, ...]
    pictures: tuple[Picture, ...]
    gantts: tuple[tuple[str, Picture], ...]
    failures: tuple[tuple[str, str, str], ...]
    remarks: tuple[tuple[str, str], ...]
    runs: tuple[view.Table, ...]


def write_report(folder: Path) -> Path:
    """Read the records in `folder`; write its index.html, records.csv, claims.csv and traces/*.perfetto.json.gz.

    Returns the page's path. Raises OSError where the folder cannot be written, Refused where its traces folder is a
    link that leaves it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = read_store(folder)
    judged = commands.filled(judge.judge(claims.load(), store), claims.settings())
    exports = _export(store)
    write(folder, "records.csv", derive.frame(store).map(inert).to_csv(index=False, lineterminator="\n"))
    judge.write_claims(folder, judged)
    page = render(store, exports, judged=judged, decisions=claims.decisions(), settings=claims.settings())
    return write(folder, "index.html", page)


def render(
    store: Store,
    exports: Mapping[str, str] | None = None,
    *,
    judged: Sequence[Judged] = (),
    decisions: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> str:
    """The page as text. exports: Perfetto file by record file, in the store's folder; settings: the published ones."""
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("table.js", "claims.js"))
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    groups = derive.groups(store)
    machines = sorted({entry.machine for entry in store.entries})
    runs = {
        entry.file: f"e{number}-r{place}"
        for number, group in enumerate(groups, 1)
        for place, entry in enumerate((*group.entries, *group.earlier), 1)
    }
    near = verdicts.around(store, runs, judged, decisions, settings)
    return environment.get_template("page.html.j2").render(
        style=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8") + svg.SHEET),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        labels=verdicts.CARDS,
        scores=scorecard.scores(judged),
        sections=[_section(f"e{n}", group, exports or {}, near, judged, groups) for n, group in enumerate(groups, 1)],
        facts=[(name, facts.facts([e for e in store.entries if e.machine == name])) for name in machines],
        contradictions=verdicts.decisions(decisions, {item.claim.id for item in judged}),
        claims=verdicts.claims(judged, near) if judged else None,
        menus=[(name, values) for name, values, _ in verdicts.filters(judged)],
        aside=view.set_aside(store.aside),
        records=len(store.entries),
    )


def breakable(text: str) -> Markup:
    """`text`, escaped, with places where a long name may break: behind an underscore and inside a dotted name."""
    return Markup(_INSIDE_NAMES.sub("<wbr>", str(escape(text))))


def _section(
    salt: str,
    group: derive.Group,
    exports: Mapping[str, str],
    near: verdicts.Around,
    judged: Sequence[Judged],
    groups: Sequence[derive.Group],
) -> Section:
    config, runs = group.lead.record.config, near.runs
    rows = [derive.derive(entry, group.reference) for entry in group.entries]
    found = expect.findings(group)
    reference = group.reference.record.label if group.reference else ""
    labels = {entry.record.label: runs[entry.file] for entry in group.entries}
    files = {entry.file for entry in (*group.entries, *group.earlier)}
    mine = verdicts.of_experiment(judged, group.name, files)
    asked = (view.expectations(found, labels), verdicts.beside(mine, near))
    # a figure has panels and no batch; where all is analytic there are values alone, and nothing side by side
    ran = [
        row
        for row, entry in zip(rows, group.entries, strict=True)
        if row.batch_time_n or not (row.source == Source.SIMULATED or panels.read(entry.record))
    ]
    some = any(row.source != Source.ANALYTIC for row in ran)
    tables = (view.systems(ran, reference, runs), view.memory(group.entries, runs)) if some else ()
    # a record's own panels, and those that the experiment makes of several runs
    own = [shown for entry in group.entries for shown in panels.shown(entry, runs)]
    several, unswept = swept.read(group, {item.claim.id: item.claim for item in judged}, runs)
    studied, unlearned = learned.read(group, groups, near.settings, runs, salt)
    systems = dict.fromkeys(name for shown in (*own, *several) for name in shown.panel.systems)
    looks = {name: number for number, name in enumerate(systems)}
    made = (
        view.runs(group.entries, exports, "Runs and the commands that make them", runs),
        view.runs(group.earlier, exports, "Earlier records of the same labels", runs),
    )
    return Section(
        anchor=salt,
        title=text_at(config, "experiment", "title") or group.name,
        machine=group.machine,
        question=text_at(config, "experiment", "question"),
        paper=text_at(config, "experiment", "paper"),
        where=text_at(config, "experiment", "where"),
        score=_score(found, mine),
        sources=", ".join(sorted({row.source for row in rows})),
        panels=tuple(_panels(own, looks, f"{salt}-panel")),
        swept=tuple(_panels(several, looks, f"{salt}-swept")),
        unswept=tuple(unswept),
        learned=tuple(
            Panel(one.title, (), Picture(one.caption, Markup(one.svg), one.legend) if one.svg else None, one.table)
            for one in studied
        ),
        unlearned=tuple(unlearned),
        asked=tuple(table for table in asked if table is not None),
        tables=tuple(table for table in tables if table is not None),
        pictures=tuple(_pictures(group.entries, salt)),
        gantts=tuple(_gantts(group.entries)),
        failures=tuple(view.failures(group.entries)),
        remarks=tuple(_remarks(group.entries, {item.claim.id for item in judged})),
        runs=tuple(table for table in made if table is not None),
    )


def _score(found: Sequence[expect.Finding], mine: Sequence[Judged]) -> str:
    """'2 met, 1 not met; claims: 3 reproduced': what was expected, and what the papers claim."""
    met = [(sum(f.judgement is verdict for f in found), verdict.value) for verdict in expect.Judgement]
    held = [(sum(item.verdict is verdict for item in mine), verdict.value) for verdict in Verdict]
    told = [", ".join(f"{count} {name}" for count, name in counts if count) for counts in (met, held)]
    parts = [told[0]] if told[0] else []
    parts += [f"claims: {told[1]}"] if told[1] else []
    return "; ".join(parts) or "nothing expected"


def _remarks(entries: Sequence[Entry], claimed: set[str]) -> list[tuple[str, str]]:
    """Each remark once, with the labels it is about. What is said of a claim's value stands beside the claim."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        metrics = entry.record.metrics.items()
        notes = [*entry.record.notes, *(f"{name}: {m.note}" for name, m in metrics if m.note and name not in claimed)]
        notes += panels.fitted(entry.record)
        for note in dict.fromkeys(notes):
            found.setdefault(note, []).append(entry.record.label)
    whole = len(entries)
    return [("all" if len(labels) == whole > 1 else ", ".join(labels), note) for note, labels in found.items()]


def _panels(held: Sequence[panels.Shown], looks: Mapping[str, int], salt: str) -> list[Panel]:
    """Pictures and tables, the first so many."""
    found, more = [], len(held) - _MOST_PANELS
    for number, shown in enumerate(held[:_MOST_PANELS]):
        panel, caption = shown.panel, panels.caption(shown.panel, shown.source)
        if number + 1 == _MOST_PANELS and more > 0:
            caption += f" {more} more panels stand in the records."
        drawn = None
        if panel.systems:
            markup = Markup(curves.picture(panel, looks, shown.source, f"{salt}{number}"))
            drawn = Picture(caption, markup, curves.legend(panel, looks))
        found.append(Panel(panel.title, shown.run, drawn, shown.table, shown.more))
    return found


def _pictures(entries: Sequence[Entry], salt: str) -> list[Picture]:
    records = [entry.record for entry in entries]
    colours = figure.palette([record.label for record in records])
    faint = {record.label for record in records if not derive.comparable(record)}
    found = []

    def add(caption: str, markup: str, legend: Mapping[str, str]) -> None:
        found.append(Picture(caption, Markup(markup), tuple((colour, text) for text, colour in legend.items())))

    loss = {record.label: record.series["loss"] for record in records if record.series.get("loss")}
    held_out = {r.label: r.series["validation_loss"] for r in records if r.series.get("validation_loss")}
    if loss or held_out:
        add(
            "Loss per batch." + (" Hollow, dotted: validation." if held_out else ""),
            figure.losses(loss, held_out, colours, f"{salt}-loss"),
            {label: colours[label] for label in colours if label in loss or label in held_out},
        )
    times = {r.label: r.metrics[derive.BATCH_TIME].values for r in records if derive.samples(r, derive.BATCH_TIME).n}
    if times:
        caption = "Batch time: every sample, and the median as a bar." + (" Pale: not comparable." if faint else "")
        add(caption, figure.batch_times(times, faint, colours, f"{salt}-time"), {})
    parts = {entry.record.label: derive.shares(entry) for entry in entries if entry.trace}
    if parts:
        markup = figure.breakdowns(parts, faint, f"{salt}-parts")
        add("Where the time of one traced batch goes.", markup, _legend(parts, figure.COLOURS))
    sides = [
        {r.label: kinds for r in records if (kinds := derive.memory_by_kind(r, side))}
        for side in ("predicted", "measured")
    ]
    if any(sides):
        markup = figure.memory(sides[0], sides[1], f"{salt}-memory")
        caption = "Memory by kind on the fullest rank. Pale: predicted; full: measured."
        add(caption, markup, _legend(sides[0] | sides[1], figure.KINDS))
    return found


def _legend(parts: Mapping[str, Mapping[str, float]], known: Mapping[str, str]) -> dict[str, str]:
    """The names that occur with a length, in the order they are stacked."""
    seen = {name: 0.0 for named in parts.values() for name, value in named.items() if value > 0}
    return {name: known.get(name, figure.OTHER) for name in figure.ordered(seen, known)}


def _gantts(entries: Sequence[Entry]) -> list[tuple[str, Picture]]:
    found = []
    for entry in entries:
        if entry.trace is None:
            continue
        spans, grid, label = entry.trace.spans, entry.trace.grid, entry.record.label
        drawn, end = gantt.window(spans)
        caption = "Numbers are microbatches; point at a box for its op and time."
        if len(drawn) < len(spans):
            caption += f" Drawn: the first {len(drawn)} of {len(spans)} spans, to {si(end, 's')}."
        names = figure.ordered(dict.fromkeys((span.category for span in drawn), 0.0), figure.COLOURS)
        colours = tuple((gantt.colour(name), "idle" if name == WAIT else name) for name in names)
        found.append((label, Picture(caption, Markup(gantt.gantt(spans, grid, label)), colours)))
    return found


def _export(store: Store) -> dict[str, str]:
    """Write every trace for Perfetto; the file by record file."""
    found = {}
    for entry in store.entries:
        if entry.trace is None:
            continue
        key = entry.record.key
        if not _SAFE_KEY.fullmatch(key):
            key = "key-" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16]
        if entry.machine:
            key += "-" + hashlib.sha256(entry.machine.encode("utf-8", "replace")).hexdigest()[:8]
        name = f"traces/{key}.perfetto.json.gz"
        write(store.folder, name, perfetto.packed(entry.trace.spans, entry.trace.grid))
        found[entry.file] = name
    return found
