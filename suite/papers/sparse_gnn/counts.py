"""Volumes on stand-in graphs: Table 2 and Section 5 of the sparsity-aware GNN paper.

Volumes are counted in plans, without a machine model. The stand-in for Amazon was tuned to Table 2, and the stand-in
for Protein to the paper's small cut, so these rows are calibrated and never reproduced (figure_executor.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.claims.answer import Cases, Question
from suite.claims.claim import Evidence
from suite.claims.panel import Claims, Panel, figure
from suite.gnn.partition.protocol import quality_of
from suite.gnn.plan import Placement
from suite.papers.sparse_gnn.cluster_runs import RANDOM, Dataset, GraphLab

PROCESSES = (16, 32, 64, 128, 256)  # of Table 2
COUNTS = (4, 16, 64, 256)
GRAPHS = ("amazon", "protein", "reddit")  # graphs of the paper's statements on partitions
WIDTH, VALUE, MEGABYTE = 300, 4, 1e6  # of Table 2 (G17)
# vertices per part: published parts have 3600 or more, and a single hub decides the balance of small parts
MIN_PART_SIZE = 512


def process_counts(lab: GraphLab, graph: str) -> tuple[int, ...]:
    """Process counts at which the parts of a stand-in have at least MIN_PART_SIZE vertices."""
    return tuple(p for p in COUNTS if lab.matrix(graph).shape[0] >= MIN_PART_SIZE * p)


def graph_cases(lab: GraphLab) -> Iterator[tuple[str, int]]:
    return ((graph, p) for graph in GRAPHS for p in process_counts(lab, graph))


def describe_cases(lab: GraphLab, graphs: Sequence[str] = GRAPHS) -> str:
    return "; ".join(f"{graph} on {', '.join(map(str, process_counts(lab, graph)))}" for graph in graphs)


# -- Table 2 -----------------------------------------------------------------------------------------------------------


def table2_row(lab: GraphLab, processes: int, partitioner: str = "metis") -> dict[str, float]:
    """A row of Table 2: megabytes that a process sends in one product, and the imbalance in percent."""
    volumes = lab.volumes("amazon", partitioner, processes)
    megabytes = VALUE * WIDTH / MEGABYTE * volumes.send
    return {
        "average": float(megabytes.mean()),
        "maximum": float(megabytes.max()),
        "imbalance": volumes.imbalance,
        "bottleneck": 1 + volumes.imbalance / 100,
    }


@figure("gnn_table2", "Table 2")
def table2(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    names, ours = [str(p) for p in PROCESSES], [table2_row(lab, p) for p in PROCESSES]
    printed = "sparse_gnn.table2.{curve}.p_{x}"
    yield Panel(
        "what a process sends on Amazon with METIS (null: in a random order)",
        "MB",
        names,
        {column: [row[column] for row in ours] for column in ("average", "maximum")},
        printed,
        {"average": [table2_row(lab, p, RANDOM)["average"] for p in PROCESSES]},
        axis="processes",
        quantity="data sent per product",
        evidence=Evidence.DERIVED,
    )
    yield Panel(
        "imbalance of what is sent",
        "percent",
        names,
        {"imbalance": [row["imbalance"] for row in ours]},
        printed,
        axis="processes",
        quantity="imbalance",
        evidence=Evidence.DERIVED,
    )


def table2_cell(question: Question, lab: GraphLab, *, quantity: str, processes: int) -> Cases:
    """A stand-in tuned to this table."""
    return [[table2_row(lab, processes)[quantity]]]


def imbalance_by_count(question: Question, lab: GraphLab) -> Cases:
    """A stand-in tuned to this table."""
    return [[table2_row(lab, int(p))["imbalance"] for p in question.terms]]


# -- volumes -----------------------------------------------------------------------------------------------------------


def bandwidth_ratio(question: Question, lab: GraphLab, *, graph: str, partitioner: str) -> tuple[Cases, str]:
    """Bandwidth term in rows, P/c^2 times the largest cut of a pair, at c over that at c = 1."""
    values, cuts = [], []
    for point in question.points:
        processes, c = int(point["P"]), int(point["c"])
        stages = [len(Placement.of(processes, replication).stages(0)) for replication in (c, 1)]
        pair = [lab.counted(graph, partitioner, processes // replication).max_pair for replication in (c, 1)]
        values.append(stages[0] * pair[0] / (stages[1] * pair[1]))
        cuts.append(f"{pair[1]} rows at {processes} parts, {pair[0]} at {processes // c}")
    return [values], f"{partitioner} on {graph}; largest cut of a pair {', '.join(cuts)}"


def column_segments(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [[lab.counted(graph, name, p).total for name in (RANDOM, "gvb", "metis")] for graph, p in graph_cases(lab)]
    return values, describe_cases(lab)


def row_and_nnz_imbalance(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for graph, p in graph_cases(lab):
        quality = quality_of(lab.counted(graph, RANDOM, p))
        values.append([quality["vertex_imbalance"], quality["nnz_imbalance"]])
    return values, f"a random order; {describe_cases(lab)}"


def nnz_imbalance(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [
        [quality_of(lab.counted(graph, name, p))["nnz_imbalance"] for name in (RANDOM, "gvb")]
        for graph, p in graph_cases(lab)
    ]
    worse = [f"{graph} on {p}" for (graph, p), (a, b) in zip(graph_cases(lab), values, strict=True) if a >= b]
    note = f"a random order is balanced worse, with few vertices per part, on {', '.join(worse) or 'none'}"
    return values, f"{describe_cases(lab)}; {note}"


def partitioning_gain(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    shared = [p for p in COUNTS if all(p in process_counts(lab, graph) for graph in question.terms)]

    def gain(graph: str, p: int) -> float:
        return lab.counted(graph, RANDOM, p).total / max(1, lab.counted(graph, "gvb", p).total)

    values = [[gain(graph, p) for graph in question.terms] for p in shared]
    return values, f"on {', '.join(map(str, shared))} processes; a volume of zero counts as one row"


def edge_cut(question: Question, lab: GraphLab, *, edges: int) -> tuple[Cases, str]:
    """Share of the entries cut by both partitioners, after the share of `edges`, the bound read from the text.

    The cut scales with the vertices, as bridges do, and not with the entries inside blocks."""
    size, n = Dataset.of("protein"), lab.matrix("protein").shape[0]

    def share(name: str, p: int) -> float:
        return float(lab.partition("protein", name, p).quality["edge_cut"] * size.vertices / n / size.entries)

    counts = process_counts(lab, "protein")
    values = [[edges / size.entries, *(share(name, p) for name in ("gvb", "metis"))] for p in counts]
    return values, f"a stand-in with as many bridges as the paper's cut edges; {describe_cases(lab, ['protein'])}"
