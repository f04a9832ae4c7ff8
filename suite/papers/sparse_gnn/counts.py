"""Volumes on stand-in graphs: Table 2 and Section 5 of the sparsity-aware GNN paper.

Counts are of plans and cost no machine. The stand-in for Amazon was drawn to agree with Table 2, and that for Protein
to be cut as little as the paper says: those rows are calibrated, never reproduced (figure_executor.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from suite.core.claim import Claim
from suite.core.figure import FigurePanel
from suite.gnn.partition.protocol import Quality
from suite.gnn.plan import Placement, Volumes
from suite.papers.common.answer import Cases, Question
from suite.papers.common.panel import published_number
from suite.papers.sparse_gnn.cluster_runs import RANDOM, Dataset, GraphLab
from suite.papers.sparse_gnn.figures import fitting

Claims = Mapping[str, Claim]
PROCESSES = (16, 32, 64, 128, 256)  # of Table 2
COUNTS = (4, 16, 64, 256)
KINDS = ("amazon", "protein", "reddit")  # of which something is said of partitions
WIDTH, VALUE, MEGABYTE = 300, 4, 1e6  # of Table 2 (G17)
LEAST = 512  # vertices a part: the published ones have 3600 or more, and of few a hub decides the balance


def counts(lab: GraphLab, graph: str) -> tuple[int, ...]:
    """Process counts at which a stand-in's parts are parts."""
    return tuple(p for p in COUNTS if lab.matrix(graph).shape[0] >= LEAST * p)


def cases(lab: GraphLab, graphs: Sequence[str] = KINDS) -> Iterator[tuple[str, int]]:
    return ((graph, p) for graph in graphs for p in counts(lab, graph))


def told(lab: GraphLab, graphs: Sequence[str] = KINDS) -> str:
    return "; ".join(f"{graph} on {', '.join(map(str, counts(lab, graph)))}" for graph in graphs)


# -- Table 2 -----------------------------------------------------------------------------------------------------------


def sent(lab: GraphLab, processes: int, partitioner: str = "metis") -> dict[str, float]:
    """Table 2's row: megabytes that a process sends in one product, and percent of imbalance."""
    volumes = lab.volumes("amazon", partitioner, processes)
    each = VALUE * WIDTH / MEGABYTE * volumes.send
    return {"average": float(each.mean()), "maximum": float(each.max()), "imbalance": volumes.imbalance}


def table2_panels(lab: GraphLab, claims: Claims) -> Sequence[FigurePanel]:
    names = [str(p) for p in PROCESSES]
    ours = {p: sent(lab, p) for p in PROCESSES}
    printed = {
        what: [published_number(claims, f"sparse_gnn.table2.{what}.p_{p}") for p in PROCESSES]
        for what in ours[PROCESSES[0]]
    }
    every = [(what, i) for what in ("average", "maximum") for i in range(len(PROCESSES))]
    sizes = {what: [ours[p][what] for p in PROCESSES] for what in ("average", "maximum")}
    flat = {"average": [sent(lab, p, RANDOM)["average"] for p in PROCESSES]}
    totals = {"ours": sizes["average"], "paper": printed["average"]}
    rows = Dataset.of("amazon").vertices * VALUE * WIDTH / MEGABYTE
    share = {
        whose: {"average": [p * each / rows for p, each in zip(PROCESSES, curve, strict=True)]}
        for whose, curve in totals.items()
    }
    return [
        FigurePanel(
            "what a process sends on Amazon with METIS (null: in a random order)",
            "MB",
            names,
            sizes,
            {what: printed[what] for what in sizes},
            flat,
            every,
            axis="processes",
            quantity="data sent per product",
            evidence="derived",
            figure="Table 2",
            publication="Sparsity-aware GNN",
        ),
        FigurePanel(
            "imbalance of what is sent",
            "percent",
            names,
            {"imbalance": [ours[p]["imbalance"] for p in PROCESSES]},
            {"imbalance": printed["imbalance"]},
            calibrated=[("imbalance", i) for i in range(len(PROCESSES))],
            axis="processes",
            quantity="imbalance",
            evidence="derived",
            figure="Table 2",
            publication="Sparsity-aware GNN",
        ),
        FigurePanel(
            "Rows sent by all processes, per vertex",
            "row",
            names,
            share["ours"],
            share["paper"],
            axis="processes",
            quantity="rows per vertex",
            evidence="derived",
        ),
    ]


def row(question: Question, lab: GraphLab, *, quantity: str, processes: int) -> tuple[Cases, str]:
    return [[sent(lab, processes)[quantity]]], "a stand-in that was drawn to agree with this table"


def max_imbalance(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[sent(lab, int(question.setting["processes"]))["imbalance"]]], "on 256 processes"


