"""Profile each layer alone: seconds of its forward and backward pass.

PipeDream's rule (suite.workload.pipedream_split) wants one number per layer, so a layer is given what the layer
before it passes on, cut off from that layer's graph, and gradients of ones. The last layer's passes have the loss in
them. The median of a few rounds is taken: a round goes through all layers, so that a slow moment does not fall on
one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.protocols import Value
from suite.engine.layers import make
from suite.engine.process_setup import now
from suite.engine.stage import as_value
from suite.engine.system import network
from suite.workload.pipedream_split import Profile


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer, per microbatch.

    Attributes:
        forward, backward: Seconds.
        output: Bytes passed on.
        weights: Bytes of parameters.
    """

    name: str
    forward: float
    backward: float
    output: int
    weights: int


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """A network's layers in order, timed with microbatches of `microbatch`; bandwidth: bytes/s between devices."""

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
        """As `split=FILE` reads it."""
        write_atomically(path, f"{json.dumps(asdict(self), indent=1)}\n".encode())


def measure(config: RunConfig, *, bandwidth: float, rounds: int = 5) -> NetworkProfile:
    """The layers of the config's model on its own data, on this process's CPU with `launch.threads` threads; one round
    more than `rounds` is run and left out, which allocates. Raises InvalidRequest for a number of rounds below 1."""
    if rounds < 1:
        raise InvalidRequest(f"{rounds} rounds", rule="at least 1", legal="5")
    model, shape, module, microbatch = config.model, config.network(), network(config), config.batch.microbatch
    batch = config.data.source.build().batch(0, size=microbatch, seed=config.seed, shape=shape)
    inputs, targets = (_tensors(part) for part in batch)
    makers = module.layers(shape, dropout=model.dropout, dtype=model.dtype)
    layers, _ = make(makers, range(len(makers)), config.seed)
    for layer in layers:
        layer.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(config.launch.threads)
    try:
        timings = [_round(layers, inputs, targets, module.loss) for _ in range(1 + rounds)][1:]
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
                median(one[number][0] for one in timings),
                median(one[number][1] for one in timings),
                timings[0][number][2],
                sum(weight.numel() * weight.element_size() for weight in layers[number].parameters()),
            )
            for number, name in enumerate(names)
        ),
    )


def _tensors(part: Any) -> Value:
    """An array, or a tuple of arrays, as torch sees them."""
    arrays = part if isinstance(part, tuple | list) else (part,)
    return tuple(torch.from_numpy(array) for array in arrays)


def _round(layers: list[nn.Module], value: Value, targets: Value, loss: Any) -> list[tuple[float, float, int]]:
    """Seconds forward, seconds backward and bytes passed on, of each layer once."""
    timings = []
    for number, layer in enumerate(layers):
        entered = tuple(
            part.detach().requires_grad_(number > 0) if part.is_floating_point() else part for part in value
        )
        begin = now()
        value = as_value(layer(*entered))
        outputs = (loss(*value, *targets),) if number == len(layers) - 1 else value
        middle = now()
        moving = [part for part in outputs if part.requires_grad]
        if moving:
            torch.autograd.backward(moving, [torch.ones_like(part) for part in moving])
        timings.append((middle - begin, now() - middle, sum(part.numel() * part.element_size() for part in value)))
        layer.zero_grad(set_to_none=True)
    return timings
