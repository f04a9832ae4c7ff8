"""Learning curves of an accuracy study: a curve per system with its spread over seeds, and the rank tests.

The line is the median over seeds and the band spans the minimum and maximum, so the uncertainty is visible. Tables
separate the best epoch's score from the last, and end with a rank test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.ticker import MaxNLocator

from suite.core.claim import Settings
from suite.core.errors import SuiteError
from suite.core.units import seconds as time_of
from suite.report import derive
from suite.report.load import at
from suite.report.panels import seed_study
from suite.report.panels.figure_panels import SYMBOLS
from suite.report.panels.seed_study import Study, StudyTask
from suite.report.plots.figure import PALETTE, clean, drawing, finished, shape
from suite.report.tables.claim_tables import short
from suite.report.tables.published_settings import settings_table
from suite.report.tables.record_tables import NONE, Cell, Column, Table, number, to_run
from suite.stats import rank_test

WORDS = {"top_1": "top-1 accuracy", "top_5": "top-5 accuracy", "tokens": "token accuracy", "bleu": "BLEU"}
HOUR = 3600.0
_MOST = 24  # pictures
_LEAST = "[ends]"
_TONES = {
    rank_test.RankTestOutcome.BETTER: "good",
    rank_test.RankTestOutcome.WORSE: "bad",
    rank_test.RankTestOutcome.UNDECIDED: "faint",
}

Legend = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Learned:
    """A table, with a plot where there is one to draw. legend: (colour, name)"""

    title: str
    table: Table
    caption: str = ""
    draw: Callable[[], str] | None = None
    legend: Legend = ()

    @property
    def svg(self) -> str:
        """The picture's markup, empty where there is none."""
        return self.draw() if self.draw else ""


Studied = tuple[list[Learned], list[tuple[str, str]]]  # and (whom, what) is to be remarked


def read(
    group: derive.ExperimentGroup,
    groups: Sequence[derive.ExperimentGroup],
    settings: Settings,
    runs: Mapping[str, str],
    salt: str,
) -> Studied:
    """The requests of `group`'s newest config on its own runs or other experiments', and remarks on it.

    Args:
        settings: The published ones (suite.papers.common.claims.settings).
        runs: A run's anchor by its record's file.
    """
    row = at(group.lead.record.config, "experiment", "study")
    if row is None:
        return [], []
    try:
        study = seed_study.parse(row)
    except SuiteError as fault:
        return [], [("study", str(fault))]
    names = study.of or (group.name,)
    groups_of_study = [one for name in names for one in groups if one.machine == group.machine and one.name == name]
    tasks, remarks = seed_study.tasks(study, groups_of_study)
    ran = {one.name for one in groups_of_study}
    if missing := [name for name in names if name not in ran]:
        remarks.append(("study", f"not run here: {', '.join(missing)}"))
    if not tasks:
        return [], [*remarks, ("study", f"no run has {', '.join(study.scores)} by epoch")]
    looks = {system: place for place, system in enumerate(dict.fromkeys(s for task in tasks for s in task.systems))}
    learned: list[Learned] = []
    for place, task in enumerate(tasks):
        for score in study.scores if study.curves else ():
            if any(task.of(system, score) for system in task.systems):
                learned += _curves(task, score, looks, f"{salt}{place}{study.scores.index(score)}")
    if len(learned) > _MOST:
        remarks.append(("study", f"{len(learned) - _MOST} more pictures than the {_MOST} that are made"))
    tables = {
        "scores": lambda: _scores(study, tasks, runs),
        "times": lambda: _times(study, tasks),
        "tests": lambda: _tests(study, tasks),
        "settings": lambda: settings_table(study, tasks, settings),
    }
    tables_drawn = [tables[name]() for name in study.tables]
    return learned[:_MOST] + [Learned(table.title, table) for table in tables_drawn], remarks


# Pictures


