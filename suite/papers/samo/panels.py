"""Panel functions of the figures and tables of the SAMO paper."""

from __future__ import annotations

from collections.abc import Mapping

from suite.claims.panel import Panels
from suite.papers.samo import ablations, convnets, counts, figures, larger_clusters, model_states

FIGURES: Mapping[str, Panels] = {
    "samo_fig2": model_states.fig2_panels,
    "samo_fig5": convnets.fig5_panels,
    "samo_fig6_7": figures.fig6_7_panels,
    "samo_table2": figures.table2_panels,
    "samo_fig8": figures.fig8_panels,
    "samo_memory": figures.memory_panels,
    "samo_small": counts.small_panels,
    "samo_beside_offload": model_states.beside_offload_panels,
    "samo_scaling": larger_clusters.scaling_panels,
    "samo_variants": ablations.variants_panels,
}
