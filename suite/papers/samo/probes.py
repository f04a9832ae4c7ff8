"""Probes for SAMO's claims on tensors, in runs of the engine on a small network.

The reference is dense masked training: the same engine with every state dense and gradients multiplied by masks.
Nothing here knows what the paper says of these numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.protocols import Group, MaskMethod
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.optimizer import Adam
from suite.engine.pruning import Pruning
from suite.engine.random_state import drawing, initial
from suite.engine.states.compress import compress, expand
from suite.memory.layout import compressed
from suite.papers.common.probes import Flops, ReducedBytes, tensors_of
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, View, prunable
from suite.pruning.random import RandomMask

HALF = "bfloat16"  # what a processor multiplies; the paper has float16
Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class FixedMask(MaskMethod):
    """A ticket that is known already."""

    indices: Indices

    def due(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        return {key: self.indices[key] for key in view.keys}


def network() -> list[nn.Module]:
    """A convolution and two linear layers for images of 1 x 5 x 5, with norm and biases; no two weights of one size,
    and each in half precision larger than any activation of a sample in full."""
    with drawing(*initial(0, 0)):
        return [
            nn.Sequential(nn.Conv2d(1, 6, 4), nn.ReLU(), nn.Flatten()),
            nn.Sequential(nn.Linear(24, 7), nn.LayerNorm(7), nn.Tanh()),
            nn.Linear(7, 15),
        ]


def batch(number: int, samples: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, 1, 5, 5, generator=generator), torch.randn(samples, 15, generator=generator)


def view(layers: Sequence[nn.Module], sparsity: float) -> View:
    """All of a list of layers."""
    keys = [(number, name) for number, layer in enumerate(layers) for name in prunable(layer, "weights")]
    return View(
        layers=list(enumerate(layers)),
        weight=lambda key: layers[key[0]].get_parameter(key[1]).data,
        keys=keys,
        sparsity=sparsity,
        seed=0,
        total=float,
    )


def engine(layers: Sequence[nn.Module], pruning: Pruning | None = None, **told: Any) -> Engine:
    """In mixed precision with Adam, microbatches of two; `layers` stay as they are."""
    adam: Any = Adam(0.01)
    usual = {"half": HALF, "microbatch": 2, "world": threads.LoopbackWorld(threads.Hub(1), 0)}
    return Engine(
        copy.deepcopy(list(layers)),
        loss=nn.functional.mse_loss,
        optimizer=adam,
        memory=compressed,
        pruning=pruning,
        **{**usual, **told},
    )


def masked(layers: Sequence[nn.Module], ticket: Indices) -> Engine:
    """Dense masked training: the weights begin with zeros, and so does each gradient where they stand."""
    begun = copy.deepcopy(list(layers))
    masks = {}
    for (number, name), index in ticket.items():
        weight = begun[number].get_parameter(name)
        mask = torch.zeros(weight.numel()).index_fill_(0, index.long(), 1.0).view(weight.shape)
        weight.data.mul_(mask)
        masks[number, name] = mask
    dense = engine(begun)
    for number, layer in dense.state.numbered_layers():
        for name, weight in layer.named_parameters():
            if (number, name) in masks:
                weight.register_hook(partial(_masked, masks[number, name].to(weight.dtype)))
    return dense


def _masked(mask: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * mask


def twins(sparsity: float = 0.75, batches: int = 5) -> tuple[Engine, Engine]:
    """Dense masked training and SAMO's, after the same batches."""
    layers = network()
    ticket = Magnitude().draw(view(layers, sparsity))
    both = masked(layers, ticket), engine(layers, Pruning(FixedMask(ticket), sparsity))
    for number in range(batches):
        for one in both:
            one.train_batch(batch(number))
    return both


def outputs() -> Pairs:
    """Outputs of both for a new batch, entry by entry."""
    (inputs, _), both = batch(99), twins()
    with torch.no_grad():
        dense, samo = (nn.Sequential(*one.state.stage.layers)(inputs.to(getattr(torch, HALF))) for one in both)
    return _paired(dense, samo)


def updated() -> Pairs:
    """The full-precision weights of both, entry by entry, then those that passes read."""
    dense, samo = twins()
    pairs: Pairs = []
    for first, second in zip(dense.state.model_states.parameters, samo.state.model_states.parameters, strict=True):
        states = ((dense.state.model_states, first), (samo.state.model_states, second))
        full = [state.dense(state.rule.weights[0], parameter) for state, parameter in states]
        pairs += _paired(*full) + _paired(first.detach(), second.detach())
    return pairs


