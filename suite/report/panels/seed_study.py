"""Accuracy study: runs that differ only by seed, and their scores per epoch.

Runs belong to one task if everything that training depends on is equal, except the system and the seed. They may belong
to different experiments. Best and final scores are separate, because PipeOptim's Table IV prints only the best ones.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.config.experiment import StudySpec
from suite.core.reasons import headline
from suite.core.record import Outcome, Record, Source
from suite.core.values import MAX_CHARACTERS
from suite.report import derive
from suite.report.load import StoredRecord, at, real, text_at

TASK_GROUPS = (
    "model",
    "data",
    "optimizer",
    "split",
    "precision",
    "pruning",
)  # configuration groups that identify a task
_NOT_UPDATE_RULE = (
    "bucket_numel",
    "buckets_per_reduction",
    "clip_norm",
)  # keys of `optimizer` that no update rule takes
_COUNTED_IN_UPDATES = ("milestones", "total", "warmup")  # keys of a schedule; systems make different numbers of updates
_MAX_EPOCHS = 1000


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One run from one seed.

    Attributes:
        system: Label of the system.
        seed: The seed.
        curves: A value per epoch by score.
        units: Unit by score.
        entry: The record.
    """

    system: str
    seed: str
    curves: Mapping[str, tuple[float, ...]]
    units: Mapping[str, str]
    entry: StoredRecord


@dataclass(slots=True)
class StudyTask:
    """One training task under several systems.

    Attributes:
        title: Model, data set and optimizer.
        settings: Settings of the training as text.
        model: Name of the model.
        trainings: The runs that ended well.
        unfinished: (system, reason) of the others.
        epoch_seconds: Simulated seconds per epoch by system.
    """

    title: str
    settings: Mapping[str, str]
    model: str
    trainings: list[SeedRun] = field(default_factory=list)
    unfinished: list[tuple[str, str]] = field(default_factory=list)
    epoch_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(training.system for training in self.trainings))

    def curves(self, system: str, score: str) -> list[tuple[float, ...]]:
        """The curves of a system, one per seed."""
        return [t.curves[score] for t in self.trainings if t.system == system and t.curves.get(score)]

    def final(self, system: str, score: str) -> list[float]:
        """The score after the last epoch, by seed."""
        return [curve[-1] for curve in self.curves(system, score)]

    def best(self, system: str, score: str) -> list[float]:
        """The largest score of any epoch, by seed."""
        return [max(curve) for curve in self.curves(system, score)]

    def lead_score(self, scores: Sequence[str]) -> str:
        """The first of the scores that the task has: a translation has no accuracy."""
        return next((name for name in scores if any(t.curves.get(name) for t in self.trainings)), scores[0])

    def unit(self, score: str) -> str:
        return next((t.units[score] for t in self.trainings if score in t.units), "")


def tasks(study: StudySpec, groups: Iterable[derive.ExperimentGroup]) -> tuple[list[StudyTask], list[tuple[str, str]]]:
    """The training tasks of several experiments, and (title, remark) on runs that do not count."""
    all_tasks: list[StudyTask] = []
    remarks: list[tuple[str, str]] = []
    for group in groups:
        group_tasks, faults = _tasks(study, group)
        all_tasks += group_tasks
        remarks += faults
    totals, seen = Counter(task.title for task in all_tasks), Counter[str]()
    for task in all_tasks:
        seen[title := task.title] += 1
        if totals[title] > 1:
            task.title += f" ({seen[title]} of {totals[title]})"
    return all_tasks, remarks


def _tasks(study: StudySpec, group: derive.ExperimentGroup) -> tuple[list[StudyTask], list[tuple[str, str]]]:
    tasks_by_signature: dict[str, StudyTask] = {}
    seconds: dict[str, float] = {}
    remarks = []
    for entry in group.entries:
        record = entry.record
        system = study.label(record.system)
        if record.source is Source.SIMULATED:
            rate = derive.samples(record, "samples_per_second").median
            if record.outcome is Outcome.OK and math.isfinite(study.samples):
                seconds[system] = derive.ratio(study.samples, rate)
            continue
        curves = {score: curve for score in study.scores if (curve := _curve(record, score))}
        failed = record.outcome is not Outcome.OK
        if not (failed or curves):
            continue
        new_task = StudyTask(_title(record), settings_of(record), _name(record, "model"))
        task = tasks_by_signature.setdefault(_signature(record), new_task)
        if failed:
            task.unfinished.append((system, f"{record.outcome.value}: {headline(record.reason, width=300)}"))
            continue
        units = {score: record.metrics[score].unit for score in curves if score in record.metrics}
        task.trainings.append(SeedRun(system, str(record.config.get("seed", "")), curves, units, entry))
    for task in tasks_by_signature.values():
        counts = Counter((training.system, training.seed) for training in task.trainings)
        repeated = {pair for pair, count in counts.items() if count > 1}
        remarks += [
            (task.title, f"{system} has two runs of seed {seed}; none of them counts") for system, seed in repeated
        ]
        task.trainings = [t for t in task.trainings if (t.system, t.seed) not in repeated]
        task.epoch_seconds = {name: value for name, value in seconds.items() if math.isfinite(value)}
    return [task for task in tasks_by_signature.values() if task.trainings], sorted(remarks)


