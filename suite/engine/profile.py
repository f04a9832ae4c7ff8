"""Profile each layer alone: seconds of its forward and backward pass.

PipeDream's rule (suite.workload.pipedream_split) needs one number per layer. So each layer receives the output of the
layer before it, detached from that layer's graph, and output gradients of ones. The passes of the last layer include
the loss. The profile is the median of a few rounds; a round runs all layers, so a slow moment spreads over several.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from suite.accelerator import Clock
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.protocols import Value
from suite.engine.layers import make_modules
from suite.engine.process_setup import device_of
from suite.engine.stage import as_value
from suite.engine.system import network
from suite.workload.pipedream_split import Profile


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Times and sizes of one layer.

    Attributes:
        forward, backward: Seconds per microbatch.
        output: Bytes of the output per microbatch.
        weights: Bytes of parameters.
    """

    name: str
    forward: float
    backward: float
    output: int
    weights: int


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """Profile of a network.

    Attributes:
        microbatch: Samples per microbatch.
        bandwidth: Bytes/s between devices.
        layers: Times and sizes of the layers, in order.
    """

    model: str
    microbatch: int
    bandwidth: float
    layers: tuple[LayerTime, ...]

    @property
    def profile(self) -> Profile:
        return Profile(
            tuple(layer.forward + layer.backward for layer in self.layers),
            tuple(float(layer.output) for layer in self.layers),
            tuple(float(layer.weights) for layer in self.layers),
            self.bandwidth,
        )

    def write(self, path: Path) -> None:
        """Write the file that `split=FILE` reads."""
        write_atomically(path, f"{json.dumps(asdict(self), indent=1)}\n".encode())


def profile_layers(config: RunConfig, *, bandwidth: float, rounds: int = 5) -> NetworkProfile:
    """Profile the layers of the configured model on its data, on `launch.device` with `launch.threads` threads.

    A first round, which allocates memory, is discarded. Raises InvalidRequest for less than 1 round.

    Args:
        bandwidth: Bytes/s between devices, for the profile.
        rounds: Rounds of which the median is taken.
    """
    if rounds < 1:
        raise InvalidRequest(f"rounds={rounds}", rule="at least 1", legal="rounds=5")
    model, shape, module, microbatch = config.model, config.network(), network(config), config.batch.microbatch
    batch = config.data.source.build().batch(0, size=microbatch, seed=config.seed, shape=shape)
    device = device_of((), config.launch.device)
    inputs, targets = (_to_value(arrays, device) for arrays in batch)
    makers = module.layers(shape, dropout=model.dropout, dtype=model.dtype)
    modules, _ = make_modules(makers, range(len(makers)), config.seed, device=device)
    layers = list(modules.values())
    for layer in layers:
        layer.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(config.launch.threads)
    try:
        timings = [_time_round(layers, inputs, targets, module.loss, Clock(device)) for _ in range(1 + rounds)][1:]
    finally:
        torch.set_num_threads(threads)
    names = [shaped.name for shaped in shape.shapes()]
    return NetworkProfile(
        model.name,
        microbatch,
        bandwidth,
        tuple(
            LayerTime(
                name,
                median(layer_times[number][0] for layer_times in timings),
                median(layer_times[number][1] for layer_times in timings),
                timings[0][number][2],
                sum(weight.numel() * weight.element_size() for weight in layers[number].parameters()),
            )
            for number, name in enumerate(names)
        ),
    )


def _to_value(arrays: Any, device: str) -> Value:
    """An array, or a tuple of arrays, as a tuple of tensors."""
    arrays = arrays if isinstance(arrays, tuple | list) else (arrays,)
    return tuple(torch.from_numpy(array).to(device) for array in arrays)


def _time_round(
    layers: list[nn.Module], value: Value, targets: Value, loss: Any, clock: Clock
) -> list[tuple[float, float, int]]:
    """Forward seconds, backward seconds and output bytes of each layer."""
    marks = []
    for number, layer in enumerate(layers):
        inputs = tuple(x.detach().requires_grad_(number > 0) if x.is_floating_point() else x for x in value)
        begin = clock.mark()
        value = as_value(layer(*inputs))
        outputs = (loss(*value, *targets),) if number == len(layers) - 1 else value
        middle = clock.mark()
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if differentiable:
            torch.autograd.backward(differentiable, [torch.ones_like(tensor) for tensor in differentiable])
        marks.append((begin, middle, clock.mark(), sum(x.nbytes for x in value)))
        layer.zero_grad(set_to_none=True)
    time = clock.times()
    return [(time(middle) - time(begin), time(end) - time(middle), size) for begin, middle, end, size in marks]
