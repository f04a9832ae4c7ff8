"""A module split into layers trains on every grid as plain PyTorch trains the whole module."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, AdamW, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, UnknownName
from suite.engine.replay import Replay
from suite.engine.split_model import split_model
from suite.engine.structure import flatten
from tests.support.refusals import refused
from tests.support.split_models import (
    LENGTH,
    WIDTH,
    WORDS,
    Halves,
    Masked,
    Named,
    NanoGPT,
    Pair,
    Prediction,
    Recorded,
    ResNet,
    UNet,
)

SAMPLES, MICROBATCH, BATCHES = 16, 2, 10
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
    return torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)


def numbers(*sizes: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(SAMPLES, *sizes, generator=generator, dtype=torch.float64)


def named(generator: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.randint(0, 2, (SAMPLES, WIDTH), generator=generator)
    return {"mask": mask, "features": numbers(3)(generator)}


def token_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    logits = output[0] if isinstance(output, tuple) else output
    return F.cross_entropy(logits[:, -1], labels)


def named_loss(output: dict[str, Any], *, labels: torch.Tensor) -> torch.Tensor:
    hidden, (mean, nothing) = output["parts"]
    assert nothing is None
    return F.cross_entropy(output["logits"], labels) + hidden.square().mean() + mean.mean()


def recorded_loss(output: Prediction, labels: torch.Tensor) -> torch.Tensor:
    assert type(output) is Prediction
    assert output.extra == "none"
    return F.cross_entropy(output.logits, labels) + output.energy.square().mean()


UNET_POINTS = ["steps.0", "steps.1", "steps.2", "up.*"]
CASES = {
    "nanogpt": Case(NanoGPT, words, token_loss),
    "masked": Case(Masked, words, token_loss),
    "named": Case(Named, named, named_loss, True, (("input_names", ["features", "mask"]),)),
    "recorded": Case(Recorded, numbers(4), recorded_loss),
    "resnet": Case(ResNet, numbers(3, 4, 4), F.cross_entropy),
    "unet": Case(UNet, numbers(3, 8, 8), F.cross_entropy, settings=(("split_points", UNET_POINTS),)),
}


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(5)
    return case.make().double()


def batch_of(case: Case, number: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(number)
    inputs = case.inputs(generator)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    return inputs, {"labels": labels} if case.named_targets else labels


def rows(value: Any, start: int) -> Any:
    if isinstance(value, dict):
        return {name: rows(tensor, start) for name, tensor in value.items()}
    return value[start : start + MICROBATCH].clone()


def loss_of(case: Case, model: nn.Module, batch: Any, start: int) -> torch.Tensor:
    inputs, targets = (rows(part, start) for part in batch)
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return case.loss(output, **targets) if case.named_targets else case.loss(output, targets)


class Training(NamedTuple):
    """Losses, trained tensors by name, and the loss of an evaluation."""

    losses: list[float]
    tensors: dict[str, torch.Tensor]
    evaluation: float


@cache
def plainly(name: str) -> Training:
    """Training of the whole model in a plain loop over microbatches."""
    case = CASES[name]
    model = model_of(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    starts = range(0, SAMPLES, MICROBATCH)
    losses = []
    for number in range(BATCHES):
        optimizer.zero_grad()
        parts = [loss_of(case, model, batch_of(case, number), start) / len(starts) for start in starts]
        torch.stack(parts).sum().backward()
        optimizer.step()
        losses.append(float(torch.stack(parts).detach().sum()))
    model.eval()
    with torch.no_grad():
        evaluation = sum(float(loss_of(case, model, batch_of(case, 99), start)) for start in starts) / len(starts)
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


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_split_model_trains_like_whole_model(name: str, grid: Grid) -> None:
    right, got = plainly(name), trained(name, grid)
    assert got.losses == pytest.approx(right.losses, rel=1e-11)
    assert got.evaluation == pytest.approx(right.evaluation, rel=1e-11)
    assert right.tensors.keys() <= got.tensors.keys()
    before = model_of(CASES[name]).state_dict()
    for key, tensor in right.tensors.items():
        assert not torch.allclose(tensor, before[key], rtol=1e-5), f"{key} is not trained"
        assert torch.allclose(got.tensors[key], tensor, rtol=1e-11, atol=1e-13), key


@pytest.mark.parametrize("grid", [Grid(inter=2), Grid(inter=4), Grid(inter=2, data=2)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_depth_of_pipeline_has_same_bits(name: str, grid: Grid) -> None:
    shallow, deep = trained(name, Grid(data=grid.data)), trained(name, grid)
    assert deep.losses == shallow.losses
    assert deep.evaluation == shallow.evaluation
    assert all(torch.equal(tensor, shallow.tensors[key]) for key, tensor in deep.tensors.items())


@pytest.mark.parametrize("name", CASES)
def test_replay_has_bits_of_ranks(name: str) -> None:
    case, grid = CASES[name], Grid(inter=2, data=2)
    settings = {"loss": case.loss, "optimizer": SGD(RATE, momentum=0.9), "microbatch": MICROBATCH}
    replay = Replay(model_of(case), grid=grid, **settings, **dict(case.settings))
    assert list(replay.train([batch_of(case, number) for number in range(BATCHES)])) == trained(name, grid).losses


@pytest.mark.parametrize("name", CASES)
def test_recomputed_activations_have_same_bits(name: str) -> None:
    case = CASES[name]
    engines = [make_engine(case, model_of(case), activation_checkpointing=interval) for interval in (None, 1)]
    losses = [[engine.train_batch(batch_of(case, number)) for number in range(3)] for engine in engines]
    assert losses[0] == losses[1]


# -- the user's model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_model_trains_in_place_and_keeps_its_names(name: str) -> None:
    case, right = CASES[name], plainly(name)
    model = model_of(case)
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    names, weights = list(model.state_dict()), list(map(id, model.parameters()))
    engine = make_engine(case, model)
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == attributes
    for number in range(BATCHES):
        engine.train_batch(batch_of(case, number))
    assert list(model.state_dict()) == names
    assert list(map(id, model.parameters())) == weights
    for key, tensor in model.named_parameters():
        assert torch.allclose(tensor, right.tensors[key], rtol=1e-11, atol=1e-13), key


class Noisy(nn.Module):
    """Dropout as a function in the root's forward, and as a module in the blocks, with a batch norm."""

    def __init__(self, probability: float = 0.5) -> None:
        super().__init__()
        self.probability = probability
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(probability)) for _ in range(2))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = F.dropout(block(x), self.probability, training=self.training)
        if self.training:
            x = x + 0.0 * torch.rand(4, dtype=x.dtype)
        return self.norm(x)


