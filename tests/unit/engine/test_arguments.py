"""Validation of arguments of Engine, Grid and Pruning, and of batches: errors name the argument."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suite import Adam, AdamW, Engine, Grid, Magnitude, OneFOneB, Predict, Pruning
from suite.core.errors import InvalidRequest, SuiteError, Unsupported
from suite.core.keys import in_config_keys, translated
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.memory.layout import offloaded
from tests.support.refusals import fault, refused


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def layers() -> list[nn.Module]:
    return [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)]


def make_engine(**more: Any) -> Engine:
    arguments = {"model": layers(), "loss": cross_entropy, "optimizer": AdamW(lr=1e-2), "microbatch": 4, **more}
    return Engine(**arguments)


def batch(samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 8), torch.randint(0, 4, (samples,))


TORCH = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
WRONG: list[tuple[str, Any, dict[str, object]]] = [
    ("model", Single(), fault("model", subject="without blocks")),
    ("model", [], fault("model", rule="at least one module")),
    ("model", "layers", fault("model", rule="a list")),
    ("model", [nn.Linear(8, 4), 3], fault("model", subject="at position 1")),
    ("model", [nn.Linear, nn.Tanh()], fault("", subject="called without arguments")),
    ("model", [torch.relu], fault("", subject="layer 0")),
    ("model", [lambda: 3], fault("", subject="makes a int")),
    ("model", [nn.LazyLinear(4)], fault("", subject="no shape yet")),
    ("loss", "cross_entropy", fault("loss", subject="loss='cross_entropy'")),
    ("loss", nn.CrossEntropyLoss, fault("loss", legal="loss=CrossEntropyLoss()")),
    ("loss", nn.CrossEntropyLoss(reduction="sum"), fault("loss", subject="reduction='sum'")),
    ("loss", nn.CrossEntropyLoss(reduction="none"), fault("loss", subject="reduction='none'")),
    ("loss", partial(cross_entropy, reduction="sum"), fault("loss", subject="reduction='sum'")),
    ("loss", nn.Linear(4, 1), fault("loss", subject="trainable weights")),
    ("optimizer", TORCH, fault("optimizer", legal="optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3)")),
    ("optimizer", lambda parameters: TORCH, fault("optimizer", rule="hold every trained weight")),
    ("optimizer", 3, fault("optimizer", rule="an update rule of the suite, or a function")),
    ("lr_scheduler", lambda optimizer: optimizer, fault("lr_scheduler", rule="may be a function of the number")),
    ("optimizer", Adam, fault("optimizer", subject="optimizer=Adam, a class")),
    ("optimizer", None, fault("optimizer", subject="optimizer=None")),
    ("optimizer", AdamW(lr=lambda update: "fast"), fault("lr", subject="lr=fast")),
    ("microbatch", 0, fault("microbatch", rule="at least 1")),
    ("microbatch", 2.0, fault("microbatch", rule="a whole number")),
    ("microbatch", True, fault("microbatch", rule="a whole number")),
    ("grid", (1, 1), fault("grid", rule="a Grid")),
    ("schedule", OneFOneB, fault("schedule", subject="a class")),
    ("schedule", "1f1b", fault("schedule", rule="an object with")),
    ("weights", Predict, fault("weights", subject="a class")),
    ("weights", "latest", fault("weights", rule="an object with")),
    ("memory", "dense", fault("memory", rule="makes a memory layout")),
    ("memory", offloaded, fault("memory", subject="missing a required argument: 'bucket'")),
    ("memory", lambda **arguments: None, fault("memory", subject="makes None")),
    ("split", [2, 1], fault("split", rule="range of layers")),
    ("split", (range(2),), fault("split", rule="range of layers")),
    ("split", (range(1, 3),), fault("split", rule="range of layers")),
    ("tied", [(0, "weight", 2)], fault("tied", rule="a list of")),
    ("tied", (0, "weight", 2, "weight"), fault("tied", rule="a list of")),
    ("tied", [(0, "wait", 2, "weight")], fault("tied", subject="no weight 'wait'")),
    ("tied", [(0, "weight", 2, "weight")], fault("tied", rule="one shape")),
    ("seed", 0.5, fault("seed", rule="a whole number")),
    ("half", "bf16", fault("half", legal='half="bfloat16" or half=None')),
    ("half", torch.float64, fault("half", legal='half="bfloat16" or half=None')),
    ("loss_scaler", DynamicLossScaler(), fault("loss_scaler", subject="loss_scaler= with half=None")),
    ("bucket_numel", 0, fault("bucket_numel", rule="at least 1")),
    ("buckets_per_reduction", "4", fault("buckets_per_reduction", rule="a whole number")),
    ("clip_norm", 0.0, fault("clip_norm", rule="above 0")),
    ("clip_norm", float("nan"), fault("clip_norm", rule="above 0")),
    ("clip_norm", "1", fault("clip_norm", rule="above 0")),
    ("activation_checkpointing", "auto", fault("activation_checkpointing", rule="a whole number")),
    (
        "activation_checkpointing",
        2,
        fault("activation_checkpointing", legal="activation_checkpointing=1 or 3, or None"),
    ),
    ("pruning", Magnitude(), fault("pruning", legal="pruning=Pruning(Magnitude(), sparsity=0.9)")),
    ("update_interval", 0, fault("update_interval", rule="at least 1")),
    ("scores", cross_entropy, fault("score_names", rule="one name for each number of scores=")),
    ("score_names", "loss", fault("score_names", subject="score_names")),
    ("score_names", ("a",), fault("score_names", subject="score_names")),
    ("world", 1, fault("world", rule="an object with")),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_invalid_argument_is_rejected_by_name(name: str, value: Any, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected) as caught:
        make_engine(**{name: value})
    assert "null" not in str(caught.value)


@pytest.mark.parametrize("axis", ["data", "inter", "tensor"])
@pytest.mark.parametrize("size", [0, -1, 1.5, "2", None, True])
def test_grid_axis_must_be_positive_integer(axis: str, size: Any) -> None:
    with refused(InvalidRequest, axis):
        Grid(**{axis: size})


def test_tensor_parallel_grid_is_rejected() -> None:
    with refused(Unsupported, "tensor", "2"):
        make_engine(grid=Grid(tensor=2))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"method": Magnitude}, fault("method", rule="a class")),
        ({"method": "magnitude"}, fault("method", rule="an object with")),
        ({"sparsity": 1.0}, fault("sparsity", "1.0")),
        ({"what": "biases"}, fault("what", "biases")),
    ],
)
def test_invalid_pruning_is_rejected(arguments: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        Pruning(**{"method": Magnitude(), "sparsity": 0.5, **arguments})


def test_sequential_model_and_numpy_microbatch_are_accepted() -> None:
    engine = make_engine(model=nn.Sequential(*layers()), microbatch=np.int64(4))
    assert engine.train_batch(batch()) > 0


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        torch.randn(2, 8),
        batch()[0].numpy(),
        (batch()[0].numpy(), batch()[1]),
        (batch()[0],),
        (batch()[0], batch(4)[1]),
        (batch()[0], torch.tensor(1)),
        ((), batch()[1]),
        {"x": 1, "y": 2},
        "xy",
    ],
    ids=["tensor", "array", "inputs", "one", "samples", "scalar", "nothing", "mapping", "text"],
)
def test_malformed_batch_is_rejected(wrong: Any) -> None:
    engine = make_engine()
    for use in (engine.train_batch, engine.gradients, engine.memory, lambda one: engine.evaluate([one])):
        with pytest.raises(InvalidRequest) as refusal:
            use(wrong)
        assert "tensors" in refusal.value.legal or "from_numpy" in refusal.value.legal
    assert engine.train_batch(batch()) > 0


@pytest.mark.parametrize("wrong", [3, None, batch()[0], {"a": 1}])
def test_batches_must_be_iterable(wrong: Any) -> None:
    for use in (make_engine().train, make_engine().evaluate):
        with refused(InvalidRequest, "batches"):
            use(wrong)


def test_single_batch_instead_of_list_is_rejected() -> None:
    for use in (lambda one: list(make_engine().train(one)), make_engine().evaluate):
        with refused(InvalidRequest, rule="take a list of batches"):
            use(batch(2))


WRONG_SAVES: list[dict[str, Any]] = [
    {"folder": 3},
    {"keep": 0},
    {"keep": "2"},
    {"extra": [1]},
    {"extra": {"a": object()}},
]


@pytest.mark.parametrize("arguments", WRONG_SAVES)
def test_invalid_save_and_load_arguments_are_rejected(arguments: dict[str, Any], tmp_path: Path) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest):
        engine.save(**{"folder": tmp_path, **arguments})
    assert engine.load(engine.save(tmp_path)).updates == 0
    with pytest.raises(InvalidRequest):
        engine.load(3)  # type: ignore[arg-type]


def test_prune_requires_mapping() -> None:
    with pytest.raises(InvalidRequest):
        make_engine().prune([1])  # type: ignore[arg-type]


# -- a loss that is no mean ------------------------------------------------------------------------------------------


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


LOSSES: list[Any] = [
    summed,
    lambda outputs, targets: 1e-6 * summed(outputs, targets),
    lambda outputs, targets: ((outputs - 1) ** 2).sum(),
]


@pytest.mark.parametrize("microbatch", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_sum_loss_is_rejected_for_any_microbatch_size(loss: Any, microbatch: int) -> None:
    engine = make_engine(loss=loss, microbatch=microbatch)
    with refused(InvalidRequest, "loss", rule="the loss is the mean"):
        engine.train_batch(batch())
    with refused(InvalidRequest, "loss", rule="the loss is the mean"):
        make_engine(loss=loss, microbatch=microbatch).evaluate([batch()])


def test_unreduced_loss_is_rejected_even_for_one_sample() -> None:
    engine = make_engine(loss=lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"), microbatch=1)
    with refused(InvalidRequest, "loss", "<lambda>", subject="returns a tensor of shape (2,)"):
        engine.train_batch(batch())


def test_sum_loss_with_fixed_divisor_gets_advice_to_count_samples() -> None:
    divided = make_engine(loss=lambda x, y: cross_entropy(x, y, reduction="sum") / 4, microbatch=4)
    with refused(InvalidRequest, "loss", legal="a mean: .mean(), or a division by the number of samples"):
        divided.train_batch(batch())


def focal(x: torch.Tensor, y: torch.Tensor, reduction: str = "none") -> torch.Tensor:
    return cross_entropy(x, y, reduction=reduction)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), partial(focal, reduction="sum"), focal])
def test_loss_with_reduction_keyword_gets_advice_to_use_mean(loss: Any) -> None:
    with refused(InvalidRequest, "loss", legal='reduction="mean"'):
        make_engine(loss=loss, microbatch=2).train_batch(batch())


def test_memory_measurement_does_not_disable_loss_check() -> None:
    engine = make_engine(loss=lambda x, y: cross_entropy(x, y, reduction="sum"))
    engine.memory(batch())
    with refused(InvalidRequest, "loss", rule="the loss is the mean"):
        engine.train_batch(batch())


@pytest.mark.parametrize(("factor", "more"), [(1.0, 3), (0.0, 24)])
def test_loss_check_makes_documented_number_of_calls(factor: float, more: int) -> None:
    """3 calls if the first microbatch is decisive; 6 calls in each of four microbatches if none is."""
    calls = 0

    def counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return factor * cross_entropy(x, y)

    engine = make_engine(loss=counted, microbatch=1)
    engine.train_batch(batch(8))
    assert calls == 8 + more


def contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """InfoNCE at zero similarity is the logarithm of the samples, which doubles from two to four samples."""
    return cross_entropy(0.0 * outputs @ outputs.T, torch.arange(len(outputs)))


@pytest.mark.parametrize(
    "loss",
    [cross_entropy, contrastive, nn.CrossEntropyLoss(ignore_index=0), lambda x, y: cross_entropy(x, y).reshape(1)],
)
def test_mean_and_contrastive_losses_are_accepted(loss: Any) -> None:
    make_engine(loss=loss, microbatch=2).train_batch(batch())


def test_loss_check_does_not_change_training() -> None:
    """A stochastic loss with running statistics trains bit-identically with and without the check."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4, affine=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cross_entropy(self.norm(x) + torch.randn(x.shape), y)

    def trained(looks: bool) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(3)
        loss = Noisy()
        engine = make_engine(loss=loss)
        if not looks:
            assert engine.state.stage.mean_check is not None
            engine.state.stage.mean_check.remaining = 0
        return [engine.train_batch(batch()) for _ in range(2)], loss.norm.running_mean.clone()

    (losses, mean), (right, right_mean) = trained(True), trained(False)
    assert losses == right
    assert torch.equal(mean, right_mean)


