"""Decides what the sparsity-aware GNN paper's Perlmutter runs in 1D come to: Figures 3 to 6, and what is said of them.

Every run is the lab's: published vertices, entries and widths, volumes of a stand-in, the published code's local work.
One constant of the stack is fitted (sparse_gnn_fitted.py), others are marked as chosen; all else is held out. Beside
every curve stands the null model: the oblivious time at the fewest GPUs, times the share of its rows that a system
sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from suite.analytic.question import Cases, Question
from suite.clusters.figure import NONE, Panel, figure
from suite.clusters.graph_lab import Dataset, GraphLab
from suite.core.claim import Claim
from suite.core.errors import DoesNotFit
from suite.gnn.plan import Placement, Volumes
from suite.simulate.exchange import Wires
from suite.simulate.full_graph import LOOSE, VALUE

Claims = Mapping[str, Claim]
CAGNET, AWARE, METIS, GVB = "cagnet", "sparsity_aware", "sparsity_aware_metis", "sparsity_aware_gvb"
COMPARED = (CAGNET, AWARE, GVB)
COUNTS = {  # GPUs of Figures 3 to 5; those at which the text says that memory runs out come first
    "reddit": (4, 16, 32, 64),
    "amazon": (4, 16, 32, 64, 128, 256),
    "protein": (4, 16, 32, 64, 128, 256),
    "papers": (16,),
}
FEW = (4,)  # GPUs on which Amazon and Protein do not fit
SMALL = (4, 16, 32, 64)  # of Figure 6
EPOCHS = 100  # Section 6.2


def fitting(graph: str) -> tuple[int, ...]:
    """GPU counts whose points the paper draws for every system."""
    return COUNTS[graph] if graph in ("reddit", "papers") else COUNTS[graph][1:]


def seconds(lab: GraphLab, graph: str, system: str, gpus: int, c: int = 1) -> float:
    return lab.epoch(graph, system, gpus, c).seconds


def ratio(lab: GraphLab, graph: str, gpus: int, slower: str, quicker: str) -> float:
    """Of epoch times."""
    return seconds(lab, graph, slower, gpus) / seconds(lab, graph, quicker, gpus)


def fits(lab: GraphLab, graph: str, system: str, gpus: int) -> bool:
    try:
        lab.full_graph(graph, system, gpus).check_memory(lab.machine)
    except DoesNotFit:
        return False
    return True


def null(lab: GraphLab, graph: str, system: str, counts: Sequence[int], c: int = 1) -> list[float]:
    """Seconds in proportion to the rows that all processes send, one constant: CAGNET's at the fewest GPUs."""

    def rows(name: str, gpus: int) -> float:
        return lab.full_graph(graph, name, gpus, c).moved.total / (gpus - 1)

    first = seconds(lab, graph, CAGNET, counts[0], c) / rows(CAGNET, counts[0])
    return [first * rows(system, gpus) for gpus in counts]


# -- Figures 3 to 5 --------------------------------------------------------------------------------------------------


def epochs(lab: GraphLab, graph: str, systems: Sequence[str], counts: Sequence[int]) -> Panel:
    times = {
        system: [seconds(lab, graph, system, p) if fits(lab, graph, system, p) else NONE for p in counts]
        for system in systems
    }
    marked = []
    if graph == "amazon" and AWARE in systems and 16 in counts:
        marked = [(AWARE, counts.index(16))]
    flat = {system: null(lab, graph, system, counts) for system in systems}
    return Panel(
        f"An epoch on {graph}", "s", [str(p) for p in counts], times, null=flat, calibrated=marked, axis="GPUs"
    )


def phases(lab: GraphLab, graph: str, counts: Sequence[int]) -> list[Panel]:
    """Of each system, as Figure 4's bars."""
    found = []
    for system in COMPARED:
        each = [lab.epoch(graph, system, p) for p in counts]
        bars = {"communication": [e.communication for e in each], "local": [e.local for e in each]}
        found.append(
            Panel(f"Phases of an epoch on {graph}, {system}", "s", [str(p) for p in counts], bars, axis="GPUs")
        )
    return found


WHAT_IFS: Mapping[str, Mapping[str, Any]] = {  # options of a full graph
    "as published": {},
    "the narrower side is sent": {"order": "auto"},
    "the first product is kept": {"order": "auto", "epoch": "lean"},
    "the suite's own local work": {"published": False},
    "all three": {"order": "auto", "epoch": "lean", "published": False},
}


def what_ifs(lab: GraphLab, graph: str, system: str) -> Panel:
    """What other orders of multiplication, and compact columns instead of whole block rows of zeros, would save."""
    counts = fitting(graph)
    times = {name: [lab.epoch(graph, system, p, **own).seconds for p in counts] for name, own in WHAT_IFS.items()}
    return Panel(f"What if: an epoch of {system} on {graph}", "s", [str(p) for p in counts], times, axis="GPUs")


