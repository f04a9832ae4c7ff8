"""Simulation of the paper's 1D runs on Perlmutter: Figures 3 to 6.

Every run has the published vertices, entries and widths, the scaled volumes of a stand-in, and the local work of the
published code. One efficiency constant is fitted (suite.claims.fit) and some are marked as chosen; all other values are
held out. The null model of a curve is the oblivious epoch time at the fewest GPUs, scaled by the rows sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.panel import NONE, Claims, Panel, figure
from suite.core.errors import DoesNotFit
from suite.gnn.plan import Placement, Volumes
from suite.papers.sparse_gnn.cluster_runs import Dataset, GraphLab
from suite.simulate.full_graph import LOOSE, VALUE
from suite.simulate.network.exchange import Wires

CAGNET, AWARE, METIS, GVB = "cagnet", "sparsity_aware", "sparsity_aware_metis", "sparsity_aware_gvb"
COMPARED = (CAGNET, AWARE, GVB)
COUNTS = {  # GPUs of Figures 3 to 5; Amazon and Protein ran out of memory on 4
    "reddit": (4, 16, 32, 64),
    "amazon": (4, 16, 32, 64, 128, 256),
    "protein": (4, 16, 32, 64, 128, 256),
    "papers": (16,),
}
FIG6_COUNTS = (16, 32, 64)  # GPUs of Figure 6 without 4, where memory is exceeded
EPOCHS = 100  # Section 6.2
NO_GAIN = "sparse_gnn.fig3.amazon_p16_no_gain"  # CAGNET and SA take about equally long on 16 GPUs


def fitting_counts(graph: str) -> tuple[int, ...]:
    """GPU counts at which the paper shows every system."""
    return COUNTS[graph] if graph in ("reddit", "papers") else COUNTS[graph][1:]


def seconds(lab: GraphLab, graph: str, system: str, gpus: int, c: int = 1) -> float:
    return lab.epoch(graph, system, gpus, c).seconds


def ratio(lab: GraphLab, graph: str, gpus: int, slower: str, quicker: str) -> float:
    """Ratio of two systems' epoch times."""
    return seconds(lab, graph, slower, gpus) / seconds(lab, graph, quicker, gpus)


def fits(lab: GraphLab, graph: str, system: str, gpus: int) -> bool:
    try:
        lab.full_graph(graph, system, gpus).check_memory(lab.machine)
    except DoesNotFit:
        return False
    return True


def null_times(lab: GraphLab, graph: str, system: str, counts: Sequence[int], c: int = 1) -> list[float]:
    """Epoch seconds in proportion to the rows sent, scaled to CAGNET's time at the fewest GPUs."""

    first = seconds(lab, graph, CAGNET, counts[0], c) / _rows(lab, graph, CAGNET, counts[0], c)
    return [first * _rows(lab, graph, system, gpus, c) for gpus in counts]


def _rows(lab: GraphLab, graph: str, system: str, gpus: int, c: int = 1) -> float:
    """Rows that all processes send in one product, over the number of receivers of a broadcast."""
    return lab.full_graph(graph, system, gpus, c).moved.total / (gpus - 1)


def null_ratio(lab: GraphLab, graph: str, gpus: int, slower: str, quicker: str) -> float:
    """Ratio of epoch times by the null model, whose constant cancels."""
    return _rows(lab, graph, slower, gpus) / _rows(lab, graph, quicker, gpus)


def null_minimum(lab: GraphLab, graph: str, system: str, counts: Sequence[int], c: int) -> int:
    """The GPU count with the shortest epoch by the null model; ties go to fewer GPUs."""
    return min(counts, key=lambda gpus: _rows(lab, graph, system, gpus, c))


# -- Figures 3 to 5 --------------------------------------------------------------------------------------------------


def epoch_panel(lab: GraphLab, graph: str, systems: Sequence[str], counts: Sequence[int]) -> Panel:
    def times(system: str) -> list[float]:
        return [seconds(lab, graph, system, p) if fits(lab, graph, system, p) else NONE for p in counts]

    return Panel(
        f"an epoch on {graph}",
        "s",
        [str(p) for p in counts],
        {system: times(system) for system in systems},
        {
            s: [NO_GAIN if p == 16 else "" for p in counts]
            for s in (CAGNET, AWARE)
            if graph == "amazon" and s in systems
        },
        {system: null_times(lab, graph, system, counts) for system in systems},
        axis="GPUs",
        quantity="epoch time",
        scale="log-log",
    )


