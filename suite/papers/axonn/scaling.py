"""Simulation of AxoNN's scaling: Figures 9 and 11, Tables I and II."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.cluster_runs import AXONN_COUNTS, STRONG, STUDY_GPUS, WEAK_BATCH, Lab
from suite.claims.null_model import NullLab, pipeline_utilization
from suite.claims.panel import Claims, Panel, figure, published
from suite.core.grid import Grid
from suite.simulate.block_model import SimulationPlan
from suite.simulate.search import plans
from suite.workload import Transformer

MODELS = tuple(AXONN_COUNTS)  # Table I
SYSTEMS = ("axonn", "deepspeed_3d", "megatron_lm")
SPLIT = ("deepspeed_3d", "megatron_lm")  # systems with intra-layer parallelism


def _short(model: str) -> str:
    return model.removeprefix("transformer_")


# Table II and Figure 9: weak scaling


@figure("axonn_fig9", "Figure 9")
def fig9(lab: Lab, claims: Claims) -> Iterator[Panel]:
    percent = {system: [lab.weak(model, system).percent_of_peak for model in MODELS] for system in SYSTEMS}
    range_of_peak = "axonn.abstract.percent_of_peak"
    null = _null(lab, {"axonn": published(claims, f"{range_of_peak} high")})
    names, networks = [_short(model) for model in MODELS], "network, parameters"
    yield Panel(
        "days to train on 300 billion tokens, weak scaling",
        "day",
        names,
        {system: [lab.weak(model, system).days for model in MODELS] for system in SYSTEMS},
        axis=networks,
        quantity="time to train",
    )
    yield Panel(
        "days saved",
        "day",
        names,
        {"over deepspeed_3d": [days_saved(lab, model) for model in MODELS]},
        "axonn.fig9.days_saved.{x}",
        axis=networks,
        quantity="time saved",
    )
    yield Panel(
        "how many times as long a batch takes as AxoNN's, 100b",
        "ratio",
        SPLIT,
        {"batch time": [slowdown(lab, MODELS[-1], s) for s in SPLIT]},
        {"batch time": [f"axonn.fig9.speedup_{s}.100b" for s in ("deepspeed", "megatron")]},
        axis="system",
        quantity="batch time over AxoNN's",
    )
    yield Panel(
        "percent of peak, weak scaling",
        "percent",
        names,
        percent,
        {"axonn": [f"{range_of_peak} high", "", "", f"{range_of_peak} low"]},
        {"axonn": [null.weak(model, "axonn").percent_of_peak for model in MODELS]},
        axis=networks,
        quantity="share of peak",
    )
    yield Panel(
        "least and largest percent of peak of the four networks",
        "percent",
        SYSTEMS,
        {"least": [min(percent[s]) for s in SYSTEMS], "largest": [max(percent[s]) for s in SYSTEMS]},
        {"least": "axonn.fig9.percent_of_peak.{x} low", "largest": "axonn.fig9.percent_of_peak.{x} high"},
        axis="system",
        quantity="share of peak",
    )


def _null(lab: Lab, highest: Mapping[str, float]) -> NullLab:
    """Null model of both scalings: the largest percent of peak of a system's weak scaling is the printed one."""
    best = {s: max((lab.weak_plan(m, s) for m in MODELS), key=pipeline_utilization) for s in highest}
    return NullLab.of(lab, [(best[system], percent) for system, percent in highest.items()])


ROUNDINGS = {"down": np.floor, "up": np.ceil}  # numpy's, because math's raise for nan, a hidden anchor


def whole_percents(question: Question, lab: Lab, *, system: str, highest: float, rounding: str = "") -> WithNull:
    """Percent of peak of a system's weak scaling, rounded as in print. `highest`: printed anchor of the null model."""
    null, rounded = _null(lab, {system: highest}), ROUNDINGS[rounding] if rounding else float
    values, nulls = ([each.weak(model, system).percent_of_peak for model in MODELS] for each in (lab, null))
    values_text = ", ".join(f"{value:.2f}" for value in values)
    return [[*map(rounded, values)]], f"plans of Table II: {values_text}", [[*map(rounded, nulls)]]


def days_saved(lab: Lab, model: str) -> float:
    return lab.weak(model, "deepspeed_3d").days - lab.weak(model, "axonn").days


def days(question: Question, lab: Lab, *, highest: Sequence[float], models: Sequence[str] = MODELS) -> WithNull:
    """Days saved over DeepSpeed-3D by model. `highest`: printed percents of both, anchors of the null model."""
    null = _null(lab, dict(zip(SYSTEMS, highest, strict=False)))
    ours, nulls = ([[days_saved(each, model) for model in models]] for each in (lab, null))
    return ours, "plans of Table II", nulls


