"""User modules train in place, in full precision, and keep their modes and statistics.

Their state after training is compared with plain PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, AdamW, Engine, Grid, Magnitude, Pruning
from suite.core.errors import InvalidRequest
from tests.support.plain import Script
from tests.support.refusals import refused

DOUBLE = torch.float64
WORDS, WIDTH = 9, 4
Tensors = dict[str, torch.Tensor]


class Head(nn.Module):
    """Norm with running statistics and scale, followed by the embedding's matrix."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, dtype=DOUBLE)
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(x), self.weight)


def shared(middle: int = 0) -> list[nn.Module]:
    """Embedding, linear layers, and a head that shares the embedding's matrix."""
    torch.manual_seed(7)
    table = nn.Embedding(WORDS, WIDTH, dtype=DOUBLE)
    return [table, *(nn.Linear(WIDTH, WIDTH, dtype=DOUBLE) for _ in range(middle)), Head(table.weight)]


def frozen() -> list[nn.Module]:
    layers = shared()
    layers[0].requires_grad_(False)
    return layers


def twice() -> list[nn.Module]:
    """One module at both ends."""
    torch.manual_seed(8)
    ends = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=DOUBLE), nn.BatchNorm1d(WIDTH, dtype=DOUBLE))
    return [ends, nn.Tanh(), ends]


def tokens(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, WORDS, (6,), generator=generator), torch.randint(0, WORDS, (6,), generator=generator)


def numbers(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, WIDTH, generator=generator, dtype=DOUBLE), torch.randint(0, WIDTH, (6,), generator=generator)


def tensors_of(layers: list[nn.Module]) -> Tensors:
    return {
        f"{number}.{name}": tensor.detach().clone()
        for number, layer in enumerate(layers)
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
    }


def make_engine(layers: Any, **more: Any) -> Engine:
    settings = {"loss": F.cross_entropy, "optimizer": SGD(0.3, momentum=0.9), "microbatch": 3, **more}
    return Engine(layers, **settings)


def train(engine: Engine, *positions: int) -> Engine:
    for position in positions:
        engine.train_batch(tokens(position))
    return engine


def assert_close(got: Tensors, right: Tensors) -> None:
    assert got.keys() == right.keys()
    for name, tensor in right.items():
        assert torch.allclose(got[name].double(), tensor.double(), rtol=0, atol=1e-12), name


def test_user_modules_train_in_place_on_one_stage() -> None:
    for make in (shared, partial(shared, 2), frozen, twice):
        batches = [(numbers if make is twice else tokens)(number) for number in range(3)]
        script = Script(lambda make=make: nn.Sequential(*make()), F.cross_entropy, batches=batches, microbatch=3)
        assert script.verdict(Grid()) == "equal"
        user_modules = make()
        objects = [id(weight) for layer in user_modules for weight in layer.parameters()]
        engine = make_engine(user_modules)
        engine.fit(batches)
        assert_close(nn.Sequential(*user_modules).state_dict(), engine.state_dict())
        assert [id(weight) for layer in user_modules for weight in layer.parameters()] == objects, (
            "a weight was replaced"
        )


def test_newer_engine_continues_and_older_engine_is_rejected() -> None:
    """The second engine owns the gradients or weights, so the first must not add to them."""
    user_modules, once = shared(), shared()
    for number in range(2):
        train(make_engine(user_modules, optimizer=SGD(0.3)), number)
    train(make_engine(once, optimizer=SGD(0.3)), 0, 1)
    assert_close(tensors_of(user_modules), tensors_of(once))
    for more in ({}, {"half": "bfloat16"}, {"pruning": Pruning(Magnitude(), sparsity=0.5)}):
        user_modules = single()
        first, second, twin = (
            make_engine(user_modules),
            make_engine(user_modules, **more),
            make_engine(single(), **more),
        )
        with refused(InvalidRequest, legal="the newest engine"):
            train(first, 0)
        assert [second.train_batch(tokens(n)) for n in range(2)] == [twin.train_batch(tokens(n)) for n in range(2)]


