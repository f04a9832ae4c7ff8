"""SAMO's Figures 2 and 5, by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import pytest

from suite.claims.figure_executor import figure_metrics
from suite.claims.panel import published as printed_value
from suite.config.panels import FigurePanel
from suite.core.errors import InvalidRequest
from suite.papers.samo.convnets import parts
from suite.papers.samo.model_states import PRECISIONS, PUBLISHED, SAMO, SHARES
from tests.support.published_runs import lab, panels, published


@cache
def fig2() -> dict[str, FigurePanel]:
    return {panel.title: panel for panel in panels("samo_fig2")}


def density(share: float) -> Fraction:
    return 1 - Fraction(str(share))


# -- Figure 2 ----------------------------------------------------------------------------------------------------------


SAVED = (  # bytes per parameter: dense; of SAMO's per kept entry, and per entry; the sparsity where both are equal
    ("Adam, mixed precision", 2 + 2 + 4 + 4 + 8, 2 + 4 + 4 + 8 + 4 + 2, 2, 0.25),
    ("Adam, one precision", 4 + 4 + 8, 4 + 8 + 4 + 4, 4, 0.4),
    ("SGD with momentum, mixed precision", 2 + 2 + 4 + 4 + 4, 2 + 4 + 4 + 4 + 4 + 2, 2, 0.3),
    ("SGD with momentum, one precision", 4 + 4 + 4, 4 + 4 + 4 + 4, 4, 0.5),
)


def test_memory_saved_by_hand() -> None:
    saved = fig2()["memory of model states saved over sparsity"].ours
    least = fig2()["sparsity from which memory is saved"].ours[SAMO]
    for name, dense, remaining, whole, even in SAVED:
        expected = [float(100 * (dense - remaining * density(share) - whole) / dense) for share in SHARES]
        assert saved[name] == pytest.approx(expected, rel=1e-12), name
        assert least[list(PRECISIONS).index(name)] == pytest.approx(even, abs=1e-12), name


def test_the_papers_points_are_on_the_curve_that_it_draws() -> None:
    saved = fig2()["memory of model states saved over sparsity"]
    printed = {
        point: printed_value(published(), name) if name else number
        for point, name, number in zip(saved.x, saved.printed[PUBLISHED], saved.paper[PUBLISHED], strict=True)
        if name or not math.isnan(number)
    }
    assert printed == {"0.25": 0, "0.8": 66, "0.9": 78}
    ours = dict(zip(saved.x, saved.ours[PUBLISHED], strict=True))
    assert {point: ours[point] for point in printed} == pytest.approx(printed)


# -- simulation of samo's figure 5, and its errors

RATE = 0.848 * 0.931 * 125e12  # flop/s of products
LAUNCH = 1e-4
TRAFFIC = 0.8 * 900e9

PARAMETERS = {"wideresnet_101": 126_886_696, "vgg_19": 143_667_240}


def test_a_batch_by_hand() -> None:
    """VGG-19 on 32 GPUs: three passes of four images of 39.26 Gflop and of 19 layers.

    The ring reduces 287 MB over six nodes with two adapters each. A step moves 44 - 8 bytes per parameter.
    """
    phases = parts(lab(), "vgg_19", "axonn", 32)
    assert phases.passes == pytest.approx(4 * 3 * 39.264e9 / RATE + 3 * 19 * LAUNCH, rel=1e-4)
    ring = 2 * 31 / 32 * 2 * PARAMETERS["vgg_19"]
    assert phases.reduction == pytest.approx(1e-5 + 62 * 5e-6 + ring / (2 * 12.5e9 * 0.8), rel=1e-9)
    assert phases.step == pytest.approx(36 * PARAMETERS["vgg_19"] / TRAFFIC, rel=1e-9)
    assert phases.seconds == phases.passes + phases.reduction + phases.step


def test_samo_sends_a_tenth_and_compresses_and_deepspeed_steps_on_its_share() -> None:
    model = "wideresnet_101"
    dense, pruned = (parts(lab(), model, system, 64) for system in ("axonn", "axonn_samo"))
    latency = 1e-5 + 2 * 63 * 5e-6
    assert pruned.reduction - latency == pytest.approx((dense.reduction - latency) / 10, rel=1e-6)
    assert pruned.passes - dense.passes == pytest.approx(3.4e-12 * PARAMETERS[model], rel=1e-6)
    assert pruned.step == pytest.approx((36 * 0.1 + 2 * 0.9) * PARAMETERS[model] / TRAFFIC, rel=1e-6)
    ours, theirs = (parts(lab(), "vgg_19", system, 128) for system in ("axonn", "deepspeed_3d"))
    latency = 1e-5 + 2 * 127 * 5e-6
    assert theirs.reduction - latency == pytest.approx(1.5 * (ours.reduction - latency), rel=1e-6)
    assert theirs.passes == ours.passes, "torchvision's layers are everyone's"
    assert theirs.step < ours.step / 100


def test_gpus_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(InvalidRequest) as error:
        parts(lab(), "vgg_19", "axonn", 24)
    assert error.value.rule == "the GPUs divide the batch"


def test_time_of_computing_by_hand() -> None:
    """45.506 Gflop against 39.264 three times an image, and a launch three times for each of 35 and 19 layers:
    Wide-ResNet has 33 blocks, a stem and a head. Less than the published 1.5 for eight images, and more for one."""
    name = "samo.sec6b.compute_ratio"
    values = figure_metrics("samo_fig5", published(), lab())[name].values

    def passes(images: int, flop: float, layers: int) -> float:
        return images * 3 * flop / RATE + 3 * layers * LAUNCH

    by_hand = [passes(images, 45.506e9, 35) / passes(images, 39.264e9, 19) for images in (8, 4, 2, 1)]
    assert values == pytest.approx(by_hand, rel=1e-4)
    assert min(values) < 1.5 < max(values)
