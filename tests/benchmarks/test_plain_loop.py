"""Time of the engine on one process beside a plain training loop of PyTorch, for a model of many small ops.

One process and one thread. Processor time, as nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import pytest
import torch
from torch import nn

from suite.config.compose import resolve
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import AdamW
from suite.engine.stage import as_value
from suite.engine.system import EngineSystem
from tests.support.samples import measured_elsewhere, play, take_turns, tell

TURNS, BATCHES, SAMPLES = 15, 10, 8
# of the plain loop's time; torch's own step also steps the second leaf of the tied weight
MOST = {"of the suite": 1.03, "of torch": 1.08}
OPTIMIZERS: dict[str, Any] = {"of the suite": AdamW(lr=1e-3), "of torch": partial(torch.optim.AdamW, lr=1e-3)}
Run = Callable[[], None]


def make_layers() -> tuple[list[nn.Module], dict[str, Any]]:
    """The layers of gpt_overhead, of one seed, and the other arguments of its engine."""
    config = resolve(["model=gpt_overhead", "batch.size=8", "batch.microbatch=8"])
    arguments = EngineSystem.engine_arguments(config)
    torch.manual_seed(0)
    return [make() for make in arguments["model"]], arguments


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 256, (BATCHES, SAMPLES, 33), generator=generator)
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]


def plain_loop() -> Run:
    layers, arguments = make_layers()
    network = nn.ModuleList(layers)
    for first, name, last, last_name in arguments["tied"]:
        module, _, attribute = last_name.rpartition(".")
        setattr(network[last].get_submodule(module), attribute, network[first].get_parameter(name))
    optimizer, data = torch.optim.AdamW(network.parameters(), lr=1e-3), batches()

    def run() -> None:
        for inputs, targets in data:
            value: Any = (inputs,)
            for layer in network:
                value = as_value(layer(*value))
            optimizer.zero_grad()
            loss = arguments["loss"](*value, targets)
            loss.backward()
            optimizer.step()
            loss.item()

    return run


def engine_loop(optimizer: Any) -> Run:
    layers, arguments = make_layers()
    engine = Engine(layers, loss=arguments["loss"], tied=arguments["tied"], optimizer=optimizer, microbatch=SAMPLES)
    data = batches()
    return lambda: list(engine.train(data)) and None


@pytest.fixture(scope="module")
def seconds() -> dict[str, list[float]]:
    """Processor seconds of every turn, by loop."""
    loops = {"plain": plain_loop(), **{name: engine_loop(optimizer) for name, optimizer in OPTIMIZERS.items()}}
    return take_turns(loops, TURNS, process_time, per=BATCHES)


@measured_elsewhere
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_engine_takes_the_time_of_a_plain_loop(benchmark: Any, seconds: dict[str, list[float]], name: str) -> None:
    ratios = sorted(ours / plain for ours, plain in zip(seconds[name], seconds["plain"], strict=True))
    play(benchmark, seconds[name])
    tell(benchmark, peer=False, timing="processor time of one batch, in turns with a plain loop", ratios=ratios)
    assert median(ratios) <= MOST[name], ratios
