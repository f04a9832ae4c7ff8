"""Answer of a view: the content that the page draws and that the command prints."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

from suite.core.values import Json
from suite.simulate.schedule_run import TimeSteps


@dataclass(frozen=True, slots=True)
class CellLink:
    """Cell of a table that links to a page of the report."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Table.

    Attributes:
        bars: Number of the column whose values are drawn as bars too; None for none.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | bool | CellLink | None]]
    note: str = ""
    bars: int | None = None


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class AnswerChart:
    """Chart of lines, with the names of its axes."""

    title: str
    x: str
    y: str
    series: Sequence[ChartSeries]


@dataclass(frozen=True, slots=True)
class Fact:
    """Quantity in words with its unit, and as a number."""

    name: str
    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class OpTimeline:
    """Ops of a schedule as columns of numbers.

    Attributes:
        kinds: Letters of the kinds, which the column `kind` counts.
        rows: Names of the ranks.
        columns: row, stage, kind, index, chunk, start and end of each op; and `critical`, the ops of the critical path.
        memory, versions: Activations of each rank, and weight versions of each stage, over time.
        explain: Sentences about an op by its number; not part of the JSON.
    """

    name: str
    makespan: float
    kinds: str
    rows: Sequence[str]
    columns: Mapping[str, array[float]]
    memory: Sequence[TimeSteps]
    versions: Sequence[TimeSteps]
    explain: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Part of an answer. It replaces an earlier part with the same `slot`."""

    slot: str = ""
    title: str = ""
    words: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    charts: Sequence[AnswerChart] = ()
    tables: Sequence[AnswerTable] = ()
    timelines: Sequence[OpTimeline] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class PageReply:
    """What the page is sent for the words of a question.

    Attributes:
        form: Fields with their values.
        answer, state: The answer, and the shortest words that make it; none for an error.
        error, key: Message of an error, and the key at fault; empty without one.
    """

    form: Mapping[str, Json]
    answer: AnswerPart | None = None
    state: Sequence[str] = ()
    error: str = ""
    key: str = ""


def as_json(data: object, put: Callable[[array[float]], object] = list) -> str:
    """JSON of an answer, with `put` of each array of numbers in its place. Raises ValueError for an infinite number."""

    def plain(value: object) -> object:
        if isinstance(value, array):
            return put(value)
        if is_dataclass(value):
            return {each.name: getattr(value, each.name) for each in fields(value) if each.name != "explain"}
        raise TypeError(f"{value!r} is no plain data")

    return json.dumps(data, default=plain, allow_nan=False)
