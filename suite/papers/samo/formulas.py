"""Answers to SAMO's claims from formulas: model states of pruned networks, bubbles, messages, Table I."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from suite.claims.answer import Cases, Papers, Question, distinct_cases, range_of_setting
from suite.core.units import si
from suite.core.values import Exact
from suite.memory.layout import dense, samo
from suite.papers.finite_difference import slope
from suite.papers.model_states import (
    CONVNETS,
    ENTRIES,
    GIGABYTE,
    GPTS,
    MOMENTS,
    fewest_stages,
    mixed_precision_states,
    parameter_count,
    percent_saved,
    pruned_states,
)
from suite.papers.samo import closed_forms
from suite.papers.samo.closed_forms import bubble, messages, weighted
from suite.workload import flops


def index_width(question: Question, papers: Papers, *, model: str) -> tuple[Cases, str]:
    """Bits of a layout's index, or the bits that number the entries of the model's largest layer if these are more."""
    index = pruned_states("0.9")(ENTRIES)["index"]
    shape = papers.shape(model)
    largest = max(layer.parameters for layer in shape.shapes())
    whole = (shape.parameters - 1).bit_length()
    needed = (largest - 1).bit_length()
    note = f"{needed} bits number the largest layer of {model}; {whole} bits would number all its parameters"
    return [[max(8 * index.bytes // index.entries, needed)]], note


def overhead(question: Question, papers: Papers) -> tuple[Cases, str]:
    moments = MOMENTS[str(question.setting["optimizer"])]
    single, both = dense(ENTRIES, moments).bytes(life="always"), mixed_precision_states(ENTRIES).bytes()
    note = f"{both // ENTRIES} against {single // ENTRIES} bytes per parameter, from the two layouts"
    return [[Fraction(100 * (both - single), single)]], note


def compressible(question: Question, papers: Papers) -> tuple[Cases, str]:
    layout = mixed_precision_states(ENTRIES)
    rest = layout.bytes() - layout["half"].bytes
    return [[Fraction(100 * rest, layout.bytes())]], "all states except half, as a share of the layout"


def gpt3_states(question: Question, papers: Papers) -> tuple[Cases, str]:
    count = parameter_count(str(question.setting["model"]), papers)
    return [
        [mixed_precision_states(count).bytes() / GIGABYTE]
    ], f"mixed precision and Adam of the {si(count)} parameters of its shape"


def break_even(question: Question, papers: Papers) -> tuple[Cases, str]:
    whole = mixed_precision_states(ENTRIES)
    break_even_entries = bisect_right(range(ENTRIES + 1), whole.bytes(), key=lambda kept: samo(kept)(whole).bytes()) - 1
    return [
        [1 - Fraction(break_even_entries, ENTRIES)]
    ], f"most unpruned entries of {si(ENTRIES)} for which SAMO needs no more bytes: {break_even_entries}"


def saving_ends(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Percent saved at both ends of the setting's range of sparsities."""
    sparsities = range_of_setting(question, "sparsity")
    return [
        [percent_saved(share) for share in sparsities]
    ], f"layouts with and without SAMO at {' and '.join(sparsities)}"


def saving_line(question: Question, papers: Papers) -> tuple[Cases, str]:
    return [[percent_saved(point["p"]) for point in question.points]], "layouts with and without SAMO at the points"


