"""A module split into layers trains on every grid as plain PyTorch trains the whole module."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, UnknownName
from suite.engine.torch_api.split_model import split_model
from tests.support import split_models as models
from tests.support.drawn import cells
from tests.support.refusals import fault, refused
from tests.support.small_engines import train_plainly

SAMPLES, MICROBATCH, BATCHES = 8, 2, 4
RATE = 0.03
GRIDS = [Grid(), Grid(inter=2), Grid(inter=4), Grid(data=2), Grid(inter=2, data=2)]


@dataclass(frozen=True)
class Case:
    """A model, its inputs and targets, and a loss of its output."""

    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Any]
    loss: Callable[..., torch.Tensor]
    named_targets: bool = False
    settings: tuple[tuple[str, Any], ...] = ()


def words(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, models.WORDS, (SAMPLES, models.LENGTH), generator=generator)


def numbers(*sizes: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(SAMPLES, *sizes, generator=generator, dtype=torch.float64)


def named(generator: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.randint(0, 2, (SAMPLES, models.WIDTH), generator=generator)
    return {"mask": mask, "features": numbers(3)(generator)}


def token_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    logits = output[0] if isinstance(output, tuple) else output
    return F.cross_entropy(logits[:, -1], labels)


def named_loss(output: dict[str, Any], *, labels: torch.Tensor) -> torch.Tensor:
    hidden, (mean, nothing) = output["parts"]
    assert nothing is None
    return F.cross_entropy(output["logits"], labels) + hidden.square().mean() + mean.mean()


def recorded_loss(output: models.Prediction, labels: torch.Tensor) -> torch.Tensor:
    assert type(output) is models.Prediction
    assert output.extra == "none"
    return F.cross_entropy(output.logits, labels) + output.energy.square().mean()


UNET_POINTS = ["steps.0", "steps.1", "steps.2", "up.*"]
CASES = {
    "nanogpt": Case(models.NanoGPT, words, token_loss),
    "masked": Case(models.Masked, words, token_loss),
    "named": Case(models.Named, named, named_loss, True, (("input_names", ["features", "mask"]),)),
    "recorded": Case(models.Recorded, numbers(4), recorded_loss),
    "paired": Case(models.Paired, numbers(4), F.cross_entropy),
    "resnet": Case(models.ResNet, numbers(3, 4, 4), F.cross_entropy),
    "unet": Case(models.UNet, numbers(3, 8, 8), F.cross_entropy, settings=(("split_points", UNET_POINTS),)),
}


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(5)
    return case.make().double()


def batch_of(case: Case, number: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(number)
    inputs = case.inputs(generator)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    return inputs, {"labels": labels} if case.named_targets else labels


class Training(NamedTuple):
    """Losses, trained tensors by name, and the loss of an evaluation."""

    losses: list[float]
    tensors: dict[str, torch.Tensor]
    evaluation: float


@cache
def plainly(name: str) -> Training:
    """Training of the whole model in a plain loop, with whole batches: the losses are means over samples."""
    case = CASES[name]
    model = model_of(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

    def call(inputs: Any) -> Any:
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    def loss(output: Any, targets: Any) -> torch.Tensor:
        return case.loss(output, **targets) if case.named_targets else case.loss(output, targets)

    losses = train_plainly(call, optimizer, [batch_of(case, number) for number in range(BATCHES)], loss)
    model.eval()
    with torch.no_grad():
        inputs, targets = batch_of(case, 99)
        evaluation = float(loss(call(inputs), targets))
    return Training(losses, {key: tensor.detach() for key, tensor in model.named_parameters()}, evaluation)


def make_engine(case: Case, model: nn.Module, **more: Any) -> Engine:
    settings = {"loss": case.loss, "optimizer": SGD(RATE, momentum=0.9), "microbatch": MICROBATCH}
    return Engine(model, **{**settings, **dict(case.settings), **more})


@cache
def trained(name: str, grid: Grid) -> Training:
    """Training of the split model on a grid of ranks."""
    case = CASES[name]
    model = model_of(case)

    def rank(world: Any) -> Training:
        engine = make_engine(case, copy.deepcopy(model), grid=grid, world=world)
        losses = list(engine.train([batch_of(case, number) for number in range(BATCHES)]))
        evaluation = engine.evaluate([batch_of(case, 99)])
        tensors = {
            key: tensor.detach().clone()
            for stage in engine.state.stages.values()
            for layer in stage.layers
            for key, tensor in layer.named_parameters()
        }
        engine.close()
        return Training(losses, tensors, evaluation)

    ranks = threads.run(grid.size, rank)
    assert all(part.losses == ranks[0].losses and part.evaluation == ranks[0].evaluation for part in ranks)
    tensors = {key: tensor for part in reversed(ranks) for key, tensor in part.tensors.items()}
    return Training(ranks[0].losses, tensors, ranks[0].evaluation)


@pytest.mark.parametrize(
    ("name", "grid"), cells(CASES, GRIDS, n=2, always=[*zip(CASES, 2 * GRIDS, strict=False)]), ids=str
)
def test_split_model_trains_like_whole_model(name: str, grid: Grid) -> None:
    """And every depth of a pipeline has the same bits."""
    right, got, shallow = plainly(name), trained(name, grid), trained(name, Grid(data=grid.data))
    assert got.losses == pytest.approx(right.losses, rel=1e-11)
    assert got.evaluation == pytest.approx(right.evaluation, rel=1e-11)
    assert right.tensors.keys() <= got.tensors.keys()
    before = model_of(CASES[name]).state_dict()
    for key, tensor in right.tensors.items():
        assert not torch.allclose(tensor, before[key], rtol=1e-5), f"{key} is not trained"
        assert torch.allclose(got.tensors[key], tensor, rtol=1e-11, atol=1e-13), key
    assert (got.losses, got.evaluation) == (shallow.losses, shallow.evaluation)
    assert all(torch.equal(tensor, shallow.tensors[key]) for key, tensor in got.tensors.items())


# -- the layers ------------------------------------------------------------------------------------------------------


def test_split_points_begin_layers() -> None:
    for name, split_points, count in (
        ("nanogpt", None, 5),
        ("nanogpt", ["transformer.h.*"], 5),
        ("nanogpt", ["transformer.h.1", "transformer.h.3"], 3),
        ("nanogpt", ["transformer.wte", "transformer.h.2", "lm_head"], 3),
        ("nanogpt", ["lm_head"], 2),
        ("masked", None, 5),
        ("recorded", None, 5),
        ("unet", UNET_POINTS, 5),
        ("resnet", ["features.*", "fc"], 6),
    ):
        model = model_of(CASES[name])
        parts = split_model(model, split_points, None)
        assert len(parts.layers) == count, (name, split_points)
        names = {key for layer in parts.layers for key, _ in layer.named_parameters()}
        assert names == {key for key, _ in model.named_parameters(remove_duplicate=False)}, (name, split_points)


def test_largest_list_called_in_order_has_the_blocks() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.small = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.large[0](self.large[1](self.small[1](self.small[0](x))))

    parts = split_model(Reversed(), None, None)
    assert [layer.model_part.begins for layer in parts.layers] == ["small.0", "small.1"]


# -- refusals --------------------------------------------------------------------------------------------------------


class Root(nn.Module):
    """Two blocks, called as `run` says."""

    def __init__(self, run: Callable[[Any, torch.Tensor], Any], block: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.run = run
        self.blocks = nn.ModuleList([block() if block else nn.Linear(4, 4) for _ in range(2)])
        self.other, self.halves, self.scale = nn.Linear(4, 4), models.Halves(), 1.0
        self.angles = models.Angles()

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def in_order(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.blocks[1](self.blocks[0](x))


def branching(self: Any, x: torch.Tensor) -> torch.Tensor:
    return in_order(self, x) if x.sum() > 0 else x


def without_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = x * 2
    return in_order(self, x)


def assigning(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.scale = x.mean()
    return in_order(self, x)


def catching(self: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return branching(self, x)
    except ValueError:
        return in_order(self, x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Root(branching)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Starred(Root):
    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(self, *inputs)


def shared() -> nn.Module:
    model = Root(in_order)
    model.blocks[1] = model.blocks[0]
    return model


# settings of split_model, and the refusal; the model is Root(in_order) without another
REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"points": ["blocks.2"]}, fault("split point", legal="did you mean 'blocks.1'?")),
    ({"points": ["block.*"]}, fault("split point", legal="did you mean")),
    ({"points": "blocks.*"}, fault("split_points", rule="a list of names")),
    ({"points": []}, fault("split_points", rule="a list of names")),
    ({"points": ["blocks.0", "other"]}, fault("split_points", subject="'other'", legal="split_points=['blocks.0']")),
    (
        {"points": ["blocks.0", "blocks.1"], "model": Root(lambda self, x: self.blocks[0](in_order(self, x)))},
        fault("split_points", subject="calls ['blocks.0', 'blocks.1', 'blocks.0']"),
    ),
    ({"points": ["blocks.1", "blocks.0"]}, fault("split_points", legal="split_points=['blocks.0', 'blocks.1']")),
    ({"points": ["halves", "halves.mix"]}, fault("split_points", rule="none within another")),
    ({"points": ["blocks.*"], "model": shared()}, fault("split_points", subject="calls ['blocks.0', 'blocks.0'")),
    ({"model": nn.Linear(4, 4)}, fault("model", rule="at least two blocks")),
    ({"model": Root(branching)}, fault("model", subject="return in_order(self, x) if x.sum() > 0 else x")),
    ({"model": Outer()}, fault("model", subject="the module 'inner' (Root)")),
    ({"model": Root(without_gradient)}, fault("model", rule="torch.no_grad")),
    ({"model": Root(assigning)}, fault("model", subject="scale", rule="assign no attributes")),
    (
        {"model": Root(lambda self, x: in_order(self, x * random.random()))},
        fault("model", rule="draw from torch", legal="torch.rand"),
    ),
    ({"model": Root(catching)}, fault("model", subject="if x.sum() > 0")),
    (
        {"model": Root(lambda self, x: (in_order(self, x), x) if self.training else in_order(self, x))},
        fault("model", rule="one structure in both modes"),
    ),
    ({"model": Starred(in_order)}, fault("input_names", rule="*args has no names")),
    ({"names": ["y"]}, fault("input_names", subject="missing a required argument: 'x'", legal="input_names=['x']")),
    ({"names": "x"}, fault("input_names", rule="different names")),
    ({"names": ["x", "x"]}, fault("input_names", rule="different names")),
    ({"names": ["mask"], "model": models.Named()}, fault("input_names", legal="input_names=['features']")),
]


def test_split_that_breaks_rule_is_refused() -> None:
    for settings, expected in REFUSED:
        with refused(UnknownName if expected["key"] == "split point" else InvalidRequest, **expected) as refusal:
            split_model(settings.get("model", Root(in_order)), settings.get("points"), settings.get("names"))
        if "Outer" in str(settings):
            line = branching.__code__.co_firstlineno + 1
            assert f"test_split_model.py, line {line}" in str(refusal.value)


def carrying(self: Any, x: torch.Tensor) -> Any:
    halves = self.halves(x)
    return in_order(self, x) + torch.cat(tuple(self.other(y) for y in [halves]), -1)


def test_value_that_is_no_tensor_is_refused() -> None:
    for run, name in (
        (carrying, "halves"),
        (lambda self, x: (in_order(self, x), x.shape[0]), "getitem"),
        (lambda self, x: self.angles(in_order(self, x)), "angles"),
    ):
        case = Case(lambda run=run: Root(run), numbers(4), lambda output, labels: output.sum())
        engine = make_engine(case, model_of(case))
        with refused(InvalidRequest, subject=name, rule="are tensors", legal="split_points="):
            engine.train_batch(batch_of(case, 0))


def test_inputs_with_other_names_are_refused() -> None:
    case = CASES["named"]
    engine, data = make_engine(case, model_of(case)), torch.zeros(SAMPLES, 3).double()
    for inputs, subject, legal in (
        ({"features": data}, "names ['features']", "input_names=['features']"),
        ({"features": data, "masks": data}, "names ['features', 'masks']", "input_names="),
        ((data,), "1 tensors", "a tuple of 2 tensors"),
    ):
        with refused(InvalidRequest, subject=subject, rule="input_names=['features', 'mask']", legal=legal):
            engine.train_batch((inputs, batch_of(case, 0)[1]))
