"""Modules that a user passes: all of them train in place, in full precision, with the modes and statistics they had.

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

DOUBLE = torch.float64
WORDS, WIDTH = 9, 4


class Head(nn.Module):
    """A norm with running statistics and a scale, and the embedding's matrix."""

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
    """State of a list of layers after a plain loop, two microbatches of three samples a batch."""
    model = nn.Sequential(*layers)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.3, momentum=0.9)
    for number in range(batches):
        optimizer.zero_grad()
        for x, y in zip(*(part.split(3) for part in batch(number)), strict=True):
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    return held(layers)


def held(layers: list[nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": tensor.detach().clone()
        for number, layer in enumerate(layers)
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
    }


def engine(layers: Any, **more: Any) -> Engine:
    told = {"loss": F.cross_entropy, "optimizer": SGD(0.3, momentum=0.9), "microbatch": 3, **more}
    return Engine(layers, **told)


def assert_close(got: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert got.keys() == right.keys()
    for name, tensor in right.items():
        assert torch.allclose(got[name].double(), tensor.double(), rtol=0, atol=1e-12), name


@pytest.mark.parametrize("make", [shared, partial(shared, 2), twice])
@pytest.mark.parametrize("frozen", [False, True])
def test_everything_that_was_passed_trains_on_one_stage(make: Any, frozen: bool) -> None:
    def layers() -> list[nn.Module]:
        found = make()
        next(found[0].parameters()).requires_grad_(not frozen)
        return found

    batch = numbers if make is twice else tokens
    own = layers()
    objects = [id(weight) for layer in own for weight in layer.parameters()]
    made = engine(own)
    for number in range(3):
        made.train_batch(batch(number))
    assert_close(held(own), plainly(layers(), batch, 3))
    assert [id(weight) for layer in own for weight in layer.parameters()] == objects, "a weight was replaced"


def test_a_tie_by_name_trains_both_ends_in_place() -> None:
    table, head = shared()
    head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=DOUBLE))
    own = [table, head]
    made = engine(own, tied=[(0, "weight", 1, "weight")])
    for number in range(3):
        made.train_batch(tokens(number))
    assert_close(held(own), plainly(shared(), tokens, 3))


@pytest.mark.parametrize("stages", [2, 3])
def test_each_rank_trains_its_own_stage_in_place(stages: int) -> None:
    right, modules = plainly(shared(2), tokens, 3), shared(2)

    def rank(world: Any) -> None:
        own = copy.deepcopy(modules)
        made = engine(own, grid=Grid(inter=stages), world=world)
        for number in range(3):
            made.train_batch(tokens(number))
        here = made.state.settings.stage_layers
        got = {name: tensor for name, tensor in held(own).items() if int(name.partition(".")[0]) in here}
        assert_close(got, {name: tensor for name, tensor in right.items() if name in got})
        made.close()

    threads.run(stages, rank)


def test_a_second_engine_goes_on_where_the_first_stopped() -> None:
    own = shared()
    for number in range(2):
        made = engine(own, optimizer=SGD(0.3))
        made.train_batch(tokens(number))
    once = shared()
    made = engine(once, optimizer=SGD(0.3))
    for number in range(2):
        made.train_batch(tokens(number))
    assert_close(held(own), held(once))


@pytest.mark.parametrize("half", [None, "bfloat16"])
@pytest.mark.parametrize("pruned", [False, True])
def test_the_first_of_two_engines_is_refused_before_it_trains(half: str | None, pruned: bool) -> None:
    """Its gradients or its weights are the second one's: nothing may be added there."""
    own = single()
    first = engine(own)
    pruning = Pruning(Magnitude(), sparsity=0.5) if pruned else None
    second = engine(own, half=half, pruning=pruning)
    twin = engine(single(), half=half, pruning=pruning)
    with pytest.raises(InvalidRequest, match=r"a newer engine was made.*; legal: the newest engine"):
        first.train_batch(tokens(0))
    assert [second.train_batch(tokens(n)) for n in range(2)] == [twin.train_batch(tokens(n)) for n in range(2)]