def fewer_stages(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Fewest stages with SAMO and without, one case per model."""
    sparsity = float(papers.training("samo", "all")["sparsity"])
    memory = int(papers.machine("summit")["gpu_memory_gigabyte"])
    cases: list[list[int]] = []
    notes = []
    for model in GPTS:
        gpus, count = int(papers.ends(f"samo.table1.gpus.{model}")[0]), parameter_count(model, papers)
        old, new = (
            fewest_stages(count, gpus=gpus, layout=layout, memory=memory)
            for layout in (mixed_precision_states, pruned_states(sparsity))
        )
        cases.append([new, old])
        notes.append(f"{model} {old} to {new}")
    return cases, f"fewest GPUs whose {memory} GB hold the states at sparsity {sparsity}: {', '.join(notes)}"


def whole_copies(question: Question, papers: Papers) -> tuple[Cases, str]:
    sparsity = float(papers.training("samo", "all")["sparsity"])
    memory = int(papers.machine("summit")["gpu_memory_gigabyte"])
    cases: list[list[int]] = []
    notes = []
    for model in str(question.setting["models"]).split(", "):
        gpus, count = int(papers.ends(f"samo.table1.gpus.{model}")[0]), parameter_count(model, papers)
        for layout in (lambda entries: mixed_precision_states(entries, "sgdm"), pruned_states(sparsity, "sgdm")):
            cases.append([fewest_stages(count, gpus=gpus, layout=layout, memory=memory)])
        notes.append(f"{model} {si(mixed_precision_states(count, 'sgdm').bytes(), 'B')}")
    return cases, f"fewest GPUs whose {memory} GB hold the states, with and without SAMO: {', '.join(notes)}"


def gradient_sizes(question: Question, papers: Papers) -> tuple[Cases, str]:
    counts = [parameter_count(model, papers) for model in question.terms]
    sizes = [mixed_precision_states(count, "sgdm")["half_gradient"].bytes for count in counts]
    return [sizes], f"float16 gradient of {' and '.join(map(si, counts))} parameters"


def printed_size_ratios(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Smallest and largest ratio of the parameter counts in Table I."""

    def count(model: str) -> Fraction:
        return Fraction(repr(papers.value(f"samo.table1.parameters.{model}")))

    ratios = [count(large) / count(small) for large in GPTS for small in CONVNETS]
    return [[min(ratios), max(ratios)]], f"{len(ratios)} ratios of printed parameters"


def sparse_flops(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Share of a forward pass's flops that sparse kernels compute.

    The products of attention itself involve no weight, so sparse kernels compute all of them.
    """
    density = 1 - Fraction(str(question.setting["sparsity"]))
    shapes = [papers.shape(model) for model in GPTS]
    cases = [[100 * (weighted(shape, density) + flops.attention(shape)) / flops.forward(shape)] for shape in shapes]
    return cases, f"flops of a pass, including attention's own products, over flops of dense kernels: {', '.join(GPTS)}"


def percent_of_peak(question: Question, papers: Papers) -> tuple[Cases, str]:
    peak = 1e12 * int(papers.machine("summit")["peak_half_tflop_per_second"])
    values = [closed_forms.percent_of_peak(p["flop_per_batch"], p["t"], p["G"] * peak) for p in question.points]
    return [values], f"flop/s over the peak of all GPUs, {peak:g} flop/s each"


def bubble_slope(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [slope(partial(bubble, point["t_f"], point["t_b"]), point["G_inter"]) for point in question.points]
    return [values], "exact difference quotient of the bubble time along G_inter"


def send_slope(question: Question, papers: Papers) -> tuple[Cases, str]:
    def sent(point: Mapping[str, float], stages: Exact) -> Fraction:
        return messages(batch=point["B"], microbatch=point["mbs"], gpus=point["G"], stages=stages)

    values = [slope(partial(sent, point), point["G_inter"]) for point in question.points]
    return [values], "exact difference quotient of the messages per GPU, counted from the needs and feeds of each pass"


TABLE_1 = ("wideresnet_101", "vgg_19", "gpt3_xl", "gpt3_2_7b", "gpt3_6_7b", "gpt3_13b")  # SAMO
CITED_TOKENS = {"gpt3_xl": 1e6, "gpt3_2_7b": 1e6, "gpt3_6_7b": 2e6, "gpt3_13b": 2e6}


def per_gpu(model: str, papers: Papers) -> tuple[Fraction, Fraction]:
    """Batch size per GPU of a model in SAMO's Table I, at the fewest and the most GPUs."""
    batch = Fraction(papers.value(f"samo.table1.batch_size.{model}"))
    fewest, most = papers.ends(f"samo.table1.gpus.{model}")
    return batch / Fraction(fewest), batch / Fraction(most)


def _agreement(cases: Cases, rows: int) -> str:
    return f"{rows} rows agree" if len(cases) == 1 else f"{rows} rows give {len(cases)} answers"


def _others(model: str) -> list[str]:
    return [other for other in TABLE_1 if other != model]


def gpus(question: Question, papers: Papers) -> tuple[Cases, str]:
    """GPUs from a model's batch size and the batch size per GPU of every other row, at both ends."""
    model = str(question.setting["model"])
    batch = Fraction(papers.value(f"samo.table1.batch_size.{model}"))
    shares = [per_gpu(other, papers) for other in _others(model)]
    cases = distinct_cases([[batch / share for share in pair] for pair in shares])
    note = _agreement(cases, len(shares))
    return cases, f"batch size of the row over batch size per GPU of the other rows: {note}"


def batch_size(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Batch size from a model's GPUs and the batch size per GPU of every other row: one case per distinct result."""
    model = str(question.setting["model"])
    ends = papers.ends(f"samo.table1.gpus.{model}")
    others = _others(model)
    cases = distinct_cases(
        [[Fraction(end) * share] for other in others for end, share in zip(ends, per_gpu(other, papers), strict=True)]
    )
    note = f"GPUs of the row times batch size per GPU of the other rows: {_agreement(cases, len(others))}"
    if model in CITED_TOKENS:
        tokens = float(cases[0][0]) * papers.shape(model).sequence / 1e6
        note += f"; {tokens:.1f} million tokens, where the cited GPT-3 table has {CITED_TOKENS[model] / 1e6:g}"
    return cases, note


def batch_per_gpu(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Batch size per GPU of the rows of Table I at the most GPUs, the minimum, and at the fewest."""
    cases = distinct_cases([per_gpu(model, papers)[::-1] for model in TABLE_1])
    note = _agreement(cases, len(TABLE_1))
    return cases, f"batch sizes of the table over its most and fewest GPUs: {note}"


# Comparison of printed numbers


def memory_cut(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Reduction from the two printed gigabytes, truncated to whole percents as in the abstract (S6)."""
    before, after = (Fraction(repr(papers.value(f"samo.sec1.memory_{when}"))) for when in ("before", "after"))
    value = 100 * (1 - after / before)
    return [[int(value)]], f"{float(value):.2f} percent, truncated to whole percents"


def _cell(papers: Papers, system: str, count: int) -> Fraction:
    return Fraction(repr(papers.value(f"samo.table2.{system}.gpus_{count}")))


def _reduction(papers: Papers, over: str, count: int) -> Fraction:
    """Percent of batch time that AxoNN+SAMO saves by Table II, which counts the same flops for all systems."""
    return 100 * (1 - _cell(papers, over, count) / _cell(papers, "axonn_samo", count))


TABLE_2 = (256, 512, 1024, 2048)  # GPUs


def table2_reduction(question: Question, papers: Papers, *, over: str, gpus: int) -> tuple[Cases, str]:
    return [[_reduction(papers, over, gpus)]], f"1 minus the ratio of two cells of Table II, {gpus} GPUs"


def table2_ends(question: Question, papers: Papers, *, over: str) -> tuple[Cases, str]:
    """Smallest and largest reduction from the cells of Table II."""
    ends = [_reduction(papers, over, count) for count in TABLE_2]
    return [[min(ends), max(ends)]], ", ".join(f"{float(value):.1f}" for value in ends)


def table2_gains(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Percent of batch time saved over AxoNN, the largest GPU count first."""
    return [[_reduction(papers, "axonn", count) for count in reversed(TABLE_2)]], "13B, from the cells of Table II"


def table2_drops(question: Question, papers: Papers) -> tuple[Cases, str]:
    first, last = TABLE_2[0], TABLE_2[-1]
    drops = [100 * (1 - _cell(papers, system, last) / _cell(papers, system, first)) for system in question.terms]
    return [drops], f"relative to the cell of {first} GPUs"


def table2_ratios(question: Question, papers: Papers, *, over: str) -> tuple[Cases, str]:
    ratios = [[_cell(papers, "axonn_samo", count) / _cell(papers, over, count)] for count in TABLE_2]
    return ratios, "13B, from the cells of Table II"


def largest_end(question: Question, papers: Papers, *, of: str) -> tuple[Cases, str]:
    """Upper end of a range printed elsewhere."""
    return [[papers.ends(of)[1]]], "two places of Section VI-B"


def printed_gains(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Ends of each model's printed range over DeepSpeed-3D and over AxoNN."""
    cases = []
    for model in GPTS:
        pair = (papers.ends(f"samo.fig6_7.speedup_over_{system}.{model}") for system in ("deepspeed", "axonn"))
        cases += [list(ends) for ends in zip(*pair, strict=True)]
    return cases, "smallest, then largest, of each of the four models"
