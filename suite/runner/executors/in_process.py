"""Runs without ranks: refused runs, and executors that work in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from suite.core import blind, load
from suite.core.errors import DoesNotFit, Fault, HiddenOutcome, InvalidRequest, MissingDependency, Unsupported
from suite.core.protocols import ExecutorResult
from suite.core.reasons import format_traceback
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.values import Json
from suite.runner import provenance
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def refused_record(run: Run, key: str) -> Record:
    """The record of a run that was refused before any rank started."""
    assert run.refusal is not None
    claim = run.config.executor.more.get("claim")
    kinds = {
        Unsupported: Outcome.UNSUPPORTED,
        MissingDependency: Outcome.MISSING_DEPENDENCY,
        Fault: Outcome.FAILED,
    }
    # the page prints the reason in the row of the claim that a microbenchmark answers
    metrics = {str(claim["id"]): Metric("", "", ())} if isinstance(claim, Mapping) and "id" in claim else {}
    outcome = next((outcome for kind, outcome in kinds.items() if isinstance(run.refusal, kind)), Outcome.UNSUPPORTED)
    return unfinished_record(run, key, outcome, str(run.refusal), metrics)


def unfinished_record(
    run: Run, key: str, outcome: Outcome, reason: str, metrics: Mapping[str, Metric] | None = None
) -> Record:
    """The record of a run that ended without writing one.

    `metrics` has the ids of claims as names, without values, so that the page shows the reason next to the claims.
    """
    return Record(
        key=key,
        experiment=run.config.experiment.name,
        system=run.config.system.name,
        label=run.label,
        outcome=outcome,
        reason=reason,
        source=Source.ANALYTIC,
        config=run.settings,
        metrics=dict(metrics or {}),
        provenance=run_provenance(run, time.time(), 0.0),
    )


def run_in_process(run: Run, key: str, store: Store) -> Record:
    """Execute a run without ranks in this process; its record. An error becomes the reason of the record."""
    begin, now, before = time.monotonic(), time.time(), load.averages()
    reason, outcome = "", Outcome.FAILED
    try:
        answer = registry.without_ranks(run.config.executor).run(run.config)
    except DoesNotFit as error:
        memory = {"predicted": error.memory} if error.memory else {}
        answer, reason, outcome = ExecutorResult(Source.SIMULATED, memory=memory), str(error), Outcome.OOM
    except (InvalidRequest, MissingDependency, HiddenOutcome) as error:
        missing = isinstance(error, MissingDependency)
        outcome = Outcome.MISSING_DEPENDENCY if missing else Outcome.UNSUPPORTED
        answer, reason = ExecutorResult(Source.ANALYTIC), str(error)
    except Exception as error:  # other runs continue
        answer, reason = ExecutorResult(Source.ANALYTIC), format_traceback(error)
    try:
        outcome, timing = outcome if reason else Outcome.OK, (now, time.monotonic() - begin)
        return _result_record(run, key, store, answer, outcome, reason, timing, load_averages(before))
    except Exception as error:  # a user's executor returned values that a record cannot hold
        return unfinished_record(run, key, Outcome.FAILED, format_traceback(error))


def _result_record(
    run: Run,
    key: str,
    store: Store,
    result: ExecutorResult,
    outcome: Outcome,
    reason: str,
    timing: tuple[float, float],
    averages: Mapping[str, Json],
) -> Record:
    """The record of an executor's result.

    Args:
        run: The run.
        key: Key of its record.
        store: Store for the trace.
        result: Result of the executor.
        outcome: Outcome of the run.
        reason: Reason of an outcome other than `ok`.
        timing: Begin (seconds since 1970) and duration (seconds).
        averages: Load averages of the machine.
    """
    origin = run_provenance(run, *timing, load=averages)
    if result.calibrated_on:
        origin["calibrated_on"] = list(result.calibrated_on)
    return Record(
        key=key,
        experiment=run.config.experiment.name,
        system=run.config.system.name,
        label=run.label,
        outcome=outcome,
        reason=reason,
        source=result.source,
        config=run.settings,
        metrics=dict(result.metrics),
        memory=dict(result.memory),
        series=dict(result.series),
        panels=[panel.to_record() for panel in result.panels],
        trace=store.write_trace(key, run.grid, result.trace) if result.trace else None,
        notes=result.notes,
        provenance=origin,
    )


def load_averages(start: Mapping[str, float]) -> dict[str, Json]:
    """Load averages at the start of a run and now, and the number of cores."""
    return {"start": dict(start), "end": load.averages(), "cores": provenance.machine()["cores"]}


def run_provenance(run: Run, started: float, seconds: float, **extra: Any) -> dict[str, Any]:
    """Provenance of a run that began at `started` (seconds since 1970), with the facts in `extra`."""
    return {
        **provenance.circumstances(run.config),
        "commit": provenance.commit(),
        "command": run.command,
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        **blind.mark(),
        **extra,
    }