def _curves(task: StudyTask, score: str, looks: Mapping[str, int], salt: str) -> list[Learned]:
    """Over epochs, and over simulated time where that is known."""
    word, curves = WORDS.get(score, score), []
    sizes: list[tuple[str, str, Mapping[str, float]]] = [("epochs", "epoch", dict.fromkeys(task.systems, 1.0))]
    if task.seconds:
        sizes.append(("simulated time", "simulated hours", {s: value / HOUR for s, value in task.seconds.items()}))
    for place, (name, axis, size) in enumerate(sizes):
        drawn = [system for system in task.systems if system in size and task.of(system, score)]
        seeds = {len(task.of(system, score)) for system in drawn}
        seeds_text = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(min(seeds, default=0))
        caption = f"Validation after each epoch; seeds: {seeds_text}. Median, and from the least to the greatest."
        if place:
            caption += " Epochs are of the network trained here; the time of one is the published network's, simulated."
            if missing := [system for system in task.systems if system not in size]:
                caption += f" Not simulated: {', '.join(missing)}."
        if drawn:
            draw = partial(_picture, task, score, drawn, size, axis, looks, f"{salt}{place}")
            legend = tuple((_colour(looks[s]), f"{shape(looks[s])[1]} {s}") for s in drawn)
            table = _by_epoch(task, score, drawn, size, name)
            curves.append(
                Learned(f"{word[:1].upper()}{word[1:]} over {name}: {task.title}", table, caption, draw, legend)
            )
    return curves


def _picture(
    task: StudyTask,
    score: str,
    drawn: Sequence[str],
    size: Mapping[str, float],
    axis: str,
    looks: Mapping[str, int],
    salt: str,
) -> str:
    said = []
    with drawing(3.1, left=0.62) as (fig, ax):
        for system in drawn:
            low, middle, high = seed_study.band(task.of(system, score))
            x = [(place + 1) * size[system] for place in range(len(middle))]
            colour, marker = _colour(looks[system]), shape(looks[system])[0]
            ax.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
            every = max(1, len(x) // 12)
            ax.plot(
                x,
                middle,
                color=colour,
                marker=marker,
                markersize=4.5,
                markeredgewidth=0,
                linewidth=1.4,
                markevery=every,
            )
            said.append(f"{system} ends at {short(middle[-1])} after {len(middle)} epochs")
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=axis == "epoch"))
        ax.set_xlabel("Simulated time (hours)" if axis == "simulated hours" else axis.capitalize())
        unit, word = task.unit(score), WORDS.get(score, score)
        unit = SYMBOLS.get(unit, unit) if unit.lower() != score else "points"
        ax.set_ylabel(clean(f"{word[:1].upper()}{word[1:]}" + (f" ({unit})" if unit else ""), 40))
        return finished(fig, salt, f"{WORDS.get(score, score)}, {task.title}. {'; '.join(said)}.")


def _by_epoch(task: StudyTask, score: str, drawn: Sequence[str], size: Mapping[str, float], name: str) -> Table:
    """The medians and ends of a few epochs, a row each."""
    bands = {system: seed_study.band(task.of(system, score)) for system in drawn}
    whole = max(len(middle) for _, middle, _ in bands.values())
    epochs = sorted({max(1, round(whole * part / 7)) for part in range(1, 8)})
    columns = (Column("epoch"), *(Column(system, detail=f"median {_LEAST}") for system in drawn))
    rows = []
    for epoch in epochs:
        cells = []
        for low, middle, high in bands.values():
            at_epoch = epoch <= len(middle)
            ends = f"[{_digits(low[epoch - 1])} … {_digits(high[epoch - 1])}]" if at_epoch else ""
            value = middle[epoch - 1] if at_epoch else math.nan
            cells.append(number(value, _digits(value), ends))
        rows.append((Cell(str(epoch), epoch), *cells))
    if name != "epochs":
        last = [number(size[s] * whole, f"{size[s] * whole:.2f} h") for s in drawn]
        rows.append((Cell("time of all", whole + 1), *last))
    return Table(f"{WORDS.get(score, score)} over {name}: {task.title}", columns, tuple(rows))


def _colour(look: int) -> str:
    return str(PALETTE[look % len(PALETTE)])


# Tables


