"""Simulation of PipeOptim's throughput on four P100: Figures 5 and 6, Tables V and VI.

All systems run their configured schedule and weight policy on the same stage boundaries (plans.yaml) with the same
efficiency constants. A GPipe microbatch is as large as an asynchronous system's mini-batch. Throughput assumes a full
pipeline. No answer reads a value that it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.cluster_runs import Lab
from suite.claims.lab import cached
from suite.claims.panel import NONE, Claims, Panel, figure, published
from suite.claims.plans import pipeoptim_run
from suite.core.errors import UnknownName
from suite.core.grid import Grid
from suite.core.protocols import WeightPolicy
from suite.memory import resident
from suite.models.image_shapes import InceptionV3, ResNet
from suite.papers.model_states import ADAM
from suite.papers.pipeoptim import systems
from suite.simulate.block_model import SystemModel
from suite.simulate.layer_model import LayerPlan, run
from suite.weights import Latest
from suite.workload import Network, flops
from suite.workload.recurrent import GNMT

SYSTEMS = ("gpipe", *systems.ASYNCHRONOUS)
MODELS = ("resnet_101", "gnmt_8", "gnmt_16")  # networks of the throughput figures
TIMED = ("resnet_101", "inception_v3")  # networks of Section V-D and Table VI
EPOCH = 100_000  # training images of Tiny-ImageNet
SAME = 64  # Figure 5's batch per GPU
MOMENTS = {"resnet_101": ("velocity",), "inception_v3": ("velocity",)}  # SGD with momentum; Adam for both GNMT
ANCHOR = "pipeoptim.table6.resnet_101.pipedream.epoch_time"  # printed epoch that sets the null model of all others


def network(lab: Lab, model: str) -> Network:
    """The trained network. The sentence length of GNMT is a choice, as the paper prints none."""
    plans = pipeoptim_run()
    if model in MOMENTS:
        kind = ResNet if model == "resnet_101" else InceptionV3
        return kind(classes=plans["classes"])
    sentence = int(lab.choice("plan.pipeoptim.sentence", plans["sentence"]))
    return GNMT(sequence=sentence) if model == "gnmt_8" else GNMT(encoder=8, decoder=8, sequence=sentence)


def compared(model: str, system: str) -> bool:
    """Whether the paper reports this pair; SpecTrain, which predicts by SGD's momentum, did not train GNMT."""
    return system != "spectrain" or model not in ("gnmt_8", "gnmt_16")


def policy(system: str, graph: str = "recompute") -> WeightPolicy:
    """The weight policy of a system; by default all systems recompute activations (V-A)."""
    if system == "gpipe":
        return Latest(graph)
    if system not in systems.ASYNCHRONOUS:
        raise UnknownName("weight policy of PipeOptim's systems", system, systems.ASYNCHRONOUS)
    policy_of_system: Any = systems.configured(system, pipeoptim_run()["stages"]).policy
    changed: WeightPolicy = replace(policy_of_system, graph=graph)
    return changed


def plan(lab: Lab, model: str, system: str, batch: int, graph: str = "recompute") -> LayerPlan:
    """Plan of a system with `batch` samples per mini-batch, or per microbatch of GPipe's four."""
    stages, flush, shape = pipeoptim_run()["stages"], system == "gpipe", network(lab, model)
    cuts = (0, *pipeoptim_run()["cuts"][model], len(shape.shapes()))
    own = lab.choice("plan.pipeoptim.cuts", "public code") == "profile"
    configured = systems.configured(system, stages)
    return LayerPlan(
        shape,
        SystemModel(system, configured.schedule, resident),
        Grid(inter=stages),
        batch * (pipeoptim_run()["microbatches"] if flush else 1),
        batch,
        resident,
        MOMENTS.get(model, ADAM),
        policy=policy(system, graph),
        update_interval=configured.every,
        split="pipedream" if own else tuple(range(start, stop) for start, stop in pairwise(cuts)),
    )


@cached
def rate(lab: Lab, model: str, system: str, batch: int) -> float:
    """Samples per second of a full pipeline."""
    run_plan = plan(lab, model, system, batch)
    return run_plan.batch / run_plan.seconds(run(run_plan, lab.machine, lab.efficiency("pipeoptim")))


def largest(lab: Lab, model: str, system: str) -> int:
    """Batch per GPU of Table V. Inception-V3, which is not printed, takes the batch of ResNet-101."""
    if model in pipeoptim_run()["batches"]:
        return pipeoptim_run()["batches"][model][system]
    return round(pipeoptim_run()["batches"]["resnet_101"][system] * float(lab.choice(f"plan.pipeoptim.{model}", 1.0)))


def rate_at(lab: Lab, model: str, system: str, batch: str) -> float:
    """Samples per second at the `same` 64 samples per GPU (Figure 5) or the `largest` batch (Figure 6, Table VI)."""
    return rate(lab, model, system, SAME if batch == "same" else largest(lab, model, system))


