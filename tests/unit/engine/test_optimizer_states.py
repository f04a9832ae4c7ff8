"""State dicts of optimizers move between an engine and a plain script, both ways."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim import optimizer as rules
from suite.engine.pruning import Pruning
from suite.pruning.magnitude import Magnitude
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2)]


def groups(weights: Any) -> list[dict[str, Any]]:
    vectors = [weight for weight in weights.parameters() if weight.dim() < 2]
    matrices = [weight for weight in weights.parameters() if weight.dim() >= 2]
    return [{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}]


OF_TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2),
    "SGD": lambda weights: torch.optim.SGD(groups(weights), lr=1e-2, momentum=0.9),
    "plain SGD": lambda weights: torch.optim.SGD(groups(weights), lr=1e-2),
    "RMSprop": lambda weights: torch.optim.RMSprop(groups(weights), lr=1e-2, momentum=0.5),
    "NAdam": lambda weights: torch.optim.NAdam(groups(weights), lr=1e-2),
    "amsgrad": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2, amsgrad=True),
}
OF_SUITE: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "AdamW": (
        rules.AdamW(1e-2, weight_decay=0.1),
        lambda weights: torch.optim.AdamW(weights.parameters(), lr=1e-2, weight_decay=0.1),
    ),
    "Adam": (rules.Adam(1e-2), lambda weights: torch.optim.Adam(weights.parameters(), lr=1e-2)),
    "SGD": (
        rules.SGD(1e-2, momentum=0.9, nesterov=True),
        lambda weights: torch.optim.SGD(weights.parameters(), lr=1e-2, momentum=0.9, nesterov=True),
    ),
    "RMSprop": (rules.RMSprop(1e-2), lambda weights: torch.optim.RMSprop(weights.parameters(), lr=1e-2)),
}
CASES = {**{f"torch {name}": (make, make) for name, make in OF_TORCH.items()}, **OF_SUITE}


class Tied(nn.Module):
    """A net whose last layer has the weight of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x)


@cache
def first_model() -> nn.Module:
    torch.manual_seed(0)
    return Tied().double()


def batches(count: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(count, 2, 8, 6, generator=generator, dtype=torch.float64)
    return [(inputs, targets) for inputs, targets in data]


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> list[float]:
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def engine_of(optimizer: Any, grid: Grid = Grid(), **more: Any) -> Engine:  # noqa: B008 - frozen
    arguments = {"loss": mse_loss, "optimizer": optimizer, "microbatch": 4, "grid": grid, **more}
    return Engine(copy.deepcopy(first_model()), **arguments)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_plain_script_continues_an_engine(name: str, grid: Grid) -> None:
    ours, make = CASES[name]
    engine = engine_of(ours, grid)
    engine.fit(batches()[:4])
    model = copy.deepcopy(first_model())
    model.load_state_dict(engine.state_dict())
    optimizer = make(model)
    optimizer.load_state_dict(engine.optimizer_state_dict())
    assert train_plainly(model, optimizer, batches()[4:]) == pytest.approx(engine.fit(batches()[4:]), rel=1e-10)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_engine_continues_a_plain_script(name: str, grid: Grid) -> None:
    ours, make = CASES[name]
    model = copy.deepcopy(first_model())
    optimizer = make(model)
    train_plainly(model, optimizer, batches()[:4])
    engine = engine_of(ours, grid)
    engine.load_state_dict(model.state_dict())
    engine.load_optimizer_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert engine.fit(batches()[4:]) == pytest.approx(train_plainly(model, optimizer, batches()[4:]), rel=1e-10)


def test_rates_of_the_groups_travel() -> None:
    make = OF_TORCH["AdamW"]
    engine = engine_of(make, lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    engine.fit(batches()[:2])
    saved = engine.optimizer_state_dict()
    assert [group["lr"] for group in saved["param_groups"]] == [2.5e-3, 2.5e-3]
    other = engine_of(make)
    other.load_optimizer_state_dict(saved)
    assert other.lr == 2.5e-3


@pytest.mark.parametrize("name", ["torch AdamW", "torch NAdam", "AdamW"])
def test_fresh_state_dict_begins_anew(name: str) -> None:
    ours, _ = CASES[name]
    engine = engine_of(ours)
    fresh, weights = engine.optimizer_state_dict(), engine.state_dict()
    expected = engine.fit(batches()[:5])
    engine.load_optimizer_state_dict(fresh)
    engine.load_state_dict(weights)
    assert engine.fit(batches()[:5]) == pytest.approx(expected, rel=1e-12)


def test_pruned_moments_are_dense() -> None:
    pruning = Pruning(Magnitude(), sparsity=0.5)
    engine = engine_of(OF_TORCH["AdamW"], pruning=pruning)
    engine.fit(batches()[:3])
    saved, weights = engine.optimizer_state_dict(), engine.state_dict()
    model = copy.deepcopy(first_model())
    optimizer = OF_TORCH["AdamW"](model)
    optimizer.load_state_dict(saved)
    names = {id(weight): name for name, weight in model.named_parameters()}
    for weight, states in optimizer.state.items():
        kept = weights[names[id(weight)]] != 0
        assert states["exp_avg"][~kept].abs().sum() == 0
        assert states["step"] == 3
    other = engine_of(OF_TORCH["AdamW"], pruning=pruning)
    other.load_state_dict(weights)
    other.load_optimizer_state_dict(saved)
    assert other.fit(batches()[3:]) == pytest.approx(engine.fit(batches()[3:]), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda saved: saved["param_groups"][0]["params"].pop(), "the groups of this optimizer"),
        (lambda saved: saved["state"][0]["step"].add_(1), "updates all weights together"),
        (lambda saved: saved["state"][0].update(exp_avg=torch.zeros(2)), "in the shapes of the weights"),
    ],
)
def test_other_state_dicts_are_refused_unchanged(change: Callable[[Any], Any], rule: str) -> None:
    engine, other = engine_of(OF_TORCH["AdamW"]), engine_of(OF_TORCH["AdamW"])
    engine.fit(batches()[:2])
    saved = engine.optimizer_state_dict()
    change(saved)
    with refused(InvalidRequest, rule=rule):
        other.load_optimizer_state_dict(saved)
    assert other.optimizer_state_dict()["state"] == {}


def test_layers_of_functions_have_no_state_dict_of_the_optimizer() -> None:
    makers = [partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 6)]
    engine = Engine(makers, loss=mse_loss, optimizer=rules.SGD(0.1), microbatch=4)
    with refused(Unsupported, subject="layers that functions make"):
        engine.optimizer_state_dict()