def _figure_3(lab: GraphLab, claims: Claims) -> Sequence[Panel]:
    return [epochs(lab, graph, COMPARED, COUNTS[graph]) for graph in ("reddit", "amazon", "protein")]


def _figure_4(lab: GraphLab, claims: Claims) -> Sequence[Panel]:
    found = [panel for graph in ("reddit", "amazon", "protein") for panel in phases(lab, graph, fitting(graph))]
    return [*found, *(what_ifs(lab, "amazon", system) for system in (AWARE, GVB))]


figure_3 = figure("gnn_fig3", "Figure 3; Section 7.1", _figure_3)
figure_4 = figure("gnn_fig4", "Figure 4; Sections 7.1 and 7.1.1", _figure_4)
figure_5 = figure(
    "gnn_fig5", "Figure 5; Section 7.1", lambda lab, claims: [epochs(lab, "papers", COMPARED, COUNTS["papers"])]
)


@figure_3("sparse_gnn.fig3.oblivious_slows", unit="second")
def oblivious_slows(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    pairs = [(graph, *two) for graph in ("reddit", "amazon", "protein") for two in _neighbours(fitting(graph))]
    cases = [[seconds(lab, graph, CAGNET, p) for p in two] for graph, *two in pairs]
    falls = [f"{graph} {a} to {b}" for (graph, a, b), (x, y) in zip(pairs, cases, strict=True) if x >= y]
    told = "broadcasts do slow down, with the square of the GPUs; local work falls by more at " + ", ".join(falls)
    return cases, told if falls else "a case per graph and neighbouring counts"


def _neighbours(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(counts))


@figure_3("sparse_gnn.fig3.reddit_below_one_second", unit="second")
def below_one_second(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[seconds(lab, "reddit", s, p) for s in question.terms] for p in COUNTS["reddit"]], "a case per GPU count"


@figure_3("sparse_gnn.fig3.amazon_p16_no_gain", unit="second")
def no_gain(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [
        [seconds(lab, "amazon", s, 16) for s in question.terms]
    ], "the share of an adapter that a ring reaches is fitted"


@figure_3("sparse_gnn.fig3.amazon_gain_from_p32", unit="second")
def gain_from_32(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[seconds(lab, "amazon", s, p) for s in question.terms] for p in (32, 64, 128, 256)], "a case per GPU count"


@figure_3("sparse_gnn.fig3.protein_slower_below_p64", unit="second")
def slower_below_64(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = [[seconds(lab, "protein", s, p) for s in question.terms] for p in (16, 32)]
    return (
        cases,
        "nearly every row is needed, and comes as messages of pairs, which reach less than a broadcast does",
    )


@figure_3("sparse_gnn.fig3.protein_faster_above_p64", unit="second")
def faster_above_64(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    own = {p: seconds(lab, "protein", AWARE, p) for p in (128, 256)}
    cases = [[own[p], seconds(lab, "protein", CAGNET, p)] for p in (128, 256)]
    return [*cases, [own[256], own[128]]], "128 and 256 against cagnet, 256 against 128"


@figure_3("sparse_gnn.fig3.protein_flat_low_p", unit="second")
def flat(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = [[seconds(lab, "protein", AWARE, int(p)) for p in question.terms]]
    return cases, "less local work, but 7 rows of 8 come through the adapter instead of 3 of 4"


@figure_3("sparse_gnn.fig3.oom_p4", unit="none")
def out_of_memory(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    most, told = [], []
    for graph in ("amazon", "protein"):
        peaks = {system: lab.full_graph(graph, system, 4).peak() for system in COMPARED}
        most.append([lab.machine.memory, float(max(peaks.values()))])
        told.append(f"{graph} {', '.join(f'{system} {peak / 1e9:.0f} GB' for system, peak in peaks.items())}")
    return most, "; ".join(told)


@figure_4("sparse_gnn.fig4.oblivious_communication_bound", unit="percent")
def communication_bound(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    found = [lab.epoch(g, CAGNET, p) for g in ("reddit", "amazon", "protein") for p in fitting(g)]
    cases = [[100 * part / one.seconds for part in (one.communication, one.local)] for one in found]
    return cases, "shares of an epoch, a case per graph and GPU count; Reddit's 4 are on one node"


@figure_4("sparse_gnn.fig4.communication_falls_reddit", unit="second")
def falls_on_reddit(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = [[lab.epoch("reddit", AWARE, int(p)).communication for p in question.terms]]
    return cases, "at 493 neighbours a vertex every part needs nearly every row, on 32 GPUs and on 64"


@figure_4("sparse_gnn.fig4.communication_falls_amazon", unit="second")
def falls_on_amazon(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    counts = (32, 64, 128, 256)
    return [[lab.epoch("amazon", s, p).communication for s in question.terms] for p in counts], "a case per GPU count"


@figure_4("sparse_gnn.abstract.communication_near_zero", unit="second")
def near_zero(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    ours, theirs = (
        [lab.epoch("protein", system, p).communication for p in fitting("protein")] for system in (GVB, CAGNET)
    )
    return [[a, 0.05 * b] for a, b in zip(ours, theirs, strict=True)], "Protein, a case per GPU count"


@figure_4("sparse_gnn.sec7.1.1.gvb_over_sa.reddit", "sparse_gnn.sec7.1.1.gvb_over_sa.amazon", unit="ratio")
def over_aware(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    graph = question.id.rpartition(".")[2]
    return [[ratio(lab, graph, p, AWARE, GVB)] for p in fitting(graph)], f"a case per GPU count: {fitting(graph)}"


@figure_4("sparse_gnn.sec7.1.1.gvb_over_sa.protein", unit="ratio")
def over_aware_on_protein(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    told = "the published code fills and adds whole blocks, which bounds SA+GVB from below on 256 GPUs"
    return [[ratio(lab, "protein", 256, AWARE, GVB)]], told


@figure_3("sparse_gnn.abstract.max_speedup", unit="ratio")
def max_speedup(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[ratio(lab, "protein", 256, CAGNET, GVB)]], "over CAGNET; the 14 is bound to the ratio over SA (G1)"


@figure_5("sparse_gnn.fig5.papers_speedup", unit="ratio")
def papers(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[ratio(lab, "papers", 16, CAGNET, GVB)]], "how Papers' communities lie is a guess"


@figure_3("sparse_gnn.sec8.overwhelming_1d_benefit", unit="second")
def overwhelming(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for graph, counts in COUNTS.items():
        ours, theirs = (lab.epoch(graph, system, counts[-1]) for system in (GVB, CAGNET))
        cases += [[ours.communication, theirs.communication / 2], [ours.seconds, theirs.seconds / 2]]
    return cases, f"communication, epoch of {', '.join(COUNTS)}, each at its largest GPU count"


def redistribution(lab: GraphLab, graph: str, gpus: int) -> float:
    """Seconds in which every process sends its rows of features, and its entries, to whom a partition gives them."""
    size = Dataset.of(graph)
    needed = np.full((gpus, gpus), size.vertices / gpus**2)
    np.fill_diagonal(needed, 0)
    volumes = Volumes(needed, np.full(gpus, size.vertices / gpus), needed, Placement(gpus))
    row = VALUE * size.features + LOOSE * size.entries / size.vertices
    return Wires(lab.machine, lab.stack).all_to_all(volumes, row)


@figure_3("sparse_gnn.sec6.2.preprocessing_small", unit="second")
def preprocessing(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = [
        [10 * redistribution(lab, graph, p), EPOCHS * seconds(lab, graph, GVB, p)]
        for graph in COUNTS
        for p in fitting(graph)
    ]
    return cases, "features and entries by one all-to-all; training of SA+GVB, the quickest; a case per graph and count"


# -- Figure 6 ----------------------------------------------------------------------------------------------------------


def _figure_6(lab: GraphLab, claims: Claims) -> Sequence[Panel]:
    return [epochs(lab, graph, (METIS, GVB), [p for p in SMALL if p > 4]) for graph in ("amazon", "protein")]


figure_6 = figure("gnn_fig6", "Figure 6; Section 7.1.1", _figure_6)


@figure_6("sparse_gnn.fig6.gvb_over_metis.amazon", unit="ratio")
def over_metis(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    sent = [lab.full_graph("amazon", s, 64).moved.send.max() for s in (METIS, GVB)]
    told = f"the busiest process sends {sent[0] / sent[1]:.2f} times as much with METIS; GVB-style, not GVB"
    return [[ratio(lab, "amazon", 64, METIS, GVB)]], told


@figure_6("sparse_gnn.fig6.gvb_faster.amazon", unit="second")
def faster_than_metis(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[seconds(lab, "amazon", s, p) for s in question.terms] for p in (16, 32, 64)], "16, 32 and 64 GPUs"


@figure_6("sparse_gnn.fig6.similar.protein", unit="second")
def similar(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for p in (16, 32, 64):
        metis, gvb = (seconds(lab, "protein", s, p) for s in (METIS, GVB))
        cases.append([metis, gvb, 1.08 * metis])
    return cases, "16, 32 and 64 GPUs; both cut nearly nothing, so that the balance of entries decides"


@figure_6("sparse_gnn.sec8.max_volume_partitioner_preferable", unit="second")
def preferable(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = [[seconds(lab, g, s, p) for s in question.terms] for g in ("reddit", "amazon") for p in fitting(g)]
    return cases, "Reddit and Amazon, a case per GPU count"
