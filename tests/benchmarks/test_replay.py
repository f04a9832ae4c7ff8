"""How much longer a replay of four stages takes than plain training of the same network: a loop over its layers.

One process and one thread each. Processor time, as nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import median
from time import process_time
from typing import Any

import pytest
import torch

from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.engine.random_state import drawing, initial
from suite.engine.replay.replay import Replay
from suite.engine.stage import as_value
from suite.engine.system import EngineSystem, to_tensors
from tests.support.samples import measured_elsewhere, play, take_turns, tell

SYSTEMS = ("plain", "naive", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
MODELS = {  # and what they learn from
    "vgg_narrow": ("data=digits", "batch.size=56"),
    "wideresnet_narrow": ("data=digits", "batch.size=56"),
    "residual_lstm_narrow": ("data=snippets", "batch.size=32"),
    "gnmt_narrow": ("data=number_names", "batch.size=32"),
}
TURNS, BATCHES, DEPTH = 7, 8, 4


def plain(config: RunConfig) -> Callable[[list[Any]], None]:
    arguments = EngineSystem.engine_arguments(config)
    layers = []
    for number, make in enumerate(arguments["model"]):
        with drawing(*initial(0, number)):
            layers.append(make())
    network, rule = torch.nn.ModuleList(layers), arguments["optimizer"]
    optimizer = torch.optim.SGD(network.parameters(), lr=rule.lr, momentum=rule.momentum)

    def run(batches: list[Any]) -> None:
        network.train()
        for inputs, targets in batches:
            value = as_value(inputs)
            for layer in network:
                value = as_value(layer(*value))
            optimizer.zero_grad()
            arguments["loss"](*value, *as_value(targets)).backward()
            optimizer.step()

    return run


def replayed(config: RunConfig) -> Callable[[list[Any]], None]:
    replay = Replay(**EngineSystem.engine_arguments(config))
    return lambda batches: list(replay.train(batches))


@cache
def times(model: str) -> dict[str, list[float]]:
    """Seconds of a mini-batch, by turn."""
    shared = [f"model={model}", *MODELS[model], "optimizer=sgd", "optimizer.lr=0.02", f"grid.inter={DEPTH}"]
    shared += ["batch.microbatch=${batch.size}", "split=cost"]
    configs = {name: resolve([f"system={'naive' if name == 'plain' else name}", *shared]) for name in SYSTEMS}
    first = configs["plain"]
    data, shape, size = first.data.source.build(), first.model.shape.build(), first.batch.size
    batches = [to_tensors(data.batch(number, size=size, seed=0, shape=shape)) for number in range(BATCHES)]
    runs = {name: (plain if name == "plain" else replayed)(config) for name, config in configs.items()}
    calls = {name: partial(run, batches) for name, run in runs.items()}
    return take_turns(calls, TURNS, process_time, per=BATCHES)


@measured_elsewhere
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_mini_batch(benchmark: Any, system: str, model: str) -> None:
    benchmark.group = f"a mini-batch of {model}, plain and by replay of {DEPTH} stages"
    seconds = times(model)
    play(benchmark, seconds[system])
    tell(
        benchmark,
        peer=system == "plain",
        timing=f"processor time of {BATCHES} mini-batches, in turns",
        model=model,
        system=system,
        times_plain=median(seconds[system]) / median(seconds["plain"]),
    )
