"""Decides what SAMO's cluster figures come to in simulation: Figures 6, 7 and 8, Table II, and the memory they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question
from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import SAMO_COUNTS, Lab, Phases
from suite.clusters.null import percents as null_percents
from suite.clusters.null import saved as null_saved
from suite.core.claim import Claim

Claims = Mapping[str, Claim]
MODELS = tuple(SAMO_COUNTS)
SYSTEMS = ("axonn_samo", "axonn", "deepspeed_3d", "sputnik")  # as the paper names them
DENSE = "axonn_no_memopt"  # its AxoNN keeps its states on the GPU (X2)
PROFILED = (128, 256, 512)  # GPUs of Figure 8
BASE = 256  # GPUs of the row of Table II that constants are fitted to


def _ours(system: str) -> str:
    return DENSE if system == "axonn" else system


def counts(model: str) -> tuple[int, ...]:
    return SAMO_COUNTS[model][1]


def everywhere(lab: Lab, systems: Sequence[str]) -> list[list[float]]:
    """Batch times of `systems`, a case for every model at each of its GPU counts."""
    return [[lab.samo(m, _ours(s), g).seconds for s in systems] for m in MODELS for g in counts(m)]


# Figures 6 and 7: strong scaling of the GPT-3 models


def _figures_6_7(lab: Lab, claims: Claims) -> Sequence[Panel]:
    panels = []
    for model in MODELS:
        times = {s: [lab.samo(model, _ours(s), gpus).seconds for gpus in counts(model)] for s in SYSTEMS}
        panels.append(Panel(f"Batch time of {model}", "s", [str(gpus) for gpus in counts(model)], times, axis="GPUs"))
        ends = claims.get(f"samo.fig6_7.speedup_over_axonn.{model}")
        low = ends.value[0] if ends and isinstance(ends.value, tuple) else NONE
        high = number(claims, f"samo.sec6b.max_speedup.{model}")
        plans = {s: [lab.samo_plan(model, _ours(s), gpus) for gpus in counts(model)] for s in ("axonn_samo", "axonn")}
        panels.append(
            Panel(
                f"Time saved over AxoNN, {model}",
                "percent",
                [str(gpus) for gpus in counts(model)],
                {"axonn_samo": [lab.saved(model, gpus, over=DENSE) for gpus in counts(model)]},
                {"axonn_samo": [low, NONE, NONE, high]},
                {"axonn_samo": null_saved(plans["axonn_samo"], plans["axonn"], low)},
                [("axonn_samo", 0)] if model == "gpt3_13b" else [],
                axis="GPUs",
            )
        )
    return panels


figures_6_7 = figure("samo_fig6_7", "Figures 6 and 7; Section VI-B", _figures_6_7)


@figures_6_7(
    *(f"samo.fig6_7.speedup_over_{other}.{m}" for m in MODELS for other in ("axonn", "deepspeed")), unit="percent"
)
def speedups(question: Question, lab: Lab) -> tuple[Cases, str]:
    _, _, over, model = question.id.split(".")
    other = DENSE if over.endswith("axonn") else "deepspeed_3d"
    found = [lab.saved(model, gpus, over=other) for gpus in counts(model)]
    told = ", ".join(f"{value:.1f}" for value in found)
    if question.id.endswith("axonn.gpt3_2_7b"):  # the ends are given, not ours (S2)
        return [[10.0, min(found), max(found), 34.0]], told
    return [found], told


@figures_6_7(*(f"samo.sec6b.max_speedup.{model}" for model in MODELS), unit="percent")
def largest_speedup(question: Question, lab: Lab) -> tuple[Cases, str]:
    model = question.id.rpartition(".")[2]
    return [[lab.saved(model, counts(model)[-1], over=DENSE)]], f"{counts(model)[-1]} GPUs"


@figures_6_7("samo.abstract.speedup_over_axonn", unit="percent")
@figures_6_7("samo.abstract.speedup_over_deepspeed_3d", "samo.abstract.speedup_over_sputnik", unit="percent")
def abstract_speedups(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.saved("gpt3_2_7b", 512, over=_ours(question.id.partition("over_")[2]))]], "512 GPUs"


@figures_6_7("samo.sec6b.speedup_grows_with_gpus", unit="percent")
def grows(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.saved(m, g, over=DENSE) for g in reversed(counts(m))] for m in MODELS], "a case per model"


@figures_6_7("samo.fig6_7.larger_over_deepspeed", unit="percent")
def over_both(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [[lab.saved(m, g, over="deepspeed_3d"), lab.saved(m, g, over=DENSE)] for m in MODELS for g in counts(m)]
    return cases, "the models at their GPU counts"


@figures_6_7("samo.fig6_7.sputnik_slowest", unit="second")
def slowest(question: Question, lab: Lab) -> tuple[Cases, str]:
    return everywhere(lab, question.terms), "the models at their GPU counts"


@figures_6_7("samo.sec7.outperforms_all", unit="second")
def quickest(question: Question, lab: Lab) -> tuple[Cases, str]:
    return everywhere(lab, question.terms), "the models at their GPU counts"


@figures_6_7("samo.fig6_7.samo_over_sputnik", unit="ratio")
def over_sputnik(question: Question, lab: Lab) -> tuple[Cases, str]:
    ratios = [theirs / ours for ours, theirs in everywhere(lab, ("axonn_samo", "sputnik"))]
    return [[1.8, min(ratios), max(ratios), 2.9]], "the ends are given, not ours (S9)"


# Table II: percent of peak of 13B


def percent(lab: Lab, system: str, gpus: int) -> float:
    return lab.samo("gpt3_13b", _ours(system), gpus).percent_of_peak


def _table_2(lab: Lab, claims: Claims) -> Sequence[Panel]:
    gpus = counts("gpt3_13b")
    ours = {system: [percent(lab, system, count) for count in gpus] for system in SYSTEMS}
    paper = {s: [number(claims, f"samo.table2.{s}.gpus_{count}") for count in gpus] for s in SYSTEMS}
    plans = {s: [lab.samo_plan("gpt3_13b", _ours(s), count) for count in gpus] for s in SYSTEMS}
    return [
        Panel(
            "Percent of peak of 13B",
            "percent",
            [str(count) for count in gpus],
            ours,
            paper,
            {system: null_percents(plans[system], paper[system][0]) for system in SYSTEMS},
            [(system, 0) for system in SYSTEMS],
            axis="GPUs",
        )
    ]


table_2 = figure("samo_table2", "Table II; Section VI-B", _table_2)


@table_2(*(f"samo.table2.{s}.gpus_{count}" for s in SYSTEMS for count in counts("gpt3_13b")), unit="percent")
def percents(question: Question, lab: Lab) -> tuple[Cases, str]:
    _, _, system, gpus = question.id.split(".")
    found = lab.samo("gpt3_13b", _ours(system), int(gpus.removeprefix("gpus_")))
    return [[found.percent_of_peak]], f"grid {found.plan.grid}, {found.plan.microbatches} microbatches"


@table_2("samo.table2.falls_with_gpus", unit="percent")
def falls(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[percent(lab, s, int(term)) for term in question.terms] for s in SYSTEMS], "a case per system"


@table_2("samo.table2.dense_at_largest", unit="percent")
def dense_at_largest(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[percent(lab, s, 2048)] for s in ("axonn", "deepspeed_3d")], "axonn, deepspeed_3d"


@table_2("samo.table2.samo_at_largest", unit="percent")
def samo_at_largest(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[percent(lab, "axonn_samo", 2048)]], "2048 GPUs"


@table_2("samo.table2.smaller_drop", unit="percent")
def drops(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[100 * (1 - percent(lab, s, 2048) / percent(lab, s, BASE)) for s in question.terms]], "256 to 2048 GPUs"


# Figure 8: where the time of 2.7B goes


def phases(lab: Lab, system: str, gpus: int) -> Phases:
    return Phases.of(lab.samo("gpt3_2_7b", _ours(system), gpus, traced=True))


def savings(lab: Lab, gpus: int) -> dict[str, float]:
    """What AxoNN+SAMO saves in each phase, in percent of AxoNN's batch time (S1)."""
    dense, pruned = phases(lab, "axonn", gpus), phases(lab, "axonn_samo", gpus)
    share = 100 / dense.total
    parts = {
        "p2p": share * (dense.point_to_point - pruned.point_to_point),
        "bubble": share * (dense.bubble - pruned.bubble),
        "collective": share * (dense.collective - pruned.collective),
    }
    return {**parts, "overhead": share * (pruned.compute - dense.compute), "total": sum(parts.values())}


