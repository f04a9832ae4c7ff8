"""Steps of a peer that leaves them to its user: masters, loss scale and clipping, against loops written out here."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from baselines.stepping import Stepper
from suite.config.compose import resolve
from suite.config.run import RunConfig


@cache
def base() -> RunConfig:
    return resolve(["system=pytorch", "optimizer=sgd", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0"])


def config(half: str | None = None, *, clip: float | None = None, scale: dict[str, Any] | None = None) -> RunConfig:
    rate = {"_target_": "suite.engine.optim.lr_schedule.Steps", "lr": 0.5, "milestones": [1]}
    changes = {"precision.half": half, "precision.loss_scale": scale, "optimizer.clip_norm": clip, "optimizer.lr": rate}
    return base().changed(changes)


def dynamic(start: float, patience: int = 200) -> dict[str, Any]:
    return {"_target_": "suite.engine.optim.loss_scaler.DynamicLossScaler", "start": start, "patience": patience}


def weights(*values: float) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([value])) for value in values]


def give(parameters: list[nn.Parameter], *gradients: float) -> None:
    for weight, gradient in zip(parameters, gradients, strict=True):
        weight.grad = torch.full_like(weight, gradient)


def test_masters_move_where_half_precision_could_not() -> None:
    parameters = weights(1.0, 1.001)
    stepper = Stepper(config("bfloat16"), parameters)
    assert float(stepper.masters[1].detach()) == pytest.approx(1.001, abs=1e-7), "the weight before it is rounded"
    assert parameters[0].dtype is torch.bfloat16
    for expected in (1 - 2.0**-12, 1 - 2.0**-12 * 1.1):  # 0.5, then 0.05 times the gradient
        give(parameters, 2.0**-11, 0.0)
        assert stepper.step()
        assert float(stepper.masters[0].detach()) == pytest.approx(expected, abs=1e-7)
        assert float(parameters[0].detach()) == 1.0, "bfloat16 has eight bits"
    assert stepper.masters[0].grad is None, "widened gradients live in the step alone"
    plain = Stepper(config(), parameters := weights(1.0))
    give(parameters, 0.25)
    assert plain.step()
    assert plain.masters == parameters
    assert (plain.factor, float(parameters[0].detach())) == (1.0, 0.875)


def test_an_overflow_leaves_everything_but_the_scale() -> None:
    parameters = weights(1.0, 2.0)
    stepper = Stepper(config("float16", scale=dynamic(1024.0, patience=1)), parameters)
    assert stepper.factor == 1024.0
    give(parameters, 256.0, 256.0)
    stepper.sum_over_ranks = lambda squared: squared + math.inf  # of another rank
    assert not stepper.step()
    assert [float(w.detach()) for w in parameters] == [1.0, 2.0]
    assert stepper.factor == 512.0
    stepper.sum_over_ranks = float
    give(parameters, 256.0, 512.0)
    assert stepper.step()
    assert [float(w.detach()) for w in parameters] == [0.75, 1.5], (
        "half of the gradients 0.5 and 1: the first rate, unspent"
    )
    assert stepper.factor == 1024.0


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_gradient_norm_counts_a_tied_weight_once(half: str | None) -> None:
    parameters = weights(0.0, 0.0, 0.0)
    squares = []

    def whole(squared: float) -> float:
        squares.append(squared)
        return squared + 144.0  # another rank's

    stepper = Stepper(config(half, clip=1.0), parameters, uncounted=parameters[2:], sum_over_ranks=whole)
    give(parameters, 3.0, 4.0, 7.0)
    assert stepper.step()
    assert squares == [pytest.approx(25.0)]
    clipped = [-0.5 * gradient / 13.0 for gradient in (3.0, 4.0, 7.0)]
    assert [float(m.detach()) for m in stepper.masters] == pytest.approx(clipped, rel=1e-6)
    small = Stepper(config(half, clip=1.0), parameters := weights(0.0))
    give(parameters, 0.5)
    small.step()
    assert float(small.masters[0].detach()) == -0.25, "a small gradient is not clipped"


def test_bytes_are_told_by_kind() -> None:
    parameters = [nn.Parameter(torch.zeros(1000))]
    stepper = Stepper(config("bfloat16"), parameters)

    def train() -> float:
        give(parameters, 1.0)
        stepper.step()
        return 2.5

    loss, peak = stepper.measured(train)
    assert loss == 2.5
    widened = peak.pop("scratch")
    assert peak == {"weights": 2000, "masters": 4000, "moments": 0, "gradients": 2000}
    assert widened >= 4000