def test_layers_follow_modes_of_model() -> None:
    case = Case(Noisy, numbers(4), F.cross_entropy)
    model = model_of(case)
    engine = make_engine(case, model)
    first, second = (engine.train_batch(batch_of(case, 0)) for _ in range(2))
    assert first != second
    mean = model.norm.running_mean.clone()
    evaluation = engine.evaluate([batch_of(case, 1)])
    assert model.training
    assert torch.equal(model.norm.running_mean, mean)
    assert engine.evaluate([batch_of(case, 1)]) == evaluation
    model.eval()
    (whole,) = (F.cross_entropy(model(x), y).item() for x, y in [batch_of(case, 1)])
    assert evaluation == pytest.approx(whole, rel=1e-12)
    assert engine.train_batch(batch_of(case, 1)) == pytest.approx(whole, rel=1e-12)
    assert torch.equal(model.norm.running_mean, mean)


def test_copies_of_mixed_precision_follow_modes_of_model() -> None:
    case = Case(Noisy, numbers(4), F.cross_entropy)
    model = model_of(case).float()
    engine = make_engine(case, model, half="bfloat16", optimizer=SGD(1e-300))
    model.eval()
    first, second = (engine.train_batch(batch_of(case, 0)) for _ in range(2))
    assert first == second
    model.train()
    assert engine.train_batch(batch_of(case, 0)) != first


class Watched(nn.Module):
    """Linear layer that notes which of its inputs require a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 4), set()

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        self.seen.add((x.requires_grad, bias.requires_grad))
        return self.linear(x) + bias


class Biased(nn.Module):
    """A bias from the inputs alone, which every block gets."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(4, 4), nn.ModuleList(Watched() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = x.abs() / x.shape[1]
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, bias)
        return x