def _figure_8(lab: Lab, claims: Claims) -> Sequence[Panel]:
    names = ("p2p", "bubble", "collective", "overhead", "total")
    found = {gpus: savings(lab, gpus) for gpus in PROFILED}
    return [
        Panel(
            "Time saved by phase, of AxoNN's batch time",
            "percent",
            [str(gpus) for gpus in PROFILED],
            {name: [found[gpus][name] for gpus in PROFILED] for name in names},
            {name: [number(claims, f"samo.fig8.{name}.gpus_{gpus}") for gpus in PROFILED] for name in names},
            axis="GPUs",
        )
    ]


figure_8 = figure("samo_fig8", "Figure 8; Section VI-C", _figure_8)
PARTS = [
    f"samo.fig8.{name}.gpus_{gpus}"
    for gpus in PROFILED
    for name in ("p2p", "bubble", "collective", "overhead", "total")
    if (name, gpus) != ("total", 256)  # not printed
]


@figure_8(*PARTS, unit="percent")
def saved_share(question: Question, lab: Lab) -> tuple[Cases, str]:
    _, _, name, gpus = question.id.split(".")
    return [[savings(lab, int(gpus.removeprefix("gpus_")))[name]]], "of AxoNN's batch time; first stage, as profiled"


@figure_8("samo.abstract.communication_time_reduction", "samo.sec1.communication_saved_share", unit="percent")
def communication_saved(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[savings(lab, 512)["total"]]], "point-to-point, bubble and collective, 512 GPUs"


