"""Published figures and tables of each paper, with our panels, claims and experiments of each.

All panels of a published figure are drawn: the limit on plots holds for all other panels. Panels of one figure that
show one unit share their y axis."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.core.claim import Check, Judged
from suite.report import derive
from suite.report.load import text_at
from suite.report.page.sections import Section
from suite.report.panels import figure_panels
from suite.report.plots import plots
from suite.report.plots.plots import PanelPlot
from suite.report.tables import claim_tables, scorecard
from suite.report.tables.record_tables import NONE, Cell, Column, Table

_ONE = r"(?:[IVX]+|\d+)(?:\(\w\)|[a-z])?"
_NAMES = re.compile(rf"(Table|Figure|Fig\.)s? ((?:{_ONE}(?: to |, (?:and )?| and )?)+)")
_NUMBER = re.compile(r"\b(?:[IVX]+|\d+)")
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}


@dataclass(frozen=True, slots=True)
class Display:
    """One published figure or table.

    Attributes:
        name: 'Figure 8 of SAMO'.
        claims: The paper's values next to ours.
        counts: Its claims by verdict, in words.
        experiments: (address, title) of the runs here that stand for it.
        distance: The largest relative distance of one of our values from a printed one, nan where none is comparable.
        farthest: The claim that it is of.
    """

    anchor: str
    name: str
    short: str
    counts: str
    panels: tuple[PanelPlot, ...]
    claims: Table | None
    experiments: tuple[tuple[str, str], ...]
    distance: float = math.nan
    farthest: Judged | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    """The published figures and tables of one paper. counts: all its claims by verdict, in words"""

    anchor: str
    name: str
    counts: str
    displays: tuple[Display, ...]


def papers(
    groups: Sequence[derive.ExperimentGroup], judged: Sequence[Judged], near: claim_tables.Around
) -> list[Paper]:
    """Each paper with its displays. `groups` must come in the order of the page's sections e1, e2, ..."""
    held = _newest(groups, near.runs)
    asked: dict[tuple[str, str], list[Judged]] = {}
    for item in judged:
        for shown in item.claim.displays:
            asked.setdefault((scorecard.paper(item), shown.removeprefix(f"{item.claim.paper} ")), []).append(item)
    ran = _experiments(groups)
    names = [*scorecard.PAPERS.values(), *scorecard.papers(judged), *(paper for paper, _ in held)]
    found = []
    for paper in dict.fromkeys(names):
        mine = {short for name, short in (*held, *asked) if name == paper}
        if mine:
            made = [
                _display(paper, short, held.get((paper, short), []), asked.get((paper, short), []), ran, near)
                for short in sorted(mine, key=_order)
            ]
            whole = [item for item in judged if scorecard.paper(item) == paper]
            found.append(Paper(_anchor(paper), paper, counts(whole), tuple(made)))
    return found


def counts(items: Sequence[Judged]) -> str:
    """'3 reproduced, measured; 2 not run'"""
    return "; ".join(f"{count.count} {count.name}" for count in scorecard.counts(items) if count.count)


def named(where: str) -> set[str]:
    """The figures and tables that a place names: 'Figures 6 and 7, Table II'; 'Figures 3 to 5' names three."""
    found = set()
    for kind, text in _NAMES.findall(where):
        numbers = _NUMBER.findall(text)
        if " to " in text and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            first, last = (min(int(number), 99) for number in numbers)
            numbers = [str(number) for number in range(first, last + 1)]
        found |= {f"{kind.replace('Fig.', 'Figure')} {number}" for number in numbers}
    return found


def _anchor(*parts: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in ("paper", *parts))


def _order(short: str) -> tuple[str, int, list[tuple[int, str]]]:
    """Figures first, then tables, each by its number."""
    kind, _, number = short.partition(" ")
    return kind, _ROMAN.get(number, 0), derive.natural(number)


def _newest(
    groups: Iterable[derive.ExperimentGroup], runs: Mapping[str, str]
) -> dict[tuple[str, str], list[tuple[figure_panels.ShownPanel, str]]]:
    """The panels by paper and display, each from one record: of this machine before others, then the newest."""
    found: dict[tuple[str, str, str], tuple[tuple[bool, tuple[str, str]], figure_panels.ShownPanel]] = {}
    for group in groups:
        for entry in group.entries:
            rank = (not entry.machine, derive.age(entry))
            for shown in figure_panels.shown(entry, runs):
                short, paper = shown.panel.display
                key = (paper, short, shown.panel.title)
                if short and (key not in found or found[key][0] < rank):
                    found[key] = (rank, shown)
    by_display: dict[tuple[str, str], list[tuple[figure_panels.ShownPanel, str]]] = {}
    for (paper, short, title), (_, shown) in found.items():
        by_display.setdefault((paper, short), []).append((shown, title))
    return by_display


