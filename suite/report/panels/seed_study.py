"""Group runs that differ only by seed, and collect their scores per epoch.

Accuracy studies compare what is learned, so runs belong together only where everything that is trained with is the
same, whatever their experiment; best and final scores stand apart (PipeOptim's Table IV prints best ones alone).
`experiment.study` of a config may be malformed, as anything in a record may: it is checked here once."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.reasons import headline
from suite.core.record import Outcome, Record, Source
from suite.report import derive
from suite.report.load import StoredRecord, at, real, text_at
from suite.report.panels.panel_spec import LONG, told

FIELDS = ("scores", "ours", "like", "names", "of", "target", "samples", "stands_for", "curves", "tables")
TABLES = ("scores", "times", "tests", "settings")
SAME = ("model", "data", "optimizer", "split", "precision", "pruning")  # parts of a config that a training consists of
_PIECES = (
    "bucket_numel",
    "buckets_per_reduction",
    "clip_norm",
)  # keys of `optimizer` that are no arguments of its rule
_OF_RATES = ("milestones", "total", "warmup")  # counted in updates, of which systems make different numbers
_MOST_SCORES, _MOST_EPOCHS, _MOST_OF = 4, 1000, 24


@dataclass(frozen=True, slots=True)
class Study:
    """The requested study; `parse` says what the fields mean."""

    scores: tuple[str, ...]
    ours: str
    like: str
    names: Mapping[str, str]
    of: tuple[str, ...]
    less: float
    samples: float
    stands_for: Mapping[str, str]
    curves: bool
    tables: tuple[str, ...]

    def shown(self, system: str) -> str:
        return self.names.get(system, system)[:LONG]


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One run from one seed. curves: a value per epoch by score, in `units`."""

    system: str
    seed: str
    curves: Mapping[str, tuple[float, ...]]
    units: Mapping[str, str]
    entry: StoredRecord


@dataclass(slots=True)
class StudyTask:
    """One training under several systems.

    Attributes:
        seconds: simulated, of an epoch by system.
        unfinished: (system, why).
    """

    title: str
    settings: Mapping[str, str]
    model: str
    trainings: list[SeedRun] = field(default_factory=list)
    unfinished: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(training.system for training in self.trainings))

    def of(self, system: str, score: str) -> list[tuple[float, ...]]:
        """The curves of a system, one per seed."""
        return [t.curves[score] for t in self.trainings if t.system == system and t.curves.get(score)]

    def final(self, system: str, score: str) -> list[float]:
        return [curve[-1] for curve in self.of(system, score)]

    def best(self, system: str, score: str) -> list[float]:
        return [max(curve) for curve in self.of(system, score)]

    def lead(self, scores: Sequence[str]) -> str:
        """The first of the scores that it has: a translation has no accuracy."""
        return next((name for name in scores if any(t.curves.get(name) for t in self.trainings)), scores[0])

    def unit(self, score: str) -> str:
        return next((t.units[score] for t in self.trainings if score in t.units), "")


