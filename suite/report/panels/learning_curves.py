"""Learning curves of an accuracy study, with their tables and rank tests.

A line is the median over seeds, and its band spans the minimum and the maximum. Tables have separate columns for the
best epoch and the last epoch. A rank test compares our system with every other system.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from suite.claims.claim import Settings
from suite.config.experiment import StudySpec, read_study
from suite.core.errors import InvalidRequest
from suite.core.units import seconds as format_seconds
from suite.report import derive
from suite.report.load import at
from suite.report.names import NONE, SYMBOLS, named, short
from suite.report.panels import seed_study
from suite.report.panels.seed_study import StudyTask
from suite.report.plots.figure import PALETTE, clean, drawing, finished, shape
from suite.report.plots.plots import PanelPlot, Picture
from suite.report.tables.published_settings import settings_table
from suite.report.tables.record_tables import DASH, Cell, Row, Table, Value, first_rows, number, tabled, to_run
from suite.stats import rank_test

SCORE_NAMES = {"top_1": "top-1 accuracy", "top_5": "top-5 accuracy", "tokens": "token accuracy", "bleu": "BLEU"}
HOUR = 3600.0
MAX_PICTURES = 24
MOST_NAMED = 3  # tasks in an answer
_MEDIAN_AND_ENDS, _TRAINING = "median [ends]", "training"
_TONES = {
    rank_test.RankTestOutcome.BETTER: "good",
    rank_test.RankTestOutcome.WORSE: "bad",
    rank_test.RankTestOutcome.UNDECIDED: "faint",
}


def read(
    group: derive.ExperimentGroup,
    groups: Sequence[derive.ExperimentGroup],
    settings: Settings,
    runs: Mapping[str, str],
    salt: str,
) -> tuple[list[PanelPlot], list[tuple[str, str]], str]:
    """The panels of the study that a group's newest configuration requests, (title, remark) on it, and its best scores
    in words.

    Args:
        group: The experiment.
        groups: All experiments, whose runs a study may collect.
        settings: Published settings (suite.claims.load.settings).
        runs: Anchor of a run by the file of its record.
        salt: Prefix of the ids in the pictures.
    """
    row = at(group.lead.record.config, "experiment", "study")
    if row is None:
        return [], [], ""
    try:
        study = read_study(row)
    except InvalidRequest as refusal:
        return [], [("study", str(refusal))], ""
    names = study.of or (group.name,)
    studied = [other for name in names for other in groups if other.machine == group.machine and other.name == name]
    tasks, remarks = seed_study.tasks(study, studied)
    if missing := [name for name in names if name not in {other.name for other in studied}]:
        remarks.append(("study", f"not run here: {', '.join(missing)}"))
    if not tasks:
        return [], [*remarks, ("study", f"no run has {', '.join(study.scores)} by epoch")], ""
    styles = {system: place for place, system in enumerate(dict.fromkeys(s for task in tasks for s in task.systems))}
    panels: list[PanelPlot] = []
    for place, task in enumerate(tasks):
        for score in study.scores if study.curves else ():
            if any(task.curves(system, score) for system in task.systems):
                panels += _curve_panels(task, score, styles, f"{salt}{place}{study.scores.index(score)}")
    if len(panels) > MAX_PICTURES:
        remarks.append(("study", f"{len(panels) - MAX_PICTURES} more pictures than the {MAX_PICTURES} that are drawn"))
    make_table = {
        "scores": lambda: _score_table(study, tasks, runs),
        "times": lambda: _time_table(study, tasks),
        "tests": lambda: _test_table(study, tasks),
        "settings": lambda: settings_table(study, tasks, settings),
    }
    tables = [make_table[name]() for name in study.shown_tables]
    panels = panels[:MAX_PICTURES] + [PanelPlot(table.title, (), None, table) for table in tables if table]
    return panels, remarks, _best_scores(study, tasks)


def _best_scores(study: StudySpec, tasks: Sequence[StudyTask]) -> str:
    """The system with the highest median final score of each task."""
    said = []
    for task in tasks[:MOST_NAMED]:
        score = task.lead_score(study.scores)
        finals = {name: statistics.median(last) for name in task.systems if (last := task.final(name, score))}
        best = max(finals, key=finals.__getitem__)
        said.append(f"{best} ({SCORE_NAMES.get(score, score)} {short(finals[best])}, {task.title})")
    return f"Highest median of final scores: {'; '.join(said)}."


# Pictures


def _curve_panels(task: StudyTask, score: str, styles: Mapping[str, int], salt: str) -> list[PanelPlot]:
    """Learning curves over epochs, and over simulated time where it is known."""
    name = SCORE_NAMES.get(score, score)
    axes: list[tuple[str, str, Mapping[str, float]]] = [("epochs", "epoch", dict.fromkeys(task.systems, 1.0))]
    if task.epoch_seconds:
        hours = {system: value / HOUR for system, value in task.epoch_seconds.items()}
        axes.append(("simulated time", "simulated hours", hours))
    panels = []
    for place, (axis_name, axis, epoch_size) in enumerate(axes):
        drawn = [system for system in task.systems if system in epoch_size and task.curves(system, score)]
        seeds = {len(task.curves(system, score)) for system in drawn}
        seed_range = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(min(seeds, default=0))
        caption = f"Validation after each epoch; seeds: {seed_range}. Median, and from the least to the greatest."
        if place:
            caption += " Epochs are of the network trained here; the time of one is the published network's, simulated."
            if missing := [system for system in task.systems if system not in epoch_size]:
                caption += f" Not simulated: {', '.join(missing)}."
        if drawn:
            svg = _picture(task, score, drawn, epoch_size, axis, styles, f"{salt}{place}")
            legend = tuple((_colour(styles[s]), f"{shape(styles[s])[1]} {named(s)}") for s in drawn)
            title = f"{name} over {axis_name}: {task.title}"
            table = _epoch_table(title, task, score, drawn, epoch_size, timed=bool(place))
            picture = Picture(caption, Markup(svg), legend)
            panels.append(PanelPlot(title[:1].upper() + title[1:], (), picture, first_rows(table)))
    return panels


def _picture(
    task: StudyTask,
    score: str,
    drawn: Sequence[str],
    epoch_size: Mapping[str, float],
    axis: str,
    styles: Mapping[str, int],
    salt: str,
) -> str:
    name, endings = SCORE_NAMES.get(score, score), []
    with drawing(3.1, left=0.62) as (fig, ax):
        for system in drawn:
            low, median, high = seed_study.seed_band(task.curves(system, score))
            x = [(place + 1) * epoch_size[system] for place in range(len(median))]
            colour, marker = _colour(styles[system]), shape(styles[system])[0]
            curves = task.curves(system, score)
            if len(curves) > 2:
                ax.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
            for curve in curves if len(curves) == 2 else ():  # a band would show seeds that did not run
                ax.plot(x[: len(curve)], curve[: len(x)], color=colour, linewidth=0.8, alpha=0.6)
            [line] = ax.plot(x, median, color=colour, marker=marker, linewidth=1.4, markevery=max(1, len(x) // 12))
            line.set(markersize=4.5, markeredgewidth=0)
            endings.append(f"{system} ends at {short(median[-1])} after {len(median)} epochs")
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=axis == "epoch"))
        ax.set_xlabel("Simulated time (hours)" if axis == "simulated hours" else axis.capitalize())
        unit = task.unit(score)
        unit = SYMBOLS.get(unit, unit) if unit.lower() != score else "points"
        ax.set_ylabel(clean(f"{name[:1].upper()}{name[1:]}" + (f" ({unit})" if unit else ""), 40))
        return finished(fig, salt, f"{name}, {task.title}. {'; '.join(endings)}.")


def _epoch_table(
    title: str, task: StudyTask, score: str, drawn: Sequence[str], epoch_size: Mapping[str, float], *, timed: bool
) -> Table:
    """Medians with minimum and maximum at seven epochs, a row each."""
    bands = {system: seed_study.seed_band(task.curves(system, score)) for system in drawn}
    last = max(len(median) for _, median, _ in bands.values())
    rows: list[Row] = []
    for epoch in sorted({max(1, round(last * part / 7)) for part in range(1, 8)}):
        row: dict[str, Value] = {"epoch": epoch}
        for system, (low, median, high) in bands.items():
            if epoch <= len(median):
                ends = f"[{low[epoch - 1]:.2f} … {high[epoch - 1]:.2f}]"
                row[f"{system}\n{_MEDIAN_AND_ENDS}"] = number(median[epoch - 1], f"{median[epoch - 1]:.2f}", ends)
        rows.append(row)
    if timed:
        hours = {f"{s}\n{_MEDIAN_AND_ENDS}": epoch_size[s] * last for s in drawn}
        cells = {name: number(value, f"{value:.2f} h") for name, value in hours.items()}
        rows.append({"epoch": Cell("time of all", last + 1), **cells})
    return Table(title, pd.DataFrame(rows))


def _colour(style: int) -> str:
    return str(PALETTE[style % len(PALETTE)])


# Tables


def _score_table(study: StudySpec, tasks: Sequence[StudyTask], runs: Mapping[str, str]) -> Table | None:
    """PipeOptim's Table IV with the last epoch, the seeds and their spread."""
    rows: list[Row] = []
    for task in tasks:
        for system in task.systems:
            trainings = [t for t in task.trainings if t.system == system]
            links = tuple(link for t in trainings for link in to_run(f"seed {t.seed}", t.entry.file, runs))
            for score in study.scores:
                if best := task.best(system, score):
                    values = _spread_cell(best), _spread_cell(task.final(system, score))
                    seeds = Cell(str(len(best)), len(best), links=links)
                    rows.append(_score_row(task, system, SCORE_NAMES.get(score, score), *values, seeds))
        for system, reason in task.unfinished:
            rows.append(_score_row(task, system, NONE, DASH, DASH, Cell("none", detail=reason, tone="said")))
    return _task_table("Best and final scores", tasks, rows)


