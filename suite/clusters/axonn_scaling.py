"""Decides what AxoNN's scaling comes to in simulation: Figures 9 and 11, Tables I and II."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question
from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import AXONN_COUNTS, STRONG, STUDY_GPUS, WEAK_BATCH, Lab
from suite.clusters.null import filled
from suite.core.claim import Claim
from suite.core.grid import Grid
from suite.simulate.plan import Plan
from suite.simulate.search import plans
from suite.workload import Transformer

Claims = Mapping[str, Claim]
MODELS = tuple(AXONN_COUNTS)  # of Table I
SYSTEMS = ("axonn", "deepspeed_3d", "megatron_lm")
SPLIT = ("deepspeed_3d", "megatron_lm")  # those that split layers


def _short(model: str) -> str:
    return model.removeprefix("transformer_")


# Table II and Figure 9: weak scaling


def _figure_9(lab: Lab, claims: Claims) -> Sequence[Panel]:
    percent = {system: [lab.weak(model, system).percent_of_peak for model in MODELS] for system in SYSTEMS}
    days = {system: [lab.weak(model, system).days for model in MODELS] for system in SYSTEMS}
    weak = [lab.weak_plan(model, "axonn") for model in MODELS]
    ends = claims["axonn.abstract.percent_of_peak"].value if "axonn.abstract.percent_of_peak" in claims else ""
    low, high = ends if isinstance(ends, tuple) else (NONE, NONE)
    constant = high / filled(weak[0])
    names = [_short(model) for model in MODELS]
    return [
        Panel(
            "Percent of peak, weak scaling",
            "percent",
            names,
            percent,
            {"axonn": [high, NONE, NONE, low]},
            {"axonn": [constant * filled(plan) for plan in weak]},
            [("axonn", 0)],
            axis="parameters",
        ),
        Panel("Days to train on 300 billion tokens", "day", names, days, axis="parameters"),
    ]


figure_9 = figure("axonn_fig9", "Figure 9; Tables I and II; Section VII-B", _figure_9)


@figure_9("axonn.abstract.percent_of_peak", unit="percent")
def percents(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.weak(model, "axonn").percent_of_peak for model in MODELS]], "plans of Table II"


@figure_9(*(f"axonn.fig9.percent_of_peak.{system}" for system in SYSTEMS), unit="percent")
def whole_percents(question: Question, lab: Lab) -> tuple[Cases, str]:
    """AxoNN's are printed cut (A4), Megatron's are one point too high (A5)."""
    system = question.id.rpartition(".")[2]
    values = [lab.weak(model, system).percent_of_peak for model in MODELS]
    told = ", ".join(f"{value:.2f}" for value in values)
    rounded = {"axonn": math.floor, "megatron_lm": math.ceil}.get(system)
    return [[rounded(value) for value in values] if rounded else values], f"plans of Table II: {told}"


def days_saved(lab: Lab, model: str) -> float:
    return lab.weak(model, "deepspeed_3d").days - lab.weak(model, "axonn").days


@figure_9("axonn.abstract.training_time_saved", unit="day")
def all_days(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[days_saved(lab, model) for model in MODELS]], "plans of Table II"


@figure_9(*(f"axonn.fig9.days_saved.{_short(model)}" for model in MODELS), unit="day")
def days(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[days_saved(lab, f"transformer_{question.id.rpartition('.')[2]}")]], "plans of Table II"


@figure_9("axonn.abstract.speedup", unit="percent")
def reductions(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [100 * (1 - lab.weak(m, "axonn").seconds / lab.weak(m, "deepspeed_3d").seconds) for m in MODELS]
    return [values], "plans of Table II"


@figure_9("axonn.fig9.speedup_deepspeed.100b", "axonn.fig9.speedup_megatron.100b", unit="ratio")
def ratios(question: Question, lab: Lab) -> tuple[Cases, str]:
    other = "megatron_lm" if "megatron" in question.id else "deepspeed_3d"
    model = "transformer_100b"
    return [[lab.weak(model, other).seconds / lab.weak(model, "axonn").seconds]], "plans of Table II"


@figure_9("axonn.fig9.order.all_models", unit="day")
def order(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.weak(model, system).days for system in SYSTEMS] for model in MODELS], "plans of Table II"


@figure_9("axonn.fig9.wins_at_equal_g_data", unit="day")
def equal_data(question: Question, lab: Lab) -> tuple[Cases, str]:
    models = ("transformer_12b", "transformer_24b")
    return [[lab.weak(model, system).days for system in SYSTEMS[:2]] for model in models], "G_data 8 for both"


@figure_9("axonn.sec1.outperforms_all", unit="day")
def fastest(question: Question, lab: Lab) -> tuple[Cases, str]:
    weak = [[lab.weak(model, system).days for system in SYSTEMS] for model in MODELS]
    strong = [[lab.strong(system, *count).days for system in SYSTEMS] for count in STRONG]
    return [*weak, *strong], "plans of Table II, weak scaling, then strong"


@figure_9("axonn.sec1.efficiency_falls_with_scale", unit="percent")
def efficiency(question: Question, lab: Lab) -> tuple[Cases, str]:
    batch = STRONG[-1][1]  # divides by every G_data and microbatch
    cases = [[lab.strong(system, int(term), batch).percent_of_peak for term in question.terms] for system in SYSTEMS]
    return cases, f"12B, Table II's plans, a batch of {batch} on every count"


# Table II: what the search finds

COUNTS = {"microbatch_size": "microbatch", "g_inter": "inter", "g_intra": "tensor", "g_data": "data"}


def _table_2(lab: Lab, claims: Claims) -> Sequence[Panel]:
    panels = []
    for system in SYSTEMS:
        names = [name for name in COUNTS if system in SPLIT or name != "g_intra"]
        ours: dict[str, list[float]] = {name: [] for name in names}
        paper: dict[str, list[float]] = {name: [] for name in names}
        for model in MODELS:
            found = lab.tuned(model, system).plan
            for name in names:
                ours[name].append(float(_count(found, name)))
                paper[name].append(number(claims, f"axonn.table2.{_short(model)}.{system}.{name}"))
        panels.append(
            Panel(f"Best plan of {system}", "", [_short(model) for model in MODELS], ours, paper, axis="parameters")
        )
    return panels


def _count(plan: Plan, name: str) -> int:
    return plan.microbatch if name == "microbatch_size" else int(getattr(plan.grid, COUNTS[name]))


table_2 = figure("axonn_table2", "Table II; Section VII-B", _table_2)


def _rows() -> dict[str, list[str]]:
    units: dict[str, list[str]] = {"sequence": [], "gpu": []}
    for model in MODELS:
        for system in SYSTEMS:
            for name in COUNTS:
                if system in SPLIT or name != "g_intra":
                    unit = "sequence" if name == "microbatch_size" else "gpu"
                    units[unit].append(f"axonn.table2.{_short(model)}.{system}.{name}")
    return units


@table_2(*_rows()["sequence"], unit="sequence")
@table_2(*_rows()["gpu"], unit="gpu")
def best_plan(question: Question, lab: Lab) -> tuple[Cases, str]:
    _, _, short, system, name = question.id.split(".")
    model = f"transformer_{short}"
    found, printed = lab.tuned(model, system), lab.weak(model, system)
    plan = found.plan
    told = f"microbatch {plan.microbatch}, grid {plan.grid}: {found.seconds:.0f} s"
    slower = 100 * (printed.seconds / found.seconds - 1)
    return [[_count(plan, name)]], (
        f"best of {found.fit} plans that fit, of {found.tried}: {told}; the printed plan is {slower:.1f} percent slower"
    )


@table_2("axonn.sec7c.same_parallel_settings", unit="gpu")
def same_settings(question: Question, lab: Lab) -> tuple[Cases, str]:
    model, cases = "transformer_12b", []
    for system in SYSTEMS:
        found = [lab.tuned(model, system, gpus=gpus, batch=batch).plan.grid for gpus, batch in STRONG]
        cases.append([grid.inter for grid in found])
        if system in SPLIT:
            cases.append([grid.tensor for grid in found])
    return cases, "best plans at each GPU count: G_inter of the three systems, G_intra of the two that have it"


@table_2("axonn.sec6b.minimum_gpus_12b", unit="gpu")
def fewest(question: Question, lab: Lab) -> tuple[Cases, str]:
    """By nodes: the fewest GPUs on which every framework has a plan that fits."""
    shape = lab.shapes["transformer_12b"]
    for nodes in (1, 2, 4, 8, 16):
        gpus = nodes * lab.machine.devices_per_node
        if all(_fits(lab, shape, system, gpus) for system in SYSTEMS):
            return [[gpus]], f"of 1, 2, 4, ... nodes, batch {WEAK_BATCH}, memory account of each system"
    return [[math.nan]], "no count fits"


def _fits(lab: Lab, shape: Transformer, system: str, gpus: int) -> bool:
    candidates = plans(shape, lab.system(system), gpus, WEAK_BATCH, microbatches=(1,))
    return any(plan.peak <= lab.machine.memory for plan in candidates)


@table_2("axonn.sec7b.trillion_outlook", unit="none")
def trillion(question: Question, lab: Lab) -> tuple[Cases, str]:
    shape = Transformer(384, 14720, 115, sequence=512, vocabulary=51200)
    plan = Plan(shape, lab.system("axonn"), Grid(data=8, inter=384), WEAK_BATCH, 1)
    told = f"{shape.parameters:.3g} parameters in 384 blocks of width 14720, 384 stages, 8 replicas"
    return [[float(plan.peak), 16e9]], told


# Figure 11: strong scaling


def _figure_11(lab: Lab, claims: Claims) -> Sequence[Panel]:
    found = {system: [lab.strong(system, *count) for count in STRONG] for system in SYSTEMS}
    constants = {s: found[s][0].percent_of_peak / filled(found[s][0].plan) for s in SYSTEMS}
    return [
        Panel(
            "Percent of peak, strong scaling (the batch grows)",
            "percent",
            [str(gpus) for gpus, _ in STRONG],
            {system: [batch.percent_of_peak for batch in batches] for system, batches in found.items()},
            {},
            {s: [constants[s] * filled(batch.plan) for batch in batches] for s, batches in found.items()},
            axis="GPUs",
        ),
        Panel(
            "Days to train 12B, strong scaling",
            "day",
            [str(gpus) for gpus, _ in STRONG],
            {system: [batch.days for batch in batches] for system, batches in found.items()},
            axis="GPUs",
        ),
    ]


figure_11 = figure("axonn_fig11", "Figure 11; Section VII-C", _figure_11)


@figure_11("axonn.fig11.gain_over_deepspeed", "axonn.fig11.gain_over_megatron", unit="percent")
def strong_gain(question: Question, lab: Lab) -> tuple[Cases, str]:
    other = "megatron_lm" if "megatron" in question.id else "deepspeed_3d"
    ours, theirs = lab.strong("axonn", *STRONG[-1]).seconds, lab.strong(other, *STRONG[-1]).seconds
    return [[100 * (1 - ours / theirs)]], f"{STRONG[-1][0]} GPUs, {STUDY_GPUS} times {STRONG[-1][0] // STUDY_GPUS}"


@figure_11("axonn.fig11.order", unit="day")
def strong_order(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.strong(system, *STRONG[-1]).days for system in SYSTEMS]], "on 384 GPUs"


@figure_11("axonn.fig11.data_parallel_scaling", unit="ratio")
def scaling(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = []
    for system in SYSTEMS:
        rates = [batch / lab.strong(system, gpus, batch).seconds / gpus for gpus, batch in STRONG]
        cases.append([rate / rates[0] for rate in rates])
    return cases, "samples per second and GPU, relative to 48 GPUs"
