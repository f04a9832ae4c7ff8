"""Panel functions of the sparsity-aware GNN paper by figure."""

from __future__ import annotations

from collections.abc import Mapping

from suite.claims.panel import Panels
from suite.papers.sparse_gnn import counts, figures, grids

FIGURES: Mapping[str, Panels] = {
    "gnn_fig3": figures.fig3_panels,
    "gnn_fig4": figures.fig4_panels,
    "gnn_fig5": figures.fig5_panels,
    "gnn_fig6": figures.fig6_panels,
    "gnn_fig7": grids.fig7_panels,
    "gnn_table2": counts.table2_panels,
}
