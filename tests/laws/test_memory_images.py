"""Law 4 for image networks, whose layers differ, so the peak need not be at the largest layer."""

from __future__ import annotations

import pytest

from suite.comm.p2p.threads import run
from suite.config.compose import resolve
from suite.conformance.memory import count_memory
from suite.runner.estimate import budgets
from tests.support.drawn import drawn

LARGE = ["batch.size=16", "batch.microbatch=16", "model.shape.image=64"]  # activations outweigh the states
VGG, RESNET = ["model=vgg_narrow"], ["model=wideresnet_narrow"]
GOOGLENET, INCEPTION = ["model=googlenet_narrow"], ["model=inception_narrow", "model.shape.narrow=16"]
EIGHT = ["batch.size=8", "batch.microbatch=8"]


@pytest.mark.parametrize(
    "overrides",
    drawn(
        [
            [*VGG, *LARGE],
            [*VGG, *LARGE, "precision=bf16"],
            [*VGG, *LARGE, "model.shape.hidden=2048"],
            [*VGG, *LARGE, "model.dtype=float64"],
            [*RESNET, *LARGE],
            [*RESNET, *LARGE, "precision=bf16"],
            [*RESNET, *LARGE, "activation_checkpointing=4"],
            [*RESNET, "batch.size=16", "batch.microbatch=8", "model.shape.widen=4"],
            ["model=alexnet_narrow", *LARGE],
            ["model=vgg_16_narrow", *EIGHT],
            ["model=resnet_narrow", *EIGHT],
            [*GOOGLENET, *EIGHT],
            [*GOOGLENET, *EIGHT, "model.shape.form=photographs", "model.shape.image=64", "precision=bf16"],
            [*INCEPTION, *EIGHT, "model.shape.image=16"],
            [*INCEPTION, *EIGHT, "model.shape.form=photographs", "model.shape.image=80", "activation_checkpointing=5"],
        ],
        n=2,
    ),
    ids=" ".join,
)
def test_predicted_memory_matches_counted(overrides: list[str]) -> None:
    config = resolve(["system=axonn_no_memopt", "data=digits", "optimizer=sgd", *overrides])
    (counts,), (budget,) = run(1, lambda world: count_memory(world, config)), budgets(config)
    measured = counts["peak"]
    off = budget.by_kind()["activations"] / measured["activations"] - 1
    assert abs(off) <= 0.05, f"predicted {budget.by_kind()}, counted {measured}: {off:+.1%}"
    states = {kind: size for kind, size in measured.items() if kind != "activations"}
    assert states == budget.layout.by_kind()
