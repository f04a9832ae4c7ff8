"""Decides the answers about cost: flops, training time, messages, bubbles, checkpoints, and their slopes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from suite.analytic.question import Cases, Papers, Question, answers
from suite.core.exact import Exact, slope
from suite.memory import checkpointing
from suite.workload import Transformer, flops
from suite.workload.pipeline import bubble, message_bytes, messages

FORWARD, BACKWARD = 1, 2  # ticks of one microbatch through the model (SAMO Figure 3): the orders do not depend on them


@answers("axonn.eq1.activation_memory", unit="layer activations")
def activation_memory(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [checkpointing.activations(p["N"], p["G_inter"], p["ac"]) for p in question.points]
    return [values], "checkpoints of the microbatches in flight, one segment input, one segment"


@answers("axonn.eq1.optimal_ac", unit="layer")
def best_interval(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [checkpointing.best_interval(int(point["N"])) for point in question.points]
    return [values], "searched: where the exact difference quotient of Equation 1 turns from below to above zero"


@answers("axonn.sec5a.ac_rule", unit="layer")
def interval(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [checkpointing.interval(int(point["N"]), int(point["G_inter"])) for point in question.points]
    return [values], "all factors of a stage's layers, tried one by one"


@answers("axonn.eq2.estimated_training_time", unit="second")
def training_time(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [flops.training_time(int(p["b"]), int(p["s"]), p["t"]) for p in question.points]
    return [values], "tokens to train on, over tokens per batch, times seconds per batch"


@answers("axonn.eq3.flop_per_second", unit="flop/second")
def flop_rate(question: Question, papers: Papers) -> tuple[Cases, str]:
    def rate(p: dict[str, int], seconds: float) -> float:
        shape = Transformer(p["l"], p["h"], 1, sequence=p["s"], vocabulary=p["V"])
        return flops.training(shape, p["b"], recompute=True) / seconds

    whole = [{name: int(value) for name, value in point.items() if name != "t"} for point in question.points]
    values = [rate(p, point["t"]) for p, point in zip(whole, question.points, strict=True)]
    return [values], "matrix products counted layer by layer: three passes, and the blocks once more"


@answers("samo.sec5c.percent_of_peak", unit="percent")
def percent_of_peak(question: Question, papers: Papers) -> tuple[Cases, str]:
    peak = 1e12 * papers.machine("summit")["peak_half_tflop_per_second"]
    values = [flops.percent_of_peak(p["flop_per_batch"], p["t"], p["G"] * peak) for p in question.points]
    return [values], f"flop/s over the peak of all GPUs, {peak:g} each as the machine's data have it"


@answers("axonn.sec4a.message_size", unit="megabyte")
def message_size(question: Question, papers: Papers) -> tuple[Cases, str]:
    """The first term is the study of Section V, the others are the networks of Table II at their microbatch sizes."""
    study = papers.training("axonn", "section V studies")
    sizes = [message_bytes(papers.shape(study["model"]), study["microbatch_size"])]
    for term in question.terms[1:]:
        microbatch = int(papers.value(f"axonn.table2.{term}.axonn.microbatch_size"))
        sizes.append(message_bytes(papers.shape(f"transformer_{term}"), microbatch))
    return [
        [size / 1e6 for size in sizes]
    ], "a block's output in float16, for one microbatch as Section V and Table II say"


@answers("samo.eq8.bubble_derivative", unit="second")
def bubble_slope(question: Question, papers: Papers) -> tuple[Cases, str]:
    values = [slope(partial(bubble, point["t_f"], point["t_b"]), point["G_inter"]) for point in question.points]
    return [values], "exact difference quotient of the bubble time along G_inter"


@answers("samo.sec4b.diminishing_returns", unit="second")
def bubble_gains(question: Question, papers: Papers) -> tuple[Cases, str]:
    def idle(stages: Exact) -> Fraction:
        return bubble(FORWARD, BACKWARD, stages)

    counts = [int(term) for term in question.terms]
    cases = [[idle(n) - idle(n - 1) for n in counts], [idle(n) - idle(Fraction(n, 2)) for n in counts]]
    return cases, "bubble time that one GPU fewer saves; and that half the GPUs save"


@answers("samo.eq11.send_derivative", unit="second")
def send_slope(question: Question, papers: Papers) -> tuple[Cases, str]:
    def sent(point: Mapping[str, float], stages: Exact) -> Fraction:
        return messages(batch=point["B"], microbatch=point["mbs"], gpus=point["G"], stages=stages)

    values = [slope(partial(sent, point), point["G_inter"]) for point in question.points]
    return [values], "exact difference quotient of the messages per GPU, counted from what each pass needs and feeds"
