"""Decides what PipeOptim's throughput on four P100 comes to in simulation: Figures 5 and 6, Tables V and VI.

Every system runs its own schedule and its own weight policy on the same cuts (plans.yaml) with the same stack; GPipe
has four microbatches of a streaming system's mini-batch. Throughput is that of a full pipeline. Nothing here reads a
value that it answers; the three constants that were fitted are in conf/stack/pipeoptim.yaml, and `fitted` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from suite.analytic.question import Cases, Question
from suite.clusters.calibrate import root
from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import Lab, published_plans
from suite.core.claim import Claim
from suite.core.errors import UnknownName
from suite.core.grid import Grid
from suite.core.protocols import WeightPolicy
from suite.memory import resident
from suite.simulate.layers import LayerPlan, run
from suite.simulate.plan import Modelled
from suite.simulate.stack import Stack
from suite.weights import Latest
from suite.workload import InceptionV3, Network, ResNet, flops
from suite.workload.recurrent import GNMT

Claims = Mapping[str, Claim]
PLANS: Mapping[str, Any] = published_plans()["pipeoptim"]["scaling"]
STREAMS = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
SYSTEMS = ("gpipe", *STREAMS)
MODELS = ("resnet_101", "gnmt_8", "gnmt_16")  # of the throughput figures
TIMED = ("resnet_101", "inception_v3")  # of Table VI
EPOCH = 100_000  # training images of Tiny-ImageNet
SAME = 64  # Figure 5's batch per GPU
NULL = 100 * ((PLANS["microbatches"] + PLANS["stages"] - 1) / PLANS["microbatches"] - 1)  # equal stages, free messages
NETWORKS: Mapping[str, Network] = {
    "resnet_101": ResNet(classes=PLANS["classes"]),
    "inception_v3": InceptionV3(classes=PLANS["classes"]),
    "gnmt_8": GNMT(sequence=PLANS["sentence"]),
    "gnmt_16": GNMT(encoder=8, decoder=8, sequence=PLANS["sentence"]),
}
MOMENTS = {"resnet_101": ("velocity",), "inception_v3": ("velocity",)}  # SGD with momentum; Adam for both GNMT
ADAM = ("moment_1", "moment_2")
FITTED = {  # a constant of the stack, and the cell that it was fitted to
    "products": "pipeoptim.table6.resnet_101.pipedream.epoch_time",
    "kernels": "pipeoptim.table6.inception_v3.pipedream.epoch_time",
    "states": "pipeoptim.fig6.gain_over_gpipe.gnmt_16",
}


def compared(model: str, system: str) -> bool:
    """Whether the paper has this pair: SpecTrain predicts by the momentum of SGD, and did not train GNMT."""
    return system != "spectrain" or model not in ("gnmt_8", "gnmt_16")


def policy(lab: Lab, system: str, graph: str = "recompute") -> WeightPolicy:
    """The weight policy of a system, every one of which computes activations again (V-A)."""
    if system == "gpipe":
        return Latest(graph)
    if system not in lab.policies:
        raise UnknownName("weight policy of PipeOptim's systems", system, lab.policies)
    found: Any = lab.policies[system]
    changed: WeightPolicy = replace(found, graph=graph)
    return changed


def plan(lab: Lab, model: str, system: str, batch: int, graph: str = "recompute", *, own: bool = False) -> LayerPlan:
    """`batch` samples per GPU: a mini-batch of a stream, or one of GPipe's four microbatches. own: on the cuts that
    PipeDream's rule finds on the suite's profile, instead of those of the public code."""
    stages, flush = PLANS["stages"], system == "gpipe"
    cuts = (0, *PLANS["cuts"][model], len(NETWORKS[model].shapes()))
    order = lab.orders["gpipe" if flush else "one_f_one_b"]
    every = {"gpipe": None, "pipedream_2bw": stages}.get(system, 1)
    return LayerPlan(
        NETWORKS[model],
        Modelled(system, order, resident),
        Grid(inter=stages),
        batch * (PLANS["microbatches"] if flush else 1),
        batch,
        resident,
        MOMENTS.get(model, ADAM),
        policy=policy(lab, system, graph),
        update_every=every,
        split="pipedream" if own else tuple(range(start, stop) for start, stop in pairwise(cuts)),
    )


@lru_cache(maxsize=512)
def rate(lab: Lab, model: str, system: str, batch: int, own: bool = False) -> float:
    """Samples per second of a full pipeline."""
    made = plan(lab, model, system, batch, own=own)
    return made.batch / made.seconds(run(made, lab.machine, lab.stacks["pipeoptim"]))


def largest(model: str, system: str) -> int:
    """Table V's batch per GPU; of Inception-V3, which is not printed, ResNet-101's."""
    found: int = PLANS["batches"].get(model, PLANS["batches"]["resnet_101"])[system]
    return found


def same(lab: Lab, model: str, system: str) -> float:
    """Figure 5."""
    return rate(lab, model, system, SAME)


def filling(lab: Lab, model: str, system: str) -> float:
    """Figure 6 and Table VI."""
    return rate(lab, model, system, largest(model, system))


def on_own_cuts(lab: Lab, model: str, system: str) -> float:
    """Figure 6 on the suite's own partition, nothing fitted anew."""
    return rate(lab, model, system, largest(model, system), True)