def parse(row: Any) -> Study:
    """`experiment.study`. Raises InvalidRequest or UnknownName for what is malformed.

    scores: series with a value per epoch, higher is better; the first that a task has is what its tests and target are
        about
    ours, like: the system that is tested against all others, and the one of them that it is meant to match
    names: how a system is called, by its own name; two systems that one name is given are one
    of: the experiments whose runs are shown; left out: the own one
    target: how far below `like`'s median final score the target of times lies, in the score's unit
    samples: of an epoch of the published data set, which simulated runs of the same experiment say the time of
    stands_for: the published network by the name of ours
    curves: whether curves are drawn; left out: true
    tables: which of TABLES; left out: those that the rest asks for
    """
    if not isinstance(row, dict):
        raise InvalidRequest(f"the study is {told(row)}", rule="a mapping", legal="{scores: [top_1], ours: pipeoptim}")
    for name in row:
        if name not in FIELDS:
            raise UnknownName("field of a study", str(name)[:LONG], FIELDS)
    scores, of = _words(row.get("scores"), "scores", _MOST_SCORES), _words(row.get("of"), "of", _MOST_OF)
    if not scores:
        raise InvalidRequest("a study has no scores", rule="a list of series", legal="[top_1, top_5]")
    for name in ("ours", "like"):
        if not (row.get(name) is None or isinstance(row[name], str)):
            raise InvalidRequest(f"{name} is {told(row[name])}", rule="the name of a system")
    maps = {}
    for name in ("names", "stands_for"):
        mapping = {} if row.get(name) is None else row[name]
        if not isinstance(mapping, dict) or not all(isinstance(text, str) and text for text in mapping.values()):
            raise InvalidRequest(f"{name} is {told(mapping)}", rule="a mapping to names")
        maps[name] = {str(key): text for key, text in mapping.items()}
    numbers = {}
    for name in ("target", "samples"):
        numbers[name] = real(row.get(name))
        if row.get(name) is not None and not numbers[name] > 0:
            raise InvalidRequest(f"{name} is {told(row[name])}", rule="above zero")
    if not isinstance(row.get("curves", True), bool):
        raise InvalidRequest(f"curves is {told(row['curves'])}", rule="true or false")
    tables = _words(row.get("tables"), "tables", len(TABLES))
    if unknown := [name for name in tables if name not in TABLES]:
        raise UnknownName("table of a study", unknown[0][:LONG], TABLES)
    settings = {"scores": True, "times": math.isfinite(numbers["target"])}
    settings |= {"tests": bool(row.get("ours")), "settings": bool(maps["stands_for"])}
    return Study(
        tables=tables or tuple(name for name in TABLES if settings[name]),
        scores=scores,
        ours=row.get("ours") or "",
        like=row.get("like") or "",
        names=maps["names"],
        of=of,
        less=numbers["target"],
        samples=numbers["samples"],
        stands_for=maps["stands_for"],
        curves=row.get("curves", True),
    )


def _words(value: Any, name: str, most: int) -> tuple[str, ...]:
    words = [] if value is None else value
    if not isinstance(words, list) or len(words) > most or not all(isinstance(text, str) and text for text in words):
        raise InvalidRequest(f"{name} is {told(words)}", rule=f"a list of at most {most} names")
    return tuple(dict.fromkeys(words))


def tasks(study: Study, groups: Iterable[derive.ExperimentGroup]) -> tuple[list[StudyTask], list[tuple[str, str]]]:
    """The trainings of several experiments, each a task of its own there, and (whom, what) is to be remarked."""
    tasks_read: list[StudyTask] = []
    remarks: list[tuple[str, str]] = []
    for group in groups:
        mine, faults = _tasks(study, group)
        tasks_read += mine
        remarks += faults
    titles, seen = Counter(task.title for task in tasks_read), Counter[str]()
    for task in tasks_read:
        seen[title := task.title] += 1
        if titles[title] > 1:
            task.title += f" ({seen[title]} of {titles[title]})"
    return tasks_read, remarks


def _tasks(study: Study, group: derive.ExperimentGroup) -> tuple[list[StudyTask], list[tuple[str, str]]]:
    tasks_by_name: dict[str, StudyTask] = {}
    seconds: dict[str, float] = {}
    remarks = []
    for entry in group.entries:
        record = entry.record
        if record.source is Source.SIMULATED:
            rate = derive.samples(record, "samples_per_second").median
            if record.outcome is Outcome.OK and math.isfinite(study.samples):
                seconds[study.shown(record.system)] = derive.ratio(study.samples, rate)
            continue
        curves = {score: curve for score in study.scores if (curve := _curve(record, score))}
        failed = record.outcome is not Outcome.OK
        if not (failed or curves):
            continue
        settings = settings_of(record)
        task = tasks_by_name.setdefault(_signature(record), StudyTask(_title(record), settings, _name(record, "model")))
        system = study.shown(record.system)
        if failed:
            task.unfinished.append((system, f"{record.outcome.value}: {headline(record.reason, width=300)}"))
            continue
        units = {score: record.metrics[score].unit for score in curves if score in record.metrics}
        task.trainings.append(SeedRun(system, str(record.config.get("seed", "")), curves, units, entry))
    for task in tasks_by_name.values():
        seeds = Counter((training.system, training.seed) for training in task.trainings)
        twice = {pair for pair, count in seeds.items() if count > 1}
        remarks += [
            (task.title, f"{system} has two runs of seed {seed}; none of them counts") for system, seed in twice
        ]
        task.trainings = [t for t in task.trainings if (t.system, t.seed) not in twice]
        task.seconds = {name: value for name, value in seconds.items() if math.isfinite(value)}
    return [task for task in tasks_by_name.values() if task.trainings], sorted(remarks)