def expanded() -> Pairs:
    """Tensors that are zero user_values their index, compared with the expansion of their compressed values."""
    generator = torch.Generator().manual_seed(0)
    pairs: Pairs = []
    for shape in ((40,), (5, 8), (3, 2, 2, 3)):
        tensor = torch.randn(shape, generator=generator)
        index = torch.randperm(tensor.numel(), generator=generator)[: tensor.numel() // 4].sort().values.int()
        user_values = torch.ones(tensor.numel(), dtype=torch.bool).index_fill_(0, index.long(), False)
        tensor[user_values.view(shape)] = 0.0
        back = torch.zeros(shape)
        expand(compress(tensor, index), index, back)
        pairs += _paired(tensor, back)
    return pairs


def _paired(one: torch.Tensor, other: torch.Tensor) -> Pairs:
    return list(zip(one.double().flatten().tolist(), other.double().flatten().tolist(), strict=True))


class _Gradients(MemoryTracker):
    """Bytes alive of what backward passes make, of `least` bytes and more: gradients of whole weights, in any type."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.within = least, False

    def _count(self, tensor: torch.Tensor) -> None:
        if self.within and tensor.is_floating_point() and tensor.untyped_storage().nbytes() >= self.least:
            super()._count(tensor)

    def during(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.within = True
            try:
                return work(*args, **kwargs)
            finally:
                self.within = False

        return watched


def dense_gradients(microbatches: int) -> tuple[int, int]:
    """The maximum of bytes of uncompressed gradients of pruned weights during a batch, and the bytes of the largest
    layer.

    With microbatches of one, nothing else that a backward pass makes is as large as the smallest weight in half
    precision: gradients of activations are not, nor what is kept of a weight, in either precision."""
    samo = engine(network(), Pruning(Magnitude(), 0.75), microbatch=1)
    sizes = {
        p.numel() * p.element_size()
        for p in samo.state.model_states.parameters
        if id(p) in samo.state.model_states.kept
    }
    counted, stage = _Gradients(min(sizes)), samo.state.stage
    stage.backward = counted.during(stage.backward)  # type: ignore[method-assign]
    with counted:
        samo.train_batch(batch(0, microbatches))
    return counted.peak, max(sizes)


def index_tensors() -> list[int]:
    """Of each pruned weight the index tensors that its states are held with: integer tensors with as many entries as
    are kept, each place in memory once."""
    state = engine(network(), Pruning(Magnitude(), 0.5)).state.model_states
    tensors = {(t.data_ptr(), t.numel()) for t in tensors_of(vars(state)) if not t.is_floating_point()}
    return [sum(entries == index.numel() for _, entries in tensors) for index in state.kept.values()]


def flops() -> tuple[int, int]:
    """Of a batch's products as torch dispatches them, forward and backward: without pruning, and with SAMO."""
    counts = []
    for pruning in (None, Pruning(Magnitude(), 0.75)):
        one = engine(network(), pruning)
        with Flops() as counter:
            one.train_batch(batch(0))
        counts.append(counter.total)
    return counts[0], counts[1]


def reduced_bytes(density: float, entries: int) -> int:
    """Of the buffer that one of two replicas reduces in a batch, of a network with so many entries, all prunable."""
    width = max(side for side in range(1, int(entries**0.5) + 1) if entries % side == 0)

    def rank(world: Any) -> int:
        layer = nn.Linear(width, entries // width, bias=False)
        one = engine([layer], Pruning(RandomMask(), 1 - density), world=world, grid=Grid(data=2), microbatch=1)
        counted = ReducedBytes(one.state.update.data_parallel_group)
        one.state.update.data_parallel_group = cast(
            "Group", counted
        )  # one rank of two reduces, and exchanges nothing else
        one.train_batch((torch.ones(2, width), torch.ones(2, entries // width)))
        return counted.bytes

    first, second = threads.run(2, rank)
    assert first == second
    return int(first)


# -- indices ---------------------------------------------------------------------------------------------------------


def indices_of(entries: Sequence[tuple[int, int]], columns: int) -> list[int]:
    """The rising indices of a ticket of one tensor with `columns` columns: the `entries` (row, column) stay."""
    layer = nn.Linear(columns, max(row for row, _ in entries) + 1, bias=False)
    layer.weight.data.zero_()
    for row, column in entries:
        layer.weight.data[row, column] = 1.0
    ticket = Magnitude().draw(view([layer], 1 - len(entries) / layer.weight.numel()))
    return [int(index) for index in ticket[0, "weight"].tolist()]


def index_bytes(dimensions: int, entries: int) -> tuple[int, int]:
    """Bytes of one coordinate per dimension, of 4 each, and of a ticket's index, for so many entries of a tensor."""
    side = 2
    while side**dimensions < 2 * entries:
        side += 1
    tensor = torch.zeros((side,) * dimensions)
    key = (0, "tensor")
    share = 1 - entries / tensor.numel()
    drawn = RandomMask().draw(View([], lambda _: tensor, [key], share, 0, float))[key]
    expand(torch.ones(drawn.numel()), drawn, tensor)
    coordinates = tensor.nonzero().int()
    return coordinates.numel() * coordinates.element_size(), drawn.numel() * drawn.element_size()