def gain(lab: Lab, model: str, of: Any) -> float:
    """Percent by which PipeOptim's throughput exceeds GPipe's."""
    return float(100 * (of(lab, model, "pipeoptim") / of(lab, model, "gpipe") - 1))


def epoch(lab: Lab, model: str, system: str) -> float:
    return EPOCH / filling(lab, model, system)


# Figures 5 and 6


def _throughput(lab: Lab, claims: Claims, name: str, of: Any) -> Sequence[Panel]:
    rates: dict[str, list[float]] = {
        system: [of(lab, model, system) if compared(model, system) else NONE for model in MODELS] for system in SYSTEMS
    }
    gains = [gain(lab, model, of) for model in MODELS]
    printed = [number(claims, f"pipeoptim.{name}.gain_over_gpipe.{model}") for model in MODELS]
    calibrated = [("pipeoptim", MODELS.index("gnmt_16"))] if name == "fig6" else []
    null = {"pipeoptim": [NULL] * len(MODELS)}
    panels = [
        Panel("Throughput on four P100", "sample/s", MODELS, rates, axis="network"),
        Panel(
            "PipeOptim over GPipe", "percent", MODELS, {"pipeoptim": gains}, {"pipeoptim": printed}, null, calibrated
        ),
    ]
    if name == "fig6":
        tried = {"public code": gains, "PipeDream's rule here": [gain(lab, model, on_own_cuts) for model in MODELS]}
        panels.append(Panel("PipeOptim over GPipe by the cuts, same constants", "percent", MODELS, tried))
    return panels


figure_5 = figure("pipeoptim_fig5", "Figure 5; Section V-C", lambda lab, c: _throughput(lab, c, "fig5", same))
figure_6 = figure("pipeoptim_fig6", "Figure 6; Section V-C", lambda lab, c: _throughput(lab, c, "fig6", filling))


def _against(lab: Lab, of: Any, system: str) -> Cases:
    """`system` beside each streaming one that is another, a case per model and pair."""
    return [
        [of(lab, model, system), of(lab, model, other)]
        for model in MODELS
        for other in STREAMS
        if other != system and compared(model, other)
    ]


