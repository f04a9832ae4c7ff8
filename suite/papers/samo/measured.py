"""Answers to SAMO's claims on tensors, from runs of the engine on a small network.

The reference is dense masked training: the same engine with dense states and gradients multiplied by masks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from suite.claims.answer import Cases, Question, distinct_cases
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.core.protocols import MaskMethod
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.optimizer import Adam
from suite.engine.pruning.settings import Pruning
from suite.engine.random_state import drawing, initial
from suite.engine.states.compress import compress, expand
from suite.memory.layout import compressed
from suite.papers.measured import Flops, after, before, reductions, tensors_of
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, View, prunable
from suite.pruning.random import RandomMask

HALF = "bfloat16"  # CPUs multiply bfloat16; the paper uses float16
Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class FixedMask(MaskMethod):
    """Mask given in advance."""

    indices: Indices

    def draws_after(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        return {key: self.indices[key] for key in view.keys}


def network() -> list[nn.Module]:
    """A convolution and two linear layers for images of 1 x 5 x 5, with norm and biases.

    All weights have different sizes. Each weight in half precision is larger than any activation of a sample in
    float32.
    """
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
    """View on all prunable weights of a list of layers."""
    keys = [(number, name) for number, layer in enumerate(layers) for name in prunable(layer, "weights")]
    return View(
        layers=list(enumerate(layers)),
        weight=lambda key: layers[key[0]].get_parameter(key[1]).data,
        keys=keys,
        sparsity=sparsity,
        seed=0,
        total=float,
    )


def engine(layers: Sequence[nn.Module], pruning: Pruning | None = None, **options: Any) -> Engine:
    """Engine on copies of `layers` in mixed precision with Adam and microbatches of two, unless options differ."""
    adam: Any = Adam(0.01)
    defaults = {"half": HALF, "microbatch": 2, "check_loss": 0, "world": threads.LoopbackWorld(threads.Hub(1), 0)}
    return Engine(
        copy.deepcopy(list(layers)),
        loss=nn.functional.mse_loss,
        optimizer=adam,
        memory=compressed,
        pruning=pruning,
        **{**defaults, **options},
    )


def masked(layers: Sequence[nn.Module], mask_indices: Indices) -> Engine:
    """Engine of dense masked training: pruned weights start at zero, and their gradients are multiplied by zero."""
    masked_layers = copy.deepcopy(list(layers))
    masks = {}
    for (number, name), index in mask_indices.items():
        weight = masked_layers[number].get_parameter(name)
        mask = torch.zeros(weight.numel()).index_fill_(0, index.long(), 1.0).view(weight.shape)
        weight.data.mul_(mask)
        masks[number, name] = mask
    dense = engine(masked_layers)
    for number, layer in dense.state.numbered_layers():
        for name, weight in layer.named_parameters():
            if (number, name) in masks:
                weight.register_hook(partial(mask_gradient, masks[number, name].to(weight.dtype)))
    return dense


def mask_gradient(mask: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * mask


def twins(sparsity: float = 0.75, batches: int = 5) -> tuple[Engine, Engine]:
    """Engines of dense masked training and of SAMO after the same batches."""
    layers = network()
    mask = Magnitude().draw(view(layers, sparsity))
    engines = masked(layers, mask), engine(layers, Pruning(FixedMask(mask), sparsity))
    for number in range(batches):
        for trained in engines:
            trained.train_batch(batch(number))
    return engines


def forward(question: Question, source: Any) -> Cases:
    """Outputs in bfloat16 of a small network after five batches of dense masked training and of SAMO."""
    (inputs, _), engines = batch(99), twins()
    with torch.no_grad():
        dense, samo = (
            nn.Sequential(*trained.state.stage.layers)(inputs.to(getattr(torch, HALF))) for trained in engines
        )
    return distinct_cases(_paired(dense, samo))


def optimizer(question: Question, source: Any) -> Cases:
    """Weights of a small network after five steps of Adam, in full precision and in bfloat16."""
    dense, samo = twins()
    pairs: Pairs = []
    for first, second in zip(dense.state.model_states.parameters, samo.state.model_states.parameters, strict=True):
        states = ((dense.state.model_states, first), (samo.state.model_states, second))
        full = [state.dense(state.rule.weights[0], parameter) for state, parameter in states]
        pairs += _paired(*full) + _paired(first.detach(), second.detach())
    return distinct_cases(pairs)


def inverse(question: Question, source: Any) -> Cases:
    """Entries of tensors of one, two and four dimensions, and the expansion of their compressed values.

    The tensors are zero outside their index.
    """
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
    return distinct_cases(pairs)


def _paired(first: torch.Tensor, second: torch.Tensor) -> Pairs:
    return list(zip(first.double().flatten().tolist(), second.double().flatten().tolist(), strict=True))


class _Gradients(MemoryTracker):
    """Live bytes of tensors of at least `least` bytes that backward passes allocate: gradients of whole weights."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.within = least, False

    def _count(self, tensor: torch.Tensor) -> None:
        if self.within and tensor.is_floating_point() and tensor.untyped_storage().nbytes() >= self.least:
            super()._count(tensor)