def _curve(record: Record, score: str) -> tuple[float, ...]:
    """A finite value per epoch, or nothing: a turn of a run that validates after each is one."""
    values = record.series.get(score, [])[:_MOST_EPOCHS]
    whole = text_at(record.config, "measure", "validate") == "every_round" and all(map(math.isfinite, values))
    return tuple(values) if whole else ()


def _signature(record: Record) -> str:
    """All that a training consists of but the system and the seed; of a rate only what does not count updates."""
    parts = {name: record.config.get(name) for name in SAME}
    optimizer = dict(parts["optimizer"]) if isinstance(parts["optimizer"], dict) else {}
    optimizer = {key: value for key, value in optimizer.items() if key not in _PIECES}
    if isinstance(optimizer.get("lr"), dict):
        optimizer["lr"] = {key: value for key, value in optimizer["lr"].items() if key not in _OF_RATES}
    plan = {
        name: at(record.config, "measure", name)
        for name in ("rounds", "discard_first", "batches", "eval_batches", "warm_up")
    }
    parts |= {"optimizer": optimizer, "measure": plan, "size": at(record.config, "batch", "size")}
    return json.dumps(parts, sort_keys=True, default=str)


def _name(record: Record, part: str) -> str:
    return text_at(record.config, part, "name") or "unnamed"


def _rule(record: Record) -> str:
    return text_at(record.config, "optimizer", "_target_").rpartition(".")[2]


def _title(record: Record) -> str:
    return f"{_name(record, 'model')} on {_name(record, 'data')} with {_rule(record)}"[: 2 * LONG]


def settings_of(record: Record) -> dict[str, str]:
    """PipeOptim's Table III of one run: the settings in its config, as text."""
    config = record.config
    rate, batches = at(config, "optimizer", "lr"), real(at(config, "measure", "batches"))
    schedule = "constant"
    if isinstance(rate, dict):
        schedule = text_at(rate, "_target_").rpartition(".")[2].lower()
        rate = rate.get("lr")
    epochs = at(config, "measure", "rounds")
    settings = {
        "network": _name(record, "model"),
        "data": _name(record, "data"),
        "optimizer": _rule(record),
        "batch": at(config, "batch", "size"),
        "epochs": epochs,
        "learning rate": rate,
        "schedule": schedule,
        "decay": at(config, "optimizer", "weight_decay"),
        "batches an epoch": batches,
        "stages": at(config, "grid", "inter"),
        "split": config.get("split"),
    }
    return {name: _short(value) for name, value in settings.items()}


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value[:LONG]
    number = real(value)
    return f"{number:g}" if math.isfinite(number) else "–"


@dataclass(frozen=True, slots=True)
class Reached:
    """Epochs until a system's score is at or above `target`, by seed; inf where it never was within `epochs`."""

    target: float
    epochs: tuple[float, ...]
    whole: int

    @property
    def count(self) -> int:
        return sum(map(math.isfinite, self.epochs))

    @property
    def median(self) -> float:
        return statistics.median(self.epochs) if self.epochs else math.nan


def target(study: Study, task: StudyTask) -> float:
    """`like`'s median final score, less what the study says; nan where it has none."""
    final = task.final(study.shown(study.like), task.lead(study.scores))
    return statistics.median(final) - study.less if final else math.nan


def reached(study: Study, task: StudyTask, system: str) -> Reached:
    """When a system reached the target."""
    goal, curves = target(study, task), task.of(system, task.lead(study.scores))
    if math.isnan(goal):
        return Reached(goal, (), 0)
    first = [next((float(n) for n, value in enumerate(curve, 1) if value >= goal), math.inf) for curve in curves]
    return Reached(goal, tuple(first), max(map(len, curves), default=0))


def band(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Least, median and greatest over the seeds, epoch by epoch, as far as all of them go."""
    columns = [sorted(values) for values in zip(*curves, strict=False)]
    return [c[0] for c in columns], [statistics.median(c) for c in columns], [c[-1] for c in columns]
