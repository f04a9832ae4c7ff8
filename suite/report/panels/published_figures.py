"""Published figures and tables of each paper, with our panels, claims and experiments of each.

All panels of a published figure are drawn. Panels of one figure with the same unit share their y axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.claims import load
from suite.claims.claim import Judged
from suite.claims.plain_answers import in_words
from suite.report import derive
from suite.report.load import text_at
from suite.report.page.sections import Section
from suite.report.panels import figure_panels
from suite.report.plots import plots
from suite.report.plots.plots import PanelPlot
from suite.report.tables import claim_tables, scorecard
from suite.report.tables.record_tables import Table
from suite.report.whatif_links import WhatIfLinks

_FIGURE_NUMBER = r"(?:[IVX]+|\d+)(?:\(\w\)|[a-z])?"
_NAMES = re.compile(rf"(Table|Figure|Fig\.)s? ((?:{_FIGURE_NUMBER}(?: to |, (?:and )?| and )?)+)")
_NUMBER = re.compile(r"\b(?:[IVX]+|\d+)")
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}


@dataclass(frozen=True, slots=True)
class Display:
    """One published figure or table.

    Attributes:
        name: 'Figure 8 of SAMO'.
        claims: Table of the paper's values next to ours.
        counts: Number of its claims by plain answer, in words.
        experiments: (address, title) of the experiments that reproduce it.
        whatif: Words of its point on the what-if page.
    """

    anchor: str
    name: str
    short: str
    counts: str
    panels: tuple[PanelPlot, ...]
    claims: Table | None
    experiments: tuple[tuple[str, str], ...]
    whatif: Sequence[str]


@dataclass(frozen=True, slots=True)
class Paper:
    """The published figures and tables of one paper. counts: number of its claims by plain answer, in words"""

    anchor: str
    name: str
    counts: str
    displays: tuple[Display, ...]


def papers(
    groups: Sequence[derive.ExperimentGroup],
    judged: Sequence[Judged],
    near: claim_tables.ClaimContext,
    links: WhatIfLinks,
) -> list[Paper]:
    """Each paper with its figures and tables. groups: the experiments in the order of the sections e1, e2, ..."""
    newest = _newest(groups, near.runs)
    by_display: dict[tuple[str, str], list[Judged]] = {}
    for verdict in judged:
        for display in verdict.claim.displays:
            by_display.setdefault(
                (scorecard.paper(verdict), display.removeprefix(f"{verdict.claim.paper} ")), []
            ).append(verdict)
    experiments = _experiments(groups)
    names = [*load.titles().values(), *scorecard.values(judged, "paper"), *(paper for paper, _ in newest)]
    papers_drawn = []
    for paper in dict.fromkeys(names):
        figure_names = {short for name, short in (*newest, *by_display) if name == paper}
        if figure_names:
            displays = [
                _display(
                    paper,
                    short,
                    newest.get((paper, short), []),
                    by_display.get((paper, short), []),
                    experiments,
                    near,
                    links,
                )
                for short in sorted(figure_names, key=_order)
            ]
            whole = [verdict for verdict in judged if scorecard.paper(verdict) == paper]
            papers_drawn.append(Paper(_anchor(paper), paper, in_words(whole), tuple(displays)))
    return papers_drawn


def figures_in(where: str) -> set[str]:
    """Figures and tables in a text such as 'Figures 6 and 7, Table II'; 'Figures 3 to 5' names three."""
    names = set()
    for kind, text in _NAMES.findall(where):
        numbers = _NUMBER.findall(text)
        if " to " in text and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            first, last = (min(int(number), 99) for number in numbers)
            numbers = [str(number) for number in range(first, last + 1)]
        names |= {f"{kind.replace('Fig.', 'Figure')} {number}" for number in numbers}
    return names


def page_of(paper: str) -> str:
    """File of the page of a paper, by its title."""
    return f"{_anchor(paper)}.html"


def _anchor(*parts: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in ("paper", *parts))


def _order(short: str) -> tuple[str, int, list[tuple[int, str]]]:
    """Figures first, then tables, each by its number."""
    kind, _, number = short.partition(" ")
    return kind, _ROMAN.get(number, 0), derive.natural(number)


def _newest(
    groups: Iterable[derive.ExperimentGroup], runs: Mapping[str, str]
) -> dict[tuple[str, str], list[tuple[figure_panels.ShownPanel, str]]]:
    """The panels by paper and figure, each from one record: a record of this machine first, then the newest."""
    newest: dict[tuple[str, str, str], tuple[tuple[bool, tuple[str, str]], figure_panels.ShownPanel]] = {}
    for group in groups:
        for entry in group.entries:
            rank = (not entry.machine, derive.age(entry))
            for panel in figure_panels.build_panels(entry, runs):
                short, paper = panel.panel.figure, panel.panel.publication
                key = (paper, short, panel.panel.full_title)
                if short and (key not in newest or newest[key][0] < rank):
                    newest[key] = (rank, panel)
    by_display: dict[tuple[str, str], list[tuple[figure_panels.ShownPanel, str]]] = {}
    for (paper, short, title), (_, panel) in newest.items():
        by_display.setdefault((paper, short), []).append((panel, title))
    return by_display


def _experiments(groups: Sequence[derive.ExperimentGroup]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Links to the experiments that reproduce a figure, by paper and figure."""
    experiments: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for number, group in enumerate(groups, 1):
        config = group.lead.record.config
        paper = text_at(config, "experiment", "paper")
        title = text_at(config, "experiment", "title") or group.name
        for short in figures_in(text_at(config, "experiment", "paper_ref")):
            link = (f"#e{number}", f"{title} ({group.machine})" if group.machine else title)
            experiments.setdefault((load.titles().get(paper, paper), short), []).append(link)
    return experiments


