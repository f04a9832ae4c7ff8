"""Fill what a paper prints into records that were made in blind mode (suite.core.blind).

Answers that compare printed numbers, values of null models, and the paper's curves are added after the records are
written, also for figures with values measured by ranks. No value that a record already holds is changed."""

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
    """Add the printed values to the records of these runs that were made in blind mode."""
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
    """The record with these metrics where it has none of the name, with the null model's values of those that it has,
    and with these curves, which are none of ours."""
    answered_metrics = {
        name: replace(each, null=metrics[name].null) if name in metrics else each
        for name, each in record.metrics.items()
    }
    return replace(
        record,
        metrics={**metrics, **answered_metrics},
        series={**record.series, **series},
        provenance={**record.provenance, blind.MARK: blind.FILLED},
    )