def dense_gradients(microbatches: int) -> tuple[int, int]:
    """Peak of the uncompressed gradients of pruned weights during a batch, and size of the largest layer, in bytes.

    With microbatches of one, all other tensors of a backward pass are smaller than the smallest weight in half
    precision."""
    samo = engine(network(), Pruning(Magnitude(), 0.75), microbatch=1)
    sizes = {
        p.numel() * p.element_size()
        for p in samo.state.model_states.parameters
        if id(p) in samo.state.model_states.kept
    }
    counted = _Gradients(min(sizes))
    before(samo.state.stage, "backward", lambda *_, **__: vars(counted).update(within=True))
    after(samo.state.stage, "backward", lambda *_, **__: vars(counted).update(within=False))
    with counted:
        samo.train_batch(batch(0, microbatches))
    return counted.peak, max(sizes)


def shared_index(question: Question, source: Any) -> Cases:
    """Counted in the states of a convolution and two linear layers.

    An index tensor of a pruned weight is an integer tensor as long as its unpruned entries.
    """
    state = engine(network(), Pruning(Magnitude(), 0.5)).state.model_states
    tensors = {(t.data_ptr(), t.numel()) for t in tensors_of(vars(state)) if not t.is_floating_point()}
    return [[sum(entries == index.numel() for _, entries in tensors)] for index in state.kept.values()]


def same_flops(question: Question, source: Any) -> Cases:
    """Counted as torch dispatches the products of a batch, without pruning and with SAMO."""

    def counted(pruning: Pruning | None) -> int:
        trained = engine(network(), pruning)
        with Flops() as counter:
            trained.train_batch(batch(0))
        return int(counter.total)

    return [[counted(None), counted(Pruning(Magnitude(), 0.75))]]


def reduced_bytes(density: float, entries: int) -> int:
    """Bytes that one of two replicas passes to all-reduces in a batch, for `entries` prunable weights in bfloat16."""
    width = max(side for side in range(1, int(entries**0.5) + 1) if entries % side == 0)

    def rank(world: Any) -> int:
        layer = nn.Linear(width, entries // width, bias=False)
        replica = engine([layer], Pruning(RandomMask(), 1 - density), world=world, grid=Grid(data=2), microbatch=1)
        sizes = reductions(replica)
        replica.train_batch((torch.ones(2, width), torch.ones(2, entries // width)))
        return sum(sizes)

    first, second = threads.run(2, rank)
    assert first == second
    return int(first)


# -- indices ---------------------------------------------------------------------------------------------------------


def indices_of(entries: Sequence[tuple[int, int]], columns: int) -> list[int]:
    """Linear indices of the unpruned `entries` (row, column) in a tensor with `columns` columns."""
    layer = nn.Linear(columns, max(row for row, _ in entries) + 1, bias=False)
    layer.weight.data.zero_()
    for row, column in entries:
        layer.weight.data[row, column] = 1.0
    mask = Magnitude().draw(view([layer], 1 - len(entries) / layer.weight.numel()))
    return [int(index) for index in mask[0, "weight"].tolist()]


def index_ratio(dimensions: int, entries: int) -> float:
    """Bytes of 4-byte coordinates over those of a random mask's linear index, for `entries` unpruned entries."""
    side = 2
    while side**dimensions < 2 * entries:
        side += 1
    tensor = torch.zeros((side,) * dimensions)
    key = (0, "tensor")
    share = 1 - entries / tensor.numel()
    index = RandomMask().draw(View([], lambda _: tensor, [key], share, 0, float))[key]
    expand(torch.ones(index.numel()), index, tensor)
    return tensor.nonzero().int().nbytes / index.nbytes


# -- answers -----------------------------------------------------------------------------------------------------------


def example(question: Question, source: Any) -> Cases:
    """Linear indices of the points. Points of the same width are entries of one tensor, as in the published example.
    Mask of a tensor whose other entries are zero.
    """
    entries: dict[int, list[tuple[int, int]]] = {}
    for point in question.points:
        entries.setdefault(int(point["columns"]), []).append((int(point["row"]), int(point["column"])))
    return [[index for columns, unpruned in entries.items() for index in indices_of(unpruned, columns)]]


def layerwise(question: Question, source: Any) -> Cases:
    """Counted at allocation, with 1, 2 and 4 microbatches."""
    return [(1, *dense_gradients(count)) for count in (1, 2, 4)]
