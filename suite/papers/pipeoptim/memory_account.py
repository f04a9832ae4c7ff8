"""PipeOptim's Table V from the suite's memory budget: largest batches and bytes of weight versions.

At the largest batch, the fullest stage still fits in 16 GB. Activations are either recomputed, as the paper says for
all systems (V-A), or kept, as in its public code, which parses the option and never reads it. The memory of the
framework, its caching allocator and convolution workspaces is not counted."""

from __future__ import annotations

from collections.abc import Iterator

from suite.claims.answer import Cases, Question
from suite.claims.claim import Evidence
from suite.claims.cluster_runs import Lab
from suite.claims.panel import Claims, Panel, figure
from suite.papers.pipeoptim.figures import MODELS, SYSTEMS, compared, plan

MAX_BATCH = 1 << 14  # samples
GNMTS = ("gnmt_8", "gnmt_16")


def largest(lab: Lab, model: str, system: str, graph: str) -> int:
    """Largest mini-batch per GPU, or microbatch of GPipe, in samples; 0 if none fits. Memory grows with the batch."""
    low, high = 0, MAX_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        fits = plan(lab, model, system, middle, graph).peak <= lab.machine.memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


@figure("pipeoptim_table5", "Table V")
def table5(lab: Lab, claims: Claims) -> Iterator[Panel]:
    for model in MODELS:
        systems = [system for system in SYSTEMS if compared(model, system)]
        yield Panel(
            f"largest batch per GPU, {model}",
            "sample",
            systems,
            {graph: [float(largest(lab, model, s, graph)) for s in systems] for graph in ("recompute", "keep")},
            {"recompute": f"pipeoptim.table5.{model}.{{x}}"},
            axis="system",
            quantity="batch per GPU",
            scale="log",
            evidence=Evidence.DERIVED,
        )


def batch(question: Question, lab: Lab, *, model: str, system: str, graph: str) -> tuple[Cases, str]:
    batch_size = largest(lab, model, system, "keep")
    return [[largest(lab, model, system, graph)]], f"by counted tensors; {batch_size} with activations kept"


def alike(question: Question, lab: Lab, *, graph: str) -> Cases:
    """Batches of PipeOptim and each other system, one case per model and system in the paper. By counted tensors, one
    case per model and other system.
    """
    cases = []
    for model in MODELS:
        batch_size = largest(lab, model, "pipeoptim", graph)
        others = [each for each in SYSTEMS if each != "pipeoptim" and compared(model, each)]
        cases += [[batch_size, largest(lab, model, each, graph)] for each in others]
    return cases


def larger(question: Question, lab: Lab, *, graph: str) -> Cases:
    """By counted tensors, one case per model."""
    return [[largest(lab, model, term, graph) for term in question.terms] for model in GNMTS]