def _curve(record: Record, score: str) -> tuple[float, ...]:
    """The score of each epoch; empty unless every round ends with a validation and every value is finite."""
    values = record.series.get(score, [])[:_MAX_EPOCHS]
    complete = text_at(record.config, "measure", "validate") == "every_round" and all(map(math.isfinite, values))
    return tuple(values) if complete else ()


def _signature(record: Record) -> str:
    """Everything that training depends on except the system, the seed and counts of updates."""
    parts = {name: record.config.get(name) for name in TASK_GROUPS}
    optimizer = dict(parts["optimizer"]) if isinstance(parts["optimizer"], dict) else {}
    optimizer = {key: value for key, value in optimizer.items() if key not in _NOT_UPDATE_RULE}
    if isinstance(optimizer.get("lr"), dict):
        optimizer["lr"] = {key: value for key, value in optimizer["lr"].items() if key not in _COUNTED_IN_UPDATES}
    measure = {
        name: at(record.config, "measure", name)
        for name in ("rounds", "discard_first", "batches", "eval_batches", "warm_up")
    }
    parts |= {"optimizer": optimizer, "measure": measure, "size": at(record.config, "batch", "size")}
    return json.dumps(parts, sort_keys=True, default=str)


def _name(record: Record, group: str) -> str:
    return text_at(record.config, group, "name") or "unnamed"


def _optimizer(record: Record) -> str:
    return text_at(record.config, "optimizer", "_target_").rpartition(".")[2]


def _title(record: Record) -> str:
    return f"{_name(record, 'model')} on {_name(record, 'data')} with {_optimizer(record)}"[:MAX_CHARACTERS]


def settings_of(record: Record) -> dict[str, str]:
    """The settings of PipeOptim's Table III in a run's configuration, as text."""
    config = record.config
    rate, schedule = at(config, "optimizer", "lr"), "constant"
    if isinstance(rate, dict):
        schedule = text_at(rate, "_target_").rpartition(".")[2].lower()
        rate = rate.get("lr")
    settings = {
        "network": _name(record, "model"),
        "data": _name(record, "data"),
        "optimizer": _optimizer(record),
        "batch": at(config, "batch", "size"),
        "epochs": at(config, "measure", "rounds"),
        "learning rate": rate,
        "schedule": schedule,
        "decay": at(config, "optimizer", "weight_decay"),
        "batches an epoch": at(config, "measure", "batches"),
        "stages": at(config, "grid", "inter"),
        "split": config.get("split"),
    }
    return {name: _format_setting(value) for name, value in settings.items()}


def _format_setting(value: Any) -> str:
    if isinstance(value, str):
        return value[:MAX_CHARACTERS]
    number = real(value)
    return f"{number:g}" if math.isfinite(number) else "–"


@dataclass(frozen=True, slots=True)
class EpochsToTarget:
    """Epochs until the score of a system reaches a target.

    Attributes:
        target: The score to reach.
        epochs: First epoch at or above the target by seed; inf where no epoch is.
        trained: Number of epochs that were trained.
    """

    target: float
    epochs: tuple[float, ...]
    trained: int

    @property
    def reached_count(self) -> int:
        return sum(map(math.isfinite, self.epochs))

    @property
    def median(self) -> float:
        return statistics.median(self.epochs) if self.epochs else math.nan


def epochs_to_target(study: StudySpec, task: StudyTask, system: str) -> EpochsToTarget:
    """Epochs until a system reaches the median final score of `study.like` less `study.target`."""
    score = task.lead_score(study.scores)
    final = task.final(study.label(study.like), score)
    if not final or math.isnan(study.target):
        return EpochsToTarget(math.nan, (), 0)
    target, curves = statistics.median(final) - study.target, task.curves(system, score)
    epochs = [next((float(n) for n, value in enumerate(curve, 1) if value >= target), math.inf) for curve in curves]
    return EpochsToTarget(target, tuple(epochs), max(map(len, curves), default=0))


def seed_band(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Minimum, median and maximum over the seeds for each epoch that all curves have."""
    columns = list(zip(*curves, strict=False))
    return [min(c) for c in columns], [statistics.median(c) for c in columns], [max(c) for c in columns]
