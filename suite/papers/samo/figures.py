"""Simulation of SAMO's cluster figures: Figures 6, 7 and 8, Table II, and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.claim import Evidence
from suite.claims.cluster_runs import SAMO_COUNTS, Lab, Phases
from suite.claims.null_model import NullLab, pipeline_utilization
from suite.claims.panel import Claims, Panel, figure, published

MODELS = tuple(SAMO_COUNTS)
SYSTEMS = ("axonn_samo", "axonn", "deepspeed_3d", "sputnik")  # names in the paper
PROFILED = (128, 256, 512)  # GPU counts of Figure 8
BASE = 256  # GPU count of Table II to which constants are fitted


def counts(model: str) -> tuple[int, ...]:
    return SAMO_COUNTS[model][1]


def everywhere(lab: Lab, systems: Sequence[str]) -> list[list[float]]:
    """Batch times of `systems`, one case for each model and GPU count."""
    return [[lab.samo(m, s, g).seconds for s in systems] for m in MODELS for g in counts(m)]


# Figures 6 and 7: strong scaling of the GPT-3 models


@figure("samo_fig6_7")
def fig6_7(lab: Lab, claims: Claims) -> Iterator[Panel]:
    for model in MODELS:
        display = "Figure 6" if model in ("gpt3_xl", "gpt3_2_7b") else "Figure 7"
        points, first = [str(gpus) for gpus in counts(model)], f"samo.fig6_7.speedup_over_axonn.{model} low"
        yield Panel(
            f"batch time of {model}",
            "s",
            points,
            {s: [lab.samo(model, s, gpus).seconds for gpus in counts(model)] for s in SYSTEMS},
            axis="GPUs",
            quantity="batch time",
            figure=display,
        )
        yield Panel(
            f"time saved over AxoNN, {model}",
            "percent",
            points,
            {"axonn_samo": _saved(lab, model, "axonn")},
            {"axonn_samo": [first, "", "", f"samo.sec6b.max_speedup.{model}"]},
            {"axonn_samo": _saved(_null(lab, model, "axonn", published(claims, first)), model, "axonn")},
            axis="GPUs",
            quantity="time saved",
            figure=display,
        )
        savings_by_count = _saved(lab, model, "deepspeed_3d")
        yield Panel(
            f"least and largest time saved over DeepSpeed-3D, {model}",
            "percent",
            ("least", "largest"),
            {"axonn_samo": [min(savings_by_count), max(savings_by_count)]},
            {"axonn_samo": [f"samo.fig6_7.speedup_over_deepspeed.{model} {end}" for end in ("low", "high")]},
            axis="of all GPU counts",
            quantity="time saved",
            figure=display,
        )


def _null(lab: Lab, model: str, over: str, first: float) -> NullLab:
    """Null model in which SAMO saves the printed percent `first` of a batch of `over` on the fewest GPUs."""
    ours, theirs = (lab.samo_plan(model, system, counts(model)[0]) for system in ("axonn_samo", over))
    return NullLab.of(lab, [(ours, 100 * pipeline_utilization(theirs) / (1 - first / 100))])


def _saved(lab: Lab, model: str, over: str) -> list[float]:
    """Percent of batch time saved at each GPU count."""
    return [lab.saved(model, gpus, over=over) for gpus in counts(model)]


def speedups(question: Question, lab: Lab, *, model: str, over: str, first: float) -> WithNull:
    """Smallest and largest time saved over the GPU counts. `first`: printed minimum, anchor at the fewest GPUs."""
    ours, null = (_saved(each, model, over) for each in (lab, _null(lab, model, over, first)))
    return [[min(ours), max(ours)]], ", ".join(f"{value:.1f}" for value in ours), [[min(null), max(null)]]


def largest_speedup(question: Question, lab: Lab, *, model: str, first: float, over: str = "axonn") -> WithNull:
    """Time saved at the most GPUs. `first`: printed percent at the fewest GPUs, anchor of the null model."""
    ours, null = (_saved(each, model, over)[-1] for each in (lab, _null(lab, model, over, first)))
    return [[ours]], f"{counts(model)[-1]} GPUs", [[null]]


def grows(question: Question, lab: Lab) -> Cases:
    """One case per model."""
    return [[lab.saved(m, g, over="axonn") for g in reversed(counts(m))] for m in MODELS]


def over_both(question: Question, lab: Lab) -> Cases:
    """The models at their GPU counts."""
    return [[lab.saved(m, g, over="deepspeed_3d"), lab.saved(m, g, over="axonn")] for m in MODELS for g in counts(m)]


def times(question: Question, lab: Lab) -> Cases:
    """The models at their GPU counts."""
    return everywhere(lab, question.terms)


def over_sputnik(question: Question, lab: Lab, *, first: float) -> WithNull:
    """Batch time of Sputnik over AxoNN+SAMO. `first`: printed ratio, anchor at the fewest GPUs of each model."""
    cases = [[theirs / ours] for ours, theirs in everywhere(lab, ("axonn_samo", "sputnik"))]
    labs = {model: _null(lab, model, "sputnik", 100 * (1 - 1 / first)) for model in MODELS}
    saved = [percent for model, null in labs.items() for percent in _saved(null, model, "sputnik")]
    return cases, "the models at their GPU counts", [[1 / (1 - percent / 100)] for percent in saved]


# Table II: percent of peak of 13B


def percent(lab: Lab, system: str, gpus: int) -> float:
    return lab.samo("gpt3_13b", system, gpus).percent_of_peak


@figure("samo_table2", "Table II")
def table2(lab: Lab, claims: Claims) -> Iterator[Panel]:
    gpus = counts("gpt3_13b")
    first = {s: published(claims, f"samo.table2.{s}.gpus_{gpus[0]}") for s in SYSTEMS}
    yield Panel(
        "percent of peak of 13B",
        "percent",
        [str(count) for count in gpus],
        {system: [percent(lab, system, count) for count in gpus] for system in SYSTEMS},
        "samo.table2.{curve}.gpus_{x}",
        {system: [_null_percent(lab, system, count, first[system]) for count in gpus] for system in SYSTEMS},
        axis="GPUs",
        quantity="share of peak",
    )


def percents(question: Question, lab: Lab, *, system: str, gpus: int, first: float) -> WithNull:
    """Percent of peak of a cell. `first`: printed percent at the fewest GPUs, anchor of the null model."""
    simulated = lab.samo("gpt3_13b", system, gpus)
    note = f"grid {simulated.plan.grid}, {simulated.plan.microbatches} microbatches"
    return [[simulated.percent_of_peak]], note, [[_null_percent(lab, system, gpus, first)]]


def _null_percent(lab: Lab, system: str, gpus: int, first: float) -> float:
    null = NullLab.of(lab, [(lab.samo_plan("gpt3_13b", system, BASE), first)])
    return percent(null, system, gpus)


def falls(question: Question, lab: Lab, *, systems: Sequence[str]) -> tuple[Cases, str]:
    return [[percent(lab, s, int(term)) for term in question.terms] for s in systems], ", ".join(systems)


def dense_at_largest(question: Question, lab: Lab, *, first: Sequence[float]) -> WithNull:
    """Percent of peak on 2048 GPUs. `first`: printed percents of both at the fewest GPUs, anchors of the null model."""
    systems = ("axonn", "deepspeed_3d")
    nulls = [[_null_percent(lab, system, 2048, anchor)] for system, anchor in zip(systems, first, strict=True)]
    return [[percent(lab, system, 2048)] for system in systems], ", ".join(systems), nulls


def drops(question: Question, lab: Lab) -> Cases:
    """256 to 2048 GPUs."""
    return [[100 * (1 - percent(lab, s, 2048) / percent(lab, s, BASE)) for s in question.terms]]


# Figure 8: breakdown of the batch time of 2.7B


def phases(lab: Lab, system: str, gpus: int) -> Phases:
    return Phases.of(lab.samo("gpt3_2_7b", system, gpus, traced=True))


def savings(lab: Lab, gpus: int) -> dict[str, float]:
    """Percent of AxoNN's batch time that AxoNN+SAMO saves, by phase (S1)."""
    dense, pruned = phases(lab, "axonn", gpus), phases(lab, "axonn_samo", gpus)
    share = 100 / dense.total
    parts = {
        "p2p": share * (dense.point_to_point - pruned.point_to_point),
        "bubble": share * (dense.bubble - pruned.bubble),
        "collective": share * (dense.collective - pruned.collective),
    }
    return {**parts, "overhead": share * (pruned.compute - dense.compute), "total": sum(parts.values())}


