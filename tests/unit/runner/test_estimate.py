"""Estimates of a run against hand computations for a GPT of two blocks.

Bytes of one sequence, float32 (suite.workload.transformer):

              parameters   saved   output   working   of weights
    embedding         32       0       48         0           80
    block            232     840       48       288          256
    head          8 + 20     180       60       120            0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.config.compose import resolve
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.engine.optim.optimizer import state_names
from suite.memory.optimizer_states import states_of
from suite.runner import estimate

SHAPE = {
    "_target_": "suite.workload.Transformer",
    "layers": 2,
    "hidden": 4,
    "heads": 2,
    "sequence": 3,
    "vocabulary": 5,
    "tied": True,
    "attention_bias": False,
}
CONFIG = resolve(["system=axonn_no_memopt", "batch.size=8"]).plain()
CONFIG["model"] |= {"shape": SHAPE}
CONFIG["optimizer"] |= {"buckets_per_reduction": None}


def config_of(grid: Mapping[str, int] | None = None, **changes: Any) -> RunConfig:
    """The configuration with other ranks, and with other values in its groups."""
    merged = {
        name: {**CONFIG[name], **value} if isinstance(value, Mapping) and "_target_" not in value else value
        for name, value in changes.items()
    }
    return RunConfig.model_validate({**CONFIG, **merged, "grid": {**CONFIG["grid"], **(grid or {})}})


def states(parameters: int, activations: int, moments: int = 2, width: int = 4) -> dict[str, int]:
    weight_bytes = parameters * width
    return {
        "weights": weight_bytes,
        "gradients": weight_bytes,
        "moments": moments * weight_bytes,
        "activations": activations,
    }


MOMENTUM = {"_target_": "suite.engine.optim.optimizer.SGD", "momentum": 0.9}


def test_counts() -> None:
    block, head = 24 * 3 * 16 + 4 * 9 * 4, 2 * 3 * 4 * 5
    assert estimate.counts(config_of()) == {
        "tokens_per_batch": 24.0,
        "flops_per_batch": 8 * 3 * (2 * block + head),
        "flops_per_batch_recompute": 8 * (3 * (2 * block + head) + 2 * block),
        "flops_per_batch_6nd": 6 * (32 + 2 * 232 + 8) * 8 * 3,  # the tied head has its norm alone
    }
    assert "flops_per_batch_6nd" not in estimate.counts(resolve(["model=vgg_narrow", "data=digits"]))
    assert estimate.counts(config_of())["flops_per_batch"] == 65088.0
    assert estimate.counts(config_of({"inter": 2, "data": 2})) == estimate.counts(config_of())


ADAM = {"_target_": "suite.engine.optim.optimizer.Adam", "momentum": None}
RMSPROP = {"_target_": "suite.engine.optim.optimizer.RMSprop"}


def test_prediction_may_need_the_last_gradient() -> None:
    """And the budget's account of a rule, which loads no torch, is the rule's own."""
    for changes, moments in (
        ({}, 1),
        ({"nesterov": True}, 2),
        ({"direction": "next"}, 2),
        ({"direction": "next", "momentum": 0.0}, 1),
        (ADAM, 2),
        (RMSPROP, 2),
        (RMSPROP | {"momentum": 0.0}, 2),
    ):
        optimizer = {key: value for key, value in {**MOMENTUM, **changes}.items() if value is not None}
        built, target = build({"lr": 0.1, **optimizer}), optimizer.pop("_target_")
        for predicts in (True, False):
            states = states_of(target, optimizer, predicts=predicts)
            assert len(states) == len(state_names(built, predicts=predicts)), changes
            assert not predicts or len(states) == moments