def _scores(asked: Study, found: Sequence[StudyTask], runs: Mapping[str, str]) -> Table:
    """PipeOptim's Table IV, extended by the last epoch, the seeds and their spread."""
    columns = (
        Column("training", numeric=False),
        Column("system", numeric=False),
        Column("score", numeric=False),
        Column("best", detail=f"median {_LEAST}"),
        Column("final", detail=f"median {_LEAST}"),
        Column("seeds", numeric=False, detail="or why there is none"),
    )
    rows = []
    for task in found:
        for system in task.systems:
            mine = [t for t in task.trainings if t.system == system]
            links = tuple(link for t in mine for link in to_run(f"seed {t.seed}", t.entry.file, runs))
            for score in asked.scores:
                if best := task.best(system, score):
                    cell = Cell(str(len(best)), len(best), links=links)
                    cells = (_spread(best), _spread(task.final(system, score)))
                    rows.append((Cell(task.title), Cell(system), Cell(WORDS.get(score, score)), *cells, cell))
        for system, why in task.unfinished:
            none = Cell(NONE, tone="faint")
            rows.append((Cell(task.title), Cell(system), none, none, none, Cell("none", detail=why, tone="said")))
    return _table("Best and final scores", found, columns, rows)


def _table(title: str, found: Sequence[StudyTask], columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
    """The first column says the training, and is left out where there is one."""
    first = 1 if len(found) == 1 else 0
    return Table(title, tuple(columns[first:]), tuple(tuple(row[first:]) for row in rows))


def _spread(values: Sequence[float]) -> Cell:
    summary = derive.summary(values)
    return number(summary.median, _digits(summary.median), f"[{_digits(summary.low)} … {_digits(summary.high)}]")


def _digits(value: float) -> str:
    return f"{value:.2f}"


def _times(asked: Study, found: Sequence[StudyTask]) -> Table:
    """PipeOptim's Table VI: the target follows from a rule and was not chosen."""
    columns = (
        Column("training", numeric=False),
        Column("system", numeric=False),
        Column("target", detail=f"final median of {asked.shown(asked.like)} less {asked.less:g}"),
        Column("reached", numeric=False, detail="seeds"),
        Column("epochs", detail=f"median {_LEAST}"),
        Column("an epoch", detail="simulated"),
        Column("time to target", detail="epochs × simulated"),
    )
    rows = []
    for task in found:
        for system in task.systems:
            there = seed_study.reached(asked, task, system)
            each, epochs = task.seconds.get(system, math.nan), there.median
            more = math.isinf(epochs)  # at least half of the seeds never were there
            count = float(there.whole) if more else epochs
            ends = ", ".join(f"{n:g}" if math.isfinite(n) else f"> {there.whole}" for n in sorted(there.epochs))
            sign = "> " * more
            rows.append(
                (
                    Cell(task.title),
                    Cell(system),
                    number(there.target, _digits(there.target)),
                    Cell(f"{there.count} of {len(there.epochs)}"),
                    number(count, f"{sign}{count:g}", ends),
                    number(each, time_of(each) if math.isfinite(each) else NONE),
                    number(count * each, f"{sign}{count * each / HOUR:.2f} h"),
                )
            )
    return _table("Epochs and time to the target", found, columns, rows)


def _tests(asked: Study, found: Sequence[StudyTask]) -> Table:
    """Ours against each other system, on the best epoch's score and on the last one's."""
    columns = (
        Column("training", numeric=False),
        Column("compared", numeric=False),
        Column("score", numeric=False),
        Column(f"{asked.shown(asked.ours)}", detail="median"),
        Column("the other", detail="median"),
        Column("difference", detail="of medians"),
        Column("seeds", numeric=False),
        Column("p", detail="exact, two-sided"),
        Column("decision", numeric=False),
    )
    ours, like = asked.shown(asked.ours), asked.shown(asked.like)
    rows = []
    for task in found:
        score = task.lead(asked.scores)
        for rival in (system for system in task.systems if system != ours and ours in task.systems):
            for word, of in (("best", task.best), ("final", task.final)):
                test = rank_test.rank_test(of(ours, score), of(rival, score))
                rows.append(
                    (
                        Cell(task.title),
                        Cell(f"{ours} / {rival}"),
                        Cell(f"{word} {WORDS.get(score, score)}"),
                        number(test.ours, _digits(test.ours)),
                        number(test.theirs, _digits(test.theirs)),
                        number(test.difference, f"{test.difference:+.2f}"),
                        Cell(f"{test.n[0]} and {test.n[1]}"),
                        number(test.p, f"{test.p:.2g}"),
                        Cell(test.sentence(like=rival == like), tone=f"said {_TONES[test.decision]}"),
                    )
                )
    return _table("What the seeds decide", found, columns, rows)