def _display(
    paper: str,
    short: str,
    shown_panels: Sequence[tuple[figure_panels.ShownPanel, str]],
    items: Sequence[Judged],
    experiments: Mapping[tuple[str, str], Sequence[tuple[str, str]]],
    near: claim_tables.ClaimContext,
    links: WhatIfLinks,
) -> Display:
    anchor, name = _anchor(paper, short), f"{short} of {paper}"
    panels = [one for one, _ in sorted(shown_panels, key=lambda pair: derive.natural(pair[1]))]
    printed = any(isinstance(verdict.claim.value, float | tuple) for verdict in items)
    systems = dict.fromkeys(name for one in panels for name in one.panel.systems)
    looks = {system: number for number, system in enumerate(systems)}
    drawn = plots.of_panels(panels, looks, f"{anchor}-p", most=len(panels), printed=printed)
    return Display(
        anchor,
        name,
        short,
        in_words(items),
        tuple(replace(panel, title=one.panel.capitalized_title) for panel, one in zip(drawn, panels, strict=True)),
        claim_tables.beside(f"Claims of {name}", items, near),
        tuple(experiments.get((paper, short), ())),
        links.of_claims(item.claim.id for item in items),
    )


def place_panels(found: Sequence[Paper], planned: Sequence[Section]) -> tuple[list[Paper], list[Section]]:
    """Move panels of experiments to the published figures that they reproduce.

    A figure without its own panels takes those of the first experiment that reproduces it, such as the learning curves
    of a study. The section of that experiment keeps the rest. A figure whose claims have no point on the what-if page
    takes that of an experiment.
    """
    unplaced = {f"#{section.anchor}": section for section in planned}
    papers = []
    for paper in found:
        displays = []
        for display in paper.displays:
            reproducing = [unplaced[to] for to, _ in display.experiments if to in unplaced]
            points = [display.whatif, *(each.whatif for each in reproducing)]
            one = replace(display, whatif=next(filter(None, points), ()))
            section = next(filter(_drawable, reproducing), None)
            if section is None or one.panels:
                displays.append(one)
                continue
            where = f" ({section.machine})" if section.machine else ""
            panels = tuple(replace(panel, title=f"{panel.title}{where}") for panel in _drawable(section))
            displays.append(replace(one, panels=panels))
            unplaced[f"#{section.anchor}"] = replace(
                section,
                panels=tuple(panel for panel in section.panels if not panel.picture),
                swept=tuple(panel for panel in section.swept if not panel.picture),
                learned=tuple(panel for panel in section.learned if not panel.picture),
                said=(*section.said, f"The panels of this experiment are shown at {one.name}."),
            )
        papers.append(replace(paper, displays=tuple(displays)))
    return papers, list(unplaced.values())


def _drawable(section: Section) -> list[PanelPlot]:
    return [panel for panel in (*section.panels, *section.swept, *section.learned) if panel.picture]
