"""Validation of arguments of Engine, Grid and Pruning, of batches and of losses: errors name the argument."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from suite import Adam, AdamW, DynamicLossScaler, Engine, Grid, Magnitude, OneFOneB, Predict, Pruning, Replay
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.memory.layout import offloaded
from tests.support.refusals import refused


class NoBlocks(nn.Module):
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


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


TORCH = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
TIES: list[Any] = [(0, "weight", 2), (0, "wait", 2, "weight"), (0, "weight", 2, "weight"), (0, "weight", 3, "weight")]
TIES += [(2, "weight", 2, "weight"), ("0.weight", "2.weight")]
WRONG: dict[str, list[Any]] = {
    "model": [NoBlocks, [], "layers", [nn.Linear(8, 4), 3], torch.relu],
    "loss": [nn.Linear(4, 1), "a"],
    "optimizer": [
        lambda weights: TORCH,
        lambda: TORCH,
        lambda weights: torch.optim.AdamW(weights, beta=(0.9, 0.99)),  # type: ignore[call-arg]
        lambda weights: torch.optim.SGD(weights, lr=-0.1),
        partial(torch.optim.SGD, lr=0.1, momentun=0.9),
        "adamw",
        None,
    ],
    "lr_scheduler": [lambda optimizer: optimizer],
    "microbatch": [0, 2.0, True],
    "grid": [(1, 1), 2],
    "schedule": [OneFOneB, "1f1b"],
    "weights": [Predict, "latest"],
    "memory": ["dense", offloaded, lambda **arguments: None],
    "split": [[2, 1], (range(2),), (range(1, 3),), [range(0, 3, 2)], [range(2), range(2, 3)]],
    "tied": [(0, "weight", 2, "weight"), *([tie] for tie in TIES)],
    "check_loss": [-1, 0.5, True],
    "seed": [0.5],
    "half": ["bf16", "fp8", torch.float64],
    "loss_scaler": [DynamicLossScaler()],
    "bucket_numel": [0],
    "buckets_per_reduction": ["4"],
    "clip_norm": [0.0, -1, float("nan"), "1", True],
    "activation_checkpointing": ["auto", 0],
    "pruning": [Magnitude()],
    "update_interval": [0],
    "scores": ["top"],
    "score_names": ["loss", ("a",)],
    "world": [1],
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_argument_is_rejected_by_name(name: str) -> None:
    for value in WRONG[name]:
        with refused(InvalidRequest, name) as caught:
            make_engine(**{name: value})
        assert "null" not in str(caught.value), value


ADVICE: list[tuple[str, dict[str, Any], str]] = [
    ("loss", {"loss": nn.CrossEntropyLoss}, "loss=nn.CrossEntropyLoss()"),
    ("optimizer", {"optimizer": TORCH}, "optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3)"),
    ("optimizer", {"optimizer": Adam}, "suite.Adam(lr=1e-3)"),
    ("lr_scheduler", {"optimizer": torch.optim.SGD, "lr_scheduler": StepLR(TORCH, 1)}, "lambda"),
    ("lr_scheduler", {"optimizer": torch.optim.SGD, "lr_scheduler": ReduceLROnPlateau}, ""),
    ("split", {"split": [2, 1]}, "[range(0, 3)]"),
    ("tied", {"tied": [(0, "weight", 9, "weight")]}, '(0, "weight", 2, "weight")'),
    ("activation_checkpointing", {"activation_checkpointing": 2}, "activation_checkpointing=1 or 3, or None"),
    ("lr", {"optimizer": AdamW(lr=lambda update: "fast")}, "0.001"),  # type: ignore[arg-type, return-value]
    ("score_names", {"scores": cross_entropy}, "top_1"),
    ("score_names", {"scores": cross_entropy, "score_names": ["a", "a"]}, "top_1"),
    ("split_points", {"split_points": ["a"]}, "None"),
    ("", {"model": [nn.Linear, nn.Tanh()]}, ""),
    ("model", {"model": NoBlocks(), "grid": Grid(inter=2)}, "split_points="),
    ("", {"model": [lambda: 3]}, ""),
    ("", {"model": [nn.LazyLinear(4)]}, ""),
]


def test_refusals_give_a_legal_value() -> None:
    for key, arguments, legal in ADVICE:
        with refused(InvalidRequest, key, legal=legal):
            make_engine(**arguments)


@pytest.mark.parametrize(("name", "nearest"), [("clip", "clip_norm"), ("check_losses", "check_loss"), ("ties", "tied")])
def test_unknown_argument_is_rejected_with_the_nearest(name: str, nearest: str) -> None:
    for make in (Engine, Replay):
        with refused(UnknownName, name, legal=repr(nearest)):
            make(layers(), loss=cross_entropy, optimizer=Adam(lr=0.1), microbatch=1, **{name: 1})
    with pytest.raises(TypeError):
        Grid(2, 1)  # type: ignore[misc]


def test_invalid_grid_and_pruning_are_rejected() -> None:
    for axis in ("data", "inter", "tensor"):
        for size in (0, -1, 1.5, "2", None, True):
            with refused(InvalidRequest, axis):
                Grid(**{axis: size})
    with refused(Unsupported, "tensor", "2"):
        make_engine(grid=Grid(tensor=2))
    wrong: dict[str, list[Any]] = {"method": [Magnitude, "magnitude"], "sparsity": [1.0], "scope": ["biases"]}
    for name, values in wrong.items():
        for value in values:
            with refused(InvalidRequest, name):
                Pruning(**{"method": Magnitude(), "sparsity": 0.5, name: value})


# -- batches ---------------------------------------------------------------------------------------------------------


def test_malformed_batches_are_rejected() -> None:
    inputs, targets = batch()
    engine = make_engine()
    pairs = [(inputs.numpy(), targets), (inputs,), (inputs, targets[:4]), (inputs, torch.tensor(1)), ((), targets)]
    for wrong in (torch.randn(2, 8), inputs.numpy(), *pairs, {"x": 1, "y": 2}, "xy"):
        for use in (engine.train_batch, engine.gradients, engine.memory, lambda one: engine.evaluate([one])):
            with pytest.raises(InvalidRequest) as refusal:
                use(wrong)
            assert "tensors" in refusal.value.legal or "from_numpy" in refusal.value.legal


def test_invalid_arguments_of_calls_are_rejected(tmp_path: Path) -> None:
    engine = make_engine()
    wrong: list[dict[str, Any]] = [{"folder": 3}, {"keep": 0}, {"keep": "2"}, {"extra": [1]}, {"extra": {"a": object}}]
    for arguments in wrong:
        with pytest.raises(InvalidRequest):
            engine.save(**{"folder": tmp_path, **arguments})
    assert engine.load(engine.save(tmp_path)).updates == 0
    for call in (engine.load, engine.prune):
        with pytest.raises(InvalidRequest):
            call([1])  # type: ignore[operator]


# -- a loss that is no mean ------------------------------------------------------------------------------------------


def focal(x: torch.Tensor, y: torch.Tensor, reduction: str = "none") -> torch.Tensor:
    return cross_entropy(x, y, reduction=reduction)


SUMS: list[tuple[Any, str]] = [
    (summed, "a mean: .mean(), a division by the number of samples"),
    (lambda x, y: summed(x, y) / 4, "a division by the number of samples"),
    (focal, 'reduction="mean"'),
    (nn.CrossEntropyLoss(reduction="none"), 'reduction="mean"'),
]


@pytest.mark.parametrize("microbatch", [1, 4])
def test_loss_that_is_no_mean_is_rejected(microbatch: int) -> None:
    for loss, legal in SUMS:
        for use in (Engine.train_batch, lambda engine, one: engine.evaluate([one])):
            with refused(InvalidRequest, "loss", legal=legal):
                use(make_engine(loss=loss, microbatch=microbatch), batch())
    engine = make_engine(loss=summed)
    engine.memory(batch())  # which does not use up the check
    with refused(InvalidRequest, "loss", "summed"):
        engine.train_batch(batch())


def test_loss_without_gradient_is_rejected() -> None:
    with refused(InvalidRequest, subject="without a gradient"):
        make_engine(loss=lambda x, y: cross_entropy(x, y).detach()).train_batch(batch())
    with refused(InvalidRequest, "loss", "<lambda>", subject="returns a float"):
        make_engine(loss=lambda x, y: float(cross_entropy(x, y).detach())).train_batch(batch())
    with refused(InvalidRequest, "loss", "focal", subject="returns a tensor of shape (8,)"):
        make_engine(loss=focal, microbatch=1).train_batch(batch())
