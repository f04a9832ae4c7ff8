"""Runs without ranks: refused runs, and executors that work in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from suite.core import blind, load
from suite.core.errors import DoesNotFit, Fault, HiddenOutcome, InvalidRequest, MissingDependency, Unsupported
from suite.core.protocols import ExecutorResult
from suite.core.reasons import whole
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.values import Json
from suite.runner import provenance
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def refused_record(run: Run, key: str) -> Record:
    """The record of a run that was refused before any rank started."""
    assert run.refusal is not None
    claim = run.outline.executor.claim  # its row says why it has no answer
    kinds = {
        Unsupported: Outcome.UNSUPPORTED,
        MissingDependency: Outcome.MISSING_DEPENDENCY,
        Fault: Outcome.FAILED,
    }
    outcome = next((outcome for kind, outcome in kinds.items() if isinstance(run.refusal, kind)), Outcome.UNSUPPORTED)
    return unfinished_record(run, key, outcome, str(run.refusal), {claim: Metric("", "", ())} if claim else {})


def unfinished_record(
    run: Run, key: str, outcome: Outcome, reason: str, metrics: Mapping[str, Metric] | None = None
) -> Record:
    """The record of a run of which nothing else is left. metrics: without values, where a claim wants to know why."""
    return Record(
        key=key,
        experiment=run.outline.experiment.name,
        system=run.outline.system.name,
        label=run.label,
        outcome=outcome,
        reason=reason,
        source=Source.ANALYTIC,
        config=run.settings,
        metrics=dict(metrics or {}),
        provenance=run_provenance(run, time.time(), 0.0),
    )


def run_in_process(run: Run, key: str, store: Store) -> Record:
    """The record of a run that needs no ranks, as its executor leaves it; what goes wrong in it is a reason."""
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
    except Exception as error:  # must not end the others
        answer, reason = ExecutorResult(Source.ANALYTIC), whole(error)
    try:
        ended, seconds = outcome if reason else Outcome.OK, (now, time.monotonic() - begin)
        return _left(run, key, store, answer, ended, reason, seconds, load_averages(before))
    except Exception as error:  # an executor of the user's left what no record can hold
        return unfinished_record(run, key, Outcome.FAILED, whole(error))


def _left(
    run: Run,
    key: str,
    store: Store,
    found: ExecutorResult,
    outcome: Outcome,
    reason: str,
    taken: tuple[float, float],
    averages: Mapping[str, Json],
) -> Record:
    """The record of what an executor left.

    Args:
        taken: When it began, and seconds.
        averages: Of the machine's load.
    """
    origin = run_provenance(run, *taken, load=averages)
    if found.calibrated_on:
        origin["calibrated_on"] = list(found.calibrated_on)
    return Record(
        key=key,
        experiment=run.outline.experiment.name,
        system=run.outline.system.name,
        label=run.label,
        outcome=outcome,
        reason=reason,
        source=found.source,
        config=run.settings,
        metrics=dict(found.metrics),
        memory=dict(found.memory),
        series=dict(found.series),
        trace=store.write_trace(key, run.grid, found.trace) if found.trace else None,
        notes=found.notes,
        provenance=origin,
    )


def load_averages(start: Mapping[str, float]) -> dict[str, Json]:
    """The load averages at the start and at the end, which is now, and the cores that carry the load."""
    return {"start": dict(start), "end": load.averages(), "cores": provenance.machine()["cores"]}


def run_provenance(run: Run, started: float, seconds: float, **extra: Any) -> dict[str, Any]:
    return {
        **provenance.circumstances(run.outline),
        "commit": provenance.commit(),
        "command": run.command,
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        **blind.mark(),
        **extra,
    }
