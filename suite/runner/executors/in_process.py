"""Runs without ranks: refused runs, and executors that work in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from suite.claims import blind
from suite.core import load
from suite.core.errors import DoesNotFit
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.values import Json
from suite.runner import provenance
from suite.runner.ending import ending_of
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def run_in_process(run: Run, store: Store) -> Record:
    """Execute a run without ranks in this process; its record. An error becomes the reason of the record."""
    begin, now, before = time.monotonic(), time.time(), load.averages()

    def record(ending: tuple[Outcome, str], result: ExecutorResult | None, **more: Any) -> Record:
        timing = now, time.monotonic() - begin
        return record_of(run, ending, result, timing, load=load_averages(before), **more)

    try:
        result = registry.without_ranks(run.config.executor).run(run.config)
        trace = store.write_trace(run.key, run.grid, result.trace) if result.trace else None
        calibrated = {"calibrated_on": list(result.calibrated_on)} if result.calibrated_on else {}
        return record((Outcome.OK, ""), result, trace=trace, **calibrated)
    except Exception as error:  # other runs continue; a user's executor may return what a record cannot hold
        result = None
        if isinstance(error, DoesNotFit):
            result = ExecutorResult(Source.SIMULATED, memory={"predicted": error.memory} if error.memory else {})
        return record(ending_of(error), result)


def record_of(
    run: Run,
    ending: tuple[Outcome, str],
    result: ExecutorResult | None = None,
    timing: tuple[float, float] | None = None,
    trace: str | None = None,
    **facts: Any,
) -> Record:
    """The record of a run.

    Args:
        run: The run.
        ending: Outcome and reason.
        result: Content of the record, without its trace; None for a run that ended without one.
        timing: Begin (seconds since 1970) and duration (seconds); None for a run that did not begin.
        trace: Path of the trace.
        facts: Facts for the provenance.
    """
    started, seconds = timing or (time.time(), 0.0)
    result = result or ExecutorResult(Source.ANALYTIC, metrics=_unanswered(run))
    return Record(
        key=run.key,
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
            **run.circumstances,
            "commit": provenance.commit(),
            "command": run.command,
            "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            **blind.mark(),
            **facts,
        },
    )


def _unanswered(run: Run) -> dict[str, Metric]:
    """No value for the claim that a microbenchmark answers: the page prints the reason in the claim's row."""
    claim = run.config.executor.more.get("claim")
    return {str(claim["id"]): Metric("", "", ())} if isinstance(claim, Mapping) and "id" in claim else {}


def load_averages(start: Mapping[str, float]) -> dict[str, Json]:
    """Load averages at the start of a run and now, and the number of cores."""
    return {"start": dict(start), "end": load.averages(), "cores": provenance.machine()["cores"]}
