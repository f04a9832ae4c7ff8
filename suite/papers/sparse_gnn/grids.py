"""Simulation of the paper's 1.5D runs (Figure 7), and of 1D compared with 2D and 3D.

As printed, a column of the P/c x c grid has one sender at a time (Algorithm 2). So the time of SA is the sum over
its stages of the messages that one process sends to all others through its one adapter. A broadcast sends a row
once. Here lies, in this model, why SA gains nothing at c = 2 and 4 without a partition, more than in the all-reduce
that the paper names; the same exchange in one call (form=fused, which is what the published code runs) is drawn
beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from suite.core.claim import Claim
from suite.core.figure import FigurePanel
from suite.papers.common.answer import Cases, Question, WithNull
from suite.papers.sparse_gnn.cluster_runs import Dataset, GraphLab
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, COMPARED, GVB, null, null_minimum, seconds
from suite.simulate.full_graph import LOOSE, VALUE
from suite.simulate.network.exchange import Wires

GRAPHS = ("amazon", "protein")
COUNTS = (16, 32, 64, 128, 256)
REPLICAS = (2, 4)
CUBES = (64,)  # of the counts, those that are squares and cubes


def fig7_panels(lab: GraphLab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    return [panel for graph in GRAPHS for c in REPLICAS for panel in _panels(lab, graph, c)]


def _panels(lab: GraphLab, graph: str, c: int) -> list[FigurePanel]:
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
        FigurePanel(
            f"an epoch {where}",
            "s",
            names,
            times,
            null=flat,
            axis="GPUs",
            quantity="epoch time",
            scale="log-log",
            figure="Figure 7",
            publication="Sparsity-aware GNN",
        ),
        FigurePanel(
            f"One call for all stages {where}",
            "s",
            names,
            {CAGNET: times[CAGNET], **fused},
            axis="GPUs",
            quantity="epoch time",
            scale="log-log",
        ),
        FigurePanel(f"Phases of an epoch {where}", "s", names, parts, axis="GPUs", quantity="time per epoch"),
    ]


def formed(lab: GraphLab, graph: str, system: str, gpus: int, c: int, form: str) -> float:
    """Seconds of an epoch; the oblivious system broadcasts, and has no other form."""
    if system == CAGNET:
        return seconds(lab, graph, system, gpus, c)
    return lab.epoch(graph, system, gpus, c, form=form).seconds


def every(question: Question, lab: GraphLab, graph: str, forms: Sequence[str]) -> Cases:
    """Epochs of the terms, a case per form, c and GPU count."""
    at = [(form, c, p) for form in forms for c in REPLICAS for p in COUNTS]
    return [[formed(lab, graph, term, p, c, form) for term in question.terms] for form, c, p in at]


def not_faster(question: Question, lab: GraphLab, *, graph: str, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    cases, at = every(question, lab, graph, forms), [(c, p) for c in REPLICAS for p in COUNTS]
    sums = max(lab.epoch(graph, AWARE, p, c).sums / lab.epoch(graph, AWARE, p, c).exchange for c, p in at)
    won = {form: sum(b < a for a, b in cases[i * len(at) : (i + 1) * len(at)]) for i, form in enumerate(forms)}
    cases_text = ", ".join(f"{form} in {count} of {len(at)} cases" for form, count in won.items())
    return cases, (
        f"SA beats CAGNET {cases_text}; with one sender of a column at a time rows take at least {1 / sums:.0f} times "
        f"as long as the all-reduce"
    )


def gvb_faster(question: Question, lab: GraphLab, *, graph: str, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    note = "a part's own block is multiplied by one of its c replicas, while the others wait (Algorithm 2's columns)"
    return every(question, lab, graph, forms), f"{' and '.join(forms)}; {note}"


def best(lab: GraphLab, graph: str, c: int, form: str = "staged") -> int:
    """The GPU count with the least epoch time of SA+GVB."""
    return min(COUNTS, key=lambda p: formed(lab, graph, GVB, p, c, form))


def minimum(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> WithNull:
    """The GPU count with the least epoch time, a case per form. Null model: with the fewest rows sent, in any form."""
    forms = lab.forms(forms)
    c = int(question.setting["c"])
    times = {form: {p: formed(lab, "amazon", GVB, p, c, form) for p in COUNTS} for form in forms}
    texts = [
        f"{form} {', '.join(f'{p}: {each:.3f} s' for p, each in seconds_by_count.items())}"
        for form, seconds_by_count in times.items()
    ]
    nulls = [[null_minimum(lab, "amazon", GVB, COUNTS, c)]] * len(forms)
    return (
        [[min(seconds_by_count, key=lambda p: seconds_by_count[p])] for seconds_by_count in times.values()],
        "; ".join(texts),
        nulls,
    )


def minimum_at_kc(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    inner = COUNTS[1:-1]  # half and twice as many GPUs are drawn too
    cases, notes = [], []
    for form in forms:
        parts = min(inner, key=lambda p, form=form: formed(lab, "amazon", GVB, p, 2, form)) // 2  # type: ignore[misc]
        counts = [(c, [parts * c, parts * c // 2, parts * c * 2]) for c in REPLICAS]
        cases += [[formed(lab, "amazon", GVB, p, c, form) for p in each] for c, each in counts]
        notes.append(f"k = {parts} {form}")
    return cases, f"{', '.join(notes)}, of inner counts"


def protein_minimum(question: Question, lab: GraphLab, *, forms: Sequence[str]) -> tuple[Cases, str]:
    forms = lab.forms(forms)
    cases = []
    for form in forms:
        for c in REPLICAS:
            times = [formed(lab, "protein", GVB, p, c, form) for p in COUNTS]
            cases.append([min(times[1:-1]), times[0], times[-1]])
    return cases, f"c = 2 and c = 4, {' and '.join(forms)}"


def tradeoff(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """A case per graph and GPU count: the largest of three ratios, each of which has to be below 1."""
    cases, lost = [], []
    for graph in GRAPHS:
        for p in COUNTS:
            two, four = (lab.epoch(graph, CAGNET, p, c) for c in REPLICAS)
            ratios = [four.exchange / two.exchange, two.sums / four.sums, four.seconds / two.seconds]
            cases.append([max(ratios), 1.0])
            lost += [f"{graph} on {p}"] if ratios[2] >= 1 else []
    note = "each column's broadcasts leave a node through one adapter, and it broadcasts a c-th of the block rows"
    return cases, note + (f"; the epoch is no shorter on {', '.join(lost)}" if lost else "")


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


def one_d(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for graph in GRAPHS:
        for p in CUBES:
            two, three = planes(lab, graph, p), planes(lab, graph, p, math.isqrt(math.isqrt(p) * 2) if p == 64 else 1)
            epochs = [lab.epoch(graph, CAGNET, p, c) for c in (1, 2)]
            cases += [[one.communication + one.local, two + one.local, three + one.local] for one in epochs]
    note = "at 64 processes 2D and 3D move fewer bytes in fewer steps; what else slows them down is not modelled"
    return cases, note
