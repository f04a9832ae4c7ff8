"""Answers to SAMO's claims from formulas: model states of pruned networks, bubbles, messages, Table I."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from suite.claims.answer import Cases, Papers, Question, range_of_setting
from suite.core.units import si
from suite.core.values import Exact
from suite.memory.layout import dense, samo
from suite.papers.finite_difference import slope
from suite.papers.model_states import (
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
