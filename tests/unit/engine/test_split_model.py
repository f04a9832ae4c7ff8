"""A module split into layers trains on every grid as plain PyTorch trains the whole module."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.core.errors import InvalidRequest, UnknownName
from suite.engine.torch_api.split_model import split_model
from tests.support import split_models as models
from tests.support.drawn import cells
from tests.support.plain import Script
from tests.support.refusals import fault, refused

SAMPLES, BATCHES = 8, 4
GRIDS = [Grid(), Grid(inter=2), Grid(inter=4), Grid(data=2), Grid(inter=2, data=2)]
UNET_POINTS = ["steps.0", "steps.1", "steps.2", "up.*"]


def token_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    logits = output[0] if isinstance(output, tuple) else output
    return F.cross_entropy(logits[:, -1], labels)


def recorded_loss(output: models.Prediction, labels: torch.Tensor) -> torch.Tensor:
    assert type(output) is models.Prediction
    assert output.extra == "none"
    return F.cross_entropy(output.logits, labels) + output.energy.square().mean()


def script(kind: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], *sizes: int, **options: Any) -> Script:
    """A script of a model of images or numbers, or of words where they have no sizes."""

    def make() -> nn.Module:
        torch.manual_seed(5)
        return kind().double()

    generator = torch.Generator().manual_seed(1)
    draw = {"generator": generator, "size": (SAMPLES, *(sizes or (models.LENGTH,)))}
    batches = [
        (
            torch.randn(dtype=torch.float64, **draw) if sizes else torch.randint(0, models.WORDS, **draw),
            torch.randint(0, 4, (SAMPLES,), generator=generator),
        )
        for _ in range(BATCHES)
    ]
    return Script(make, loss, batches=batches, options=options)


SCRIPTS = {
    "nanogpt": script(models.NanoGPT, token_loss),
    "masked": script(models.Masked, token_loss),
    "recorded": script(models.Recorded, recorded_loss, 4),
    "paired": script(models.Paired, F.cross_entropy, 4),
    "resnet": script(models.ResNet, F.cross_entropy, 3, 4, 4),
    "unet": script(models.UNet, F.cross_entropy, 3, 8, 8, split_points=UNET_POINTS),
}


@pytest.mark.parametrize(
    ("name", "grid"), cells(SCRIPTS, GRIDS, n=2, always=[*zip(SCRIPTS, 2 * GRIDS, strict=False)]), ids=str
)
def test_split_model_trains_like_whole_model(name: str, grid: Grid) -> None:
    """Inputs by name: tests/agreement/test_training_examples.py."""
    assert SCRIPTS[name].verdict(grid) == "equal"


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
        model = SCRIPTS[name].make()
        parts = split_model(model, split_points, None)
        assert len(parts.layers) == count, (name, split_points)
        names = {key for layer in parts.layers for key, _ in layer.named_parameters()}
        assert names == {key for key, _ in model.named_parameters(remove_duplicate=False)}, (name, split_points)


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
        model = Root(run).double()
        engine = Engine(model, loss=lambda output, labels: output.sum(), optimizer=SGD(0.1), microbatch=2)
        with refused(InvalidRequest, subject=name, rule="are tensors", legal="split_points="):
            engine.train_batch((torch.ones(SAMPLES, 4).double(), torch.zeros(SAMPLES)))
