"""User modules train in place, in full precision, and keep their modes and statistics.

Their state after training is compared with plain PyTorch."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, AdamW, Engine, Grid, Magnitude, Pruning
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.memory.layout import offloaded
from tests.support.refusals import refused

DOUBLE = torch.float64
WORDS, WIDTH = 9, 4


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


def twice() -> list[nn.Module]:
    """One module at both ends."""
    torch.manual_seed(8)
    norm = nn.BatchNorm1d(WIDTH, dtype=DOUBLE)
    ends = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=DOUBLE), norm)
    return [ends, nn.Tanh(), ends]


def tokens(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, WORDS, (6,), generator=generator), torch.randint(0, WORDS, (6,), generator=generator)


def numbers(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, WIDTH, generator=generator, dtype=DOUBLE), torch.randint(0, WIDTH, (6,), generator=generator)


def plainly(layers: list[nn.Module], batch: Any, batches: int) -> dict[str, torch.Tensor]:
    """State of layers after a plain loop with two microbatches of three samples per batch."""
    model = nn.Sequential(*layers)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.3, momentum=0.9)
    for number in range(batches):
        optimizer.zero_grad()
        for x, y in zip(*(part.split(3) for part in batch(number)), strict=True):
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    return tensors_of(layers)


def tensors_of(layers: list[nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": tensor.detach().clone()
        for number, layer in enumerate(layers)
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
    }


def make_engine(layers: Any, **more: Any) -> Engine:
    settings = {"loss": F.cross_entropy, "optimizer": SGD(0.3, momentum=0.9), "microbatch": 3, **more}
    return Engine(layers, **settings)


def assert_close(got: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert got.keys() == right.keys()
    for name, tensor in right.items():
        assert torch.allclose(got[name].double(), tensor.double(), rtol=0, atol=1e-12), name


@pytest.mark.parametrize("make", [shared, partial(shared, 2), twice])
@pytest.mark.parametrize("frozen", [False, True])
def test_user_modules_train_in_place_on_one_stage(make: Any, frozen: bool) -> None:
    def layers() -> list[nn.Module]:
        module = make()
        next(module[0].parameters()).requires_grad_(not frozen)
        return module

    batch = numbers if make is twice else tokens
    user_modules = layers()
    objects = [id(weight) for layer in user_modules for weight in layer.parameters()]
    engine = make_engine(user_modules)
    for number in range(3):
        engine.train_batch(batch(number))
    assert_close(tensors_of(user_modules), plainly(layers(), batch, 3))
    assert [id(weight) for layer in user_modules for weight in layer.parameters()] == objects, "a weight was replaced"


def test_named_tie_trains_both_ends_in_place() -> None:
    table, head = shared()
    head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=DOUBLE))
    user_modules = [table, head]
    engine = make_engine(user_modules, tied=[(0, "weight", 1, "weight")])
    for number in range(3):
        engine.train_batch(tokens(number))
    assert_close(tensors_of(user_modules), plainly(shared(), tokens, 3))


@pytest.mark.parametrize("stages", [2, 3])
def test_each_rank_trains_its_own_stage_in_place(stages: int) -> None:
    right, modules = plainly(shared(2), tokens, 3), shared(2)

    def rank(world: Any) -> None:
        user_modules = copy.deepcopy(modules)
        engine = make_engine(user_modules, grid=Grid(inter=stages), world=world)
        for number in range(3):
            engine.train_batch(tokens(number))
        here = engine.state.settings.layers
        got = {name: tensor for name, tensor in tensors_of(user_modules).items() if int(name.partition(".")[0]) in here}
        assert_close(got, {name: tensor for name, tensor in right.items() if name in got})
        engine.close()

    threads.run(stages, rank)


def test_second_engine_continues_from_first() -> None:
    user_modules = shared()
    for number in range(2):
        engine = make_engine(user_modules, optimizer=SGD(0.3))
        engine.train_batch(tokens(number))
    once = shared()
    engine = make_engine(once, optimizer=SGD(0.3))
    for number in range(2):
        engine.train_batch(tokens(number))
    assert_close(tensors_of(user_modules), tensors_of(once))


@pytest.mark.parametrize("half", [None, "bfloat16"])
@pytest.mark.parametrize("pruned", [False, True])
def test_older_engine_of_same_modules_is_rejected(half: str | None, pruned: bool) -> None:
    """The second engine owns the gradients or weights, so the first must not add to them."""
    user_modules = single()
    first = make_engine(user_modules)
    pruning = Pruning(Magnitude(), sparsity=0.5) if pruned else None
    second = make_engine(user_modules, half=half, pruning=pruning)
    twin = make_engine(single(), half=half, pruning=pruning)
    with refused(InvalidRequest, rule="a newer engine was made", legal="the newest engine"):
        first.train_batch(tokens(0))
    assert [second.train_batch(tokens(n)) for n in range(2)] == [twin.train_batch(tokens(n)) for n in range(2)]


def test_load_and_pruning_reach_user_modules(tmp_path: Path) -> None:
    user_modules = shared(1)
    engine = make_engine(user_modules, pruning=Pruning(Magnitude(), sparsity=0.5))
    engine.train_batch(tokens(0))
    saved, path = tensors_of(user_modules), engine.save(tmp_path)
    assert int((saved["1.weight"] == 0).sum()) == WIDTH * WIDTH // 2
    engine.train_batch(tokens(1))
    assert not torch.equal(tensors_of(user_modules)["2.norm.weight"], saved["2.norm.weight"])
    engine.load(path)
    assert_close(tensors_of(user_modules), saved)


def test_running_statistics_on_two_stages_are_rejected() -> None:
    def rank(world: Any) -> None:
        with refused(InvalidRequest, rule="running statistics"):
            make_engine(twice(), grid=Grid(inter=2), world=world)

    threads.run(2, rank)


def test_functions_sharing_a_weight_are_rejected() -> None:
    table, head = shared()
    with refused(InvalidRequest, legal="tied="):
        make_engine([lambda: table, lambda: head])


def test_tie_with_one_frozen_end_is_rejected() -> None:
    def rank(world: Any) -> None:
        table, head = shared()
        head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=DOUBLE), requires_grad=False)
        with refused(InvalidRequest, "tied", rule="all trained or all frozen"):
            make_engine([table, head], tied=[(0, "weight", 1, "weight")], grid=Grid(inter=world.size), world=world)

    for ranks in (1, 2):
        threads.run(ranks, rank)


# -- mixed precision -------------------------------------------------------------------------------------------------


def single(middle: int = 1) -> list[nn.Module]:
    return [layer.float() for layer in shared(middle)]


def mixed(layers: Any, **more: Any) -> Engine:
    return make_engine(layers, half="bfloat16", optimizer=AdamW(lr=0.01), **more)


def masters(engine: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": engine.state.model_states.dense(engine.state.model_states.rule.weights[0], weight)
        for number, layer in enumerate(engine.state.stage.layers)
        for name, weight in layer.named_parameters()
        if weight.requires_grad
    }


def test_mixed_precision_keeps_user_modules_in_full_precision() -> None:
    user_modules = single()
    engine = mixed(user_modules)
    before = tensors_of(user_modules)
    for number in range(2):
        engine.train_batch(tokens(number))
    after = tensors_of(user_modules)
    assert {tensor.dtype for tensor in after.values() if tensor.is_floating_point()} == {torch.float32}
    full = masters(engine)
    assert all(torch.equal(after[name], weight) for name, weight in full.items())
    assert all(not torch.equal(after[name], before[name]) for name in full)
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in full.values())
    statistics = dict(engine.state.stage.layers[-1].named_buffers())
    assert torch.equal(after["2.norm.running_mean"], statistics["norm.running_mean"].float())
    assert int(after["2.norm.num_batches_tracked"]) == 4
    assert user_modules[0].weight is user_modules[2].weight
    logits = nn.Sequential(*user_modules).eval()(tokens(0)[0])
    assert logits.dtype == torch.float32


def test_mixed_precision_allocates_exactly_its_layout() -> None:
    user_modules = single()
    engine = mixed(user_modules)
    storages = {weight.untyped_storage().data_ptr() for layer in user_modules for weight in layer.parameters()}
    assert storages == {engine.state.model_states.rule.weights[0].untyped_storage().data_ptr()}
    assert engine.state.model_states.allocated() == engine.state.model_states.layout.by_kind()


def test_second_mixed_engine_continues_from_full_weights() -> None:
    user_modules = single()
    first = mixed(user_modules)
    first.train_batch(tokens(0))
    full = masters(first)
    second = mixed(user_modules)
    assert all(torch.equal(weight, full[name]) for name, weight in masters(second).items())
    second.train_batch(tokens(1))
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in masters(second).items())


@pytest.mark.parametrize("memory", [None, partial(offloaded, bucket=11)])
def test_closing_older_engine_preserves_newer_weights(memory: Any) -> None:
    settings = {} if memory is None else {"memory": memory, "bucket_numel": 11}
    user_modules = single()
    first = mixed(user_modules, **settings)
    first.train_batch(tokens(0))
    second = mixed(user_modules, **settings)
    second.train_batch(tokens(1))
    trained = tensors_of(user_modules)
    first.close()
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in trained.items())
    second.train_batch(tokens(2))
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in masters(second).items())
    second.close()
    after = tensors_of(user_modules)
    assert all(torch.equal(after[name], weight) for name, weight in masters(second).items())
    assert any(not torch.equal(after[name], weight) for name, weight in trained.items())


def test_pruning_older_engine_preserves_newer_weights() -> None:
    user_modules = single()
    first, second = mixed(user_modules), mixed(user_modules)
    first.prune({(1, "weight"): torch.arange(WIDTH, dtype=torch.int32)})
    second.train_batch(tokens(0))
    assert user_modules[1].weight.dtype == torch.float32
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in masters(second).items())


def test_pruning_in_mixed_precision_updates_user_weights() -> None:
    user_modules = single()
    engine = mixed(user_modules)
    engine.prune({(1, "weight"): torch.arange(WIDTH, dtype=torch.int32)})
    engine.train_batch(tokens(0))
    assert user_modules[1].weight.dtype == torch.bfloat16
    assert torch.equal(user_modules[0].weight, masters(engine)["0.weight"])
    engine.close()
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in masters(engine).items())


def test_mixed_precision_trains_modules_like_functions() -> None:
    """The comparison is bit for bit, with tied weights and offloaded states."""
    settings: dict[str, Any] = {"memory": partial(offloaded, bucket=11), "bucket_numel": 11, "clip_norm": 0.5}
    user_modules = single()
    parts = [copy.deepcopy(layer) for layer in user_modules]
    modules = mixed(user_modules, **settings)
    functions = mixed([lambda part=part: part for part in parts], tied=[(0, "weight", 2, "weight")], **settings)
    for number in range(3):
        assert modules.train_batch(tokens(number)) == functions.train_batch(tokens(number))
    first, second = masters(modules), masters(functions)
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    modules.close()
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in first.items())


def test_frozen_weights_keep_full_precision(tmp_path: Path) -> None:
    user_modules = single()
    user_modules[1].requires_grad_(False)
    user_modules[1].register_buffer("constant", torch.tensor([1.0 + 2.0**-20]))
    before = tensors_of(user_modules)
    engine = mixed(user_modules)
    engine.train_batch(tokens(0))
    engine.evaluate([tokens(1)])
    engine.load(engine.save(tmp_path))
    assert all(
        torch.equal(tensors_of(user_modules)[f"1.{name}"], before[f"1.{name}"])
        for name in ("weight", "bias", "constant")
    )


def test_close_returns_dense_full_precision_weights() -> None:
    user_modules = single()
    engine = mixed(user_modules, pruning=Pruning(Magnitude(), sparsity=0.5))
    engine.train_batch(tokens(0))
    assert engine.state.model_states.allocated() == engine.state.model_states.layout.by_kind(), (
        "a whole copy would cost what pruning saves"
    )
    full = masters(engine)
    assert user_modules[1].weight.dtype == torch.bfloat16
    with refused(InvalidRequest, "half", legal="close() an earlier engine"):
        mixed(user_modules)
    engine.close()
    assert all(torch.equal(tensors_of(user_modules)[name], weight) for name, weight in full.items())
    assert int((user_modules[1].weight == 0).sum()) == WIDTH * WIDTH // 2
    assert mixed(user_modules).train_batch(tokens(1)) > 0


def test_uncopyable_module_is_rejected() -> None:
    user_modules = single()
    user_modules[1].generator = (number for number in range(3))
    with refused(
        InvalidRequest,
        subject="deepcopy cannot copy",
        rule="passes compute in half copies, so the module is copied",
        legal="a function that makes the layer",
    ):
        mixed(user_modules)


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_evaluation_restores_module_modes(half: str | None) -> None:
    user_modules = single()
    user_modules[2].norm.eval()  # freezes the running statistics
    engine = make_engine(user_modules, half=half)
    before = [module.training for layer in user_modules for module in layer.modules()]
    mean = user_modules[2].norm.running_mean.clone()
    engine.train_batch(tokens(0))
    engine.evaluate([tokens(1)])
    engine.train_batch(tokens(2))
    assert [module.training for layer in user_modules for module in layer.modules()] == before
    assert torch.equal(user_modules[2].norm.running_mean, mean)
    with pytest.raises(IndexError):
        engine.evaluate([(tokens(0)[0] + 99, tokens(0)[1])])
    assert [module.training for layer in user_modules for module in layer.modules()] == before
    user_modules[2].norm.train()
    engine.train_batch(tokens(3))
    assert not torch.equal(user_modules[2].norm.running_mean, mean)