def bottleneck(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    p = int(question.setting["processes"])
    return [[1 + sent(lab, p)["imbalance"] / 100]], f"on {p} processes"


def grows(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[sent(lab, int(p))["imbalance"] for p in question.terms]], "a stand-in that was drawn to agree with it"


# -- volumes -----------------------------------------------------------------------------------------------------------


def volumes_panels(lab: GraphLab, claims: Claims) -> Sequence[FigurePanel]:
    panels = []
    for graph in KINDS:
        at = counts(lab, graph)
        n = lab.matrix(graph).shape[0]
        names = [str(p) for p in at]
        kinds = {name: [lab.counted(graph, name, p) for p in at] for name in (RANDOM, "metis", "gvb")}
        whole = {"oblivious": [one.oblivious() for one in kinds[RANDOM]], **kinds}
        oblivious = {f"oblivious, {name}": [one.oblivious() for one in each] for name, each in kinds.items()}
        panels += [
            _panel(f"Rows that all send on {graph}, per vertex", names, whole, lambda v, n=n: v.total / n),
            _panel(
                f"Most rows that one sends on {graph}, per vertex",
                names,
                {**oblivious, **kinds},
                lambda v, n=n: v.send.max() / n,
            ),
        ]
        grids = {
            f"{assignment}, c = {c}": [
                lab.counted(graph, "gvb", p // c).on_grid(Placement.of(p, c, assignment)) for p in at
            ]
            for c in (1, 2, 4)
            for assignment in ("paper", "interleaved")[: 1 if c == 1 else 2]
        }
        title = f"Most rows that one sends on {graph} in 1.5D with gvb, per vertex"
        panels.append(_panel(title, names, grids, lambda v, n=n: v.send.max() / n))
    return panels


def _panel(title: str, names: Sequence[str], kinds: Mapping[str, Sequence[Volumes]], of: object) -> FigurePanel:
    curves = {name: [float(of(one)) for one in each] for name, each in kinds.items()}  # type: ignore[operator]
    return FigurePanel(title, "row", names, curves, axis="processes", quantity="rows per vertex", evidence="derived")


def little_gain(question: Question, lab: GraphLab, *, share: float, graphs: Sequence[str]) -> tuple[Cases, str]:
    """At the published vertices and entries: the volume of a random order follows from degrees. share: of the volume
    of the oblivious algorithm.
    """
    at = [(graph, p) for graph in graphs for p in fitting(graph)]
    volumes = [lab.volumes(graph, RANDOM, p) for graph, p in at]
    values = [[float(one.total), share * one.oblivious().total] for one in volumes]
    lost = [f"{graph} on {p}" for (graph, p), (a, b) in zip(at, values, strict=True) if a <= b]
    return values, f"published sizes, degrees of stand-ins; more is saved on {', '.join(lost) or 'none'}"


def bandwidth(question: Question, lab: GraphLab, *, graph: str, partitioner: str) -> tuple[Cases, str]:
    """The cost's term in rows, P/c^2 times the largest cut of a pair, at c over that at c = 1, of partitions made."""
    values, cuts = [], []
    for point in question.points:
        processes, c = int(point["P"]), int(point["c"])
        stages = [len(Placement.of(processes, each).stages(0)) for each in (c, 1)]
        pair = [lab.counted(graph, partitioner, processes // each).max_pair for each in (c, 1)]
        values.append(stages[0] * pair[0] / (stages[1] * pair[1]))
        cuts.append(f"{pair[1]} rows at {processes} parts, {pair[0]} at {processes // c}")
    return [values], f"{partitioner} on {graph}; largest cut of a pair {', '.join(cuts)}"


def segments(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [[lab.counted(graph, name, p).total for name in (RANDOM, "gvb", "metis")] for graph, p in cases(lab)]
    return values, told(lab)


def balance(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for graph, p in cases(lab):
        quality = Quality.of(lab.counted(graph, RANDOM, p))
        values.append([quality.vertex_imbalance, quality.nnz_imbalance])
    return values, f"a random order; {told(lab)}"


def compute_balance(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [
        [Quality.of(lab.counted(graph, name, p)).nnz_imbalance for name in (RANDOM, "gvb")] for graph, p in cases(lab)
    ]
    lost = [f"{graph} on {p}" for (graph, p), (a, b) in zip(cases(lab), values, strict=True) if a >= b]
    return values, f"{told(lab)}; a random order is balanced worse on {', '.join(lost) or 'none'}: few vertices a part"


def lower_maximum(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [
        [VALUE * WIDTH * int(lab.counted("amazon", name, p).send.max()) for name in ("gvb", "metis")]
        for p in counts(lab, "amazon")
    ]
    return values, told(lab, ["amazon"])


def regular(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    shared = [p for p in COUNTS if all(p in counts(lab, graph) for graph in question.terms)]

    def gain(graph: str, p: int) -> float:
        return lab.counted(graph, RANDOM, p).total / max(1, lab.counted(graph, "gvb", p).total)

    values = [[gain(graph, p) for graph in question.terms] for p in shared]
    return values, f"on {', '.join(map(str, shared))} processes; one row where nothing is sent"


def edge_cut(question: Question, lab: GraphLab, *, edges: int) -> tuple[Cases, str]:
    """edges: what a few thousand is read as.

    Cuts grow with the vertices, as bridges do, and not with the entries inside of blocks."""
    size, n = Dataset.of("protein"), lab.matrix("protein").shape[0]

    def share(name: str, p: int) -> float:
        return float(lab.partition("protein", name, p).quality.edge_cut * size.vertices / n / size.entries)

    values = [[edges / size.entries, *(share(name, p) for name in ("gvb", "metis"))] for p in counts(lab, "protein")]
    return values, f"a stand-in whose bridges are as many as the paper cuts; {told(lab, ['protein'])}"
