"""Panel functions of the figures and tables of the SAMO paper."""

from __future__ import annotations

from collections.abc import Mapping

from suite.claims.panel import Panels
from suite.papers.samo import convnets, figures, model_states

FIGURES: Mapping[str, Panels] = {
    "samo_fig2": model_states.fig2_panels,
    "samo_fig5": convnets.fig5_panels,
    "samo_fig6_7": figures.fig6_7_panels,
    "samo_table2": figures.table2_panels,
    "samo_fig8": figures.fig8_panels,
    "samo_memory": figures.memory_panels,
}