def _experiments(groups: Sequence[derive.ExperimentGroup]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The experiments that stand for a display, as links, by paper and display."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for number, group in enumerate(groups, 1):
        config = group.lead.record.config
        paper = text_at(config, "experiment", "paper")
        title = text_at(config, "experiment", "title") or group.name
        for short in named(text_at(config, "experiment", "paper_ref")):
            link = (f"#e{number}", f"{title} ({group.machine})" if group.machine else title)
            found.setdefault((scorecard.PAPERS.get(paper, paper), short), []).append(link)
    return found


def _display(
    paper: str,
    short: str,
    held: Sequence[tuple[figure_panels.ShownPanel, str]],
    items: Sequence[Judged],
    ran: Mapping[tuple[str, str], Sequence[tuple[str, str]]],
    near: claim_tables.Around,
) -> Display:
    anchor, name = _anchor(paper, short), f"{short} of {paper}"
    shown = [one for one, _ in sorted(held, key=lambda pair: derive.natural(pair[1]))]
    printed = any(isinstance(item.claim.value, float | tuple) for item in items)
    systems = dict.fromkeys(name for one in shown for name in one.panel.systems)
    looks = {system: number for number, system in enumerate(systems)}
    drafts = plots.of_panels(shown, looks, f"{anchor}-p", most=len(shown), printed=printed)
    far, distance = farthest(items)
    return Display(
        anchor,
        name,
        short,
        counts(items),
        tuple(replace(panel, title=one.panel.subtitle) for panel, one in zip(drafts, shown, strict=True)),
        _claims(name, items, near),
        tuple(ran.get((paper, short), ())),
        distance,
        far,
    )


def adopted(found: Sequence[Paper], planned: Sequence[Section]) -> tuple[list[Paper], list[Section]]:
    """Displays without panels of their own take the panels of the first experiment that stands for them, such as the
    learning curves of a study; the section of that experiment then holds the rest.
    """
    left = {f"#{section.anchor}": section for section in planned}
    papers = []
    for paper in found:
        displays = []
        for one in paper.displays:
            section = next((left[to] for to, _ in one.experiments if to in left and _drawable(left[to])), None)
            if section is None or one.panels:
                displays.append(one)
                continue
            where = f" ({section.machine})" if section.machine else ""
            taken = tuple(replace(panel, title=f"{panel.title}{where}") for panel in _drawable(section))
            displays.append(replace(one, panels=taken))
            left[f"#{section.anchor}"] = replace(
                section,
                panels=tuple(panel for panel in section.panels if not panel.draft),
                swept=tuple(panel for panel in section.swept if not panel.draft),
                learned=tuple(panel for panel in section.learned if not panel.draft),
                said=(*section.said, f"The panels of this experiment stand at {one.name}, above."),
            )
        papers.append(replace(paper, displays=tuple(displays)))
    return papers, list(left.values())


def _drawable(section: Section) -> list[PanelPlot]:
    return [panel for panel in (*section.panels, *section.swept, *section.learned) if panel.draft]


def drawn(found: Sequence[Paper]) -> list[Paper]:
    """The papers with all pictures of their displays."""
    return [
        replace(
            paper,
            displays=tuple(
                replace(
                    one,
                    panels=tuple(
                        replace(panel, picture=panel.draft.drawn() if panel.draft else None) for panel in one.panels
                    ),
                )
                for one in paper.displays
            ),
        )
        for paper in found
    ]


def farthest(items: Sequence[Judged]) -> tuple[Judged | None, float]:
    """The claim whose value lies farthest from the printed number or range, relative to the printed value."""
    found = [(distance(item), item) for item in items]
    known = [(value, item) for value, item in found if math.isfinite(value)]
    if not known:
        return None, math.nan
    value, item = max(known, key=lambda pair: pair[0])
    return item, value


def distance(item: Judged) -> float:
    """The largest of |ours - printed| / |printed|; of a range, from its nearer end, 0 inside; nan of anything else."""
    value = item.claim.value
    if isinstance(value, str) or item.claim.check not in (Check.NUMBER, Check.RANGE):
        return math.nan
    low, high = value if isinstance(value, tuple) else (value, value)
    each = [one for case in item.ours for one in case if math.isfinite(one)]
    ends = [low if one < low else high if one > high else one for one in each]
    return max(
        (derive.ratio(abs(one - end), abs(end)) if one != end else 0.0 for one, end in zip(each, ends, strict=True)),
        default=math.nan,
    )


_CLAIMS = (
    Column("claim", numeric=False),
    Column("quantity", numeric=False, detail="system"),
    Column("paper’s value"),
    Column("our value"),
    Column("unit", numeric=False),
    Column("evidence", numeric=False),
    Column("verdict", numeric=False),
)


def _claims(name: str, items: Sequence[Judged], near: claim_tables.Around) -> Table | None:
    rows = tuple(
        (
            Cell("", links=((f"#{claim_tables.anchor(item.claim.id)}", item.claim.id),)),
            Cell(item.claim.quantity, detail=" versus ".join(filter(None, (item.claim.system, item.claim.versus)))),
            claim_tables.published(item.claim),
            claim_tables.ours(item, near.runs),
            Cell(item.claim.unit),
            Cell(item.evidence.value if item.evidence else NONE),
            claim_tables.verdict(item),
        )
        for item in items
    )
    return Table(f"Claims of {name}", _CLAIMS, rows) if rows else None