@figure_5("pipeoptim.fig5.gpipe_lowest", unit="sample/second")
def lowest_5(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _against(lab, same, "gpipe"), "64 samples per GPU; a case per model and streaming system"


@figure_6("pipeoptim.fig6.gpipe_lowest", unit="sample/second")
def lowest_6(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _against(lab, filling, "gpipe"), "Table V's batches; a case per model and streaming system"


@figure_5("pipeoptim.fig5.async_comparable", unit="sample/second")
def comparable(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _against(lab, same, "pipeoptim"), "64 samples per GPU; a case per model and other streaming system"


@figure_6("pipeoptim.fig6.same_as_stashing", unit="sample/second")
def as_stashing(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[filling(lab, model, term) for term in question.terms] for model in MODELS], "a case per model"


@figure_5("pipeoptim.fig5.gain_over_gpipe.average", "pipeoptim.fig5.gain_over_gpipe.maximum", unit="percent")
def gains_5(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _over_models(question, [gain(lab, model, same) for model in MODELS])


@figure_6(*(f"pipeoptim.fig6.gain_over_gpipe.{name}" for name in (*MODELS, "average")), unit="percent")
def gains_6(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _over_models(question, [gain(lab, model, filling) for model in MODELS])


def _over_models(question: Question, gains: Sequence[float]) -> tuple[Cases, str]:
    asked = question.id.rpartition(".")[2]
    told = ", ".join(f"{model} {value:.1f}" for model, value in zip(MODELS, gains, strict=True))
    if asked in MODELS:
        return [[gains[MODELS.index(asked)]]], told
    return [[max(gains) if asked == "maximum" else sum(gains) / len(gains)]], told


# Table VI: seconds of an epoch


def _table_6(lab: Lab, claims: Claims) -> Sequence[Panel]:
    panels = []
    anchor = number(claims, FITTED["products"])
    for model in TIMED:
        times = {"epoch": [epoch(lab, model, system) for system in STREAMS]}
        printed = {"epoch": [number(claims, f"pipeoptim.table6.{model}.{s}.epoch_time") for s in STREAMS]}
        null = {"epoch": [anchor * flops.forward(NETWORKS[model]) / flops.forward(NETWORKS[TIMED[0]])] * len(STREAMS)}
        panels.append(Panel(f"An epoch of {model}", "s", STREAMS, times, printed, null, [("epoch", 0)]))
    return panels


table_6 = figure("pipeoptim_table6", "Table VI; Section V-D", _table_6)


@table_6(*(f"pipeoptim.table6.{model}.{system}.epoch_time" for model in TIMED for system in STREAMS), unit="second")
def epochs(question: Question, lab: Lab) -> tuple[Cases, str]:
    _, _, model, system, _ = question.id.split(".")
    return [[epoch(lab, model, system)]], f"{largest(model, system)} images per GPU, no validation"


@table_6("pipeoptim.sec5d.epoch_time_comparable", unit="second")
def epochs_alike(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[epoch(lab, model, term) for term in question.terms] for model in TIMED], ", ".join(TIMED)


# the constants


def fitted(lab: Lab, published: Mapping[str, float]) -> Stack:
    """The stack with each constant the root of one equation, ours = the cell that FITTED names."""
    stack = lab.stacks["pipeoptim"]

    def on(changed: Stack) -> Lab:
        return replace(lab, stacks={**lab.stacks, "pipeoptim": changed})

    def changing(name: str, value: Any) -> Stack:
        return replace(stack, **{name: value})

    for _ in range(3):  # the step takes a little of an epoch
        wanted = published[FITTED["products"]]
        found = root("products", lambda v: epoch(on(changing("products", v)), TIMED[0], "pipedream") - wanted, 0.1, 1.0)  # noqa: B023
        stack = changing("products", found)
        wanted = published[FITTED["kernels"]]
        found = root(
            "kernels",
            lambda v: epoch(on(changing("kernels", {"InceptionV3": v})), TIMED[1], "pipedream") - wanted,  # noqa: B023
            0.3,
            1.5,
        )
        stack = changing("kernels", {"InceptionV3": found})
        wanted = published[FITTED["states"]]
        found = root("states", lambda v: gain(on(changing("states", v)), "gnmt_16", filling) - wanted, 0.01, 1.0)  # noqa: B023
        stack = changing("states", found)
    return stack
