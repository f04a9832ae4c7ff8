"""Answers to SAMO's claims from counts on layouts and schedules, and from tensors of the engine.

Law 4 keeps the bytes of these layouts equal to allocated bytes. Messages and idle time come from the schedules that
ranks run. Answers on tensors train a small network (suite.papers.samo.measured); only they import torch."""

from __future__ import annotations

from fractions import Fraction

from suite.claims.answer import Cases, Question
from suite.claims.cluster_runs import Lab
from suite.core.op import Kind
from suite.core.protocols import Schedule
from suite.core.trace import CATEGORY
from suite.papers.equations import BYTES, flush, idle_time
from suite.papers.model_states import CONVNETS, GPTS
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.cost.measured import Fixed

FORWARD, BACKWARD = 1.0, 2.0  # units of time in Figure 3
UNITS = Fixed(FORWARD, BACKWARD, BYTES)
UNEVEN = Fixed(0.375, 0.625, BYTES)  # exact in binary; neither pass is a multiple of the other
PASSES = (CATEGORY[Kind.FORWARD], CATEGORY[Kind.BACKWARD])


def bubbles(stages: int, microbatches: int, cost: Fixed = UNITS, order: Schedule | None = None) -> list[float]:
    """Idle time of each stage, from its trace."""
    simulated = flush(order or MessageDriven(), stages, microbatches, cost, traced=True)
    busy = [0.0] * stages
    for span in simulated.trace:
        if span.category in PASSES:
            busy[span.rank] += span.seconds
    return [simulated.makespan - seconds for seconds in busy]


# -- schedules --------------------------------------------------------------------------------------------------------


def figure_3(question: Question, lab: Lab) -> Cases:
    """Makespan minus passes of a stage, message-driven, stage by stage."""
    setting = question.setting
    cost = Fixed(float(setting["forward_units"]), float(setting["backward_units"]), BYTES)
    values = bubbles(int(setting["g_inter"]), int(setting["microbatches"]), cost)
    return [[value] for value in values]


def bubble_of_passes(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Idle time and passes in both orders: Figure 3, other pipelines, and a backward pass of 5/3 forward passes."""
    figure = int(question.setting["g_inter"]), int(question.setting["microbatches"])
    pipelines = [(*size, UNITS) for size in (figure, (2, 4), (4, 9), (8, 16))] + [(4, 8, UNEVEN)]
    cases = []
    for order in (OneFOneB(), MessageDriven()):
        for stages, count, cost in pipelines:
            passes = flush(MessageDriven(), 1, stages - 1, cost).makespan
            cases += [[idle, passes] for idle in bubbles(stages, count, cost, order)]
    note = "3, 2, 4, 8 and 4 stages in 1F1B, then message-driven"
    return cases, f"each stage's idle time and the time of that many passes on one stage: {note}"


def even_bubble(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Bubble in 1F1B, which the paper cites, and in AxoNN's message-driven order."""
    orders: dict[str, Schedule] = {"1F1B": OneFOneB(), "message-driven": MessageDriven()}
    cases = [
        [idle_time(point["t_f"], point["t_b"], int(point["G_inter"]), order) for point in question.points]
        for order in orders.values()
    ]
    return cases, f"makespan minus passes of a stage: {', then '.join(orders)}"


def bubble_gains(question: Question, lab: Lab) -> Cases:
    """Bubble time saved by one GPU fewer and by half the GPUs, in 1F1B and in AxoNN's order. 1F1B: by one GPU fewer,
    by half of them; then message-driven.

    Passes of a stage take whole units, so that rounding never decides the order of two messages. Results are in units
    of the whole model's time.
    """
    counts = [int(term) for term in question.terms]
    sizes = sorted({m for n in counts for m in (n, n - 1, n // 2)})
    cases = []
    for order in (OneFOneB(), MessageDriven()):
        units = {n: idle_time(n * FORWARD, n * BACKWARD, n, order) for n in sizes}
        bubble = {n: Fraction(units_idle) / n for n, units_idle in units.items()}
        cases += [[bubble[n] - bubble[n - 1] for n in counts], [bubble[n] - bubble[n // 2] for n in counts]]
    return cases


# -- shapes ----------------------------------------------------------------------------------------------------------


def parameters(question: Question, lab: Lab) -> Cases:
    """Counted layer by layer, with a tied matrix once."""
    model = str(question.setting["model"])
    shape = CONVNETS[model]() if model in CONVNETS else lab.shapes[model]
    return [[shape.parameters]]


def size_ratios(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Smallest and largest ratio of a GPT's parameters to a convolutional network's."""
    small = [network().parameters for network in CONVNETS.values()]
    ratios = [Fraction(lab.shapes[model].parameters, count) for model in GPTS for count in small]
    return [[min(ratios), max(ratios)]], f"{len(ratios)} ratios of parameters counted from the shapes"
