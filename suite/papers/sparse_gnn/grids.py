"""Simulation of the paper's 1.5D runs (Figure 7), and of 1D compared with 2D and 3D.

In Algorithm 2 as printed, a column of the P/c x c grid has one sender at a time. The time of SA is therefore the sum
over its stages of the messages that one process sends through its adapter, while a broadcast sends each row once. In
this model the single sender, more than the all-reduce that the paper names, is why SA gains nothing at c = 2 and 4
without a partition. The fused form, which the published code runs, is shown for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.panel import Claims, Panel, figure
from suite.papers.sparse_gnn.cluster_runs import Dataset, GraphLab
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, COMPARED, GVB, null_minimum, null_times, seconds
from suite.simulate.full_graph import LOOSE, VALUE
from suite.simulate.network.exchange import Wires

GRAPHS = ("amazon", "protein")
COUNTS = (16, 32, 64, 128, 256)
REPLICAS = (2, 4)
CUBE = 64  # the GPU count that is a square and a cube


@figure("gnn_fig7", "Figure 7")
def fig7(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    for graph, c in product(GRAPHS, REPLICAS):
        yield Panel(
            f"an epoch on {graph}, c = {c}",
            "s",
            [str(p) for p in COUNTS],
            {system: [seconds(lab, graph, system, p, c) for p in COUNTS] for system in COMPARED},
            null={system: null_times(lab, graph, system, COUNTS, c) for system in COMPARED},
            axis="GPUs",
            quantity="epoch time",
            scale="log-log",
        )


def seconds_with_form(lab: GraphLab, graph: str, system: str, gpus: int, c: int, form: str) -> float:
    """Seconds of an epoch by a form of the exchange; the oblivious system has only its broadcasts."""
    if system == CAGNET:
        return seconds(lab, graph, system, gpus, c)
    return lab.epoch(graph, system, gpus, c, form=form).seconds


def epoch_cases(question: Question, lab: GraphLab, graph: str, forms: Sequence[str]) -> Cases:
    """Epoch times of the terms, one case per form, c and GPU count."""
    runs = [(form, c, p) for form in forms for c in REPLICAS for p in COUNTS]
    return [[seconds_with_form(lab, graph, term, p, c, form) for term in question.terms] for form, c, p in runs]


def not_faster(question: Question, lab: GraphLab, *, graph: str, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    cases, runs = epoch_cases(question, lab, graph, forms), [(c, p) for c in REPLICAS for p in COUNTS]
    n = len(runs)
    sums = max(lab.epoch(graph, AWARE, p, c).sums / lab.epoch(graph, AWARE, p, c).exchange for c, p in runs)
    faster = {form: sum(b < a for a, b in cases[i * n : (i + 1) * n]) for i, form in enumerate(forms)}
    cases_text = ", ".join(f"{form} in {count} of {n} cases" for form, count in faster.items())
    return cases, (
        f"SA beats CAGNET {cases_text}; with one sender per column at a time, sending rows takes at least "
        f"{1 / sums:.0f} times as long as the all-reduce"
    )


def gvb_faster(question: Question, lab: GraphLab, *, graph: str, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    note = "one of the c replicas multiplies the part's own block while the others wait (Algorithm 2's columns)"
    return epoch_cases(question, lab, graph, forms), f"{' and '.join(forms)}; {note}"


def epoch_times(lab: GraphLab, graph: str, c: int, form: str) -> dict[int, float]:
    """Seconds of an epoch of SA+GVB by GPU count."""
    return {p: seconds_with_form(lab, graph, GVB, p, c, form) for p in COUNTS}


def minimum(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> WithNull:
    """The GPU count with the shortest epoch, one case per form. Null model: the count with the fewest rows sent."""
    forms = lab.forms(forms)
    c = int(question.setting["c"])
    times = {form: epoch_times(lab, "amazon", c, form) for form in forms}
    texts = [f"{form} {', '.join(f'{p}: {s:.3f} s' for p, s in by_count.items())}" for form, by_count in times.items()]
    cases = [[min(by_count, key=lambda p: by_count[p])] for by_count in times.values()]
    return cases, "; ".join(texts), [[null_minimum(lab, "amazon", GVB, COUNTS, c)]] * len(forms)


def minimum_at_kc(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    inner = COUNTS[1:-1]  # counts whose half and double are counts too
    cases, notes = [], []
    for form in forms:
        times = epoch_times(lab, "amazon", 2, form)
        k = min(inner, key=lambda p, times=times: times[p]) // 2  # type: ignore[misc]
        counts = [(c, p) for c in REPLICAS for p in (k * c, k * c // 2, k * c * 2)]
        seconds_at = [seconds_with_form(lab, "amazon", GVB, p, c, form) for c, p in counts]
        cases += [seconds_at[:3], seconds_at[3:]]
        notes.append(f"k = {k} {form}")
    return cases, f"{', '.join(notes)}, of inner counts"


def protein_minimum(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    cases = []
    for form in forms:
        for c in REPLICAS:
            times = list(epoch_times(lab, "protein", c, form).values())
            cases.append([min(times[1:-1]), times[0], times[-1]])
    return cases, f"c = 2 and c = 4, {' and '.join(forms)}"


def replication_tradeoff(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """The largest of three ratios, each of which must be below 1; one case per graph and GPU count."""
    cases, not_shorter = [], []
    for graph in GRAPHS:
        for p in COUNTS:
            two, four = (lab.epoch(graph, CAGNET, p, c) for c in REPLICAS)
            ratios = [four.exchange / two.exchange, two.sums / four.sums, four.seconds / two.seconds]
            cases.append([max(ratios), 1.0])
            not_shorter += [f"{graph} on {p}"] if ratios[2] >= 1 else []
    note = "a grid column broadcasts one c-th of the block rows, through one adapter of a node"
    return cases, note + (f"; the epoch is no shorter on {', '.join(not_shorter)}" if not_shorter else "")


# -- 2D and 3D -------------------------------------------------------------------------------------------------------


def planes(lab: GraphLab, graph: str, gpus: int, layers: int = 1) -> float:
    """Communication seconds of an epoch by SUMMA on a grid of `layers` planes, each sqrt(P / layers) wide.

    A product broadcasts blocks of A along rows and of H along columns, sums over planes, and broadcasts along rows
    once more for the product with the weights. This is our reconstruction of CAGNET's 2D and 3D (Tripathy et al. 2020).
    """
    size, wires = Dataset.of(graph), Wires(lab.machine, lab.efficiency())
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


def one_d(question: Question, lab: GraphLab) -> Cases:
    """At 64 processes 2D and 3D move fewer bytes in fewer steps; their other costs are not modelled."""
    cases = []
    for graph in GRAPHS:
        two_d, three_d = planes(lab, graph, CUBE), planes(lab, graph, CUBE, layers=4)
        for epoch in (lab.epoch(graph, CAGNET, CUBE, c) for c in (1, 2)):
            cases.append([epoch.communication + epoch.local, two_d + epoch.local, three_d + epoch.local])
    return cases