def _score_row(task: StudyTask, system: str, score: str, best: Cell, final: Cell, seeds: Cell) -> Row:
    values = {f"best\n{_MEDIAN_AND_ENDS}": best, f"final\n{_MEDIAN_AND_ENDS}": final}
    return {_TRAINING: task.title, "system": system, "score": score, **values, "seeds\nor why there is none": seeds}


def _task_table(title: str, tasks: Sequence[StudyTask], rows: Sequence[Row]) -> Table | None:
    """A table whose first column names the training task; one task needs no such column."""
    table = tabled(title, rows)
    return table and replace(table, frame=table.frame.drop(columns=_TRAINING)) if len(tasks) == 1 else table


def _spread_cell(values: Sequence[float]) -> Cell:
    summary = derive.summary(values)
    return number(summary.median, f"{summary.median:.2f}", f"[{summary.low:.2f} … {summary.high:.2f}]")


def _time_table(study: StudySpec, tasks: Sequence[StudyTask]) -> Table | None:
    """PipeOptim's Table VI, with a target that follows from a rule."""
    rows: list[Row] = []
    for task in tasks:
        for system in task.systems:
            reached = seed_study.epochs_to_target(study, task, system)
            epoch_seconds = task.epoch_seconds.get(system, math.nan)
            bound = math.isinf(reached.median)  # at least half of the seeds never reach the target
            count, sign = (float(reached.trained), "> ") if bound else (reached.median, "")
            epochs = (f"{n:g}" if math.isfinite(n) else f"> {reached.trained}" for n in sorted(reached.epochs))
            row: Row = {
                _TRAINING: task.title,
                "system": system,
                f"target\nfinal median of {study.label(study.like)} less {study.target:g}": number(
                    reached.target, f"{reached.target:.2f}"
                ),
                "reached\nseeds": f"{reached.reached_count} of {len(reached.epochs)}",
                f"epochs\n{_MEDIAN_AND_ENDS}": number(count, f"{sign}{count:g}", ", ".join(epochs)),
                "an epoch\nsimulated": number(
                    epoch_seconds, format_seconds(epoch_seconds) if math.isfinite(epoch_seconds) else NONE
                ),
                "time to target\nepochs × simulated": number(
                    count * epoch_seconds, f"{sign}{count * epoch_seconds / HOUR:.2f} h"
                ),
            }
            rows.append(row)
    return _task_table("Epochs and time to the target", tasks, rows)