def slowdown(lab: Lab, model: str, over: str) -> float:
    """Batch time of `over` over AxoNN's, weak scaling."""
    return lab.weak(model, over).seconds / lab.weak(model, "axonn").seconds


def reductions(question: Question, lab: Lab, *, highest: Sequence[float]) -> WithNull:
    """Percent of batch time saved over DeepSpeed-3D. `highest`: printed percents of both, anchors of the null model."""

    def saved(lab: Lab) -> list[float]:
        return [100 * (1 - lab.weak(m, "axonn").seconds / lab.weak(m, "deepspeed_3d").seconds) for m in MODELS]

    null = _null(lab, dict(zip(SYSTEMS, highest, strict=False)))
    return [saved(lab)], "plans of Table II", [saved(null)]


def ratios(question: Question, lab: Lab, *, over: str, highest: Sequence[float]) -> WithNull:
    """Batch time of `over` over AxoNN's at 100B. `highest`: printed percents of both, anchors of the null model."""
    null = _null(lab, dict(zip(("axonn", over), highest, strict=True)))
    ours, nulls = ([[slowdown(each, "transformer_100b", over)]] for each in (lab, null))
    return ours, "plans of Table II", nulls


def order(question: Question, lab: Lab, *, models: Sequence[str] = MODELS) -> Cases:
    """Plans of Table II."""
    systems = SYSTEMS[: len(question.terms)]
    return [[lab.weak(model, system).days for system in systems] for model in models]


def fastest(question: Question, lab: Lab) -> Cases:
    """Plans of Table II, weak scaling, then strong."""
    weak = [[lab.weak(model, system).days for system in SYSTEMS] for model in MODELS]
    strong = [[lab.strong(system, *count).days for system in SYSTEMS] for count in STRONG]
    return [*weak, *strong]


def efficiency(question: Question, lab: Lab) -> tuple[Cases, str]:
    batch = STRONG[-1][1]  # divides by every G_data and microbatch
    cases = [[lab.strong(system, int(term), batch).percent_of_peak for term in question.terms] for system in SYSTEMS]
    return cases, f"12B, plans of Table II, a batch of {batch} at every GPU count"


# Table II: fastest plans of the search

COUNTS = {"microbatch_size": "microbatch", "g_inter": "inter", "g_intra": "tensor", "g_data": "data"}


@figure("axonn_table2", "Table II")
def table2(lab: Lab, claims: Claims) -> Iterator[Panel]:
    for system in SYSTEMS:
        plans = [lab.tuned(model, system).steps[0].plan for model in MODELS]
        names = [name for name in COUNTS if system in SPLIT or name != "g_intra"]
        yield Panel(
            f"best plan of {system}",
            "count",
            [_short(model) for model in MODELS],
            {name: [float(_count(plan, name)) for plan in plans] for name in names},
            f"axonn.table2.{{x}}.{system}.{{curve}}",
            axis="network, parameters",
            quantity="samples or GPUs",
            scale="log",
        )


def _count(plan: SimulationPlan, name: str) -> int:
    return plan.microbatch if name == "microbatch_size" else int(getattr(plan.grid, COUNTS[name]))


def best_plan(question: Question, lab: Lab, *, model: str, system: str, quantity: str) -> tuple[Cases, str]:
    tuned, printed = lab.tuned(model, system), lab.weak(model, system)
    fastest = tuned.steps[0]
    plan = fastest.plan
    plan_text = f"microbatch {plan.microbatch}, grid {plan.grid}: {fastest.seconds:.0f} s"
    slower = 100 * (printed.seconds / fastest.seconds - 1)
    return [[_count(plan, quantity)]], (
        f"best of {tuned.fit} plans that fit, of {tuned.tried}: {plan_text}; "
        f"the printed plan is {slower:.1f} percent slower"
    )


def same_settings(question: Question, lab: Lab) -> Cases:
    """G_inter and G_intra of each system. The first term is Table II, the others are GPU counts. Table II and the
    fastest plans: G_inter of three systems, then G_intra of DeepSpeed-3D and Megatron-LM.
    """
    model, cases, batches = "transformer_12b", [], dict(STRONG)
    for system in SYSTEMS:
        counts = [int(term) for term in question.terms[1:]]
        tuned_grids = [lab.tuned(model, system, gpus=gpus, batch=batches[gpus]).steps[0].plan.grid for gpus in counts]
        grids = [lab.weak_plan(model, system).grid, *tuned_grids]
        cases.append([grid.inter for grid in grids])
        if system in SPLIT:
            cases.append([grid.tensor for grid in grids])
    return cases