@figure("samo_fig8", "Figure 8")
def fig8(lab: Lab, claims: Claims) -> Iterator[Panel]:
    by_gpus = [savings(lab, gpus) for gpus in PROFILED]
    yield Panel(
        "time saved by phase, of AxoNN's batch time",
        "percent",
        [str(gpus) for gpus in PROFILED],
        {name: [saved[name] for saved in by_gpus] for name in ("p2p", "bubble", "collective", "overhead", "total")},
        "samo.fig8.{curve}.gpus_{x}",
        axis="GPUs",
        quantity="time saved",
    )


def saved_share(question: Question, lab: Lab, *, phase: str, gpus: int) -> WithNull:
    """Percent of AxoNN's batch time saved in a phase. Null model: only the bubble changes."""
    ours, null = (savings(each, gpus)[phase] for each in (lab, NullLab.of(lab)))
    return [[ours]], "percent of AxoNN's batch time, first stage", [[null]]


def communication_reduction(question: Question, lab: Lab, *, gpus: int) -> WithNull:
    """Percent by which communication becomes shorter. Null model: all communication is bubble."""

    def seconds(lab: Lab) -> list[float]:
        parts = (phases(lab, system, gpus) for system in ("axonn", "axonn_samo"))
        return [part.point_to_point + part.bubble + part.collective for part in parts]

    (dense, pruned), (dense_null, pruned_null) = seconds(lab), seconds(NullLab.of(lab))
    note = f"point-to-point, bubble and collective: {dense:.2f} s to {pruned:.2f} s"
    return [[100 * (1 - pruned / dense)]], note, [[100 * (1 - pruned_null / dense_null)]]


