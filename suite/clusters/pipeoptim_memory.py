"""Decides how large PipeOptim's batches may be, and what its versions weigh: Table V from the suite's memory budget.

The largest batch is the one whose fullest stage still fits 16 GB, activations computed again, as the paper says of all
systems (V-A), or kept, which is what its public code does: the option is parsed there and never read. Neither counts
what a framework, its caching allocator and its convolutions' workspaces take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question
from suite.clusters.figure import Panel, figure, number
from suite.clusters.lab import Lab
from suite.clusters.pipeoptim import MODELS, SYSTEMS, compared, plan
from suite.core.claim import Claim

MOST = 1 << 14  # samples
GNMTS = ("gnmt_8", "gnmt_16")


def largest(lab: Lab, model: str, system: str, graph: str) -> int:
    """Samples per GPU: a mini-batch of a stream, a microbatch of GPipe; 0 where none fits. Memory grows with it."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        fits = plan(lab, model, system, middle, graph).peak <= lab.machine.memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def weights(lab: Lab, model: str, system: str) -> int:
    """Bytes of the weight versions that are alive at once, on the stage that holds most. SpecTrain's too, which did not
    train these networks with Adam: versions do not depend on the rule."""
    return plan(lab, model, system, 1).versions()


def _table_5(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    panels = []
    for model in MODELS:
        held = [system for system in SYSTEMS if compared(model, system)]
        ours = {
            graph: [float(largest(lab, model, system, graph)) for system in held] for graph in ("recompute", "keep")
        }
        printed = {"recompute": [number(claims, f"pipeoptim.table5.{model}.{system}") for system in held]}
        panels.append(Panel(f"Largest batch per GPU, {model}", "sample", held, ours, printed))
    versions = {model: [weights(lab, model, system) / 1e6 for system in SYSTEMS] for model in MODELS}
    panels.append(Panel("Weight versions of the stage that holds most", "MB", SYSTEMS, versions))
    return panels


table_5 = figure("pipeoptim_table5", "Table V; Section V-C", _table_5)


@table_5("pipeoptim.table5.pipedream_most_weight_memory", unit="byte")
def most(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [[float(weights(lab, model, term)) for term in question.terms] for model in GNMTS]
    told = "; ".join(f"{m}: {', '.join(f'{v / 1e6:.0f}' for v in own)} MB" for m, own in zip(GNMTS, cases, strict=True))
    return cases, f"float32, at the cuts of the public code; {told}"
