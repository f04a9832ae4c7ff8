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

import pytest

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


def kinds(config: RunConfig) -> list[dict[str, int]]:
    return [budget.by_kind() for budget in estimate.budgets(config)]


def states(parameters: int, activations: int, moments: int = 2, width: int = 4) -> dict[str, int]:
    weight_bytes = parameters * width
    return {
        "weights": weight_bytes,
        "gradients": weight_bytes,
        "moments": moments * weight_bytes,
        "activations": activations,
    }


def test_one_rank_holds_the_whole_model() -> None:
    saved = 2 * (0 + 840 + 840 + 180)
    working = 2 * (288 - 180) + 256  # when the last block's backward pass runs, what the head kept is gone
    (predicted,) = kinds(config_of())
    assert predicted == states(32 + 232 + 232 + 28, saved + working)
    assert sum(predicted.values()) == 12576


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


BUCKETS = {"bucket_numel": 100, "buckets_per_reduction": 2, "clip_norm": None}


@pytest.mark.parametrize(
    ("changes", "reducing", "beside"),
    [
        ({}, 524 * 4, False),
        ({"optimizer": BUCKETS}, 200 * 4, True),
        ({"optimizer": BUCKETS | {"buckets_per_reduction": 6}}, 524 * 4, False),
        ({"optimizer": BUCKETS | {"bucket_numel": 262}}, 524 * 4, False),
        ({"optimizer": BUCKETS | {"clip_norm": 1.0}}, 524 * 4, False),
        ({"precision": {"half": "bfloat16", "loss_scale": None}}, 524 * 2, False),
        ({"comm": {"transport": "gloo", "pair_exchange": True}}, 0, False),
        ({"comm": {"transport": "auto", "pair_exchange": False}}, 0, False),
        ({"launch": {"launcher": "torchrun", "device": "cpu"}}, 0, False),
        ({"launch": {"launcher": "mpiexec", "device": "cuda"}}, 0, False),
    ],
)
def test_two_replicas_exchange_what_they_add(changes: dict[str, Any], reducing: int, beside: bool) -> None:
    predicted = estimate.budgets(config_of({"data": 2}, **changes))
    assert {(budget.reducing, budget.overlaps_step) for budget in predicted} == {(reducing, beside)}
    assert estimate.budgets(config_of(**changes))[0].reducing == 0


ASYNCHRONOUS = {
    "pipedream": ({"_target_": "baselines.pipedream.Stash"}, 1),
    "pipedream_2bw": ({"_target_": "baselines.pipedream.DoubleBuffer"}, 2),
    "pipeoptim": ({"_target_": "suite.weights.Predict", "s": "paper"}, 1),
}


def asynchronous(name: str, graph: str | None = "recompute") -> list[dict[str, int]]:
    """Two stages of one block each, microbatches of 2, an untied head."""
    weights, every = ASYNCHRONOUS[name]
    config = config_of(
        {"inter": 2},
        schedule={"_target_": "suite.schedule.OneFOneB"},
        weights=weights | ({"graph": graph} if graph else {}),
        update_interval=every,
        optimizer=MOMENTUM,
        batch={"size": 2, "microbatch": 2},
    )
    return kinds(config.changed({"model.shape.tied": False}))


def test_versions_of_an_asynchronous_run() -> None:
    """The newest weights and the policy's further versions: 264 entries on the first stage, 260 on the last.

    A configuration may leave `graph` out: then the class's own default holds, which recomputes.
    """
    for name, copies in {"pipedream": (2, 1), "pipedream_2bw": (2, 2), "pipeoptim": (2, 1)}.items():
        first, last = asynchronous(name)
        assert (first["weights"], last["weights"]) == (copies[0] * 4 * 264, copies[1] * 4 * 260)
        assert (first["gradients"], first["moments"]) == (4 * 264, 4 * 264)
        assert asynchronous(name, graph=None) == [first, last] != asynchronous(name, graph="keep")


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
