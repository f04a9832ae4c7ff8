"""Simulation of AxoNN's Section V: Figures 5, 6 and 8, and the total memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.claim import Evidence
from suite.claims.cluster_runs import STUDY_BATCH, STUDY_GPUS, Lab
from suite.claims.null_model import NullLab
from suite.claims.panel import NONE, Claims, Panel, figure, published
from suite.core.errors import InvalidRequest
from suite.simulate.block_model import SimulationPlan
from suite.simulate.network.network import ring_volume
from suite.simulate.operations.layouts import divisors

DEPTHS = (6, 12, 24, 48)
BATCHES = (2048, 4096, 8192, 16384)  # batch sizes of the expected gain (V-B)
COARSENINGS = (1, 2, 4, 8, 16, 32)


# Figure 5: time of the pipeline over its depth. The authors remove optimizer states so that all depths fit (V-B)


@figure("axonn_fig5", "Figure 5")
def fig5(lab: Lab, claims: Claims) -> Iterator[Panel]:
    printed = {24: "axonn.fig6.pipeline_time.before", 6: "axonn.fig6.pipeline_time.after"}
    ours, nulls = ([each.study("before", inter=i).pipeline for i in DEPTHS] for each in (lab, NullLab.of(lab)))
    scale = published(claims, printed[DEPTHS[0]]) / nulls[0]
    yield Panel(
        "inter-layer phase over G_inter",
        "s",
        [str(inter) for inter in DEPTHS],
        {"axonn": ours},
        {"axonn": [printed.get(inter, "") for inter in DEPTHS]},
        {"axonn": [scale * null for null in nulls]},
        axis="G_inter, stages",
        quantity="time of the phase",
    )


def time_over_depth(question: Question, lab: Lab) -> Cases:
    """Microbatch 1, separate phases."""
    return [[lab.study("before", inter=int(term)).pipeline for term in question.terms]]


# Figure 6: before and after the memory optimization


def improvement(lab: Lab, batch: int = STUDY_BATCH) -> float:
    """Percent of batch time that the memory optimization saves."""
    before, after = lab.study("before", batch=batch), lab.study("after", batch=batch)
    return 100 * (1 - after.seconds / before.seconds)


@figure("axonn_fig6", "Figure 6")
def fig6(lab: Lab, claims: Claims) -> Iterator[Panel]:
    studies = {when: lab.study(when) for when in ("before", "after")}
    anchor = published(claims, "axonn.fig6.pipeline_time.before")
    phases = ("pipeline", "data_parallel")
    yield Panel(
        "phases of a batch",
        "s",
        [phase.replace("_", " ") for phase in phases],
        {when: [batch.pipeline, batch.reduction] for when, batch in studies.items()},
        {when: [f"axonn.fig6.{phase}_time.{when}" for phase in phases] for when in studies},
        {when: [_null_pipeline(lab, when, anchor), NONE] for when in studies},
        axis="phase",
        quantity="time of the phase",
    )
    yield Panel(
        "shorter batch after the memory optimization, at least",
        "percent",
        ("batch",),
        {"axonn": [improvement(lab)]},
        "axonn.fig6.batch_time_improvement",
        axis="phase",
        quantity="time saved",
    )


def _null_pipeline(lab: Lab, when: str, anchor: float) -> float:
    """Seconds of the pipeline phase if only the bubble changes; `anchor` is the printed time before."""
    null = NullLab.of(lab)
    return anchor * null.study(when).pipeline / null.study("before").pipeline


def pipeline_time(question: Question, lab: Lab, *, when: str, anchor: float) -> WithNull:
    """Seconds of the pipeline phase."""
    return [[lab.study(when).pipeline]], "until all stages have drained", [[_null_pipeline(lab, when, anchor)]]


def reduction_time(question: Question, lab: Lab, *, when: str, anchor: float) -> WithNull:
    """Seconds of the reduction.

    Null model: proportional to the bytes that a GPU of the first stage sends in its ring. `anchor` is the printed time
    after the optimization.
    """
    study, last = lab.study(when), lab.study_plan("after")
    null = anchor * _reduced(study.plan) / _reduced(last)
    return [[study.reduction]], "ring of the first stage, concurrent with the other rings of its node", [[null]]


def _reduced(plan: SimulationPlan) -> float:
    """Bytes of half-precision gradients that a GPU of the first stage sends in one ring."""
    return ring_volume(2 * plan.entries(0), plan.grid.data)


def gain(question: Question, lab: Lab) -> WithNull:
    """Percent of batch time that the memory optimization saves. Null model: only the bubble changes."""
    return [[improvement(lab)]], "whole batches with sequential phases", [[improvement(NullLab.of(lab))]]


def gains(question: Question, lab: Lab) -> Cases:
    """The share of the update in a batch falls."""
    return [[improvement(lab, batch) for batch in BATCHES]]


def reduction_over_step(question: Question, lab: Lab) -> Cases:
    """States are fetched and returned over the host's link."""
    study = lab.study("after")
    return [[study.reduction / study.step]]


