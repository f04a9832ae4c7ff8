"""Optimizers of torch.optim in the engine: equal to plain PyTorch, on every grid, and resumed from checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler as schedulers

from baselines.pipedream import Stash
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.optim.torch_optimizer import TrainedWeights
from suite.engine.pruning import Pruning
from suite.memory.layout import offloaded
from suite.pruning.magnitude import Magnitude
from suite.schedule import OneFOneB
from suite.weights.policy import Predict
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
BUCKETS = {"bucket_numel": 50}
LAYOUTS: list[dict[str, Any]] = [{}, BUCKETS, {**BUCKETS, "memory": partial(offloaded, bucket=50)}]


@cache
def first_layers() -> tuple[nn.Module, ...]:
    torch.manual_seed(0)
    return nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4)


def layers() -> list[nn.Module]:
    """Copies of the same layers; ranks are threads, which share torch's generator."""
    return list(copy.deepcopy(first_layers()))


def batches(count: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(count)]


def groups(weights: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not: the usual parameter groups of a transformer."""
    return [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 0.1},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0, "lr": 2e-2},
    ]


def cosine(optimizer: torch.optim.Optimizer) -> schedulers.LRScheduler:
    warm_up = schedulers.LinearLR(optimizer, 0.1, total_iters=3)
    return schedulers.SequentialLR(optimizer, [warm_up, schedulers.CosineAnnealingLR(optimizer, 9)], [3])


TRANSLATED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2, betas=(0.8, 0.95)),
    "Adam": lambda weights: torch.optim.Adam(groups(weights), lr=1e-2, eps=1e-6),
    "Adam, decoupled": lambda weights: torch.optim.Adam(groups(weights), lr=1e-2, decoupled_weight_decay=True),
    "fused": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2, fused=True),
    "foreach": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2, foreach=True),
    "SGD": lambda weights: torch.optim.SGD(groups(weights), lr=1e-2),
    "dampened": lambda weights: torch.optim.SGD(groups(weights), lr=1e-2, momentum=0.9, dampening=0.1),
    "nesterov": lambda weights: torch.optim.SGD(groups(weights), lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop": lambda weights: torch.optim.RMSprop(groups(weights), lr=1e-2),
    "RMSprop, momentum": lambda weights: torch.optim.RMSprop(groups(weights), lr=1e-2, momentum=0.5),
}
OF_TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "NAdam": lambda weights: torch.optim.NAdam(groups(weights), lr=1e-2),
    "Adagrad": lambda weights: torch.optim.Adagrad(groups(weights), lr=1e-2),
    "Adafactor": lambda weights: torch.optim.Adafactor(groups(weights), lr=1e-2),
    "amsgrad": lambda weights: torch.optim.AdamW(groups(weights), lr=1e-2, amsgrad=True),
    "maximize": lambda weights: torch.optim.SGD(groups(weights), lr=1e-3, momentum=0.9, maximize=True),
    "centered": lambda weights: torch.optim.RMSprop(groups(weights), lr=1e-2, centered=True),
}
EVERY = TRANSLATED | OF_TORCH


def plain_losses(name: str, *, dtype: torch.dtype = torch.float32) -> list[float]:
    """Losses of a plain training loop of PyTorch."""
    model = nn.Sequential(*layers()).to(dtype)
    optimizer = EVERY[name](list(model.parameters()))
    scheduler, losses = cosine(optimizer), []
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(inputs.to(dtype)), targets.to(dtype))
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def engine_of(name: str, *, dtype: torch.dtype = torch.float32, **more: Any) -> Engine:
    modules = [layer.to(dtype) for layer in layers()]
    arguments = {"loss": mse_loss, "optimizer": EVERY[name], "lr_scheduler": cosine, "microbatch": 2}
    return Engine(modules, **(arguments | more))


def losses_on(grid: Grid, name: str, dtype: torch.dtype = torch.float64, **more: Any) -> list[list[float]]:
    data = [(inputs.to(dtype), targets.to(dtype)) for inputs, targets in batches()]

    def rank(world: Any) -> list[float]:
        return list(engine_of(name, dtype=dtype, grid=grid, world=world, **more).train(data))

    return threads.run(grid.size, rank)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_losses_equal_plain_pytorch(name: str, grid: Grid) -> None:
    for losses in losses_on(grid, name):
        assert losses == pytest.approx(plain_losses(name, dtype=torch.float64), rel=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=["buckets", "offloaded"])
@pytest.mark.parametrize("name", TRANSLATED)
def test_translated_losses_equal_plain_pytorch(name: str, layout: dict[str, Any]) -> None:
    for losses in losses_on(Grid(inter=2), name, **layout):
        assert losses == pytest.approx(plain_losses(name, dtype=torch.float64), rel=1e-11)


@pytest.mark.parametrize("name", ["AdamW", "dampened"])
def test_pruned_network_trains_its_groups(name: str) -> None:
    """Compressed states equal masked training in PyTorch, where the masked entries of a gradient are zero."""
    engine = engine_of(name, pruning=Pruning(Magnitude(), sparsity=0.5), dtype=torch.float64)
    model = nn.Sequential(*layers()).double()
    masks = [state.detach() != 0 for state in nn.Sequential(*engine.state.stage.layers).parameters()]
    optimizer = EVERY[name](list(model.parameters()))
    scheduler = cosine(optimizer)
    for inputs, targets in batches():
        for weight, mask in zip(model.parameters(), masks, strict=True):
            weight.data.mul_(mask)
        optimizer.zero_grad()
        loss = mse_loss(model(inputs.double()), targets.double())
        loss.backward()
        for weight, mask in zip(model.parameters(), masks, strict=True):
            weight.grad.mul_(mask)
        optimizer.step()
        scheduler.step()
        assert engine.train_batch((inputs.double(), targets.double())) == pytest.approx(loss.item(), rel=1e-11)


def test_predicted_weights_use_the_groups_and_their_rates() -> None:
    def train(optimizer: Any, scheduler: Any, world: Any, **more: Any) -> list[float]:
        engine = Engine(
            layers(), loss=mse_loss, optimizer=optimizer, lr_scheduler=scheduler, microbatch=2, grid=Grid(inter=2),
            schedule=OneFOneB(), weights=Predict(), update_interval=1, world=world, **more,
        )  # fmt: skip
        return list(engine.train(batches()))

    one_rate = {"lr": 1e-3, "weight_decay": 0.1}
    ours = threads.run(2, lambda world: train(AdamW(**one_rate), None, world))
    of_torch = threads.run(2, lambda world: train(partial(torch.optim.AdamW, **one_rate), None, world))
    grouped = threads.run(2, lambda world: train(TRANSLATED["AdamW"], cosine, world))
    in_buckets = threads.run(2, lambda world: train(TRANSLATED["AdamW"], cosine, world, **BUCKETS))
    assert in_buckets == grouped, "every slicing gives the same bits"
    assert of_torch[0] == pytest.approx(ours[0], rel=1e-6)
    assert grouped[0] != pytest.approx(ours[0], rel=1e-3)


@pytest.mark.parametrize("weights", [None, Stash()], ids=["newest weights", "stored weights"])
@pytest.mark.parametrize("interval", [1, 2])
def test_streams_step_by_translated_rules(interval: int, weights: Any) -> None:
    def train(optimizer: Any, world: Any) -> list[float]:
        more = {"grid": Grid(inter=2), "schedule": OneFOneB(), "weights": weights, "update_interval": interval}
        engine = Engine(layers(), loss=mse_loss, optimizer=optimizer, microbatch=2, world=world, **more)
        return list(engine.train(batches()))

    ours = threads.run(2, lambda world: train(SGD(1e-2, momentum=0.9), world))
    of_torch = threads.run(2, lambda world: train(partial(torch.optim.SGD, lr=1e-2, momentum=0.9), world))
    assert of_torch[0] == pytest.approx(ours[0], rel=1e-5)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], schedulers.LRScheduler]] = {
    "milestones": lambda optimizer: schedulers.MultiStepLR(optimizer, [3, 6], 0.1),
    "milestones after warm-up": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, total_iters=2), schedulers.MultiStepLR(optimizer, [3, 5], 0.1)],
        [2],
    ),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=20),
    "cycles": lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1, 3),
    "function": lambda optimizer: schedulers.LambdaLR(optimizer, lambda update: 1 / (1 + update)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_resumes_where_it_stopped(name: str, tmp_path: Path) -> None:
    def make() -> Engine:
        sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        return engine_of("SGD", optimizer=sgd, lr_scheduler=SCHEDULERS[name])

    engine, resumed = make(), make()
    engine.fit(batches()[:4])
    engine.save(tmp_path)
    resumed.load(tmp_path)
    for batch in batches()[4:]:
        assert resumed.lr == engine.lr
        assert resumed.train_batch(batch) == engine.train_batch(batch)


def test_groups_that_differ_between_ranks_are_refused() -> None:
    def make(weights: TrainedWeights) -> torch.optim.Optimizer:
        return torch.optim.SGD([group for group in groups(list(weights)) if group["params"]], lr=0.1)

    modules = [nn.Linear(8, 4, bias=False), nn.Linear(4, 4)]

    def rank(world: Any) -> None:
        with refused(InvalidRequest, "optimizer", rule="every rank makes the same groups", legal="params=[]"):
            Engine(modules, loss=mse_loss, optimizer=make, microbatch=4, grid=Grid(inter=2), world=world)

    threads.run(2, rank)


def test_groups_by_name_are_empty_on_a_stage_without_weights() -> None:
    def make(weights: TrainedWeights) -> torch.optim.Optimizer:
        named = weights.named_parameters()
        return torch.optim.SGD([{"params": [p for n, p in named if n.startswith(f)]} for f in ("0.", "2.")], lr=0.1)

    modules = [nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4)]

    def train(world: Any) -> list[float]:
        engine = Engine(modules, loss=mse_loss, optimizer=make, microbatch=4, grid=Grid(inter=3), world=world)
        return engine.fit(batches(2))

    assert len(threads.run(3, train)[1]) == 2


@pytest.mark.parametrize("half", [torch.bfloat16, "bfloat16"])
def test_half_precision_steps_full_precision_weights(half: Any) -> None:
    losses = list(engine_of("AdamW", half=half).train(batches()))
    assert losses == pytest.approx(plain_losses("AdamW"), rel=0.02)


@pytest.mark.parametrize("name", EVERY)
def test_resumed_training_repeats_losses_bit_for_bit(name: str, tmp_path: Path) -> None:
    engine = engine_of(name)
    list(engine.train(batches()[:5]))
    engine.save(tmp_path)
    rest = list(engine.train(batches()[5:]))
    resumed = engine_of(name)
    resumed.load(tmp_path)
    assert list(resumed.train(batches()[5:])) == rest


@pytest.mark.parametrize("name", TRANSLATED)
def test_checkpoint_moves_between_torchs_step_and_rules(name: str, tmp_path: Path) -> None:
    for first, second in (({}, BUCKETS), (BUCKETS, {})):
        engine = engine_of(name, dtype=torch.float64, **first)
        data = [(inputs.double(), targets.double()) for inputs, targets in batches()]
        list(engine.train(data[:5]))
        engine.save(tmp_path, keep=1)
        resumed = engine_of(name, dtype=torch.float64, **second)
        resumed.load(tmp_path)
        assert list(resumed.train(data[5:])) == pytest.approx(list(engine.train(data[5:])), rel=1e-11)


def test_scheduler_steps_once_per_update_that_is_made() -> None:
    engine = engine_of("AdamW", lr_scheduler=lambda optimizer: schedulers.StepLR(optimizer, 1, gamma=0.5))
    rates = []
    for batch in batches(3):
        rates.append(engine.lr)
        engine.train_batch(batch)
    assert rates == [1e-2, 5e-3, 2.5e-3]


def test_rank_without_weights_takes_part() -> None:
    modules = [nn.Linear(8, 4), nn.Tanh()]

    def train(world: Any) -> list[float]:
        make = partial(torch.optim.AdamW, lr=1e-2)
        return list(
            Engine(modules, loss=mse_loss, optimizer=make, microbatch=4, grid=Grid(inter=2), world=world).train(
                batches(2)
            )
        )

    first, last = threads.run(2, train)
    assert first == last


def test_factory_receives_names_of_the_whole_model() -> None:
    seen: list[list[str]] = []

    def make(weights: TrainedWeights) -> torch.optim.Optimizer:
        seen.append([name for name, _ in weights.named_parameters()])
        assert list(weights) == weights.parameters()
        assert weights[0] is weights.parameters()[0]
        return torch.optim.SGD(weights, lr=0.1)

    threads.run(2, lambda world: engine_of("SGD", optimizer=make, lr_scheduler=None, grid=Grid(inter=2), world=world))
    assert sorted(seen) == [["0.weight", "0.bias"], ["2.weight", "2.bias", "3.weight", "3.bias"]]


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("bucket_numel=", BUCKETS),
        ("states in host memory", {"memory": partial(offloaded, bucket=4)}),
        ("half='bfloat16'", {"half": torch.bfloat16}),
        ("pruning=", {"pruning": Pruning(Magnitude(), sparsity=0.5)}),
    ],
)
@pytest.mark.parametrize("name", OF_TORCH)
def test_optimizer_without_a_rule_is_refused(name: str, reason: str, more: dict[str, Any]) -> None:
    with refused(Unsupported, subject=reason, legal="torch.optim.SGD, Adam, AdamW and RMSprop"):
        engine_of(name, **more)


def test_pruning_by_hand_needs_a_rule() -> None:
    engine = engine_of("NAdam")
    with refused(Unsupported, subject="compressed states of pruned weights"):
        engine.prune({(0, "weight"): torch.arange(4, dtype=torch.int32)})
    engine.train_batch(batches()[0])


OTHER = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"optimizer": lambda weights: 3}, {"key": "optimizer", "rule": "makes an optimizer of torch.optim"}),
        (
            {"optimizer": lambda weights: torch.optim.SGD(list(weights)[1:], 0.1)},
            {"key": "optimizer", "rule": "hold every trained weight", "subject": "0.weight"},
        ),
        (
            {"optimizer": lambda weights: torch.optim.SGD([*weights, OTHER.bias], 0.1)},
            {"key": "optimizer", "subject": "weights that this rank does not train"},
        ),
        ({"lr_scheduler": schedulers.ReduceLROnPlateau}, {"key": "lr_scheduler", "rule": "reads no loss"}),
        ({"lr_scheduler": lambda optimizer: None}, {"key": "lr_scheduler", "rule": "makes a scheduler"}),
        ({"lr_scheduler": 0.1}, {"key": "lr_scheduler", "value": "0.1"}),
    ],
)
def test_wrong_factories_are_refused(arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    with refused(InvalidRequest, **expected):
        engine_of("AdamW", **arguments)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizer_with_another_step_is_refused(kind: type[torch.optim.Optimizer]) -> None:
    with refused(Unsupported, "optimizer", kind.__name__):
        engine_of("AdamW", optimizer=kind, lr_scheduler=None)


def test_other_groups_or_scheduler_do_not_resume(tmp_path: Path) -> None:
    engine = engine_of("AdamW")
    engine.save(tmp_path)
    with refused(InvalidRequest, "lr_scheduler", rule="settings that it was saved with"):
        engine_of("AdamW", lr_scheduler=None).load(tmp_path)
    with pytest.raises(InvalidRequest) as refusal:
        engine_of("AdamW", optimizer=partial(torch.optim.AdamW, lr=1e-2)).load(tmp_path)
    assert "optimizer.groups" in str(refusal.value)
