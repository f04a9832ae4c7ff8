"""Decides what the papers' cluster runs come to when they are simulated: each published figure beside ours.

A package of its own beside simulate, as analytic is beside the formulas: simulate knows machines and plans, this one
knows which plan the papers ran (plans.yaml), what each figure measured, and which cells a constant was fitted to.

    lab.py         the published runs, simulated once each
    null.py        the model without mechanism that every simulated number has to beat
    axonn.py, axonn_scaling.py   AxoNN's Figures 5, 6 and 8; 9 and 11, Tables I and II
    samo.py        SAMO's Figures 6, 7, 8 and Table II
    samo_convnets.py             SAMO's Figure 5
    samo_states.py SAMO's Figure 2, and its model states beside AxoNN's offload, which no paper compares
    pipeoptim.py   PipeOptim's Figures 5 and 6 and Table VI; pipeoptim_memory.py: Table V
    counted.py     AxoNN's lemmas and SAMO's equations, counted from what programs do
    small.py       what AxoNN claims that needs no cluster, counted too
    small_samo.py  the same of SAMO; what is said of tensors is looked up in a network that is trained
    small_pipeoptim.py           PipeOptim's Table II from ledgers
    small_pipeoptim_weights.py   its formulas by update rules, and how far predicted weights are from those that came
    graph_lab.py   the published full-graph runs, on stand-ins that are partitioned once each
    graph_figures.py             the executor of their figures
    sparse_gnn.py  the GNN paper's Figures 3 to 6 and what is said of 1D; sparse_gnn_grid.py: Figure 7, 1.5D, 2D and 3D;
                   sparse_gnn_fitted.py: the constants of its stack
    sparse_gnn_counted.py        its Table 2 and Section 5, counted on stand-ins; sparse_gnn_small.py: its formulas;
                   sparse_gnn_trained.py: what is said of a training, by one on threads
    unit.py        an executor without a machine: the order alone in time, PipeOptim's Figure 1
    scaling.py     13B beyond the published counts, and what dominates
    calibrate.py   the constants of a stack, fitted to the cells they name
    variants.py    what else was tried, with its errors
    published.py   the executor: one figure, one record
"""

from __future__ import annotations

from typing import Any

__all__ = ["Published"]


def __getattr__(name: str) -> Any:
    """Published is loaded when it is used: `python -m suite.clusters --help` loads no numpy."""
    if name == "Published":
        from suite.clusters.published import Published

        return Published
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
