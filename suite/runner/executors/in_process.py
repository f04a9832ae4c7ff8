"""Runs without ranks: refused runs, and executors that work in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from suite.core import blind, load
from suite.core.errors import DoesNotFit, Fault, HiddenOutcome, InvalidRequest, MissingDependency
from suite.core.protocols import ExecutorResult
from suite.core.reasons import format_traceback
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.values import Json
from suite.runner import provenance
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def ending_of(error: Exception) -> tuple[Outcome, str]:
    """Outcome and reason of a run that an error kept from running, or ended."""
    if isinstance(error, MissingDependency):
        return Outcome.MISSING_DEPENDENCY, str(error)
    if isinstance(error, InvalidRequest | HiddenOutcome):
        return Outcome.OOM if isinstance(error, DoesNotFit) else Outcome.UNSUPPORTED, str(error)
    return Outcome.FAILED, format_traceback(error)


def refused_record(run: Run, key: str) -> Record:
    """The record of a run that was refused before any rank started."""
    assert run.refusal is not None
    claim = run.config.executor.more.get("claim")
    # the page prints the reason in the row of the claim that a microbenchmark answers
    metrics = {str(claim["id"]): Metric("", "", ())} if isinstance(claim, Mapping) and "id" in claim else {}
    kinds = {MissingDependency: Outcome.MISSING_DEPENDENCY, Fault: Outcome.FAILED}
    outcome = next((outcome for kind, outcome in kinds.items() if isinstance(run.refusal, kind)), Outcome.UNSUPPORTED)
    return record_of(run, key, (outcome, str(run.refusal)), ExecutorResult(Source.ANALYTIC, metrics=metrics))


def unfinished_record(run: Run, key: str, outcome: Outcome, reason: str) -> Record:
    """The record of a run that ended without writing one."""
    return record_of(run, key, (outcome, reason), ExecutorResult(Source.ANALYTIC))


def run_in_process(run: Run, key: str, store: Store) -> Record:
    """Execute a run without ranks in this process; its record. An error becomes the reason of the record."""
    begin, now, before = time.monotonic(), time.time(), load.averages()
    result, ending = ExecutorResult(Source.ANALYTIC), (Outcome.OK, "")
    try:
        result = registry.without_ranks(run.config.executor).run(run.config)
    except Exception as error:  # other runs continue
        ending = ending_of(error)
        if isinstance(error, DoesNotFit):
            result = ExecutorResult(Source.SIMULATED, memory={"predicted": error.memory} if error.memory else {})
    facts: dict[str, Json] = {"load": load_averages(before)}
    try:
        if result.calibrated_on:
            facts["calibrated_on"] = list(result.calibrated_on)
        trace = store.write_trace(key, run.grid, result.trace) if result.trace else None
        return record_of(run, key, ending, result, (now, time.monotonic() - begin), trace, **facts)
    except Exception as error:  # a user's executor returned values that a record cannot hold
        return unfinished_record(run, key, Outcome.FAILED, format_traceback(error))


def record_of(
    run: Run,
    key: str,
    ending: tuple[Outcome, str],
    result: ExecutorResult,
    timing: tuple[float, float] | None = None,
    trace: str | None = None,
    **facts: Any,
) -> Record:
    """The record of a run.

    Args:
        run: The run.
        key: Key of its record.
        ending: Outcome and reason.
        result: Content of the record, without its trace.
        timing: Begin (seconds since 1970) and duration (seconds); None for a run that did not begin.
        trace: Path of the trace.
        facts: Facts for the provenance.
    """
    started, seconds = timing or (time.time(), 0.0)
    return Record(
        key=key,
        experiment=run.config.experiment.name,
        system=run.config.system.name,
        label=run.label,
        outcome=ending[0],
        reason=ending[1],
        source=result.source,
        config=run.settings,
        metrics=dict(result.metrics),
        memory=dict(result.memory),
        series=dict(result.series),
        panels=[panel.to_record() for panel in result.panels],
        trace=trace,
        notes=result.notes,
        provenance={
            **provenance.circumstances(run.config),
            "commit": provenance.commit(),
            "command": run.command,
            "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            **blind.mark(),
            **facts,
        },
    )


def load_averages(start: Mapping[str, float]) -> dict[str, Json]:
    """Load averages at the start of a run and now, and the number of cores."""
    return {"start": dict(start), "end": load.averages(), "cores": provenance.machine()["cores"]}