def test_loss_without_gradient_is_rejected() -> None:
    with refused(
        InvalidRequest, subject="without a gradient", rule="the loss is computed from the outputs by differentiable"
    ):
        make_engine(loss=lambda x, y: cross_entropy(x, y).detach()).train_batch(batch())
    with refused(InvalidRequest, "loss", "<lambda>", subject="returns a float"):
        make_engine(loss=lambda x, y: float(cross_entropy(x, y).detach())).train_batch(batch())


# -- names -----------------------------------------------------------------------------------------------------------

STREAMED: list[tuple[dict[str, Any], str, str]] = [
    ({"clip_norm": 1.0}, "clip_norm=None", "optimizer.clip_norm=null"),
    ({"tied": [(0, "bias", 1, "bias")], "model": [nn.Linear(8, 4), nn.Linear(4, 4)]}, "tied=()", "model.shape.tied"),
    ({"half": "float16", "loss_scaler": DynamicLossScaler()}, 'half="bfloat16"', "precision=bf16"),
    (
        {"weights": Predict(), "memory": partial(offloaded, bucket=4), "bucket_numel": 4},
        "memory=resident",
        "memory=dense",
    ),
    ({"weights": Predict(), "update_interval": 2}, 's="inflight"', "weights.s="),
]


@pytest.mark.parametrize(("arguments", "argument", "key"), STREAMED, ids=[each[1] for each in STREAMED])
def test_errors_name_engine_arguments_or_config_keys(arguments: dict[str, Any], argument: str, key: str) -> None:
    with pytest.raises(SuiteError) as caught:
        make_engine(**{"update_interval": 1, **arguments})
    message = str(caught.value)
    assert argument in message
    assert key not in message
    with pytest.raises(SuiteError) as caught, in_config_keys():
        make_engine(**{"update_interval": 1, **arguments})
    assert key in str(caught.value)


def test_config_keys_are_translated_once() -> None:
    message = "optimizer.clip_norm=null, batch.microbatch=4, Grid(inter=0)"
    assert translated(message) == "optimizer.clip_norm=null, batch.microbatch=4, grid.inter=0"
    assert translated(translated("clip_norm=None or half=None")) == "optimizer.clip_norm=null or precision=full"
