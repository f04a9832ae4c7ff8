"""State dicts in plain PyTorch's form, and predictions, on every grid."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import mse_loss

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.pruning import Pruning
from suite.pruning.magnitude import Magnitude
from suite.schedule.zbv import ZBV
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=4)]


@cache
def first_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    model[3].bias.requires_grad_(False)
    return model


def model() -> nn.Sequential:
    return copy.deepcopy(first_model())


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(count)]


def engine_of(world: Any = None, **more: Any) -> Engine:
    arguments: dict[str, Any] = {
        "loss": mse_loss,
        "optimizer": SGD(0.1),
        "microbatch": 8 // (more.get("grid") or Grid()).data,
    }
    return Engine(model(), world=world, **(arguments | more))


def on(grid: Grid, function: Callable[[Engine], Any], **more: Any) -> list[Any]:
    return threads.run(grid.size, lambda world: function(engine_of(world, grid=grid, **more)))


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], **close: float) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], msg=name, **(close or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_state_dict_equals_plain_pytorch(grid: Grid) -> None:
    def trained(engine: Engine) -> dict[str, torch.Tensor]:
        list(engine.train(batches()))
        return engine.state_dict()

    first, *others = on(grid, trained)
    assert others == [{}] * (grid.size - 1)
    plain = model()
    plain.load_state_dict(first)
    if grid.data == 1:  # each replica has its own running statistics
        reference = model()
        optimizer = torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], 0.1)
        for inputs, targets in batches():
            optimizer.zero_grad()
            mse_loss(reference(inputs), targets).backward()
            optimizer.step()
        assert_equal(dict(first), dict(reference.state_dict()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [None, "bfloat16"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_loaded_state_dict_is_returned(grid: Grid, half: str | None) -> None:
    torch.manual_seed(5)
    weights = {
        name: torch.rand_like(tensor) if tensor.dim() else tensor + 3 for name, tensor in model().state_dict().items()
    }

    def loaded(engine: Engine) -> dict[str, torch.Tensor]:
        engine.load_state_dict(weights)
        return engine.state_dict()

    first, *_ = on(grid, loaded, half=half)
    assert_equal(first, weights)


def test_pruned_weights_stay_pruned() -> None:
    engine = engine_of(pruning=Pruning(Magnitude(), sparsity=0.5))
    before = engine.state_dict()
    engine.load_state_dict({name: torch.ones_like(tensor) for name, tensor in before.items()})
    after = engine.state_dict()["0.weight"]
    assert torch.equal(after, (before["0.weight"] != 0).float())
    half = engine_of(pruning=Pruning(Magnitude(), sparsity=0.5), half="bfloat16")
    assert torch.equal(half.state_dict()["0.weight"], before["0.weight"])


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_saved_model_loads_everywhere(grid: Grid, sharded: bool, tmp_path: Path) -> None:
    def trained(engine: Engine) -> tuple[Path, dict[str, torch.Tensor]]:
        list(engine.train(batches()))
        return engine.save_model(tmp_path, sharded=sharded), engine.state_dict()

    path, weights = on(grid, trained)[0]
    if sharded:
        index = json.loads(path.read_text())["weight_map"]
        assert set(index) == set(weights)
        assert len(set(index.values())) == min(grid.inter, 3)  # the third of four stages has no weights

    def loaded(engine: Engine) -> dict[str, torch.Tensor]:
        engine.load_model(tmp_path)
        return engine.state_dict()

    for other in (Grid(), Grid(inter=2)):
        assert_equal(on(other, loaded)[0], weights)


def test_file_of_torch_save_loads(tmp_path: Path) -> None:
    plain = model()
    nn.init.ones_(plain[0].weight)
    torch.save(plain.state_dict(), tmp_path / "plain.pt")
    engine = engine_of()
    engine.load_model(tmp_path / "plain.pt")
    assert_equal(engine.state_dict(), dict(plain.state_dict()))


@pytest.mark.parametrize("samples", [1, 5, 8, 17])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_prediction_equals_plain_pytorch(grid: Grid, samples: int) -> None:
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(2))
    expected = model().eval()(inputs)
    for outputs in on(grid, lambda engine: engine.predict(inputs), microbatch=2):
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)


def test_prediction_of_a_placed_schedule_between_batches() -> None:
    inputs = batches()[0][0]

    def predictions(engine: Engine) -> list[torch.Tensor]:
        return [engine.predict(inputs), torch.tensor(list(engine.train(batches()))), engine.predict(inputs)]

    one = predictions(engine_of(microbatch=2))
    for outputs in on(Grid(inter=2), predictions, microbatch=2, schedule=ZBV()):
        for ours, expected in zip(outputs, one, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_half_precision_predicts_from_loaded_weights() -> None:
    weights = {name: tensor / 2 for name, tensor in model().state_dict().items()}
    weights["1.num_batches_tracked"] = torch.tensor(0)
    engine, inputs = engine_of(half="bfloat16"), batches()[0][0]
    engine.load_state_dict(weights)
    plain = model().eval()
    plain.load_state_dict(weights)
    torch.testing.assert_close(engine.predict(inputs).float(), plain(inputs), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
def test_half_precision_returns_statistics_of_its_passes(grid: Grid) -> None:
    def trained(engine: Engine) -> dict[str, torch.Tensor]:
        engine.fit(batches())
        return engine.state_dict()

    full, half = on(grid, trained)[0], on(grid, trained, half="bfloat16")[0]
    assert half["1.running_mean"].abs().sum() > 0
    torch.testing.assert_close(half["1.running_mean"], full["1.running_mean"], rtol=0.05, atol=0.02)


def test_each_prediction_draws_anew() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    engine = Engine([nn.Linear(4, 3), Noise()], loss=mse_loss, optimizer=SGD(0.1), microbatch=4)
    assert not torch.equal(engine.predict(torch.ones(4, 4)), engine.predict(torch.ones(4, 4)))


def test_several_outputs_are_a_tuple() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, (x > 0).long()

    more = {"loss": lambda x, sign, target: mse_loss(x, target), "optimizer": SGD(0.1), "microbatch": 2}
    floats, signs = Engine([nn.Linear(4, 3), Two()], **more).predict(torch.ones(5, 4))
    assert (floats.shape, signs.shape, signs.dtype) == ((5, 3), (5, 3), torch.int64)


@pytest.mark.parametrize(
    ("change", "subject", "rule"),
    [
        (lambda weights: weights.pop("0.weight"), "without '0.weight'", "every weight and buffer"),
        (lambda weights: weights.update({"9.weight": torch.ones(1)}), "'9.weight'", "of the model only"),
        (lambda weights: weights.update({"0.bias": torch.ones(2)}), "0.bias of shape (2,)", "(8,)"),
    ],
)
@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
def test_other_state_dicts_are_refused_unchanged(
    grid: Grid, change: Callable[[Any], Any], subject: str, rule: str
) -> None:
    weights = {name: torch.zeros_like(tensor) for name, tensor in model().state_dict().items()}
    change(weights)

    def load(engine: Engine) -> dict[str, torch.Tensor]:
        with pytest.raises(InvalidRequest) as refusal:
            engine.load_state_dict(weights)
        assert subject in str(refusal.value) or "reports the reason" in str(refusal.value)
        return engine.state_dict()

    with refused(InvalidRequest, subject=subject, rule=rule):
        engine_of().load_state_dict(weights)
    assert_equal(on(grid, load)[0], dict(model().state_dict()))


@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
@pytest.mark.parametrize("dropped", ["0.weight", "2.weight"])
def test_file_with_one_name_of_a_tied_weight_loads(grid: Grid, dropped: str, tmp_path: Path) -> None:
    """Hugging Face saves a tied weight once."""
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    layers[2].weight = layers[0].weight
    weights = {name: torch.ones_like(tensor) for name, tensor in nn.Sequential(*layers).state_dict().items()}
    save_file({name: tensor for name, tensor in weights.items() if name != dropped}, tmp_path / "model.safetensors")
    with Engine(layers, loss=mse_loss, optimizer=SGD(0.1), microbatch=4, grid=grid) as engine:
        engine.load_model(tmp_path)
        assert_equal(engine.state_dict(), weights)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with refused(InvalidRequest, subject="no file", legal="model.safetensors"):
        engine_of().load_model(tmp_path / "nothing")


def test_output_without_samples_is_refused() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

    engine = Engine([nn.Linear(4, 3), Mean()], loss=lambda x: x, optimizer=SGD(0.1), microbatch=2)
    with refused(InvalidRequest, subject="an output of shape ()", rule="samples in the first dimension"):
        engine.predict(torch.ones(4, 4))


def test_context_manager_closes_the_engine() -> None:
    with engine_of(half="bfloat16") as engine:
        engine.train_batch(batches()[0])
    assert not engine.state.copies.lent
