"""Sensitivity of simulated verdicts: which of them turn when a constant or a choice takes another plausible value.

One at a time, each constant of an efficiency is set to the ends of its range (or to every legal integer), and each
choice that no paper prints (a plan, a partition, the seed of a stand-in) to its other values. Every simulated or
emulated claim that reads it is answered and judged again. The ranges stand in conf/stack and in `ranges` of each
plans.yaml, settled before the runs and committed with them.

    suite claims sensitivity [PAPER ...]
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from suite.core.claim import MODELLED, AnswerRow, Claim, Scalar, Sensitivity, Turn, Verdict
from suite.core.errors import InvalidRequest
from suite.core.record import Metric
from suite.papers.common import claims, plans, trace
from suite.papers.common.answer import metrics_of
from suite.papers.common.verdicts_now import judge_metrics, source_of
from suite.simulate.cost.efficiency import Stack

Pairs = Sequence[tuple[Claim, AnswerRow]]
_HEAD = """# How simulated verdicts depend on constants and choices; made by `suite claims sensitivity`.
# values: our smallest and largest over all ranges; varied: other values that were tried; turns: those of them that lead
# to another verdict than `verdict`
"""


@dataclass(frozen=True, slots=True)
class Variation:
    """A constant or a choice, by the name under which answers read it, at another value."""

    name: str
    value: Scalar


def constant_variations(stack: Stack) -> Iterator[Variation]:
    """Every constant with a range at its other values. Raises InvalidRequest for a constant that was fitted or
    chosen without a range.
    """
    for constant in dict.fromkeys((*stack.fitted, *stack.chosen, *stack.ranges)):
        if constant not in stack.ranges:
            raise InvalidRequest(f"stack {stack.name} has no range of {constant}", rule="a range for what was fitted")
        for value in stack.ranges[constant]:
            if value != getattr(stack, constant):
                yield Variation(f"stack.{stack.name}.{constant}", value)


def choice_variations(paper: str) -> Iterator[Variation]:
    """Every choice that the paper leaves open at its other values."""
    for name, values in plans.open_choices(paper).items():
        yield from (Variation(name, value) for value in values)


def modelled_answers(paper: str) -> list[tuple[Claim, AnswerRow]]:
    """The simulated and emulated answers of a paper's claims."""
    every = (claim for claim in claims.load() if claim.paper == paper)
    return [(claim, row) for claim in every for row in claim.answers if row.evidence in MODELLED and row.function]


def sensitivities(paper: str) -> list[Sensitivity]:
    """Of every simulated or emulated claim of a paper, in the order of the claims."""
    return sensitivities_of(paper, modelled_answers(paper))


def sensitivities_of(paper: str, pairs: Pairs) -> list[Sensitivity]:
    """Of these claims of a paper. Figures that share their runs are varied together."""
    sources: dict[int, tuple[Any, list[tuple[Claim, AnswerRow]]]] = {}
    for claim, row in pairs:
        source = source_of(paper, row.figure)
        sources.setdefault(id(source), (source, []))[1].append((claim, row))
    by_claim = {one.claim: one for source, entries in sources.values() for one in _of_source(paper, source, entries)}
    return [by_claim[claim.id] for claim, _ in pairs]


def _of_source(paper: str, source: Any, pairs: Pairs) -> list[Sensitivity]:
    usual = metrics_of(pairs, source)
    verdicts = _verdicts(usual)
    values = {name: [*metric.values] for name, metric in usual.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in usual}
    varied = dict.fromkeys(usual, 0)
    stacks = sorted({name.split(".")[1] for metric in usual.values() for name in metric.reads if name[:6] == "stack."})
    for variation in (
        *(each for name in stacks for each in constant_variations(source.stacks[name])),
        *choice_variations(paper),
    ):
        reading = [(claim, row) for claim, row in pairs if trace.is_covered(variation.name, usual[claim.id].reads)]
        if not reading:
            continue
        changed = _answered(reading, source.varied(variation.name, variation.value))
        changed_verdicts = _verdicts(changed)
        for claim, _ in reading:
            varied[claim.id] += 1
            values[claim.id] += changed[claim.id].values if claim.id in changed else ()
            verdict = changed_verdicts.get(claim.id, Verdict.NOT_RUN.value)
            if verdict != verdicts[claim.id]:
                turns[claim.id].append(Turn(variation.name, variation.value, verdict))
    return [Sensitivity(name, verdicts[name], _ends(values[name]), tuple(turns[name]), varied[name]) for name in usual]


def _answered(pairs: Pairs, source: Any) -> dict[str, Metric]:
    """Our values by claim; nothing for a claim that has no answer there, as a plan that does not fit has none."""
    metrics: dict[str, Metric] = {}
    for pair in pairs:
        try:
            metrics |= metrics_of([pair], source)
        except InvalidRequest:
            continue
    return metrics


def _verdicts(metrics: dict[str, Metric]) -> dict[str, str]:
    return {name: one.verdict.value for name, one in judge_metrics(metrics).items()}


def _ends(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return min(finite), max(finite)


def rewrite_all(
    papers: Sequence[str], folder: Path = claims.FOLDER, jobs: int | None = None
) -> Iterator[tuple[Path, list[Sensitivity]]]:
    """Vary the claims of each paper and write its file as soon as it is known, so that no other paper can lose it.

    jobs: processes, one paper each; by default one per core"""
    with ProcessPoolExecutor(min(len(papers), jobs or os.cpu_count() or 1)) as pool:
        yield from pool.map(partial(_remade, folder=folder), papers)


def _remade(paper: str, folder: Path) -> tuple[Path, list[Sensitivity]]:
    by_claim = sensitivities(paper)
    return write_sensitivities(paper, by_claim, folder), by_claim


def write_sensitivities(paper: str, found: Sequence[Sensitivity], folder: Path = claims.FOLDER) -> Path:
    """Write the file of a paper."""
    rows = [
        {
            "id": one.claim,
            "verdict": one.verdict,
            "values": [float(f"{value:.6g}") for value in one.values],
            "varied": one.varied,
            "turns": [asdict(turn) for turn in one.turns],
        }
        for one in found
    ]
    path = folder / paper / claims.SENSITIVITY
    path.write_text(_HEAD + yaml.safe_dump(rows, sort_keys=False, width=118), encoding="utf-8")
    return path
