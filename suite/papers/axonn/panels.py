"""Panel functions of the figures and tables of the AxoNN paper."""

from __future__ import annotations

from collections.abc import Mapping

from suite.claims.panel import Panels
from suite.papers.axonn import figures, scaling

FIGURES: Mapping[str, Panels] = {
    "axonn_fig5": figures.fig5_panels,
    "axonn_fig6": figures.fig6_panels,
    "axonn_memory": figures.memory_panels,
    "axonn_fig8": figures.fig8_panels,
    "axonn_fig9": scaling.fig9_panels,
    "axonn_table2": scaling.table2_panels,
    "axonn_fig11": scaling.fig11_panels,
}
