"""Simulation of SAMO's Figure 5: two convolutional networks in pure data parallelism.

A batch consists of passes, one ring all-reduce over all GPUs, and an optimizer step. Nothing is fitted to the figure:
the runs have the efficiency constants of Summit (conf/efficiency/summit.yaml). A layer costs its products and a launch,
and element-wise kernels such as batch norms cost nothing. All systems run torchvision's layers (V-A) with the same
kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite.claims.answer import Cases, Question, WithNull
from suite.claims.cluster_runs import SAMO_MODELLED, Lab
from suite.claims.panel import Claims, Panel, figure
from suite.core.errors import InvalidRequest
from suite.memory.layout import Layout, zero_1
from suite.models.image_shapes import VGG, WideResNet
from suite.simulate.cost.plan_cost import HALF
from suite.simulate.kernel import Kernel
from suite.simulate.network.network import Fabric, Ring, ring_volume
from suite.simulate.operations.generation import generations
from suite.workload import Network, flops

BATCH, GPUS = 128, (16, 32, 64, 128)  # Table I
NETWORKS: Mapping[str, Network] = {"wideresnet_101": WideResNet(), "vgg_19": VGG()}
SYSTEMS = ("axonn_samo", "axonn", "deepspeed_3d")
PASSES = 3  # cost in forward passes: a backward pass counts twice, and there is no recomputation
MOMENT = 8  # bytes per parameter that a step of Adam reads and writes for its second moment; momentum has none


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one batch: passes, the reduction of all gradients, and the step."""

    passes: float
    reduction: float
    step: float

    @property
    def seconds(self) -> float:
        return self.passes + self.reduction + self.step


def layout(lab: Lab, model: str, system: str, gpus: int) -> Layout:
    """Model states of one GPU in mixed precision with momentum."""
    modelled = lab.system(SAMO_MODELLED.get(system, system))
    entries = sum(layer.parameters for layer in NETWORKS[model].shapes())
    layout_of_states: Layout = modelled.layout(entries=entries, moments=("velocity",), dtype="float32")
    return zero_1(gpus)(layout_of_states) if modelled.zero_stage else layout_of_states


def parts(lab: Lab, model: str, system: str, gpus: int) -> Parts:
    """Times of one batch of `model` on `gpus` GPUs. Raises InvalidRequest if `gpus` does not divide the batch."""
    if gpus < 1 or BATCH % gpus:
        raise InvalidRequest(
            f"a batch of {BATCH} images on {gpus} GPUs", rule="the GPUs divide the batch", legal="16, 32, 64 or 128"
        )
    machine, efficiency, network = lab.machine, lab.efficiency(), NETWORKS[model]
    states, layers = layout(lab, model, system, gpus), len(network.shapes())
    products = flops.training(network, BATCH // gpus) / (efficiency.products * machine.best_product("float16"))
    passes = products + PASSES * layers * efficiency.launch
    stepped = (generations()[efficiency.generation].step_bytes - MOMENT) * states["master"].entries
    if "index" in {state.name for state in states}:
        passes += efficiency.compress * states["half"].entries
        stepped += HALF * (states["half"].entries - states["master"].entries)  # pruned weights are written too
    volume = lab.system(SAMO_MODELLED.get(system, system)).allreduces_per_update * ring_volume(
        states["half_gradient"].bytes, gpus
    )
    step = stepped / (machine.memory_bandwidth * (efficiency.traffic or 1.0))
    return Parts(passes, _ring_seconds(lab, gpus, volume), step)


def _ring_seconds(lab: Lab, gpus: int, volume: float) -> float:
    """Seconds of a ring over all GPUs in which each sends `volume` bytes, without other traffic."""
    kernel = Kernel()
    fabric = Fabric(kernel, lab.machine, lab.efficiency(), gpus)
    ring = Ring.of(range(gpus), lab.machine)
    fabric.collective(ring, volume, 2 * (gpus - 1), lambda _: None, None)
    return kernel.run()


def seconds(lab: Lab, model: str, system: str, gpus: int) -> float:
    return parts(lab, model, system, gpus).seconds


def saved(lab: Lab, model: str, gpus: int) -> float:
    """Percent of AxoNN's batch time that AxoNN+SAMO saves (X1)."""
    return 100 * (1 - seconds(lab, model, "axonn_samo", gpus) / seconds(lab, model, "axonn", gpus))


@figure("samo_fig5", "Figure 5")
def fig5(lab: Lab, claims: Claims) -> Iterator[Panel]:
    points = [str(gpus) for gpus in GPUS]
    for model in NETWORKS:
        times = {system: [seconds(lab, model, system, gpus) for gpus in GPUS] for system in SYSTEMS}
        gains = [saved(lab, model, gpus) for gpus in GPUS]
        yield Panel(f"batch time of {model}", "s", points, times, axis="GPUs", quantity="batch time")
        title = f"time saved over AxoNN, {model}"
        yield Panel(title, "percent", points, {"axonn_samo": gains}, axis="GPUs", quantity="time saved")
        yield Panel(
            f"least and largest {title}",  # the text prints both, but not their GPU counts
            "percent",
            ("least", "largest"),
            {"axonn_samo": [min(gains), max(gains)]},
            {"axonn_samo": [f"samo.fig5.speedup.{model} {end}" for end in ("low", "high")]},
            axis="of all GPU counts",
            quantity="time saved",
        )


def speedups(question: Question, lab: Lab, *, model: str, first: float) -> WithNull:
    """Smallest and largest time saved over the GPU counts.

    Without a pipeline, the null model gives the printed minimum `first` at every GPU count.
    """
    savings = [saved(lab, model, gpus) for gpus in GPUS]
    return [[min(savings), max(savings)]], ", ".join(f"{value:.1f}" for value in savings), [[first, first]]


def compute_ratio(question: Question, lab: Lab, *, models: Sequence[str]) -> WithNull:
    """Ratio of the pass times of two networks. Null model: the ratio of their flops."""
    first, second = models
    cases = [[parts(lab, first, "axonn", gpus).passes / parts(lab, second, "axonn", gpus).passes] for gpus in GPUS]
    ratio = flops.training(NETWORKS[first], 1) / flops.training(NETWORKS[second], 1)
    return cases, f"16 to 128 GPUs; {first} has {ratio:.2f} times the flops of {second}", [[ratio]] * len(GPUS)


def equals(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [[seconds(lab, model, term, gpus) for term in question.terms] for model in NETWORKS for gpus in GPUS]
    ratios_text = ", ".join(f"{deepspeed / axonn:.2f}" for axonn, deepspeed in cases)
    return cases, f"DeepSpeed over AxoNN, wideresnet_101 then vgg_19: {ratios_text}"


def gains(question: Question, lab: Lab) -> Cases:
    """16 to 128 GPUs."""
    return [[saved(lab, term, gpus) for term in question.terms] for gpus in GPUS]