def dominates(question: Question, lab: Lab) -> Cases:
    """Seconds of the first stage."""
    phase_times = phases(lab, "axonn", 128)
    return [[phase_times.point_to_point, phase_times.bubble, phase_times.collective]]


def leads(question: Question, lab: Lab) -> Cases:
    """Lead over the next phase as a share of the batch."""

    def lead(gpus: int) -> float:
        phase_times = phases(lab, "axonn", gpus)
        return (phase_times.point_to_point - max(phase_times.bubble, phase_times.collective)) / phase_times.total

    return [[lead(128), lead(256), 0.0]]


def share_falls(question: Question, lab: Lab) -> Cases:
    """Percent of AxoNN's batch time, first stage."""
    by_count = [phases(lab, "axonn", int(term)) for term in question.terms]
    return [[100 * phase_times.point_to_point / phase_times.total for phase_times in by_count]]


def sources(question: Question, lab: Lab, *, gpus: int) -> Cases:
    """Percent of AxoNN's batch time."""
    saving = savings(lab, gpus)
    names = {"point-to-point": "p2p"}
    return [[saving[names.get(term, term)] for term in question.terms]]


def overcome(question: Question, lab: Lab, *, gpus: Sequence[int]) -> tuple[Cases, str]:
    by_count = [savings(lab, count) for count in gpus]
    return [[saved["total"], saved["overhead"]] for saved in by_count], f"{' and '.join(map(str, gpus))} GPUs"


# Section I: memory of one model instance


def gigabytes(lab: Lab, system: str) -> float:
    """States and activations of one pipeline of 2.7B in gigabytes."""
    plan = lab.samo_plan("gpt3_2_7b", system, 512)
    return plan.total() / plan.grid.data / 1e9


@figure("samo_memory")
def memory(lab: Lab, claims: Claims) -> Iterator[Panel]:
    systems = ("axonn", "axonn_samo")
    yield Panel(
        "Memory of one pipeline of 2.7B",
        "gigabyte",
        systems,
        {"2.7B": [gigabytes(lab, system) for system in systems]},
        {"2.7B": [f"samo.sec1.memory_{when}" for when in ("before", "after")]},
        axis="system",
        quantity="memory",
        evidence=Evidence.DERIVED,
    )


def total_memory(question: Question, lab: Lab, *, system: str) -> tuple[Cases, str]:
    plan = lab.samo_plan("gpt3_2_7b", system, 512)
    return [[gigabytes(lab, system)]], f"{plan.grid.inter} GPUs: states, checkpoints in flight and one segment"


def memory_reduction(question: Question, lab: Lab) -> tuple[Cases, str]:
    value = 100 * (1 - gigabytes(lab, "axonn_samo") / gigabytes(lab, "axonn"))
    return [[float(int(value))]], f"truncated to whole percents, as in print: {value:.2f}"
