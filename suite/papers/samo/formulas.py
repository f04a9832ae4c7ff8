"""Answers to SAMO's claims from formulas: model states of pruned networks, bubbles, messages, Table I."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from suite.claims.answer import Cases, Papers, Question
from suite.core.units import si
from suite.core.values import Exact
from suite.papers.finite_difference import slope
from suite.papers.model_states import (
    GIGABYTE,
    GPTS,
    fewest_stages,
    mixed_precision_states,
    parameter_count,
    pruned_states,
)
from suite.papers.samo import closed_forms
from suite.papers.samo.closed_forms import bubble, messages, weighted
from suite.workload import flops


def gpt3_states(question: Question, papers: Papers) -> tuple[Cases, str]:
    count = parameter_count(str(question.setting["model"]), papers)
    return [
        [mixed_precision_states(count).bytes() / GIGABYTE]
    ], f"mixed precision and Adam of the {si(count)} parameters of its shape"


def _fewest_gpus(papers: Papers, model: str, optimizer: str) -> tuple[int, int]:
    """Fewest GPUs of Summit whose memory holds the states of a model, without SAMO and with it."""
    gpus, count = int(papers.ends(f"samo.table1.gpus.{model}")[0]), parameter_count(model, papers)
    memory = int(papers.machine("summit")["gpu_memory_gigabyte"])
    layouts = (
        partial(mixed_precision_states, optimizer=optimizer),
        pruned_states(float(papers.training("samo", "all")["sparsity"]), optimizer),
    )
    dense, pruned = (fewest_stages(count, gpus=gpus, layout=layout, memory=memory) for layout in layouts)
    return dense, pruned


def fewer_stages(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Fewest stages with SAMO and without, one case per model."""
    found = {model: _fewest_gpus(papers, model, "adam") for model in GPTS}
    notes = ", ".join(f"{model} {old} to {new}" for model, (old, new) in found.items())
    return [[new, old] for old, new in found.values()], f"fewest GPUs whose memory holds the states: {notes}"


def whole_copies(question: Question, papers: Papers) -> Cases:
    """Fewest GPUs whose memory holds the states, without SAMO and with it, for each model."""
    models = str(question.setting["models"]).split(", ")
    return [[count] for model in models for count in _fewest_gpus(papers, model, "sgdm")]


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


def percent_of_peak(question: Question, papers: Papers) -> Cases:
    """Flop/s over the printed peak of all GPUs."""
    peak = 1e12 * int(papers.machine("summit")["peak_half_tflop_per_second"])
    return [[closed_forms.percent_of_peak(p["flop_per_batch"], p["t"], p["G"] * peak) for p in question.points]]


def bubble_slope(forward: float, backward: float, stages: float) -> Fraction:
    """Exact difference quotient of the bubble time along G_inter."""
    return slope(partial(bubble, forward, backward), stages)


def send_slope(batch: float, microbatch: float, gpus: float, stages: float) -> Fraction:
    """Exact difference quotient of the messages per GPU, counted from the needs and feeds of each pass."""

    def sent(stages: Exact) -> Fraction:
        return messages(batch=batch, microbatch=microbatch, gpus=gpus, stages=stages)

    return slope(sent, stages)
