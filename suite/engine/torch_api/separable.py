"""Probe of an optimizer: whether its step of a weight depends on other weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from suite.core.errors import Unsupported
from suite.engine.torch_api.torch_optimizer import OptimizerFactory, TrainedWeights, keep_own, made_optimizer


def check_separable(
    factory: OptimizerFactory, made: torch.optim.Optimizer, whole: Mapping[str, nn.Parameter], own: Sequence[str]
) -> None:
    """Raises Unsupported for an optimizer whose step of one weight depends on others, as clipping inside a step does.

    Small weights of the same names show it: two steps of all of them, and of this rank's alone. Torch's own classes
    without hooks step each weight by itself."""
    hooks = made._optimizer_step_pre_hooks or made._optimizer_step_post_hooks
    if type(made).__module__.startswith("torch.optim.") and not hooks:
        return
    generator = torch.Generator()
    stepped: list[dict[str, nn.Parameter]] = []
    for kept in (whole, own):
        drawn = {
            n: torch.randn([min(2, s) for s in w.shape], generator=generator.manual_seed(0)) for n, w in whole.items()
        }
        weights = {name: nn.Parameter(value) for name, value in drawn.items()}
        optimizer = made_optimizer(factory, TrainedWeights(weights.items()))
        keep_own(optimizer, {id(weight): [weight] * (name in kept) for name, weight in weights.items()})
        for _ in range(2):
            for name, weight in weights.items():
                weight.grad = drawn[name].sign() if name in kept else None
            optimizer.step()
        stepped.append(weights)
    if other := next((n for n in own if not torch.equal(stepped[0][n], stepped[1][n])), None):
        raise Unsupported(
            f"{type(made).__name__}, whose step of {other} depends on other weights",
            rule="the ranks of a pipeline hold different weights, and no step of a rank sees those of others",
            legal="clip_norm= of the engine for clipping inside a step, an optimizer of torch.optim, or Grid()",
        )