@figure("gnn_fig3", "Figure 3")
def fig3(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    return (epoch_panel(lab, graph, COMPARED, COUNTS[graph]) for graph in ("reddit", "amazon", "protein"))


@figure("gnn_fig4", "Figure 4")
def fig4(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    """Phases of an epoch, one panel per graph and system."""
    for graph in ("reddit", "amazon", "protein"):
        counts = fitting_counts(graph)
        for system in COMPARED:
            epochs = [lab.epoch(graph, system, p) for p in counts]
            yield Panel(
                f"phases of an epoch on {graph}, {system}",
                "s",
                [str(p) for p in counts],
                {"communication": [e.communication for e in epochs], "local": [e.local for e in epochs]},
                axis="GPUs",
                quantity="time per epoch",
            )


def oblivious_slows(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    graphs = ("reddit", "amazon", "protein")
    pairs = [(graph, *counts) for graph in graphs for counts in pairwise(fitting_counts(graph))]
    cases = [[seconds(lab, graph, CAGNET, p) for p in counts] for graph, *counts in pairs]
    falls = [f"{graph} {a} to {b}" for (graph, a, b), (x, y) in zip(pairs, cases, strict=True) if x >= y]
    note = "broadcasts slow down with the square of the GPU count; local work falls by more at " + ", ".join(falls)
    return cases, note if falls else "one case per graph and pair of neighbouring counts"


def times(
    question: Question,
    lab: GraphLab,
    *,
    graphs: Sequence[str],
    gpus: Sequence[int] = (),
    phase: str = "seconds",
    note: str = "one case per graph and GPU count",
) -> tuple[Cases, str]:
    """Seconds of an epoch, or of a phase, by each system of the terms; by default at all GPU counts that fit."""
    runs = [(graph, p) for graph in graphs for p in gpus or fitting_counts(graph)]
    return [[getattr(lab.epoch(graph, system, p), phase) for system in question.terms] for graph, p in runs], note


def faster_above_64(question: Question, lab: GraphLab) -> Cases:
    """128 and 256 against cagnet, 256 against 128."""
    seconds_by_count = {p: seconds(lab, "protein", AWARE, p) for p in (128, 256)}
    cases = [[seconds_by_count[p], seconds(lab, "protein", CAGNET, p)] for p in (128, 256)]
    return [*cases, [seconds_by_count[256], seconds_by_count[128]]]


def times_over_gpus(question: Question, lab: GraphLab, *, graph: str, phase: str, note: str) -> tuple[Cases, str]:
    """Seconds of an epoch of the sparsity-aware system, or of a phase, at the GPU counts of the terms."""
    return [[getattr(lab.epoch(graph, AWARE, int(p)), phase) for p in question.terms]], note


def out_of_memory(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    most, notes = [], []
    for graph in ("amazon", "protein"):
        peaks = {system: lab.full_graph(graph, system, 4).peak() for system in COMPARED}
        most.append([lab.machine.memory, float(max(peaks.values()))])
        notes.append(f"{graph} {', '.join(f'{system} {peak / 1e9:.0f} GB' for system, peak in peaks.items())}")
    return most, "; ".join(notes)


def communication_bound(question: Question, lab: GraphLab) -> Cases:
    """Percent of an epoch, one case per graph and GPU count; Reddit's 4 GPUs are one node."""
    epochs = [lab.epoch(g, CAGNET, p) for g in ("reddit", "amazon", "protein") for p in fitting_counts(g)]
    return [[100 * phase / epoch.seconds for phase in (epoch.communication, epoch.local)] for epoch in epochs]


def communication_near_zero(question: Question, lab: GraphLab, *, share: float) -> Cases:
    """Protein, one case per GPU count."""
    gvb, oblivious = (
        [lab.epoch("protein", system, p).communication for p in fitting_counts("protein")] for system in (GVB, CAGNET)
    )
    return [[a, share * b] for a, b in zip(gvb, oblivious, strict=True)]


# The null model of every speedup: epoch times in proportion to the rows that all processes send


def speedups(
    question: Question, lab: GraphLab, *, slower: str, graph: str, gpus: Sequence[int] = (), note: str
) -> WithNull:
    """Epoch time of a system over that of SA+GVB, one case per GPU count; by default at all that fit."""
    counts = gpus or fitting_counts(graph)
    cases, nulls = ([[of(lab, graph, p, slower, GVB)] for p in counts] for of in (ratio, null_ratio))
    return cases, note, nulls


def max_speedup(question: Question, lab: GraphLab, *, graphs: Sequence[str], gpus: int) -> WithNull:
    """Largest speedup over CAGNET among graphs on one GPU count."""
    ratios = {graph: ratio(lab, graph, gpus, CAGNET, GVB) for graph in graphs}
    ratios_text = ", ".join(f"{graph} {value:.3g}" for graph, value in ratios.items())
    null = max(null_ratio(lab, graph, gpus, CAGNET, GVB) for graph in graphs)
    return [[max(ratios.values())]], f"over CAGNET: {ratios_text}; the 14 belongs to the ratio over SA (G1)", [[null]]


def overwhelming_gain(question: Question, lab: GraphLab, *, share: float) -> tuple[Cases, str]:
    cases = []
    for graph, counts in COUNTS.items():
        gvb, oblivious = (lab.epoch(graph, system, counts[-1]) for system in (GVB, CAGNET))
        cases += [[gvb.communication, share * oblivious.communication], [gvb.seconds, share * oblivious.seconds]]
    return cases, f"communication and epoch time of {', '.join(COUNTS)}, each at its largest GPU count"


def redistribution(lab: GraphLab, graph: str, gpus: int) -> float:
    """Seconds of one all-to-all that moves all features and entries to the processes of a partition."""
    size = Dataset.of(graph)
    needed = np.full((gpus, gpus), size.vertices / gpus**2)
    np.fill_diagonal(needed, 0)
    volumes = Volumes(needed, np.full(gpus, size.vertices / gpus), needed, Placement(gpus))
    row = VALUE * size.features + LOOSE * size.entries / size.vertices
    return Wires(lab.machine, lab.efficiency()).all_to_all(volumes, row)


def redistribution_and_training(question: Question, lab: GraphLab, *, times: float) -> Cases:
    """One all-to-all of features and entries; training of SA+GVB; one case per graph and GPU count."""
    return [
        [times * redistribution(lab, graph, p), EPOCHS * seconds(lab, graph, GVB, p)]
        for graph in COUNTS
        for p in fitting_counts(graph)
    ]


# -- Figures 5 and 6 ---------------------------------------------------------------------------------------------------


@figure("gnn_fig5", "Figure 5")
def fig5(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    yield epoch_panel(lab, "papers", COMPARED, COUNTS["papers"])
    yield Panel(
        "CAGNET's epoch over that of SA+GVB, papers",
        "ratio",
        ("16 GPUs",),
        {"speedup": [ratio(lab, "papers", 16, CAGNET, GVB)]},
        "sparse_gnn.fig5.papers_speedup",
        axis="GPUs",
        quantity="speedup",
    )


@figure("gnn_fig6", "Figure 6")
def fig6(lab: GraphLab, claims: Claims) -> Iterator[Panel]:
    for graph in ("amazon", "protein"):
        yield epoch_panel(lab, graph, (METIS, GVB), FIG6_COUNTS)
    yield Panel(
        "epoch with METIS over that with GVB, amazon; the paper prints more than 2",
        "ratio",
        ("64 GPUs",),
        {"speedup": [ratio(lab, "amazon", 64, METIS, GVB)]},
        "sparse_gnn.fig6.gvb_over_metis.amazon",
        axis="GPUs",
        quantity="speedup",
    )


def speedup_over_metis(question: Question, lab: GraphLab) -> WithNull:
    sent = [lab.full_graph("amazon", s, 64).moved.send.max() for s in (METIS, GVB)]
    note = f"the busiest process sends {sent[0] / sent[1]:.2f} times as much with METIS; GVB-style, not GVB"
    return [[ratio(lab, "amazon", 64, METIS, GVB)]], note, [[null_ratio(lab, "amazon", 64, METIS, GVB)]]


def similar_on_protein(question: Question, lab: GraphLab, *, margin: float) -> Cases:
    """16, 32 and 64 GPUs; METIS cuts nothing here, and GVB starts from METIS, so both partitions are equal."""
    cases = []
    for p in FIG6_COUNTS:
        metis, gvb = (seconds(lab, "protein", s, p) for s in (METIS, GVB))
        cases.append([metis, gvb, (1 + margin) * metis])
    return cases
