"""Add printed values to records written in blind mode (suite.claims.blind).

The added values are null models and the paper's curves, also for figures measured by ranks. No value of the record
changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from suite.claims import blind
from suite.claims.figure_executor import FigureExecutor
from suite.core.figure import FigurePanel, read_figure_panel
from suite.core.record import Metric, Outcome, Record
from suite.papers.samo.layer_products import Products
from suite.papers.sparse_gnn.figure_executor import GraphFigureExecutor
from suite.runner.executors import registry
from suite.runner.runs import Run
from suite.runner.store import Store


def fill_printed_values(runs: Iterable[Run], store: Store) -> None:
    """Add the printed values to the blind records of these runs."""
    for run in runs:
        record = None if run.refusal else store.find(run.key)
        if record is None or record.outcome is not Outcome.OK or record.provenance.get(blind.MARK) != blind.OPEN:
            continue
        kind = run.config.executor
        executor = registry.rank_stub(kind) if kind.starts_ranks else registry.without_ranks(kind)
        if isinstance(executor, FigureExecutor | GraphFigureExecutor | Products):
            filled = executor.printed()
            panels = [panel for panel in filled.panels if isinstance(panel, FigurePanel)]
            store.write(complete_record(record, dict(filled.metrics), panels))


def complete_record(record: Record, metrics: dict[str, Metric], panels: Sequence[FigurePanel]) -> Record:
    """Copy of the record with printed values.

    Args:
        record: A blind record.
        metrics: Metrics to add. A metric that the record already has takes only its null model from here.
        panels: Panels with the curves of the paper and of the null model, and none of ours.
    """
    own_metrics = {
        name: replace(metric, null=metrics[name].null) if name in metrics else metric
        for name, metric in record.metrics.items()
    }
    return replace(
        record,
        metrics={**metrics, **own_metrics},
        panels=merge_panels(record.panels, panels),
        provenance={**record.provenance, blind.MARK: blind.FILLED},
    )


def merge_panels(recorded: Sequence[Any], printed: Sequence[FigurePanel]) -> list[Any]:
    """Panels of a record with the printed curves and null models of `printed`; none of our values changes."""
    merged: dict[tuple[str, ...], FigurePanel] = {}
    for panel in (*map(read_figure_panel, recorded), *printed):
        before = merged.get(panel.identity)
        merged[panel.identity] = replace(before, paper=panel.paper, null=panel.null) if before else panel
    return [panel.to_record() for panel in merged.values()]
