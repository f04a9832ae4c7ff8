"""Model states of published networks: layouts, parameter counts, bytes per GPU.

Bytes come from layouts (suite.memory), parameter counts from shapes. Each GPU holds `parameters / G_inter` parameters,
as the AxoNN and SAMO papers count them. The notes of the answers give the larger share of the embedding's stage.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

from suite.claims.answer import Papers
from suite.core.errors import InvalidRequest
from suite.core.units import si
from suite.memory.layout import Layout, dense, mixed_precision, samo
from suite.models.image_shapes import VGG, ImageNetwork, WideResNet
from suite.workload import Transformer
from suite.workload.split import divide

LayoutOf = Callable[[int], Layout]
ADAM, MOMENTUM = ("moment_1", "moment_2"), ("velocity",)
MOMENTS = {"adam": ADAM, "sgdm": MOMENTUM}
CONVNETS: dict[str, type[ImageNetwork]] = {"wideresnet_101": WideResNet, "vgg_19": VGG}
GPTS = ("gpt3_xl", "gpt3_2_7b", "gpt3_6_7b", "gpt3_13b")
ENTRIES = 1_000_000  # network size for bytes per parameter; every published sparsity keeps a whole number of entries
GIGABYTE = 10**9


def mixed_precision_states(entries: int, optimizer: str = "adam") -> Layout:
    return mixed_precision(dense(entries, MOMENTS[optimizer]))


def pruned_states(sparsity: object, optimizer: str = "adam") -> LayoutOf:
    """SAMO's layout of networks pruned to `sparsity` (share of pruned parameters)."""
    density = 1 - Fraction(str(sparsity))  # as printed: 0.9 is nine tenths
    return lambda entries: samo(round(density * entries))(mixed_precision_states(entries, optimizer))


def parameter_count(model: str, papers: Papers) -> int:
    """Number of parameters, counted layer by layer from the shape."""
    if model in CONVNETS:
        return CONVNETS[model]().parameters
    return papers.shape(model).parameters


def fewest_stages(count: int, *, gpus: int, layout: LayoutOf, memory: float) -> int:
    """Smallest divisor G_inter of `gpus` for which the states of `count / G_inter` parameters fit a GPU.

    Args:
        count: Parameters of the network.
        gpus: GPUs of the run.
        layout: Layout of the model states.
        memory: Memory of a GPU in gigabytes (1e9 bytes).

    Raises:
        InvalidRequest: The states do not fit even on `gpus` stages.
    """
    for stages in range(1, gpus + 1):
        if gpus % stages == 0 and layout(ceil(count / stages)).bytes() <= memory * GIGABYTE:
            return stages
    raise InvalidRequest(
        f"{si(count)} parameters on {gpus} GPUs of {memory} GB", rule="the states fit", legal="more GPUs"
    )


def stage_parameters(shape: Transformer, stages: int, stage: int) -> int:
    """Parameters of one stage of an even split, including its copies of tied parameters."""
    layers = shape.shapes()
    return sum(layers[i].parameters + layers[i].tied for i in divide(shape, stages, "even")[stage])