def test_modules_that_cannot_train_in_place_are_rejected() -> None:
    with refused(InvalidRequest, subject="the buffer of several stages"):
        make_engine(twice(), grid=Grid(inter=2)).train_batch(numbers(0))
    table, head = shared()
    with refused(InvalidRequest, legal="tied="):
        make_engine([lambda: table, lambda: head])
    user_modules = single()
    user_modules[1].generator = (number for number in range(3))
    with refused(InvalidRequest, subject="deepcopy cannot copy", rule="half precision"):
        mixed(user_modules)


# -- mixed precision -------------------------------------------------------------------------------------------------


def single(middle: int = 1) -> list[nn.Module]:
    return [layer.float() for layer in shared(middle)]


def mixed(layers: Any, **more: Any) -> Engine:
    return make_engine(layers, half="bfloat16", optimizer=AdamW(lr=0.01), **more)


def masters(engine: Engine) -> Tensors:
    states = engine.state.model_states
    return {
        f"{number}.{name}": states.dense(states.rule.weights[0], weight)
        for number, layer in enumerate(engine.state.stage.layers)
        for name, weight in layer.named_parameters()
        if weight.requires_grad
    }


def assert_holds(user_modules: list[nn.Module], tensors: Tensors) -> None:
    """Assert that the modules hold these tensors, bit for bit."""
    got = tensors_of(user_modules)
    assert all(torch.equal(got[name], tensor) for name, tensor in tensors.items())


def test_mixed_precision_keeps_user_modules_in_full_precision() -> None:
    user_modules = single()
    engine = mixed(user_modules)
    states = engine.state.model_states
    storages = {weight.untyped_storage().data_ptr() for layer in user_modules for weight in layer.parameters()}
    assert storages == {states.rule.weights[0].untyped_storage().data_ptr()}
    assert states.allocated() == states.layout.by_kind()
    before = tensors_of(user_modules)
    train(engine, 0, 1)
    after, full = tensors_of(user_modules), masters(engine)
    assert {tensor.dtype for tensor in after.values() if tensor.is_floating_point()} == {torch.float32}
    assert_holds(user_modules, full)
    assert all(not torch.equal(after[name], before[name]) for name in full)
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in full.values())
    statistics = dict(engine.state.stage.layers[-1].named_buffers())
    assert torch.equal(after["2.norm.running_mean"], statistics["norm.running_mean"].float())
    assert int(after["2.norm.num_batches_tracked"]) == 4
    assert user_modules[0].weight is user_modules[2].weight
    assert nn.Sequential(*user_modules).eval()(tokens(0)[0]).dtype == torch.float32


def test_close_returns_dense_full_precision_weights() -> None:
    user_modules = single()
    engine = train(mixed(user_modules, pruning=Pruning(Magnitude(), sparsity=0.5)), 0)
    states = engine.state.model_states
    assert states.allocated() == states.layout.by_kind(), "a whole copy would cost what pruning saves"
    full = masters(engine)
    assert user_modules[1].weight.dtype == torch.bfloat16
    with refused(InvalidRequest, "half", legal="close() an earlier engine"):
        mixed(user_modules)
    engine.close()
    assert_holds(user_modules, full)
    assert int((user_modules[1].weight == 0).sum()) == WIDTH * WIDTH // 2
    assert mixed(user_modules).train_batch(tokens(1)) > 0


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_evaluation_restores_module_modes(half: str | None) -> None:
    def modes() -> list[bool]:
        return [module.training for layer in user_modules for module in layer.modules()]

    user_modules = single()
    norm = user_modules[2].norm
    norm.eval()  # freezes the running statistics
    engine = make_engine(user_modules, half=half)
    before, mean = modes(), norm.running_mean.clone()
    train(engine, 0)
    engine.evaluate([tokens(1)])
    train(engine, 2)
    assert modes() == before
    assert torch.equal(norm.running_mean, mean)
    with pytest.raises(IndexError):
        engine.evaluate([(tokens(0)[0] + 99, tokens(0)[1])])
    assert modes() == before
    norm.train()
    train(engine, 3)
    assert not torch.equal(norm.running_mean, mean)
