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

GPIPE = {"_target_": "baselines.gpipe.GPipe"}
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


def test_stage_memory_counts_microbatches_in_flight() -> None:
    first, last = estimate.budgets(config_of({"inter": 2}))
    assert first.by_kind() == states(264, 2 * 2 * (840 + 48) + 832)  # two microbatches, each with the stage's output
    assert last.by_kind() == states(260, 2 * (840 + 180) + 472 + 2 * 48)  # one, and a message that has come
    assert (first.in_flight, last.in_flight) == (2, 1)
    assert (first.waiting, last.waiting) == (0, 96)


def test_gpipe_keeps_the_batch() -> None:
    predicted = kinds(config_of({"inter": 2}, schedule=GPIPE))
    assert predicted == [states(264, 4 * 2 * (840 + 48) + 832), states(260, 4 * 2 * (840 + 180) + 472)]


def test_recomputation_keeps_the_messages() -> None:
    recompute = {"_target_": "suite.weights.Latest", "graph": "recompute"}
    predicted = kinds(config_of({"inter": 2}, schedule=GPIPE, weights=recompute))
    assert predicted == [states(264, 2 * (840 + 48) + 832), states(260, 4 * 96 + 2 * (840 + 180) + 472)]


def test_replicas_are_alike_and_share_the_batch() -> None:
    config = config_of({"inter": 2, "data": 2}, schedule=GPIPE)
    assert config.microbatches == 2
    predicted = kinds(config)
    assert predicted[:2] == predicted[2:]
    assert predicted[:2] == [states(264, 2 * 2 * (840 + 48) + 832), states(260, 2 * 2 * (840 + 180) + 472)]


def test_sgd_keeps_one_moment() -> None:
    (predicted,) = kinds(config_of(optimizer={"_target_": "suite.engine.optim.optimizer.SGD"}))
    assert predicted == states(524, 4192, moments=1)


@pytest.mark.parametrize(("dtype", "times"), [("float64", 2), ("float32", 1), ("bfloat16", 0.5)])
def test_bytes_follow_the_precision(dtype: str, times: float) -> None:
    (predicted,) = kinds(config_of(model=CONFIG["model"] | {"dtype": dtype}))
    right = {kind: times * size for kind, size in kinds(config_of())[0].items()}
    if dtype == "bfloat16":  # log-probabilities, of which a loss is made, and two gradients as large stay in float32
        right["activations"] = 2 * (420 + 420 + 60 + 3 * 5 * 4) + 2 * (2 * 3 * 5 * 4)
    assert predicted == right


