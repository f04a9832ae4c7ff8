"""The device of a rank, half-precision dtypes without kernels, and the measured peak rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from suite import SGD, Engine, Grid, accelerator
from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.engine import build
from suite.engine.process_setup import device_of
from suite.engine.replay import thread_ranks
from tests.support.refusals import refused


class On(nn.Module):
    """Layers whose weights claim to be on some devices, as no GPU is here."""

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.devices = devices

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter([SimpleNamespace(device=torch.device(device)) for device in self.devices])


def test_rank_computes_on_the_device_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[str] = []
    monkeypatch.setattr(accelerator, "count", lambda: 2)
    monkeypatch.setattr(accelerator, "select", current.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert device_of([On("cuda:1"), On()], None) == device_of([On("cpu")], "cuda") == device_of((), "cuda") == "cuda:1"
    assert device_of([On("cpu"), On("meta")], None) == device_of([nn.Linear], None) == "cpu"
    assert device_of([On("cpu")], torch.device("cuda:0")) == "cuda:0"
    assert current == ["cuda:1"] * 3 + ["cpu"] * 2 + ["cuda:0"]
    for layer, device in ((On("cpu", "cuda:1"), None), (On("cuda:0"), "cpu"), (On("cuda:0"), "cuda")):
        with refused(InvalidRequest, subject=f"weights on {' and '.join(layer.devices)}"):
            device_of([layer], device)
    with refused(UnknownName, "device", "gpu"):
        device_of((), "gpu")
    with pytest.raises(MissingDependency):
        device_of((), "cuda:2")


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2)])
def test_engine_asks_for_the_device(monkeypatch: pytest.MonkeyPatch, grid: Grid) -> None:
    layers, asked = [nn.Linear(1, 1), nn.Linear(1, 1)], []

    def asks(layers: Sequence[object], device: object) -> str:
        asked.append((len(layers), str(device)))
        return "cpu"

    monkeypatch.setattr(build, "device_of", asks)
    monkeypatch.setattr(thread_ranks, "device_of", asks)
    arguments: Any = {"loss": lambda y, t: y.mean(), "optimizer": SGD(0.1), "microbatch": 1, "grid": grid}
    Engine(layers, device="cuda", **arguments)
    assert asked[0] == (2, "cuda")
    with refused(InvalidRequest, "device", '"cuda"'):
        Engine(layers, device="cuda", world=LoopbackWorld(Hub(1), 0), **arguments)
