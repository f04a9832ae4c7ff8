"""Measured profiles and the split that PipeDream's rule derives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from suite.accelerator import Clock
from suite.cli import profile_split
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest
from suite.engine import profile
from suite.engine.profile import LayerTime, NetworkProfile, profile_layers
from suite.workload.pipedream_split import equal
from suite.workload.split import divide
from tests.support.refusals import refused

NARROW = ("model=vgg_narrow", "data=digits", "optimizer=sgd", "batch.microbatch=2", "grid.inter=2")


def test_each_layer_is_timed_and_the_profile_is_a_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ticks = Clock("cpu"), iter(range(10**6))
    clock.mark = lambda: float(next(ticks))
    monkeypatch.setattr(profile, "Clock", lambda device: clock)
    assert profile_split.main([*NARROW, f"reports={tmp_path}"]) == 0
    output = capsys.readouterr().out
    shape = resolve(NARROW).model.shape.build()
    shapes = shape.shapes()
    rows = re.findall(r"^ +(\d+) (.+): forward 1 s, backward 1 s, passes on", output, re.M)
    assert [name for _, name in rows] == [layer.name for layer in shapes]
    # every layer takes two ticks, and eleven layers on two stages are six and five
    assert "2 stages of 1: layers 0-5 on 1, 6-10 on 1; slowest 12 s" in output
    file = tmp_path / "profiles" / "vgg_narrow-2.json"
    assert f"split={file}" in output
    assert divide(shape, 2, str(file)) == (range(6), range(6, 11))


def test_profile_bytes_equal_tensor_bytes() -> None:
    config = resolve(NARROW)
    network = profile_layers(config, bandwidth=1e9, rounds=1)
    shapes = config.model.shape.build().shapes()
    assert [layer.weights for layer in network.layers] == [4 * shape.parameters for shape in shapes]
    assert [layer.output for layer in network.layers] == [2 * shape.output for shape in shapes]
    assert all(layer.forward > 0 and layer.backward > 0 for layer in network.layers)
    with refused(InvalidRequest, "rounds"):
        profile_layers(config, bandwidth=1e9, rounds=0)


def test_layer_is_timed_without_its_predecessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow layer's backward pass is measured alone, without the layers in front of it."""

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.register_hook(lambda _: ran.append("slow"))
            return 2 * x

    ran: list[str] = []
    layers = [nn.Linear(3, 3), Slow(), nn.Linear(3, 2)]
    clock = Clock("cpu")
    clock.mark = lambda: float(len(ran))
    loss = nn.functional.cross_entropy
    network = profile._time_round(layers, (torch.randn(4, 3),), (torch.zeros(4, dtype=torch.int64),), loss, clock)
    assert [backward for _, backward, _ in network] == [0.0, 1.0, 0.0]


def test_plan_with_unequal_replicas_is_printed_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (LayerTime("wide", 3.0, 6.0, 1, 0), LayerTime("heavy", 1.0, 2.0, 1, 90))
    monkeypatch.setattr(
        "suite.engine.profile.profile_layers", lambda config, bandwidth: NetworkProfile("two", 2, 10.0, layers)
    )
    assert profile_split.main(["grid.inter=2", "grid.data=2", f"reports={tmp_path}"]) == 0
    output = capsys.readouterr().out
    assert "layers 0-0 on 3, 1-1 on 1; slowest 3 s" in output
    assert "2 stages with 3, 1 replicas" in output
    assert "layers 0-0 on 2, 1-1 on 2; slowest 9 s" in output
    assert equal(NetworkProfile("two", 2, 10.0, layers).profile, 2, 2).slowest == 9.0  # 2 * 90 / 10 over two


def test_networks_without_a_profile_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, subject in (([*NARROW, "grid.inter=12"], "=12 for 11 layers"), (["model=gcn"], "model=gcn")):
        assert profile_split.main([*words, f"reports={tmp_path}"]) == 2
        assert subject in capsys.readouterr().err
