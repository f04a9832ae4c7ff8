"""Counts of PipeOptim's versions and passes: ledgers, and the checker's orders.

The ledger that the engine obeys (suite.weights.Ledger) follows the checker's order at unit cost, with the configured
schedule, policy and update interval of each system. measured_ranks counts on real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from suite.claims.answer import Cases, Question, distinct_cases
from suite.claims.claim import Evidence
from suite.claims.cluster_runs import Lab
from suite.claims.panel import NONE, Claims, Panel, figure
from suite.core.expression import evaluate
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.schedule.check import check
from suite.weights import Ledger
from suite.weights.version_table import PASSES, entries, run_ledgers

DEPTH = 4  # stages of every published run


def table(system: str, stages: int = DEPTH) -> list[Ledger]:
    """Ledgers of a configured system, by stage, after an epoch in which the full pipeline sees an update per stage."""
    configured = systems.configured(system, stages)
    interval = FlushInterval(0, (2 * stages + 4) * (configured.every or 1), configured.every, 0)
    timeline = check(configured.schedule, stages, interval)
    return run_ledgers(configured.policy, [timeline.order(stage) for stage in range(stages)], interval)


def pairs(ledger: Ledger) -> list[tuple[Read, Read]]:
    """Versions read by the forward and the backward pass of each steady mini-batch.

    A backward pass that keeps its graph reads the version of its forward pass.
    """
    forwards, backwards = ({entry.op.index: entry.read for entry in entries(ledger, kind)} for kind in PASSES)
    return [(read, backwards.get(index, read)) for index, read in forwards.items()]


def by_definition(stages: int, stage: int, microbatches: int) -> list[tuple[Kind, int]]:
    """1F1B by definition: one warm-up forward per following stage, then forward and backward passes alternate."""
    warm_up = min(stages - 1 - stage, microbatches)
    passes = [(Kind.FORWARD, index) for index in range(warm_up)]
    for index in range(microbatches):
        passes += [(Kind.FORWARD, index + warm_up)] if index + warm_up < microbatches else []
        passes.append((Kind.BACKWARD, index))
    return passes


def _printed(claims: Claims, system: str, stage: int) -> float:
    """Copies of a stage's weights by the formula of Table II; nan in blind mode."""
    formula = claims[f"pipeoptim.table2.{system}.weights_memory"].expression
    return evaluate(formula, {"D": DEPTH, "rank": stage, "M": 1}) if formula else NONE


@figure("pipeoptim_small", "Table II")
def table2(lab: Lab, claims: Claims) -> Iterator[Panel]:
    tables = {system: table(system) for system in ASYNCHRONOUS}
    stages = [f"stage {stage}" for stage in range(DEPTH)]
    yield Panel(
        "copies of a stage's weights",
        "version",
        stages,
        {system: [float(ledger.peak) for ledger in ledgers] for system, ledgers in tables.items()},
        {system: [_printed(claims, system, stage) for stage in range(DEPTH)] for system in ASYNCHRONOUS},
        axis="stage",
        quantity="weight versions",
        evidence=Evidence.DERIVED,
    )


# -- orders ----------------------------------------------------------------------------------------------------------


def bubble(question: Question, source: Any) -> tuple[Cases, str]:
    stages, epoch = int(question.setting["pipeline_stages"]), int(question.setting["mini_batches"])
    configured = systems.configured("pipedream", stages)
    slots = check(configured.schedule, stages, FlushInterval(0, epoch, configured.every, 0)).slots
    warm = [s.end for s in slots if s.op.kind is Kind.FORWARD and s.op.index < stages - 1 - s.op.stage]
    last = [s.end for s in slots if s.op == Op(0, Kind.FORWARD, epoch - 1)]
    start, end = max(warm), last[0]
    busy = sum(max(0.0, min(s.end, end) - max(s.start, start)) for s in slots)
    note = f"an epoch of {epoch} mini-batches; all idle time is the wait for the first backward passes"
    return [[100 * (1 - busy / (stages * (end - start)))]], note


# -- versions --------------------------------------------------------------------------------------------------------


def aimed(question: Question, source: Any) -> Cases:
    """Versions of steady mini-batches on every stage, from ledgers; while the pipeline fills, s is too large."""
    version_pairs = [pair for ledger in table("pipeoptim") for pair in pairs(ledger)]
    cases = [
        [first.version + first.predict_steps, second.version + second.predict_steps] for first, second in version_pairs
    ]
    return distinct_cases(cases)