def offload(bucket: int, **more: int) -> dict[str, Any]:
    return {"layout": {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": bucket, **more}}


def test_update_can_be_the_peak() -> None:
    """A batch of one short sequence: the buckets of a step are larger than the saved activations."""
    small = CONFIG["model"]["shape"] | {"hidden": 40, "sequence": 1}
    few = {"model": CONFIG["model"] | {"shape": small}, "batch": {"size": 1, "microbatch": 1}}
    (predicted,) = kinds(config_of(**few, memory=offload(10**6)))
    assert "activations" not in predicted
    assert predicted["weights"] == 4 * ((5 + 1) * 40 + 2 * (12 * 40 * 40 + 10 * 40) + 80 + 5 * 40)
    assert predicted["scratch"] == 2 * predicted["weights"]


def test_mixed_precision_offloaded() -> None:
    """AxoNN V-B: 4 phi, and during the update 16 per entry of a bucket."""
    half = {"half": "bfloat16", "loss_scale": None}
    (predicted,) = estimate.budgets(config_of(precision=half, memory=offload(100)))
    assert predicted.layout.by_kind() == {"weights": 2 * 524, "gradients": 2 * 524}
    assert predicted.layout.bytes(life="bucket") == 1600
    assert predicted.layout.bytes(home="host") == 12 * 524
    (resident,) = estimate.budgets(config_of(precision=half))
    assert resident.layout.bytes() == 20 * 524
    head = 2 * 3 * 4 * 2 + 2 * 3 * 2 + 3 * 5 * 4  # its log-probabilities in float32
    assert resident.activations == predicted.activations == 2 * (2 * 420 + head)


def test_checkpoints_keep_the_inputs_of_intervals() -> None:
    """A block saves 840 bytes of a sequence, 48 of them its input."""
    deep = CONFIG["model"] | {"shape": CONFIG["model"]["shape"] | {"layers": 4}}
    for apart, inputs, again in ((1, 4, 1), (2, 2, 2), (4, 1, 4)):
        (predicted,) = estimate.budgets(config_of(model=deep, activation_checkpointing=apart))
        assert predicted.activations == 2 * (inputs * 48 + 180)
        assert predicted.working == 832 + 2 * (
            again * 840 - 48 - 180
        )  # the head is done when blocks are computed again
    first, last = estimate.budgets(config_of({"inter": 2}, model=deep, activation_checkpointing="auto"))
    assert first.activations == 2 * 48  # two blocks on a stage, of four: an interval of two
    assert first.working == 832 + 2 * (2 * 840 - 48)
    assert last.activations == 2 * (1 * 48 + 180)


def test_counts() -> None:
    block, head = 24 * 3 * 16 + 4 * 9 * 4, 2 * 3 * 4 * 5
    assert estimate.counts(config_of()) == {
        "tokens_per_batch": 24.0,
        "flops_per_batch": 8 * 3 * (2 * block + head),
        "flops_per_batch_recompute": 8 * (3 * (2 * block + head) + 2 * block),
    }
    assert estimate.counts(config_of())["flops_per_batch"] == 65088.0
    assert estimate.counts(config_of({"inter": 2, "data": 2})) == estimate.counts(config_of())


@pytest.mark.parametrize(
    ("changes", "reducing", "beside"),
    [
        ({}, 524 * 4, False),
        ({"optimizer": {"bucket_numel": 100, "buckets_per_reduction": 2, "clip_norm": None}}, 200 * 4, True),
        ({"optimizer": {"bucket_numel": 100, "buckets_per_reduction": 6, "clip_norm": None}}, 524 * 4, False),
        ({"optimizer": {"bucket_numel": 100, "buckets_per_reduction": 2, "clip_norm": 1.0}}, 524 * 4, False),
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


def test_stage_without_blocks_recomputes_nothing() -> None:
    """A head so wide that it stands alone."""
    shape = CONFIG["model"]["shape"] | {"vocabulary": 5000, "layers": 4}
    config = config_of({"inter": 2}, model=CONFIG["model"] | {"shape": shape}, split="cost", activation_checkpointing=2)
    _, last = estimate.budgets(config)
    assert last.activations == estimate.budgets(config.changed({"activation_checkpointing": None}))[1].activations


ASYNCHRONOUS = {
    "pipedream": ({"_target_": "baselines.pipedream.Stash", "graph": "recompute"}, 1),
    "pipedream_2bw": ({"_target_": "baselines.pipedream.DoubleBuffer", "graph": "recompute"}, 2),
    "pipeoptim": ({"_target_": "suite.weights.Predict", "s": "paper", "graph": "recompute"}, 1),
}
SGD = {"_target_": "suite.engine.optim.optimizer.SGD", "momentum": 0.9}


def asynchronous(name: str, **changes: Any) -> list[dict[str, int]]:
    """Two stages of one block each, microbatches of 2, an untied head."""
    weights, every = ASYNCHRONOUS[name]
    config = config_of(
        {"inter": 2},
        schedule={"_target_": "suite.schedule.OneFOneB"},
        weights=weights,
        update_interval=every,
        optimizer=SGD,
        batch={"size": 2, "microbatch": 2},
        **changes,
    )
    return kinds(config.changed({"model.shape.tied": False}))


@pytest.mark.parametrize(
    ("name", "copies"),
    [("pipedream", (2, 1)), ("pipedream_2bw", (2, 2)), ("pipeoptim", (2, 1))],
)
def test_versions_of_an_asynchronous_run(name: str, copies: tuple[int, int]) -> None:
    """The newest weights and the policy's further versions: 264 entries on the first stage, 260 on the last."""
    first, last = asynchronous(name)
    assert (first["weights"], last["weights"]) == (copies[0] * 4 * 264, copies[1] * 4 * 260)
    assert (first["gradients"], first["moments"]) == (4 * 264, 4 * 264)


def test_activations_of_an_asynchronous_run_that_computes_again() -> None:
    """The first stage saves only its rows, and recomputes 840 bytes and the 48 that it sends.

    The last stage saves the 48 bytes that it receives, for one microbatch and for a waiting one.
    """
    first, last = asynchronous("pipeoptim")
    assert first["activations"] == 2 * (840 + 48) + (2 * 288 + 256)
    working = max(2 * 120 + 0, 2 * (288 - 180) + 256)
    assert last["activations"] == 2 * 48 + 2 * (840 + 180) + working + 2 * 48


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_recomputation_follows_the_policy_where_no_key_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration may leave `graph` out: then the class's own default holds, which recomputes."""
    weights, every = ASYNCHRONOUS[name]
    config = asynchronous(name)
    monkeypatch.setitem(ASYNCHRONOUS, name, ({key: weights[key] for key in weights if key != "graph"}, every))
    assert asynchronous(name) == config
    monkeypatch.setitem(ASYNCHRONOUS, name, ({**weights, "graph": "keep"}, every))
    assert asynchronous(name) != config


@pytest.mark.parametrize(
    ("changes", "moments"),
    [
        ({}, 1),
        ({"nesterov": True}, 2),
        ({"direction": "next"}, 2),
        ({"direction": "next", "momentum": 0.0}, 1),
        ({"_target_": "suite.engine.optim.optimizer.Adam", "momentum": None}, 2),
        ({"_target_": "suite.engine.optim.optimizer.RMSprop"}, 2),
        ({"_target_": "suite.engine.optim.optimizer.RMSprop", "momentum": 0.0}, 2),
    ],
)
def test_prediction_may_need_the_last_gradient(changes: dict[str, Any], moments: int) -> None:
    """And the budget's account of a rule, which loads no torch, is the rule's own."""
    optimizer = {key: value for key, value in {**SGD, **changes}.items() if value is not None}
    optimizer_built, target = build({"lr": 0.1, **optimizer}), optimizer.pop("_target_")
    assert (
        len(states_of(target, optimizer, predicts=True)) == moments == len(state_names(optimizer_built, predicts=True))
    )
    assert len(states_of(target, optimizer, predicts=False)) == len(state_names(optimizer_built, predicts=False))


@pytest.mark.parametrize(("every", "drains"), [(None, True), (1, False)])
def test_flush_drains_and_stream_does_not(every: int | None, drains: bool) -> None:
    config = config_of({"inter": 2}, schedule={"_target_": "suite.schedule.OneFOneB"}, update_interval=every)
    assert [budget.drains for budget in estimate.budgets(config)] == [drains] * 2
