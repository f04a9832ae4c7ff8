"""Add printed values to records written in blind mode (suite.core.blind).

The added values are answers from printed numbers, null models and the paper's curves, also for figures measured by
ranks. No value of the record changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from suite.core import blind
from suite.core.record import Metric, Outcome, Record
from suite.papers.common.figure_executor import FigureExecutor
from suite.papers.common.formula_executor import FormulaExecutor
from suite.papers.samo.layer_products import Products
from suite.papers.sparse_gnn.figure_executor import GraphFigureExecutor
from suite.runner import provenance
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def fill_printed_values(runs: Iterable[Run], store: Store) -> None:
    """Add the printed values to the blind records of these runs."""
    for run in runs:
        record = None if run.refusal else store.find(provenance.key(run))
        if record is None or record.outcome is not Outcome.OK or record.provenance.get(blind.MARK) != blind.OPEN:
            continue
        kind = run.config.executor
        executor = registry.stand_in(kind) if kind.starts_ranks else registry.without_ranks(kind)
        if isinstance(executor, FormulaExecutor | FigureExecutor | GraphFigureExecutor | Products):
            filled = executor.printed()
            store.write(complete_record(record, dict(filled.metrics), dict(filled.series)))


def complete_record(record: Record, metrics: dict[str, Metric], series: dict[str, list[float]]) -> Record:
    """Copy of the record with printed values.

    Args:
        record: A blind record.
        metrics: Metrics to add. A metric that the record already has takes only its null model from here.
        series: Curves of the paper and of the null model.
    """
    own_metrics = {
        name: replace(metric, null=metrics[name].null) if name in metrics else metric
        for name, metric in record.metrics.items()
    }
    return replace(
        record,
        metrics={**metrics, **own_metrics},
        series={**record.series, **series},
        provenance={**record.provenance, blind.MARK: blind.FILLED},
    )
