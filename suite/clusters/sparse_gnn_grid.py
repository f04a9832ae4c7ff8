"""Decides what the sparsity-aware GNN paper's 1.5D runs come to (Figure 7), and 1D beside 2D and 3D.

As printed, a column of the P/c x c grid has one sender at a time (Algorithm 2), so the time of SA is the sum over its
stages of what one process sends to all others through its one adapter. A broadcast sends a row once. Here lies, in this
model, why SA gains nothing at c = 2 and 4 without a partition, more than in the all-reduce that the paper names; the
same exchange in one call (form=fused, which is what the published code runs) is drawn beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question
from suite.clusters.figure import Panel, figure
from suite.clusters.graph_lab import Dataset, GraphLab
from suite.clusters.sparse_gnn import AWARE, CAGNET, COMPARED, GVB, null, seconds
from suite.core.claim import Claim
from suite.simulate.exchange import Wires
from suite.simulate.full_graph import LOOSE, VALUE

GRAPHS = ("amazon", "protein")
COUNTS = (16, 32, 64, 128, 256)
REPLICAS = (2, 4)
CUBES = (64,)  # of the counts, those that are squares and cubes


def _figure_7(lab: GraphLab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    return [panel for graph in GRAPHS for c in REPLICAS for panel in _panels(lab, graph, c)]


def _panels(lab: GraphLab, graph: str, c: int) -> list[Panel]:
    names = [str(p) for p in COUNTS]
    where = f"on {graph}, c = {c}"
    times = {system: [seconds(lab, graph, system, p, c) for p in COUNTS] for system in COMPARED}
    flat = {system: null(lab, graph, system, COUNTS, c) for system in COMPARED}
    fused = {f"{s}, fused": [lab.epoch(graph, s, p, c, form="fused").seconds for p in COUNTS] for s in (AWARE, GVB)}
    parts = {
        f"{system}, {phase}": [getattr(lab.epoch(graph, system, p, c), field) for p in COUNTS]
        for system in (CAGNET, GVB)
        for phase, field in (("rows", "exchange"), ("all-reduce", "sums"), ("local", "local"))
    }
    return [
        Panel(f"An epoch {where}", "s", names, times, null=flat, axis="GPUs"),
        Panel(f"One call for all stages {where}", "s", names, {CAGNET: times[CAGNET], **fused}, axis="GPUs"),
        Panel(f"Phases of an epoch {where}", "s", names, parts, axis="GPUs"),
    ]


figure_7 = figure("gnn_fig7", "Figure 7; Section 7.2", _figure_7)


def every(question: Question, lab: GraphLab, graph: str) -> Cases:
    """Epochs of the terms, a case per c and GPU count."""
    return [[seconds(lab, graph, term, p, c) for term in question.terms] for c in REPLICAS for p in COUNTS]


@figure_7("sparse_gnn.fig7.aware_not_faster.amazon", "sparse_gnn.fig7.aware_not_faster.protein", unit="second")
def not_faster(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    graph = question.id.rpartition(".")[2]
    at = [(c, p) for c in REPLICAS for p in COUNTS]
    sums = max(lab.epoch(graph, AWARE, p, c).sums / lab.epoch(graph, AWARE, p, c).exchange for c, p in at)
    fused = sum(lab.epoch(graph, AWARE, p, c, form="fused").seconds < seconds(lab, graph, CAGNET, p, c) for c, p in at)
    told = (
        f"one sender of a column at a time: rows take at least {1 / sums:.0f} times as long as the all-reduce; "
        f"in one call SA would beat CAGNET in {fused} of {len(at)} cases"
    )
    return every(question, lab, graph), told


@figure_7("sparse_gnn.fig7.gvb_faster.amazon", "sparse_gnn.fig7.gvb_faster.protein", unit="second")
def gvb_faster(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    graph = question.id.rpartition(".")[2]
    told = "a part's own block is multiplied by one of its c replicas, while the others wait (Algorithm 2's columns)"
    return every(question, lab, graph), told


def best(lab: GraphLab, graph: str, c: int) -> int:
    """The GPU count with the least epoch time of SA+GVB."""
    return min(COUNTS, key=lambda p: seconds(lab, graph, GVB, p, c))


@figure_7("sparse_gnn.fig7.amazon_minimum.c_2", "sparse_gnn.fig7.amazon_minimum.c_4", unit="gpu")
def minimum(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    c = int(question.setting["c"])
    return [[best(lab, "amazon", c)]], ", ".join(f"{p}: {seconds(lab, 'amazon', GVB, p, c):.3f} s" for p in COUNTS)


@figure_7("sparse_gnn.fig7.runtime_minimum_at_kc", unit="second")
def minimum_at_kc(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    inner = COUNTS[1:-1]  # half and twice as many GPUs are drawn too
    parts = min(inner, key=lambda p: seconds(lab, "amazon", GVB, p, 2)) // 2
    counts = [(c, [parts * c, parts * c // 2, parts * c * 2]) for c in REPLICAS]
    return [[seconds(lab, "amazon", GVB, p, c) for p in each] for c, each in counts], f"k = {parts}, of inner counts"


@figure_7("sparse_gnn.fig7.protein_minimum", unit="second")
def protein_minimum(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for c in REPLICAS:
        times = [seconds(lab, "protein", GVB, p, c) for p in COUNTS]
        cases.append([min(times[1:-1]), times[0], times[-1]])
    return cases, "c = 2 and c = 4"


@figure_7("sparse_gnn.sec7.2.c_tradeoff", unit="second")
def tradeoff(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for graph in GRAPHS:
        for p in COUNTS:
            two, four = (lab.epoch(graph, CAGNET, p, c) for c in REPLICAS)
            cases += [[four.exchange, two.exchange], [two.sums, four.sums], [four.seconds, two.seconds]]
    lost = [f"{GRAPHS[i // 15]} on {COUNTS[i // 3 % 5]}" for i in range(2, len(cases), 3) if cases[i][0] >= cases[i][1]]
    told = "each column's broadcasts leave a node through one adapter, and it broadcasts a c-th of the block rows"
    return cases, told + (f"; the epoch is no shorter on {', '.join(lost)}" if lost else "")


# -- 2D and 3D -------------------------------------------------------------------------------------------------------


def planes(lab: GraphLab, graph: str, gpus: int, layers: int = 1) -> float:
    """Seconds that an epoch communicates on a grid of `layers` planes, each sqrt(P / layers) wide (SUMMA): a product's
    blocks of A along rows and of H along columns, sums over planes, then rows once more for the product with weights.

    Our reconstruction of CAGNET's 2D and 3D from Tripathy et al. 2020, on the same machine as all else."""
    size, wires = Dataset.of(graph), Wires(lab.machine, lab.stack)
    side = math.isqrt(gpus // layers)
    along = list(range(side))
    across = list(range(0, side * side, side))
    planes_of = list(range(0, gpus, side * side))
    total = 0.0
    for width in lab.full_graph(graph, CAGNET, gpus).widths:
        block = VALUE * size.vertices * width / side**2 / layers
        sparse = wires.broadcast(LOOSE * size.entries / gpus, along)
        total += side * (sparse + wires.broadcast(block, across) + wires.broadcast(block, along))
        total += wires.all_reduce(block * layers, planes_of)
    return total


@figure_7("sparse_gnn.sec4.one_d_beats_two_d", unit="second")
def one_d(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for graph in GRAPHS:
        for p in CUBES:
            two, three = planes(lab, graph, p), planes(lab, graph, p, math.isqrt(math.isqrt(p) * 2) if p == 64 else 1)
            found = [lab.epoch(graph, CAGNET, p, c) for c in (1, 2)]
            cases += [[one.communication + one.local, two + one.local, three + one.local] for one in found]
    told = "at 64 processes 2D and 3D move fewer bytes in fewer steps; what else slows them down is not modelled"
    return cases, told