@pytest.mark.parametrize("interval", [None, 1])
def test_tensor_without_weights_needs_no_gradient(interval: int | None) -> None:
    case = Case(Biased, numbers(4), F.cross_entropy)
    model = model_of(case)
    make_engine(case, model, activation_checkpointing=interval).train_batch(batch_of(case, 0))
    assert all((True, True) not in block.seen and (True, False) in block.seen for block in model.blocks)


def test_random_numbers_of_root_differ_between_batches() -> None:
    class Rand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0](x) * torch.rand(4))

    case = Case(Rand, numbers(4), F.cross_entropy)
    engine = make_engine(case, model_of(case), optimizer=SGD(1e-300))
    assert engine.train_batch(batch_of(case, 0)) != engine.train_batch(batch_of(case, 0))


def test_mixed_precision_trains_copies_of_layers() -> None:
    case = CASES["nanogpt"]
    model = model_of(case).float()
    engine = make_engine(case, model, half="bfloat16", optimizer=AdamW(0.01))
    losses = [engine.train_batch(batch_of(case, number % 2)) for number in range(10)]
    assert losses[-1] < losses[0]
    engine.close()
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.transformer.wte.weight
    with torch.no_grad():
        assert float(loss_of(case, model, batch_of(case, 0), 0)) < losses[0]


def test_checkpoint_resumes_split_model(tmp_path: Any) -> None:
    case = CASES["nanogpt"]
    engine = make_engine(case, model_of(case))
    engine.train_batch(batch_of(case, 0))
    path = engine.save(tmp_path)
    right = engine.train_batch(batch_of(case, 1))
    resumed = make_engine(case, model_of(case))
    resumed.load(path)
    assert resumed.train_batch(batch_of(case, 1)) == right


def test_tracing_leaves_modules_of_other_threads_alone() -> None:
    case = CASES["nanogpt"]
    models = [model_of(case) for _ in range(4)]

    def rank(world: Any) -> list[torch.Tensor]:
        outputs = []
        for _ in range(20):
            if world.rank % 2:
                split_model(models[world.rank], None, None)
            else:
                outputs.append(models[world.rank](batch_of(case, 0)[0])[0].detach())
        return outputs

    for outputs in threads.run(4, rank):
        assert all(torch.equal(output, outputs[0]) for output in outputs)


# -- the layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split_points", "count"),
    [
        ("nanogpt", None, 5),
        ("nanogpt", ["transformer.h.*"], 5),
        ("nanogpt", ["transformer.h.1", "transformer.h.3"], 3),
        ("nanogpt", ["transformer.wte", "transformer.h.2", "lm_head"], 3),
        ("nanogpt", ["lm_head"], 2),
        ("masked", None, 5),
        ("recorded", None, 5),
        ("unet", UNET_POINTS, 5),
        ("resnet", ["features.*", "fc"], 6),
    ],
)
def test_split_points_begin_layers(name: str, split_points: Any, count: int) -> None:
    model = model_of(CASES[name])
    parts = split_model(model, split_points, None)
    assert len(parts.layers) == count
    names = {key for layer in parts.layers for key, _ in layer.named_parameters()}
    assert names == {key for key, _ in model.named_parameters(remove_duplicate=False)}


def test_submodules_may_have_names_of_record() -> None:
    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode, self.passes, self.begins = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.begins(self.passes(self.mode(x)))

    assert len(split_model(Modes(), ["passes", "begins"], None).layers) == 3


def test_nested_sequential_splits_at_its_points() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)).double()
    case = Case(lambda: model, numbers(4), F.cross_entropy)
    assert len(make_engine(case, model).state.stage.layers) == 2
    assert len(make_engine(case, model, split_points=["0.0", "0.1", "1"]).state.stage.layers) == 3


def test_only_sizes_of_a_tensor_travel() -> None:
    model = model_of(CASES["unet"])
    parts = split_model(model, UNET_POINTS, None)
    values: Any = (torch.randn(2, 3, 8, 8, dtype=torch.float64),)
    for layer in parts.layers[:-1]:
        values = layer(*values)
    assert sorted(value.numel() for value in values if value.dtype is torch.uint8) == [0]
    assert {tuple(value.shape) for value in values} == {(0, 2, 3, 8, 8), (2, 4, 8, 8), (2, 8, 8, 8)}


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