def _test_table(study: StudySpec, tasks: Sequence[StudyTask]) -> Table | None:
    """Rank tests of our system against every other one, on the best epoch's score and on the last one's."""
    ours, like = study.label(study.ours), study.label(study.like)
    rows: list[Row] = []
    for task in tasks:
        score = task.lead_score(study.scores)
        for rival in (system for system in task.systems if system != ours and ours in task.systems):
            for which, scores in (("best", task.best), ("final", task.final)):
                test = rank_test.rank_test(scores(ours, score), scores(rival, score))
                row: Row = {
                    _TRAINING: task.title,
                    "compared": f"{ours} / {rival}",
                    "score": f"{which} {SCORE_NAMES.get(score, score)}",
                    f"{ours}\nmedian": number(test.ours, f"{test.ours:.2f}"),
                    "the other\nmedian": number(test.theirs, f"{test.theirs:.2f}"),
                    "difference\nof medians": number(test.difference, f"{test.difference:+.2f}"),
                    "seeds": f"{test.n[0]} and {test.n[1]}",
                    "p\ntwo-sided": number(test.p, f"{test.p:.2g}"),
                    "decision": Cell(test.sentence(like=rival == like), tone=f"said {_TONES[test.decision]}"),
                }
                rows.append(row)
    return _task_table("Rank tests over seeds", tasks, rows)