def gain(lab: Lab, model: str, batch: str) -> float:
    """Percent by which PipeOptim's throughput exceeds GPipe's."""
    return 100 * (rate_at(lab, model, "pipeoptim", batch) / rate_at(lab, model, "gpipe", batch) - 1)


def epoch_seconds(lab: Lab, model: str, system: str) -> float:
    return EPOCH / rate_at(lab, model, system, "largest")


# Figures 5 and 6


@figure("pipeoptim_fig5", "Figure 5")
def fig5(lab: Lab, claims: Claims) -> Iterator[Panel]:
    return _throughput(lab, "fig5", "same", ("average", "maximum"))


@figure("pipeoptim_fig6", "Figure 6")
def fig6(lab: Lab, claims: Claims) -> Iterator[Panel]:
    return _throughput(lab, "fig6", "largest", ("average",))


def _throughput(lab: Lab, name: str, batch: str, statistics: Sequence[str]) -> Iterator[Panel]:
    """Throughput of all systems, and PipeOptim's gain by network with `statistics` over networks."""
    yield Panel(
        "throughput on four P100",
        "sample/s",
        MODELS,
        {s: [rate_at(lab, model, s, batch) if compared(model, s) else NONE for model in MODELS] for s in SYSTEMS},
        axis="network",
        quantity="throughput",
    )
    gains = [gain(lab, model, batch) for model in MODELS]
    summary = {"average": sum(gains) / len(gains), "maximum": max(gains)}
    points = [*MODELS, *statistics]
    yield Panel(
        "PipeOptim's gain over GPipe",
        "percent",
        points,
        {"pipeoptim": [*gains, *(summary[statistic] for statistic in statistics)]},
        f"pipeoptim.{name}.gain_over_gpipe.{{x}}",
        {"pipeoptim": [_null_gain()] * len(points)},
        axis="network",
        quantity="gain in throughput",
    )


def compared_rates(question: Question, lab: Lab, *, batch: str, system: str) -> tuple[Cases, str]:
    """Throughput of a system and of another asynchronous one, one case per model and pair."""
    cases = [
        [rate_at(lab, model, each, batch) for each in (system, other)]
        for model in MODELS
        for other in systems.ASYNCHRONOUS
        if other != system and compared(model, other)
    ]
    return cases, f"the {batch} batch per GPU; one case per model and other asynchronous system"


def as_stashing(question: Question, lab: Lab) -> Cases:
    """One case per model."""
    return [[rate_at(lab, model, term, "largest") for term in question.terms] for model in MODELS]


def _null_gain() -> float:
    """Null model of every gain over GPipe: GPipe's bubble with equal stages and free messages, and none elsewhere."""
    plans = pipeoptim_run()
    return 100 * (plans["stages"] - 1) / plans["microbatches"]


def gains(question: Question, lab: Lab, *, batch: str, statistic: str = "", model: str = "") -> WithNull:
    """PipeOptim's gain over GPipe on one network, or its average or maximum over all."""
    by_model = {name: gain(lab, name, batch) for name in ([model] if model else MODELS)}
    note = ", ".join(f"{name} {value:.1f}" for name, value in by_model.items())
    average = sum(by_model.values()) / len(by_model)
    return [[max(by_model.values()) if statistic == "maximum" else average]], note, [[_null_gain()]]


# Table VI: seconds of an epoch


@figure("pipeoptim_table6", "Table VI")
def table6(lab: Lab, claims: Claims) -> Iterator[Panel]:
    anchor = published(claims, ANCHOR)
    for model in TIMED:
        yield Panel(
            f"an epoch of {model}",
            "s",
            systems.ASYNCHRONOUS,
            {"epoch": [epoch_seconds(lab, model, system) for system in systems.ASYNCHRONOUS]},
            f"pipeoptim.table6.{model}.{{x}}.epoch_time",
            {"epoch": [_null_epoch(lab, model, anchor)] * len(systems.ASYNCHRONOUS)},
            axis="system",
            quantity="epoch time",
        )


def _null_epoch(lab: Lab, model: str, anchor: float) -> float:
    """Seconds of an epoch in proportion to the forward flops, equal for all systems; `anchor` is ResNet-101's."""
    return anchor * flops.forward(network(lab, model)) / flops.forward(network(lab, TIMED[0]))


def epochs(question: Question, lab: Lab, *, model: str, system: str, anchor: float) -> WithNull:
    """Seconds of an epoch. The null model scales `anchor`, the printed epoch of PipeDream on ResNet-101."""
    note = f"{largest(lab, model, system)} images per GPU, no validation"
    return [[epoch_seconds(lab, model, system)]], note, [[_null_epoch(lab, model, anchor)]]


def epochs_alike(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[epoch_seconds(lab, model, term) for term in question.terms] for model in TIMED], ", ".join(TIMED)
