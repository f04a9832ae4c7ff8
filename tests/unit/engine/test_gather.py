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

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from tests.support.drawn import cells
from tests.support.refusals import refused
from tests.support.small_engines import Batch, mse_loss, normal_batches

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=4)]
Tensors = dict[str, torch.Tensor]


@cache
def first_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    model[3].bias.requires_grad_(False)
    return model


def model(weights: Tensors | None = None) -> nn.Sequential:
    copied = copy.deepcopy(first_model())
    copied.load_state_dict(weights or {}, strict=weights is not None)
    return copied


def batches() -> list[Batch]:
    return normal_batches(3, 8, 4, 3, torch.float32)


INPUTS = batches()[0][0]
NEW = {name: tensor / 2 if tensor.dim() else tensor + 3 for name, tensor in first_model().state_dict().items()}


def engine_of(world: Any = None, layers: Any = None, **more: Any) -> Engine:
    microbatch = 8 // (more.get("grid") or Grid()).data
    arguments: dict[str, Any] = {"loss": mse_loss, "optimizer": SGD(0.1), "microbatch": microbatch}
    return Engine(layers or model(), world=world, **(arguments | more))


def on(grid: Grid, function: Callable[[Engine], Any], **more: Any) -> list[Any]:
    return threads.run(grid.size, lambda world: function(engine_of(world, grid=grid, **more)))


def assert_equal(one: Tensors, other: Tensors, **close: float) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], msg=name, **(close or {"rtol": 0, "atol": 0}))


def assert_close(outputs: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("grid", "sharded"), cells(GRIDS, [False, True], n=3, always=[(Grid(inter=4), True)]))
def test_trained_weights_load_everywhere(grid: Grid, sharded: bool, tmp_path: Path) -> None:
    def trained(engine: Engine) -> tuple[Path, Tensors]:
        list(engine.train(batches()))
        return engine.save_model(tmp_path, sharded=sharded), engine.state_dict()

    (path, first), *others = on(grid, trained)
    assert [weights for _, weights in others] == [{}] * (grid.size - 1)
    if sharded:
        index = json.loads(path.read_text())["weight_map"]
        assert set(index) == set(first)
        assert len(set(index.values())) == min(grid.inter, 3)  # the third of four stages has no weights

    def loaded(engine: Engine) -> Tensors:
        engine.load_model(tmp_path)
        return engine.state_dict()

    for other in (Grid(), Grid(inter=2)):
        assert_equal(on(other, loaded)[0], first)


def test_layers_are_sent_to_rank_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[int, int]] = []
    pairwise = threads.LoopbackGroup.pairwise

    def counted(group: Any, sends: Any, receives: Any) -> Any:
        received.extend((group.rank, tensor.nbytes) for _, tensor in receives)
        return pairwise(group, sends, receives)

    def collected(engine: Engine) -> Tensors:
        monkeypatch.setattr(threads.LoopbackGroup, "pairwise", counted)
        monkeypatch.setattr(threads.LoopbackGroup, "broadcast", lambda *_: pytest.fail("every rank receives"))
        return engine.state_dict()

    whole, *_ = on(Grid(inter=4), collected)
    sent = sum(tensor.nbytes for name, tensor in whole.items() if name.startswith(("3.", "4.")))
    assert {rank for rank, _ in received} == {0}
    assert sent < sum(size for _, size in received) < sent + 8192  # with names and shapes


@pytest.mark.parametrize(("grid", "half"), cells(GRIDS, [None, "bfloat16"], n=3, always=[(Grid(), "bfloat16")]))
def test_loaded_state_dict_is_returned_and_predicts(grid: Grid, half: str | None) -> None:
    def loaded(engine: Engine) -> tuple[Tensors, torch.Tensor]:
        engine.load_state_dict(NEW)
        return engine.state_dict(), engine.predict(INPUTS)

    weights, outputs = on(grid, loaded, half=half)[0]
    assert_equal(weights, NEW)
    torch.testing.assert_close(outputs.float(), model(NEW).eval()(INPUTS), rtol=0.05, atol=0.02)


def test_file_of_torch_save_loads(tmp_path: Path) -> None:
    torch.save(NEW, tmp_path / "plain.pt")
    with engine_of(half="bfloat16") as engine:
        engine.load_model(tmp_path / "plain.pt")
        assert_equal(engine.state_dict(), NEW)
    assert not engine.state.copies.lent  # the context manager has closed the engine


OTHERS: list[tuple[Callable[[Tensors], Any], str, str]] = [
    (lambda weights: weights.pop("0.weight"), "without '0.weight'", "every weight and buffer"),
    (lambda weights: weights.update({"9.weight": torch.ones(1)}), "'9.weight'", "nothing else"),
    (lambda weights: weights.update({"0.bias": torch.ones(2)}), "0.bias of shape (2,)", "in its shape"),
]


def test_other_state_dicts_are_refused_unchanged(tmp_path: Path) -> None:
    for change, subject, rule in OTHERS:
        weights = dict(NEW)
        change(weights)

        def load(engine: Engine, weights: Tensors = weights, subject: str = subject) -> Tensors:
            with pytest.raises(InvalidRequest) as refusal:
                engine.load_state_dict(weights)
            assert subject in str(refusal.value) or "reports the reason" in str(refusal.value)
            return engine.state_dict()

        with refused(InvalidRequest, subject=subject, rule=rule):
            engine_of().load_state_dict(weights)
        assert_equal(on(Grid(inter=2), load)[0], dict(model().state_dict()))
    with refused(InvalidRequest, subject="no file", legal="model.safetensors"):
        engine_of().load_model(tmp_path / "nothing")


@pytest.mark.parametrize(("grid", "dropped"), [(Grid(), "2.weight"), (Grid(inter=2), "0.weight")], ids=str)
def test_file_with_one_name_of_a_tied_weight_loads(grid: Grid, dropped: str, tmp_path: Path) -> None:
    """Hugging Face saves a tied weight once."""
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    layers[2].weight = layers[0].weight
    weights = {name: torch.ones_like(tensor) for name, tensor in nn.Sequential(*layers).state_dict().items()}
    save_file({name: tensor for name, tensor in weights.items() if name != dropped}, tmp_path / "model.safetensors")
    with engine_of(layers=layers, microbatch=4, grid=grid) as engine:
        engine.load_model(tmp_path)
        assert_equal(engine.state_dict(), weights)