def fewest(question: Question, lab: Lab, *, nodes: int) -> tuple[Cases, str]:
    """Fewest GPUs, in 1 to `nodes` whole nodes, on which every framework has a plan that fits."""
    shape = lab.shapes["transformer_12b"]
    for count in range(1, nodes + 1):
        gpus = count * lab.machine.devices_per_node
        if all(_fits(lab, shape, system, gpus) for system in SYSTEMS):
            return [[gpus]], f"whole nodes, batch {WEAK_BATCH}, microbatch 1, memory account of each system"
    return [[math.nan]], "no count fits"


def _fits(lab: Lab, shape: Transformer, system: str, gpus: int) -> bool:
    candidates = plans(shape, lab.system(system), gpus, WEAK_BATCH, microbatches=(1,))
    return any(plan.peak <= lab.machine.memory for plan in candidates)


def trillion(
    question: Question, lab: Lab, *, parameters: float, blocks: Sequence[int], step: int, gpus: int, memory: float
) -> tuple[Cases, str]:
    """Bytes of the fullest GPU compared with `memory`, for networks with one block per stage.

    Args:
        question: The claim.
        lab: Simulated cluster.
        parameters: Smallest number of parameters.
        blocks: Numbers of blocks. Each network is the narrowest with enough parameters.
        step: Divisor of the width.
        gpus: GPUs of the run.
        memory: Bytes of a GPU.
    """
    cases, notes = [], []
    for count in blocks:
        shape = next(
            shape
            for width in range(step, 1_000_000, step)
            if (shape := Transformer(count, width, 1, sequence=512, vocabulary=51200)).parameters >= parameters
        )
        shape = replace(shape, heads=next(n for n in range(shape.hidden // 128, 0, -1) if shape.hidden % n == 0))
        plan = SimulationPlan(shape, lab.system("axonn"), Grid(data=gpus // count, inter=count), WEAK_BATCH, 1, "share")
        cases.append([float(plan.peak), memory])
        notes.append(f"{count} of width {shape.hidden} on {plan.grid}: {plan.peak / 1e9:.2f}")
    return cases, f"blocks, width, grid and GB of the fullest GPU: {'; '.join(notes)}"


# Figure 11: strong scaling


@figure("axonn_fig11", "Figure 11")
def fig11(lab: Lab, claims: Claims) -> Iterator[Panel]:
    runs = {system: [lab.strong(system, *count) for count in STRONG] for system in SYSTEMS}
    null = NullLab.of(lab, [(batches[0].plan, batches[0].percent_of_peak) for batches in runs.values()])
    gpus = [str(count) for count, _ in STRONG]
    yield Panel(
        "percent of peak, strong scaling (the batch grows)",
        "percent",
        gpus,
        {system: [batch.percent_of_peak for batch in batches] for system, batches in runs.items()},
        null={s: [null.strong(s, *count).percent_of_peak for count in STRONG] for s in SYSTEMS},
        axis="GPUs",
        quantity="share of peak",
    )
    yield Panel(
        "days to train 12B, strong scaling",
        "day",
        gpus,
        {system: [batch.days for batch in batches] for system, batches in runs.items()},
        axis="GPUs",
        quantity="time to train",
    )
    yield Panel(
        f"time saved by AxoNN on {gpus[-1]} GPUs",
        "percent",
        SPLIT,
        {"axonn": [time_saved(lab, s) for s in SPLIT]},
        {"axonn": [f"axonn.fig11.gain_over_{s}" for s in ("deepspeed", "megatron")]},
        axis="over system",
        quantity="time saved",
    )


def time_saved(lab: Lab, over: str) -> float:
    """Percent of the batch time of `over` that AxoNN saves on the most GPUs of the strong scaling."""
    return 100 * (1 - lab.strong("axonn", *STRONG[-1]).seconds / lab.strong(over, *STRONG[-1]).seconds)


def strong_gain(question: Question, lab: Lab, *, over: str, highest: Sequence[float]) -> WithNull:
    """Percent of batch time saved over `over`. `highest`: printed percents of both, anchors of the null model."""
    null = _null(lab, dict(zip(("axonn", over), highest, strict=True)))
    note = f"{STRONG[-1][0]} GPUs, {STUDY_GPUS} times {STRONG[-1][0] // STUDY_GPUS}"
    return [[time_saved(lab, over)]], note, [[time_saved(null, over)]]


def strong_order(question: Question, lab: Lab) -> Cases:
    """On 384 GPUs."""
    return [[lab.strong(system, *STRONG[-1]).days for system in SYSTEMS]]


def scaling(question: Question, lab: Lab) -> Cases:
    """Samples per second per GPU, relative to 48 GPUs."""
    cases = []
    for system in SYSTEMS:
        rates = [batch / lab.strong(system, gpus, batch).seconds / gpus for gpus, batch in STRONG]
        cases.append([rate / rates[0] for rate in rates])
    return cases
