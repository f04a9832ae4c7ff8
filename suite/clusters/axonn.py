"""Decides what AxoNN's Section V comes to in simulation: Figures 5, 6 and 8, and the memory of all GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question
from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import STUDY_BATCH, Lab
from suite.clusters.null import filled
from suite.core.claim import Claim

Claims = Mapping[str, Claim]
DEPTHS = (6, 12, 24, 48)
BATCHES = (2048, 4096, 8192, 16384)  # of V-B
COARSENINGS = (1, 2, 4, 8, 16, 32)


# Figure 5: the pipeline's time over its depth


def _depth(lab: Lab, inter: int) -> float:
    """Optimizer states are removed, so that all depths fit (V-B): the pipeline alone is timed."""
    return lab.study("before", inter=inter).pipeline


def _figure_5(lab: Lab, claims: Claims) -> Sequence[Panel]:
    ours = [_depth(lab, inter) for inter in DEPTHS]
    printed = {24: "axonn.fig6.pipeline_time.before", 6: "axonn.fig6.pipeline_time.after"}
    paper = [number(claims, printed[inter]) if inter in printed else NONE for inter in DEPTHS]
    plans = [lab.study("before", inter=inter).plan for inter in DEPTHS]
    constant = paper[0] * filled(plans[0])
    return [
        Panel(
            "Inter-layer phase over G_inter",
            "s",
            [str(inter) for inter in DEPTHS],
            {"axonn": ours},
            {"axonn": paper},
            {"axonn": [constant / filled(plan) for plan in plans]},
            [("axonn", 2)],
            axis="G_inter",
        )
    ]


figure_5 = figure("axonn_fig5", "Figure 5; Section V-B", _figure_5)


@figure_5("axonn.fig5.time_vs_g_inter", unit="second")
def time_over_depth(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[_depth(lab, int(term)) for term in question.terms]], "microbatch 1, phases timed one by one"


# Figure 6: before and after the memory optimisation


def improvement(lab: Lab, batch: int = STUDY_BATCH) -> float:
    before, after = lab.study("before", batch=batch), lab.study("after", batch=batch)
    return 100 * (1 - after.seconds / before.seconds)


def _figure_6(lab: Lab, claims: Claims) -> Sequence[Panel]:
    phases = ("pipeline", "data parallel")
    found = {when: lab.study(when) for when in ("before", "after")}
    names = ("axonn.fig6.pipeline_time", "axonn.fig6.data_parallel_time")
    before = found["before"].plan
    scale = filled(before) * number(claims, "axonn.fig6.pipeline_time.before")
    return [
        Panel(
            "Phases of a batch",
            "s",
            phases,
            {when: [batch.pipeline, batch.reduction] for when, batch in found.items()},
            {when: [number(claims, f"{name}.{when}") for name in names] for when in found},
            {when: [scale / filled(batch.plan), NONE] for when, batch in found.items()},
            [("before", 0), ("after", 1)],
        )
    ]


figure_6 = figure("axonn_fig6", "Figure 6; Section V-B", _figure_6)


@figure_6("axonn.fig6.pipeline_time.before", "axonn.fig6.pipeline_time.after", unit="second")
def pipeline_time(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.study(question.id.rpartition(".")[2]).pipeline]], "until every stage has drained"


@figure_6("axonn.fig6.data_parallel_time.before", "axonn.fig6.data_parallel_time.after", unit="second")
def reduction_time(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.study(question.id.rpartition(".")[2]).reduction]], "the first stage's ring beside its node's others"


@figure_6("axonn.abstract.memopt_performance_gain", unit="percent")
def gain(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[improvement(lab)]], "whole batches, phases one after the other"


@figure_6("axonn.fig6.batch_time_improvement", unit="percent")
def gain_and_floor(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[13.0, improvement(lab)]], "13 percent is the floor (A2); whole batches"


@figure_6("axonn.sec5b.gain_grows_with_batch", unit="percent")
def gains(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[improvement(lab, batch) for batch in BATCHES]], "the update's share of a batch falls"


@figure_6("axonn.sec5c.allreduce_over_optimizer", unit="ratio")
def reduction_over_step(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = lab.study("after")
    return [[found.reduction / found.step]], "states are fetched and returned over the host's link"


# Section V-B: memory of all GPUs


def _memory(lab: Lab, claims: Claims) -> Sequence[Panel]:
    terms = ("before", "after")
    return [
        Panel(
            "Memory of all 48 GPUs, G_inter 24",
            "gigabyte",
            terms,
            {"axonn": [gigabytes(lab, when) for when in terms]},
            {"axonn": [number(claims, f"axonn.sec5b.total_memory_{when}") for when in terms]},
        )
    ]


def gigabytes(lab: Lab, when: str) -> float:
    """States and activations of all GPUs, with the depth of 24 that both have."""
    return lab.study(when, inter=24).plan.total() / 1e9


memory = figure("axonn_memory", "Section V-B", _memory)


@memory("axonn.sec5b.total_memory_before", "axonn.sec5b.total_memory_after", unit="gigabyte")
def total_memory(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[gigabytes(lab, question.id.rpartition("_")[2])]], "states, checkpoints in flight and one segment, summed"


@memory("axonn.abstract.gpu_memory_reduction", unit="ratio")
def memory_ratio(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[gigabytes(lab, "before") / gigabytes(lab, "after")]], "before over after"


# Figure 8: reductions beside steps


def overlapped(lab: Lab, coarsening: int) -> float:
    """Reduction and step together; 0: one after the other."""
    bucket = 16_000_000 if coarsening else 0
    found = lab.study("after", bucket=bucket, coarsening=coarsening)
    return found.reduction + found.step


def _figure_8(lab: Lab, claims: Claims) -> Sequence[Panel]:
    ours = [*(overlapped(lab, k) for k in COARSENINGS), overlapped(lab, 0)]
    return [
        Panel(
            "Reduction and optimizer over the coarsening factor",
            "s",
            [*(f"k={k}" for k in COARSENINGS), "no overlap"],
            {"axonn": ours},
        )
    ]


figure_8 = figure("axonn_fig8", "Figure 8; Section V-C", _figure_8)


@figure_8("axonn.fig8.k1_worse_than_no_overlap", "axonn.fig8.large_k_slows", unit="second")
@figure_8("axonn.fig8.overlap_helps_at_optimum", unit="second")
def times_over_k(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [overlapped(lab, 0 if term == "no overlap" else int(term[2:])) for term in question.terms]
    return [values], "buckets of 16 million entries; rings share the adapters of their node"


@figure_8("axonn.fig8.optimum_k", unit="none")
def optimum(question: Question, lab: Lab) -> tuple[Cases, str]:
    slower = max(overlapped(lab, 2), overlapped(lab, 4))
    return [[slower, *(overlapped(lab, k) for k in (1, 8, 16))]], "seconds of reduction and step together"
