"""Panel functions of the PipeOptim paper by figure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from suite.claims.panel import Panels
from suite.papers.pipeoptim import counts, figures, memory_account

FIGURES: Mapping[str, Panels] = {
    "pipeoptim_fig5": partial(figures.throughput_panels, name="fig5", rate_of=figures.fixed_batch_rate),
    "pipeoptim_fig6": partial(figures.throughput_panels, name="fig6", rate_of=figures.largest_batch_rate),
    "pipeoptim_table5": memory_account.table5_panels,
    "pipeoptim_table6": figures.table6_panels,
    "pipeoptim_small": counts.small_panels,
}