def test_a_load_and_a_ticket_reach_what_was_passed(tmp_path: Path) -> None:
    own = shared(1)
    made = engine(own, pruning=Pruning(Magnitude(), sparsity=0.5))
    made.train_batch(tokens(0))
    saved, path = held(own), made.save(tmp_path)
    assert int((saved["1.weight"] == 0).sum()) == WIDTH * WIDTH // 2
    made.train_batch(tokens(1))
    assert not torch.equal(held(own)["2.norm.weight"], saved["2.norm.weight"])
    made.load(path)
    assert_close(held(own), saved)


def test_running_statistics_on_two_stages_are_refused() -> None:
    def rank(world: Any) -> None:
        with pytest.raises(InvalidRequest, match="running statistics"):
            engine(twice(), grid=Grid(inter=2), world=world)

    threads.run(2, rank)


def test_functions_that_share_a_weight_are_refused() -> None:
    table, head = shared()
    with pytest.raises(InvalidRequest, match="tied="):
        engine([lambda: table, lambda: head])


def test_a_tie_of_which_one_end_is_frozen_is_refused() -> None:
    def rank(world: Any) -> None:
        table, head = shared()
        head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=DOUBLE), requires_grad=False)
        with pytest.raises(InvalidRequest, match="both trained or both frozen"):
            engine([table, head], tied=[(0, "weight", 1, "weight")], grid=Grid(inter=world.size), world=world)

    for ranks in (1, 2):
        threads.run(ranks, rank)


# -- mixed precision -------------------------------------------------------------------------------------------------


def single(middle: int = 1) -> list[nn.Module]:
    return [layer.float() for layer in shared(middle)]


def mixed(layers: Any, **more: Any) -> Engine:
    return engine(layers, half="bfloat16", optimizer=AdamW(lr=0.01), **more)


def masters(made: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": made.state.model_states.dense(made.state.model_states.rule.weights[0], weight)
        for number, layer in enumerate(made.state.stage.layers)
        for name, weight in layer.named_parameters()
        if weight.requires_grad
    }


def test_half_leaves_the_users_modules_in_full_precision() -> None:
    own = single()
    made = mixed(own)
    before = held(own)
    for number in range(2):
        made.train_batch(tokens(number))
    after = held(own)
    assert {tensor.dtype for tensor in after.values() if tensor.is_floating_point()} == {torch.float32}
    full = masters(made)
    assert all(torch.equal(after[name], weight) for name, weight in full.items())
    assert all(not torch.equal(after[name], before[name]) for name in full)
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in full.values())
    statistics = dict(made.state.stage.layers[-1].named_buffers())
    assert torch.equal(after["2.norm.running_mean"], statistics["norm.running_mean"].float())
    assert int(after["2.norm.num_batches_tracked"]) == 4
    assert own[0].weight is own[2].weight
    logits = nn.Sequential(*own).eval()(tokens(0)[0])
    assert logits.dtype == torch.float32


def test_half_allocates_what_its_layout_says_and_no_more() -> None:
    own = single()
    made = mixed(own)
    storages = {weight.untyped_storage().data_ptr() for layer in own for weight in layer.parameters()}
    assert storages == {made.state.model_states.rule.weights[0].untyped_storage().data_ptr()}
    assert made.state.model_states.allocated() == made.state.model_states.layout.by_kind()


def test_a_second_engine_in_half_precision_goes_on_from_the_full_weights() -> None:
    own = single()
    first = mixed(own)
    first.train_batch(tokens(0))
    full = masters(first)
    second = mixed(own)
    assert all(torch.equal(weight, full[name]) for name, weight in masters(second).items())
    second.train_batch(tokens(1))
    assert all(torch.equal(held(own)[name], weight) for name, weight in masters(second).items())


@pytest.mark.parametrize("memory", [None, partial(offloaded, bucket=11)])
def test_closing_the_first_of_two_engines_leaves_the_second_its_weights(memory: Any) -> None:
    told = {} if memory is None else {"memory": memory, "bucket_numel": 11}
    own = single()
    first = mixed(own, **told)
    first.train_batch(tokens(0))
    second = mixed(own, **told)
    second.train_batch(tokens(1))
    trained = held(own)
    first.close()
    assert all(torch.equal(held(own)[name], weight) for name, weight in trained.items())
    second.train_batch(tokens(2))
    assert all(torch.equal(held(own)[name], weight) for name, weight in masters(second).items())
    second.close()
    after = held(own)
    assert all(torch.equal(after[name], weight) for name, weight in masters(second).items())
    assert any(not torch.equal(after[name], weight) for name, weight in trained.items())