@dataclass
class Registered(OrderedDict):  # type: ignore[type-arg]
    """Dataclass that is a dict of its fields other than None, as a ModelOutput of transformers."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.update({name: value for name, value in vars(self).items() if value is not None})


@pytest.mark.parametrize(
    "value",
    [
        Registered(logits=torch.ones(1)),
        torch.ones(1),
        (torch.ones(1), None, 3),
        [torch.ones(1), (torch.ones(2),)],
        {"a": torch.ones(1), "b": {"c": torch.ones(2), "d": "e"}},
        Pair(torch.ones(1), torch.ones(2)),
        Prediction(torch.ones(1), extra="f"),
    ],
)
def test_structure_restores_its_value(value: Any) -> None:
    leaves: list[Any] = []
    structure = flatten(value, leaves)
    restored = structure.restore(iter(leaves))
    assert type(restored) is type(value)
    again: list[Any] = []
    assert flatten(restored, again) == structure
    assert all(first is second for first, second in zip(leaves, again, strict=True))


# -- refusals --------------------------------------------------------------------------------------------------------


class Root(nn.Module):
    """Two blocks, called as `run` says."""

    def __init__(self, run: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.run = run
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.other, self.halves, self.scale = nn.Linear(4, 4), Halves(), 1.0

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def in_order(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.blocks[1](self.blocks[0](x))


def repeating(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.blocks[0](in_order(self, x))


def branching(self: Any, x: torch.Tensor) -> torch.Tensor:
    return in_order(self, x) if x.sum() > 0 else x


def without_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = x * 2
    return in_order(self, x)


def assigning(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.scale = x.mean()
    return in_order(self, x)


def drawing(self: Any, x: torch.Tensor) -> torch.Tensor:
    return in_order(self, x * random.random())


def catching(self: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return branching(self, x)
    except ValueError:
        return in_order(self, x)


def by_mode(self: Any, x: torch.Tensor) -> Any:
    return (in_order(self, x), x) if self.training else in_order(self, x)


def carrying(self: Any, x: torch.Tensor) -> Any:
    halves = self.halves(x)
    return self.blocks[1](self.blocks[0](x)) + torch.cat(tuple(self.other(y) for y in [halves]), -1)


def sized(self: Any, x: torch.Tensor) -> Any:
    return in_order(self, x), x.shape[0]


def refuse(run: Any = in_order, split_points: Any = None, input_names: Any = None) -> None:
    split_model(Root(run), split_points, input_names)


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        ({"split_points": ["blocks.2"]}, UnknownName, {"key": "split point", "legal": "did you mean 'blocks.1'?"}),
        ({"split_points": ["block.*"]}, UnknownName, {"key": "split point", "legal": "did you mean"}),
        ({"split_points": "blocks.*"}, InvalidRequest, {"key": "split_points", "rule": "a list of names"}),
        ({"split_points": []}, InvalidRequest, {"key": "split_points", "rule": "a list of names"}),
        (
            {"split_points": ["blocks.0", "other"]},
            InvalidRequest,
            {"key": "split_points", "subject": "never calls 'other'", "legal": "split_points=['blocks.0']"},
        ),
        (
            {"split_points": ["blocks.0", "blocks.1"], "run": repeating},
            InvalidRequest,
            {"key": "split_points", "subject": "'blocks.0' runs more than once", "legal": "a module for each call"},
        ),
        (
            {"split_points": ["blocks.1", "blocks.0"]},
            InvalidRequest,
            {"key": "split_points", "rule": "in the order", "legal": "split_points=['blocks.0', 'blocks.1']"},
        ),
        (
            {"split_points": ["halves", "halves.mix"]},
            InvalidRequest,
            {"key": "split_points", "subject": "'halves.mix' lies inside 'halves'", "legal": "split_points="},
        ),
        (
            {"run": branching},
            InvalidRequest,
            {"key": "model", "subject": "return in_order(self, x) if x.sum() > 0 else x", "legal": "split_points="},
        ),
        ({"run": without_gradient}, InvalidRequest, {"key": "model", "rule": "torch.no_grad"}),
        ({"run": assigning}, InvalidRequest, {"key": "model", "subject": "scale", "rule": "assign no attributes"}),
        ({"run": drawing}, InvalidRequest, {"key": "model", "rule": "draw from torch", "legal": "torch.rand"}),
        ({"run": catching}, InvalidRequest, {"key": "model", "subject": "if x.sum() > 0"}),
        ({"run": by_mode}, InvalidRequest, {"key": "model", "rule": "one structure in both modes"}),
        ({"input_names": ["y"]}, UnknownName, {"key": "y", "rule": "one of x", "legal": "'x'"}),
        ({"input_names": "x"}, InvalidRequest, {"key": "input_names", "rule": "different names"}),
    ],
)
def test_split_that_breaks_rule_is_refused(arguments: Any, error: Any, expected: Any) -> None:
    with refused(error, **expected):
        refuse(**arguments)


def test_shared_block_is_refused() -> None:
    model = Root(in_order)
    model.blocks[1] = model.blocks[0]
    with refused(InvalidRequest, "split_points", subject="are one module", rule="one place in the pipeline"):
        split_model(model, ["blocks.*"], None)


def test_model_without_blocks_is_refused() -> None:
    with refused(InvalidRequest, "model", rule="at least two blocks", legal="a list of layers"):
        split_model(nn.Linear(4, 4), None, None)


def test_refusal_names_module_and_line() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Root(branching)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    with refused(InvalidRequest, "model", subject="the module 'inner' (Root)", rule="torch.fx") as refusal:
        split_model(Outer(), None, None)
    assert f"test_split_model.py, line {branching.__code__.co_firstlineno + 1}" in str(refusal.value)


@pytest.mark.parametrize(("run", "name"), [(carrying, "halves"), (sized, "getitem")])
def test_value_that_is_no_tensor_is_refused(run: Any, name: str) -> None:
    case = Case(lambda: Root(run), numbers(4), lambda output, labels: output.sum())
    engine = make_engine(case, model_of(case))
    with refused(InvalidRequest, subject=name, rule="are tensors", legal="split_points="):
        engine.train_batch(batch_of(case, 0))


def test_forward_without_named_arguments_is_refused() -> None:
    class Starred(Root):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.run(self, *inputs)

    with refused(InvalidRequest, "model", rule="*args has no names"):
        split_model(Starred(in_order), None, None)


def test_missing_argument_is_refused() -> None:
    with refused(InvalidRequest, "input_names", rule="without a default", legal="input_names=['features']"):
        split_model(Named(), None, ["mask"])


@pytest.mark.parametrize(
    ("inputs", "subject", "legal"),
    [
        ({"features": 0}, "names ['features']", "input_names=['features']"),
        ({"features": 0, "masks": 0}, "names ['features', 'masks']", "input_names="),
        ((0,), "1 tensors", "a tuple of 2 tensors"),
    ],
)
def test_inputs_with_other_names_are_refused(inputs: Any, subject: str, legal: str) -> None:
    case = CASES["named"]
    engine = make_engine(case, model_of(case))
    data = torch.zeros(SAMPLES, 3).double()
    inputs = dict.fromkeys(inputs, data) if isinstance(inputs, dict) else (data,)
    with refused(InvalidRequest, subject=subject, rule="input_names=['features', 'mask']", legal=legal):
        engine.train_batch((inputs, batch_of(case, 0)[1]))


def test_list_of_layers_refuses_names() -> None:
    case = Case(lambda: nn.Linear(4, 4), numbers(4), F.cross_entropy)
    layers: Any = [nn.Linear(4, 4).double()]
    with refused(InvalidRequest, "split_points", rule="a list of layers is split already"):
        make_engine(case, layers, split_points=["0"])


def test_ranks_compare_tensors_by_name() -> None:
    case = CASES["named"]
    model = model_of(case)

    def rank(world: Any) -> float:
        engine = make_engine(case, copy.deepcopy(model), grid=Grid(data=2), world=world)
        inputs, targets = batch_of(case, 0)
        other_order = {name: inputs[name] for name in sorted(inputs, reverse=bool(world.rank))}
        loss = engine.train_batch((other_order, targets))
        inputs["mask"] = inputs["mask"] + world.rank
        with refused(InvalidRequest, rule="every rank of the grid receives the same batches"):
            list(engine.train([(inputs, targets)]))
        return loss

    assert len(set(threads.run(2, rank))) == 1
