"""Optimizers of torch.optim in the engine: equal to plain PyTorch on every grid, and moved to plain scripts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim import optimizer as rules
from suite.engine.pruning.settings import Pruning
from suite.engine.torch_api.torch_optimizer import TrainedWeights
from suite.memory.layout import offloaded
from suite.pruning.magnitude import Magnitude
from suite.schedule import OneFOneB
from suite.weights.policy import Predict
from tests.support.drawn import cells, drawn
from tests.support.refusals import refused
from tests.support.small_engines import Batch, linears, mse_loss, normal_batches, train_plainly

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
BUCKETS = {"bucket_numel": 50}
LAYOUTS: dict[str, dict[str, Any]] = {
    "resident": {},
    "buckets": BUCKETS,
    "offloaded": {**BUCKETS, "memory": partial(offloaded, bucket=50)},
}
PRUNING = Pruning(Magnitude(), sparsity=0.5)


def first_model() -> nn.Sequential:
    """A network whose last layer has the weight of the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    model[3].weight = model[0].weight
    return model


FIRST_MODEL = first_model()  # once, as ranks that are threads share torch's generator


def batches(count: int = 7, dtype: torch.dtype = torch.float64) -> list[Batch]:
    return normal_batches(count, 8, 8, 8, dtype)


def groups(weights: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not: the usual parameter groups of a transformer."""
    return [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 0.1},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0, "lr": 2e-2},
    ]


def cosine(optimizer: torch.optim.Optimizer) -> schedulers.LRScheduler:
    warm_up = schedulers.LinearLR(optimizer, 0.1, total_iters=3)
    return schedulers.SequentialLR(optimizer, [warm_up, schedulers.CosineAnnealingLR(optimizer, 9)], [3])


def of(kind: type[torch.optim.Optimizer], **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda weights: kind(groups(weights), **{"lr": 1e-2, **settings})


TRANSLATED = {
    "AdamW": of(torch.optim.AdamW, betas=(0.8, 0.95)),
    "Adam": of(torch.optim.Adam, eps=1e-6),
    "fused": of(torch.optim.AdamW, fused=True),
    "SGD": of(torch.optim.SGD),
    "dampened": of(torch.optim.SGD, momentum=0.9, dampening=0.1),
    "nesterov": of(torch.optim.SGD, momentum=0.9, nesterov=True),
    "RMSprop, momentum": of(torch.optim.RMSprop, momentum=0.5),
}
OF_TORCH = {
    "NAdam": of(torch.optim.NAdam),
    "Adafactor": of(torch.optim.Adafactor),
    "amsgrad": of(torch.optim.AdamW, amsgrad=True),
    "maximize": of(torch.optim.SGD, lr=1e-3, momentum=0.9, maximize=True),
}
EVERY = TRANSLATED | OF_TORCH
OF_SUITE: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "suite AdamW": (rules.AdamW(1e-2, weight_decay=0.1), partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)),
    "suite Adam": (rules.Adam(1e-2), partial(torch.optim.Adam, lr=1e-2)),
    "suite SGD": (
        rules.SGD(1e-2, momentum=0.9, nesterov=True),
        partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),
    ),
    "suite RMSprop": (rules.RMSprop(1e-2), partial(torch.optim.RMSprop, lr=1e-2)),
}
CASES = {name: (make, make) for name, make in EVERY.items()} | OF_SUITE  # of an engine, and of a plain script


@cache
def plain_losses(name: str) -> list[float]:
    model = copy.deepcopy(FIRST_MODEL)
    optimizer = EVERY[name](list(model.parameters()))
    return train_plainly(model, optimizer, batches(), after_step=cosine(optimizer).step)


def engine_of(optimizer: Any, lr_scheduler: Any = cosine, **more: Any) -> Engine:
    arguments = {"loss": mse_loss, "optimizer": optimizer, "lr_scheduler": lr_scheduler, "microbatch": 2, **more}
    return Engine(copy.deepcopy(FIRST_MODEL), **arguments)


# -- trainings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "grid", "layout"),
    [
        *cells(EVERY, GRIDS, ["resident"], n=5, always=[("RMSprop, momentum", GRIDS[3], "resident")]),
        *cells(TRANSLATED, [Grid(inter=2)], ["buckets", "offloaded"], n=4),
    ],
    ids=str,
)
def test_losses_equal_plain_pytorch(name: str, grid: Grid, layout: str) -> None:
    def rank(world: Any) -> list[float]:
        return list(engine_of(EVERY[name], grid=grid, world=world, **LAYOUTS[layout]).train(batches()))

    for losses in threads.run(grid.size, rank):
        assert losses == pytest.approx(plain_losses(name), rel=1e-11)


@pytest.mark.parametrize("name", drawn(TRANSLATED, n=1))
def test_pruned_network_trains_its_groups(name: str) -> None:
    """Compressed states equal masked training in PyTorch, where the masked entries of a gradient are zero."""
    engine, model = engine_of(EVERY[name], pruning=PRUNING), copy.deepcopy(FIRST_MODEL)
    model.load_state_dict(pruned := engine.state_dict())
    optimizer = EVERY[name](list(model.parameters()))

    def mask_gradients() -> None:
        for key, weight in model.named_parameters():
            weight.grad.mul_(pruned[key] != 0)  # type: ignore[union-attr]

    right = train_plainly(model, optimizer, batches(), mse_loss, mask_gradients, cosine(optimizer).step)
    assert engine.fit(batches()) == pytest.approx(right, rel=1e-11)


def of_two_stages(optimizer: Any, **more: Any) -> list[float]:
    """Losses of a stream of batches, in which graphs are in flight during each update."""
    model = nn.Sequential(*linears(8, 8, 8, 8, 8))
    settings = {"grid": Grid(inter=2), "schedule": OneFOneB(), "update_interval": 1, "microbatch": 2, **more}

    def rank(world: Any) -> list[float]:
        return Engine(copy.deepcopy(model), loss=mse_loss, optimizer=optimizer, world=world, **settings).fit(batches())

    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return threads.run(2, rank)[0]


def test_predicted_weights_use_the_groups_and_their_rates() -> None:
    one_rate = {"lr": 1e-3, "weight_decay": 0.1}
    ours = of_two_stages(rules.AdamW(**one_rate), weights=Predict())
    grouped = of_two_stages(EVERY["AdamW"], lr_scheduler=cosine, weights=Predict())
    assert of_two_stages(EVERY["AdamW"], lr_scheduler=cosine, weights=Predict(), **BUCKETS) == grouped
    assert of_two_stages(partial(torch.optim.AdamW, **one_rate), weights=Predict()) == pytest.approx(ours, rel=1e-11)
    assert grouped != pytest.approx(ours, rel=1e-3)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", drawn(EVERY, n=3))
def test_resumed_training_repeats_losses_bit_for_bit(name: str, tmp_path: Path) -> None:
    engine, resumed = (engine_of(EVERY[name]) for _ in range(2))
    engine.fit(batches()[:4])
    engine.save(tmp_path)
    resumed.load(tmp_path)
    assert resumed.lr == engine.lr
    assert resumed.fit(batches()[4:]) == engine.fit(batches()[4:])


@pytest.mark.parametrize(("name", "resumes"), cells(sorted({*TRANSLATED} - {"dampened"}), [BUCKETS, {}], n=2))
def test_checkpoint_moves_between_torchs_step_and_rules(name: str, resumes: dict[str, Any], tmp_path: Path) -> None:
    engine = engine_of(EVERY[name], **({} if resumes else BUCKETS))
    engine.fit(batches()[:4])
    engine.save(tmp_path)
    resumed = engine_of(EVERY[name], **resumes)
    resumed.load(tmp_path)
    assert resumed.fit(batches()[4:]) == pytest.approx(engine.fit(batches()[4:]), rel=1e-11)


# -- state dicts in the form of torch.optim --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "grid"), cells(CASES, GRIDS, n=4, always=[("AdamW", GRIDS[1]), ("amsgrad", GRIDS[2])]), ids=str
)
def test_engine_and_plain_script_continue_each_other(name: str, grid: Grid) -> None:
    (ours, make), model = CASES[name], copy.deepcopy(FIRST_MODEL)
    engine, other = engine_of(ours, None, grid=grid), engine_of(ours, None, grid=grid)
    engine.fit(batches()[:3])
    model.load_state_dict(engine.state_dict())
    optimizer = make(list(model.parameters()))
    optimizer.load_state_dict(engine.optimizer_state_dict())
    assert engine.fit(batches()[3:5]) == pytest.approx(train_plainly(model, optimizer, batches()[3:5]), rel=1e-10)
    other.load_state_dict(model.state_dict())
    other.load_optimizer_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.fit(batches()[5:]) == pytest.approx(train_plainly(model, optimizer, batches()[5:]), rel=1e-10)


def test_other_state_dicts_are_refused_unchanged() -> None:
    engine, other = engine_of(EVERY["AdamW"]), engine_of(EVERY["AdamW"])
    engine.fit(batches(2))
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda saved: saved["param_groups"][0]["params"].pop(), "the groups of this optimizer"),
        (lambda saved: saved["state"][0]["step"].add_(1), "updates all weights together"),
        (lambda saved: saved["state"][0].update(exp_avg=torch.zeros(2)), "in the shapes of the weights"),
    ]
    for change, rule in changes:
        saved = engine.optimizer_state_dict()
        change(saved)
        with refused(InvalidRequest, rule=rule):
            other.load_optimizer_state_dict(saved)
        assert other.optimizer_state_dict()["state"] == {}, rule
    makers = [partial(nn.Linear, 8, 8), partial(nn.Linear, 8, 8)]
    with refused(Unsupported, subject="layers that functions make"):
        Engine(makers, loss=mse_loss, optimizer=rules.SGD(0.1), microbatch=4).optimizer_state_dict()


# -- refusals --------------------------------------------------------------------------------------------------------


def test_groups_that_differ_between_ranks_are_refused() -> None:
    def make(weights: TrainedWeights) -> torch.optim.Optimizer:
        return torch.optim.SGD([group for group in groups(list(weights)) if group["params"]], lr=0.1)

    modules = [partial(nn.Linear, 8, 4, bias=False), partial(nn.Linear, 4, 4)]

    def rank(world: Any) -> None:
        with refused(InvalidRequest, "optimizer", rule="every rank makes the same groups", legal="params=[]"):
            Engine(modules, loss=mse_loss, optimizer=make, microbatch=4, grid=Grid(inter=2), world=world)

    threads.run(2, rank)


def test_optimizer_without_a_rule_is_refused() -> None:
    for reason, more in (
        ("bucket_numel=", BUCKETS),
        ("states in host memory", {"memory": partial(offloaded, bucket=4)}),
        ("half='bfloat16'", {"half": torch.bfloat16}),
        ("pruning=", {"pruning": PRUNING}),
    ):
        for name in OF_TORCH:
            with refused(Unsupported, subject=reason, legal="torch.optim.SGD, Adam, AdamW and RMSprop"):
                engine_of(EVERY[name], **more)
    engine = engine_of(EVERY["NAdam"])
    with refused(Unsupported, subject="compressed states of pruned weights"):
        engine.prune({(0, "bias"): torch.arange(4, dtype=torch.int32)})
    engine.train_batch(batches()[0])
    dampened = engine_of(EVERY["dampened"])  # torch keeps its velocities, which compressed states would lose
    dampened.train_batch(batches()[0])
    with refused(Unsupported, subject="dampening"):
        dampened.prune({(0, "bias"): torch.arange(4, dtype=torch.int32)})


OTHER = nn.Linear(2, 2)


def test_wrong_factories_are_refused() -> None:
    for kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
        with refused(InvalidRequest, "optimizer", rule="dense gradients"):
            engine_of(kind, None)
    rows: list[tuple[str, Any, dict[str, Any]]] = [
        ("optimizer", lambda weights: 3, {"rule": "makes an optimizer of torch.optim"}),
        ("optimizer", lambda weights: torch.optim.SGD(list(weights)[1:], 0.1), {"subject": "0.weight"}),
        ("optimizer", lambda weights: torch.optim.SGD([*weights, OTHER.bias], 0.1), {"subject": "does not train"}),
        ("lr_scheduler", schedulers.ReduceLROnPlateau, {"rule": "reads no loss"}),
        ("lr_scheduler", lambda optimizer: None, {"rule": "makes a scheduler"}),
        ("lr_scheduler", 0.1, {"value": "0.1"}),
    ]
    for key, value, expected in rows:
        with refused(InvalidRequest, key, **expected):
            engine_of(**{"optimizer": EVERY["AdamW"], key: value})