def test_pruning_the_first_of_two_engines_leaves_the_second_its_weights() -> None:
    own = single()
    first, second = mixed(own), mixed(own)
    first.prune({(1, "weight"): torch.arange(WIDTH, dtype=torch.int32)})
    second.train_batch(tokens(0))
    assert own[1].weight.dtype == torch.float32
    assert all(torch.equal(held(own)[name], weight) for name, weight in masters(second).items())


def test_pruning_an_engine_in_half_precision_lends_its_weights_anew() -> None:
    own = single()
    made = mixed(own)
    made.prune({(1, "weight"): torch.arange(WIDTH, dtype=torch.int32)})
    made.train_batch(tokens(0))
    assert own[1].weight.dtype == torch.bfloat16
    assert torch.equal(own[0].weight, masters(made)["0.weight"])
    made.close()
    assert all(torch.equal(held(own)[name], weight) for name, weight in masters(made).items())


def test_half_trains_modules_as_it_trains_what_functions_make() -> None:
    """Bit for bit, tied and offloaded."""
    told: dict[str, Any] = {"memory": partial(offloaded, bucket=11), "bucket_numel": 11, "clip_norm": 0.5}
    own = single()
    parts = [copy.deepcopy(layer) for layer in own]
    modules = mixed(own, **told)
    functions = mixed([lambda part=part: part for part in parts], tied=[(0, "weight", 2, "weight")], **told)
    for number in range(3):
        assert modules.train_batch(tokens(number)) == functions.train_batch(tokens(number))
    first, second = masters(modules), masters(functions)
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    modules.close()
    assert all(torch.equal(held(own)[name], weight) for name, weight in first.items())


def test_frozen_weights_and_constants_keep_their_full_precision(tmp_path: Path) -> None:
    own = single()
    own[1].requires_grad_(False)
    own[1].register_buffer("constant", torch.tensor([1.0 + 2.0**-20]))
    before = held(own)
    made = mixed(own)
    made.train_batch(tokens(0))
    made.evaluate([tokens(1)])
    made.load(made.save(tmp_path))
    assert all(torch.equal(held(own)[f"1.{name}"], before[f"1.{name}"]) for name in ("weight", "bias", "constant"))


def test_pruned_weights_are_whole_and_full_after_close() -> None:
    own = single()
    made = mixed(own, pruning=Pruning(Magnitude(), sparsity=0.5))
    made.train_batch(tokens(0))
    assert made.state.model_states.allocated() == made.state.model_states.layout.by_kind(), (
        "a whole copy would cost what pruning saves"
    )
    full = masters(made)
    assert own[1].weight.dtype == torch.bfloat16
    with pytest.raises(InvalidRequest, match=r"close\(\) an earlier engine"):
        mixed(own)
    made.close()
    assert all(torch.equal(held(own)[name], weight) for name, weight in full.items())
    assert int((own[1].weight == 0).sum()) == WIDTH * WIDTH // 2
    assert mixed(own).train_batch(tokens(1)) > 0


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    own = single()
    own[1].generator = (number for number in range(3))
    with pytest.raises(InvalidRequest, match=r"deepcopy cannot copy.*a function that makes the layer"):
        mixed(own)


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_an_evaluation_leaves_every_module_in_the_mode_it_had(half: str | None) -> None:
    own = single()
    own[2].norm.eval()  # as one does with statistics that are not to move
    made = engine(own, half=half)
    before = [module.training for layer in own for module in layer.modules()]
    mean = own[2].norm.running_mean.clone()
    made.train_batch(tokens(0))
    made.evaluate([tokens(1)])
    made.train_batch(tokens(2))
    assert [module.training for layer in own for module in layer.modules()] == before
    assert torch.equal(own[2].norm.running_mean, mean)
    with pytest.raises(IndexError):
        made.evaluate([(tokens(0)[0] + 99, tokens(0)[1])])
    assert [module.training for layer in own for module in layer.modules()] == before
    own[2].norm.train()
    made.train_batch(tokens(3))
    assert not torch.equal(own[2].norm.running_mean, mean)
