"""Answers to AxoNN's claims from formulas: model states, flops, messages, settings of its tables."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from suite.claims.answer import Cases, Papers, Question
from suite.claims.plans import scaling_plan
from suite.core.grid import Grid
from suite.core.units import si
from suite.papers import closed_forms as shared_forms
from suite.papers.model_states import (
    ENTRIES,
    GIGABYTE,
    mixed_precision_states,
    parameter_count,
    stage_parameters,
)
from suite.workload import Transformer, flops


def states_per_gpu(question: Question, papers: Papers) -> tuple[Cases, str]:
    count, stages = parameter_count(str(question.setting["model"]), papers), int(question.setting["g_inter"])
    size = mixed_precision_states(ceil(count / stages)).bytes()
    note = f"mixed precision and Adam of {si(count)} / {stages} parameters; {size / 2**30:.1f} in units of 2^30 bytes"
    return [[size / GIGABYTE]], note


def states_over_memory(question: Question, papers: Papers) -> tuple[Cases, str]:
    (case,), _ = states_per_gpu(question, papers)
    memory = int(papers.machine(str(question.setting["machine"]))["gpu_memory_gigabyte"])
    return [[case[0] / memory]], f"{case[0]:.2f} GB of states over the machine's {memory} GB"


def gradient_growth(question: Question, papers: Papers) -> tuple[Cases, str]:
    shape, setting = papers.shape(str(question.setting["model"])), question.setting
    before, after = (int(setting[name]) for name in ("g_inter_before", "g_inter_after"))
    width = Fraction(mixed_precision_states(ENTRIES)["half_gradient"].bytes, ENTRIES)
    old, new = (width * Fraction(shape.parameters, stages) for stages in (before, after))
    inside = Fraction(stage_parameters(shape, after, 1), stage_parameters(shape, before, 1))
    return [[new / old], [inside]], "float16 gradient, on average and on an inner GPU"


def group_growth(question: Question, papers: Papers) -> Cases:
    """Ranks of a data-parallel group of the grid; then GPUs / G_inter."""
    gpus = int(question.setting["gpus"])
    stages = papers.setting("axonn.sec5b.allreduce_data_growth")

    def sizes(when: str) -> tuple[int, int]:
        replicas = int(question.setting[f"g_data_{when}"])
        group = Grid(data=replicas, inter=gpus // replicas).data_parallel_group(0)
        return len(group), gpus // int(stages[f"g_inter_{when}"])

    return [[Fraction(new, old)] for old, new in zip(sizes("before"), sizes("after"), strict=True)]


def flop_rate(question: Question, papers: Papers) -> tuple[Cases, str]:
    counted, closed = [], []
    for point in question.points:
        p = {name: int(value) for name, value in point.items() if name != "t"}
        shape = Transformer(p["l"], p["h"], 1, sequence=p["s"], vocabulary=p["V"])
        counted.append(flops.training(shape, p["b"], recompute=True) / point["t"])
        closed.append(shared_forms.equation_3(shape, p["b"], point["t"]))
    note = "matrix products counted layer by layer, with recomputation of the blocks; then the closed form"
    return [counted, closed], note


def message_size(question: Question, papers: Papers) -> Cases:
    """Message sizes in megabytes: the study of Section V first, then the networks of Table II. Output of a block in
    float16 for one microbatch, of the sizes in Section V and Table II.
    """
    study = papers.training("axonn", "section V studies")
    runs = [(str(study["model"]), int(study["microbatch_size"]))]
    for model in (f"transformer_{term}" for term in question.terms[1:]):
        runs.append((model, scaling_plan("axonn", "axonn", model).get("microbatch", 1)))
    return [[microbatch * papers.shape(model).block(2).output / 1e6 for model, microbatch in runs]]


def ranks_of_grid(data: int, inter: int) -> int:
    """Distinct ranks of the grid, counted."""
    grid = Grid(data=data, inter=inter)
    return len({grid.rank(data=replica, inter=stage) for replica in range(data) for stage in range(inter)})