# Section V-B: memory of all GPUs


@figure("axonn_memory")
def memory(lab: Lab, claims: Claims) -> Iterator[Panel]:
    terms = ("before", "after")
    yield Panel(
        "Memory of all 48 GPUs, G_inter 24",
        "gigabyte",
        terms,
        {"axonn": [gigabytes(lab, when) for when in terms]},
        "axonn.sec5b.total_memory_{x}",
        axis="memory optimization",
        quantity="memory",
        evidence=Evidence.DERIVED,
    )


def gigabytes(lab: Lab, when: str) -> float:
    """States and activations of all GPUs in gigabytes, at G_inter 24 before and after."""
    return lab.study_plan(when, inter=24).total() / 1e9


def total_memory(question: Question, lab: Lab, *, when: str) -> Cases:
    """Sum of states, checkpoints in flight and one segment."""
    return [[gigabytes(lab, when)]]


def memory_ratio(question: Question, lab: Lab) -> Cases:
    """Before over after."""
    return [[gigabytes(lab, "before") / gigabytes(lab, "after")]]


def fewest(lab: Lab, when: str, memory: float) -> SimulationPlan:
    """Plan with the fewest stages that divide GPUs and batch and fit `memory` bytes per GPU.

    Raises:
        InvalidRequest: No depth fits.
    """
    for inter in divisors(STUDY_GPUS):
        if STUDY_BATCH % (STUDY_GPUS // inter) == 0:
            plan = lab.study_plan(when, inter=inter)
            if plan.peak <= memory:
                return plan
    raise InvalidRequest(
        f"12B does not fit {STUDY_GPUS} GPUs of {memory:g} bytes", rule="some depth fits", legal="memory=16.0e+9"
    )


def fewest_stages(question: Question, lab: Lab, *, memory: float) -> tuple[Cases, str]:
    before, after = (fewest(lab, when, memory).grid.inter for when in ("before", "after"))
    return [[before / after]], f"fewest stages that fit at microbatch 1: {before} before, {after} after"


def parameters_of_fewest(question: Question, lab: Lab, *, memory: float) -> tuple[Cases, str]:
    before, after = (fewest(lab, when, memory) for when in ("before", "after"))
    entries = before.entries(1), after.entries(1)
    return [
        [entries[1] / entries[0]]
    ], f"{entries[0]} and {entries[1]} parameters of an inner GPU, at the fewest stages that fit"


# Figure 8: reductions overlap optimizer steps


def overlapped(lab: Lab, coarsening: int) -> float:
    """Seconds of reduction and step together at a coarsening factor; 0 means sequential phases."""
    bucket = 16_000_000 if coarsening else 0
    study = lab.study("after", bucket_numel=bucket, buckets_per_reduction=coarsening)
    return study.reduction + study.step


@figure("axonn_fig8", "Figure 8")
def fig8(lab: Lab, claims: Claims) -> Iterator[Panel]:
    yield Panel(
        "all-reduce and optimizer over the coarsening factor",
        "s",
        [str(k) for k in COARSENINGS],
        {
            "overlapped": [overlapped(lab, k) for k in COARSENINGS],
            "no overlap": [overlapped(lab, 0)] * len(COARSENINGS),
        },
        axis="coarsening factor k",
        quantity="time of both phases",
    )


def times_over_k(question: Question, lab: Lab) -> Cases:
    """Buckets of 16 million entries; rings share the network adapters of their node."""
    return [[overlapped(lab, 0 if term == "no overlap" else int(term[2:])) for term in question.terms]]


def optimum(question: Question, lab: Lab) -> Cases:
    """Seconds of the slowest factor in each term. Seconds of reduction and step together."""
    factors_by_term = [[int(factor) for factor in re.findall(r"k=(\d+)", term)] for term in question.terms]
    return [[max(overlapped(lab, factor) for factor in factors) for factors in factors_by_term]]
