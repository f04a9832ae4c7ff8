"""Engine API: order of losses, no side effects, PyTorch's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from baselines.pytorch import PyTorch
from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.system import EngineSystem
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(data=2, inter=2)]
DOUBLE = torch.float64


def alone() -> threads.LoopbackWorld:
    return threads.LoopbackWorld(threads.Hub(1), 0)


def engine_of(case: Case, world: threads.LoopbackWorld, grid: Grid | None = None, **more: Any) -> Engine:
    more = {"optimizer": SGD(0.1), "microbatch": case.microbatch, "tied": case.ties, "seed": 4, **more}
    return Engine(case.layers, loss=case.loss, grid=grid or Grid(), world=world, **more)


# -- losses ---------------------------------------------------------------------------------------------------


def test_train_is_lazy_and_in_order() -> None:
    case = gpt_case("untied", "float64", tied=False)
    read_batches = []

    def batches() -> Iterator[Any]:
        for number in range(100):
            read_batches.append(number)
            yield case.batch(number, 2, 1)

    engine = engine_of(case, alone())
    losses = engine.train(batches())
    assert (read_batches, engine.state.updates) == ([], 0)
    first = next(losses)
    assert (read_batches, engine.state.updates, engine.state.microbatches) == ([0], 1, 2)
    got = [first, next(losses), next(losses)]
    assert (read_batches, engine.state.updates, engine.state.microbatches) == ([0, 1, 2], 3, 6)
    other = engine_of(case, alone())
    assert got == [other.train_batch(case.batch(number, 2, 1)) for number in range(3)]


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "legal"), [(6, 4), (1, 4), (13, 12), (0, 4)])
def test_indivisible_batch_is_rejected(samples: int, legal: int) -> None:
    case = odd_case(torch.float32)
    x, y = case.sample(torch.Generator().manual_seed(0), max(samples, legal))

    def rank(world: threads.LoopbackWorld) -> None:
        engine = engine_of(case, world, Grid(data=2), microbatch=2)
        rule = "replicas * microbatch divides the batch"
        subject = f"a batch of {samples} samples on 2 replicas"
        for use in (engine.train_batch, engine.gradients):
            with refused(InvalidRequest, subject=subject, rule=rule, legal=f"a batch of {legal} samples"):
                use((x[:samples], y[:samples]))
        assert engine.train_batch((x[:legal], y[:legal])) > 0
        engine.close()

    threads.run(2, rank)


def test_more_stages_than_layers_are_rejected() -> None:
    case = gpt_case("untied", "float32", tied=False, layers=1)

    def rank(world: threads.LoopbackWorld) -> None:
        with refused(InvalidRequest, "stages", "4", subject="for 3 layers", legal="stages=3"):
            engine_of(case, world, Grid(inter=4))

    threads.run(4, rank)


def test_evaluation_without_batches_is_rejected() -> None:
    with refused(InvalidRequest, rule="at least 1 batch"):
        engine_of(gpt_case("untied", "float32", tied=False), alone()).evaluate([])


# -- several engines ------------------------------------------------------------------------------------------


def test_two_engines_in_one_process_are_independent() -> None:
    """Each engine without `world` has its own; interleaved training equals successive training."""
    cases = [gpt_case("dropout", "float32", dropout=0.3), odd_case(torch.float32)]

    def make(case: Case) -> Engine:
        return Engine(
            case.layers,
            loss=case.loss,
            optimizer=AdamW(0.01),
            microbatch=case.microbatch,
            tied=case.ties,
        )

    apart = [[*make(case).train(case.batch(number, 2, 1) for number in range(3))] for case in cases]
    engines = [make(case) for case in cases]
    turns = [
        [engine.train_batch(case.batch(n, 2, 1)) for engine, case in zip(engines, cases, strict=True)] for n in range(3)
    ]
    assert apart == [list(column) for column in zip(*turns, strict=True)]


def test_two_engines_in_one_world_alternate() -> None:
    case = gpt_case("tied", "float64")

    def rank(world: threads.LoopbackWorld) -> list[float]:
        grid = Grid(data=2, inter=2)
        engines = [engine_of(case, world, grid, optimizer=SGD(lr)) for lr in (0.1, 0.5, 0.1)]
        losses = [engine.train_batch(case.batch(n, 3, 2)) for n in range(2) for engine in engines]
        for engine in engines:
            engine.close()
        return losses

    for losses in threads.run(4, rank):
        assert losses[0] == losses[1] == losses[2]
        assert losses[3] == losses[5] != losses[4]


# -- ties -----------------------------------------------------------------------------------------------------


class Output(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 0.5, dtype=DOUBLE))
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x * self.scale, self.weight)


def shared_layers() -> list[nn.Module]:
    """An embedding and an output layer that share one nn.Parameter, with two layers between them."""
    generator = torch.Generator().manual_seed(8)
    table = nn.Embedding(9, 4, dtype=DOUBLE)
    between = [nn.Linear(4, 4, dtype=DOUBLE), nn.Tanh()]
    for parameter in (table.weight, *between[0].parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=DOUBLE)
    return [table, *between, Output(table.weight)]


def tokens(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 9, (12,), generator=generator), torch.randint(0, 9, (12,), generator=generator)


def with_one_leaf(layers: list[nn.Module], batches: int) -> tuple[list[float], nn.Sequential]:
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for number in range(batches):
        x, y = tokens(number)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def trained(
    layers: Callable[[], Sequence[nn.Module]], grid: Grid, batches: int, **more: Any
) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """Losses of every rank, and its weights by their names in the whole model."""

    def rank(world: threads.LoopbackWorld) -> tuple[list[float], dict[str, torch.Tensor]]:
        optimizer = SGD(0.3, momentum=0.9)
        engine = Engine(
            layers(), loss=F.cross_entropy, optimizer=optimizer, microbatch=3, grid=grid, world=world, **more
        )
        losses = [*engine.train(tokens(number) for number in range(batches))]
        first = engine.state.settings.split[engine.place.stage].start
        weights = {
            f"{first + k}.{name}": p
            for k, m in enumerate(engine.state.stage.layers)
            for name, p in m.named_parameters()
        }
        engine.close()
        return losses, weights

    return threads.run(grid.size, rank)


def assert_equals_one_leaf(
    outcomes: list[tuple[list[float], dict[str, torch.Tensor]]], layers: list[nn.Module]
) -> None:
    losses, model = with_one_leaf(layers, len(outcomes[0][0]))
    leaves = set()
    for ours, weights in outcomes:
        assert ours == pytest.approx(losses, rel=1e-12)
        for name, weight in weights.items():
            assert (weight - model.get_parameter(name)).abs().max() < 1e-12, name
            leaves.add(name)
    assert {name for name, _ in model.named_parameters(remove_duplicate=False)} == leaves


@pytest.mark.parametrize("grid", [Grid(inter=n) for n in (1, 2, 3, 4)] + GRIDS[2:], ids=str)
def test_shared_parameter_is_trained_as_one(grid: Grid) -> None:
    outcomes = trained(shared_layers, grid, 4)
    assert_equals_one_leaf(outcomes, shared_layers())
    together = {name: weight for _, weights in outcomes for name, weight in weights.items()}
    assert torch.equal(together["0.weight"], together["3.weight"])


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2)], ids=str)
def test_shared_and_named_tie_counts_once(grid: Grid) -> None:
    outcomes = trained(shared_layers, grid, 3, tied=[(0, "weight", 3, "weight")])
    assert_equals_one_leaf(outcomes, shared_layers())


def same_module_twice() -> list[nn.Module]:
    generator = torch.Generator().manual_seed(2)
    table, linear = nn.Embedding(9, 9, dtype=DOUBLE), nn.Linear(9, 9, dtype=DOUBLE)
    for parameter in (table.weight, *linear.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=DOUBLE)

    class Through(nn.Module):
        """Embedding lookup for integers, product with the table for floats."""

        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.table.weight.T if x.is_floating_point() else self.table(x)

    both = Through()
    return [both, linear, both]


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2), Grid(inter=3), Grid(data=2)], ids=str)
def test_one_module_at_both_ends_is_tied(grid: Grid) -> None:
    assert_equals_one_leaf(trained(same_module_twice, grid, 4), same_module_twice())


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2)], ids=str)
def test_frozen_tied_weight_does_not_change(grid: Grid) -> None:
    def frozen() -> list[nn.Module]:
        layers = shared_layers()
        layers[0].weight.requires_grad_(False)
        return layers

    outcomes = trained(frozen, grid, 2)
    for _, weights in outcomes:
        for name in weights.keys() & {"0.weight", "3.weight"}:
            assert torch.equal(weights[name], frozen()[0].weight)
    assert_equals_one_leaf(outcomes, frozen())


# -- initial weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [Grid(data=2), Grid(data=3), Grid(data=2, inter=2)], ids=str)
def test_replicas_start_from_weights_of_replica_0(grid: Grid) -> None:
    def make_layers(rank: int) -> list[nn.Module]:
        generator = torch.Generator().manual_seed(40 + rank)
        layers = [nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)]
        for layer in layers:
            for tensor in (*layer.parameters(), *layer.buffers()):
                if tensor.is_floating_point():
                    tensor.data = torch.randn(tensor.shape, generator=generator)
        return layers

    def rank(world: threads.LoopbackWorld) -> None:
        layers = make_layers(world.rank)
        rank_layers = copy.deepcopy(layers)
        engine = Engine(layers, loss=F.mse_loss, optimizer=SGD(0.1), microbatch=1, grid=grid, world=world)
        root = make_layers(grid.data_parallel_group(world.rank)[0])
        for number, layer in zip(
            engine.state.settings.split[engine.place.stage], engine.state.stage.layers, strict=True
        ):
            for name, tensor in layer.state_dict().items():
                assert torch.equal(tensor, root[number].state_dict()[name])
                if engine.place.replica and tensor.is_floating_point():
                    assert not torch.equal(tensor, rank_layers[number].state_dict()[name])
        engine.close()

    threads.run(grid.size, rank)


def test_both_tie_ends_start_from_first_layer() -> None:
    case = gpt_case("tied", "float32")

    def rank(world: threads.LoopbackWorld) -> torch.Tensor:
        engine = engine_of(case, world, Grid(inter=2))
        name = "token.weight" if world.rank == 0 else "weight"
        engine.close()
        return engine.state.stage.layers[0 if world.rank == 0 else -1].get_parameter(name)

    first, last = threads.run(2, rank)
    assert torch.equal(first, last)
    assert torch.equal(first, engine_of(case, alone()).state.stage.layers[0].token.weight)


# -- random state --------------------------------------------------------------------------------------------


def test_making_layers_preserves_the_random_state() -> None:
    torch.manual_seed(77)
    state = torch.get_rng_state()
    engine_of(odd_case(torch.float32), alone())
    assert torch.equal(torch.get_rng_state(), state)


# -- the reference --------------------------------------------------------------------------------------------


SMALL = ["model.shape.layers=3", "model.shape.hidden=24", "model.shape.sequence=12", "model.shape.vocabulary=40"]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve([*SMALL, "optimizer=adamw", "optimizer.lr=0.01", "batch.size=16", "batch.microbatch=2", "seed=3"])


@pytest.fixture(scope="module")
def ten_batches() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in generator.integers(0, 8, (10, 16, 13))]


@pytest.fixture(scope="module")
def reference(config: RunConfig, ten_batches: list[Any]) -> tuple[list[float], float]:
    plain = PyTorch(alone(), config)
    return [plain.train_batch(batch) for batch in ten_batches], plain.evaluate(ten_batches[:2])


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2), Grid(data=2), Grid(data=2, inter=2)], ids=str)
def test_adamw_losses_match_plain_pytorch(
    grid: Grid, config: RunConfig, ten_batches: list[Any], reference: tuple[list[float], float]
) -> None:
    rank_layers = config.changed({"grid.data": grid.data, "grid.inter": grid.inter})

    def rank(world: threads.LoopbackWorld) -> tuple[list[float], float]:
        system = EngineSystem(world, rank_layers)
        losses = [system.train_batch(batch) for batch in ten_batches], system.evaluate(ten_batches[:2])
        system.close()
        return losses

    right, score = reference
    assert right[-1] < right[0] - 0.01
    for losses, ours in threads.run(grid.size, rank):
        assert losses == pytest.approx(right, rel=1e-5)
        assert ours == pytest.approx(score, rel=1e-5)