@figure_8("samo.fig8.p2p_dominates.gpus_128", unit="none")
def dominates(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = phases(lab, "axonn", 128)
    return [[found.point_to_point, found.bubble, found.collective]], "seconds of the first stage"


@figure_8("samo.fig8.p2p_dominates.gpus_256", unit="none")
def leads(question: Question, lab: Lab) -> tuple[Cases, str]:
    def lead(gpus: int) -> float:
        found = phases(lab, "axonn", gpus)
        return (found.point_to_point - max(found.bubble, found.collective)) / found.total

    return [[lead(128), lead(256), 0.0]], "share of the batch by which it exceeds the next phase"


@figure_8("samo.fig8.p2p_share_falls", unit="percent")
def share_falls(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = [phases(lab, "axonn", int(term)) for term in question.terms]
    return [[100 * one.point_to_point / one.total for one in found]], "of AxoNN's batch, first stage"


@figure_8("samo.fig8.primary_source.gpus_128", "samo.fig8.primary_source.gpus_512", unit="none")
def sources(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = savings(lab, int(question.id.rpartition("_")[2]))
    names = {"point-to-point": "p2p"}
    return [[found[names.get(term, term)] for term in question.terms]], "percent of AxoNN's batch time"


@figure_8("samo.fig8.overhead_overcome", unit="second")
def overcome(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = [savings(lab, gpus) for gpus in PROFILED]
    return [[one["total"], one["overhead"]] for one in found], "128, 256 and 512 GPUs"


@figure_8("samo.fig8.overhead_falls", unit="percent")
def overhead_falls(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[savings(lab, int(term))["overhead"] for term in question.terms]], "of AxoNN's batch time"


# Section I: memory of all GPUs of one model


def gigabytes(lab: Lab, system: str) -> float:
    """States and activations of one pipeline of 2.7B."""
    plan = lab.samo_plan("gpt3_2_7b", _ours(system), 512)
    return plan.total() / plan.grid.data / 1e9


def _memory(lab: Lab, claims: Claims) -> Sequence[Panel]:
    systems = {"axonn": "before", "axonn_samo": "after"}
    return [
        Panel(
            "Memory of one pipeline of 2.7B",
            "gigabyte",
            list(systems),
            {"2.7B": [gigabytes(lab, system) for system in systems]},
            {"2.7B": [number(claims, f"samo.sec1.memory_{when}") for when in systems.values()]},
        )
    ]


memory = figure("samo_memory", "Section I", _memory)


@memory("samo.sec1.memory_before", "samo.sec1.memory_after", unit="gigabyte")
def total_memory(question: Question, lab: Lab) -> tuple[Cases, str]:
    system = "axonn" if question.id.endswith("before") else "axonn_samo"
    plan = lab.samo_plan("gpt3_2_7b", _ours(system), 512)
    return [[gigabytes(lab, system)]], f"{plan.grid.inter} GPUs: states, checkpoints in flight and one segment"


@memory("samo.abstract.memory_reduction", unit="percent")
def memory_reduction(question: Question, lab: Lab) -> tuple[Cases, str]:
    value = 100 * (1 - gigabytes(lab, "axonn_samo") / gigabytes(lab, "axonn"))
    return [[float(int(value))]], f"cut to whole percents, as printed: {value:.2f}"
