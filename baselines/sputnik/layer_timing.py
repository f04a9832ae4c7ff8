"""Time of one fully connected layer's products, dense and sparse.

The layer is SAMO's Figure 1: y = x W^T, the input gradient g W and the weight gradient g^T x, with a random kept share
of a square W. There are four implementations: dense with explicit zeros; torch's compressed rows (MKL or
cuSPARSE, where torch calls them); the sparse layer of this package, which transposes activations; and its kernels only,
on activations with features first. Every result is compared with a float64 product before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random
from typing import Any

import torch

from baselines.sputnik import UNTRIED, cpu
from baselines.sputnik.linear import kernels_of
from baselines.sputnik.structure import Structure
from suite import accelerator
from suite.core.errors import RankError
from suite.papers.samo.layer_products import ALONE, CSR, DENSE, PRODUCTS, SPUTNIK, Sweep

Tensor = torch.Tensor
Call = Callable[[], Tensor]
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}  # of the largest value
LONG = 2e-3  # seconds: a shorter product is repeated within one sample
MOST = 50  # repetitions
FLUSHED = 2**30  # bytes that a GPU writes before each timed call


@dataclass(frozen=True)
class Layer:
    """A square weight with explicit zeros (width, width), its kept positions, x and g (batch, width)."""

    weight: Tensor
    index: Tensor
    x: Tensor
    grad: Tensor

    @property
    def values(self) -> Tensor:
        return self.weight.flatten()[self.index]

    def right(self) -> dict[str, Tensor]:
        """The three products in float64."""
        weight, x, grad = self.weight.double(), self.x.double(), self.grad.double()
        products = (x @ weight.t(), grad @ weight, (grad.t() @ x).flatten()[self.index])
        return dict(zip(PRODUCTS, products, strict=True))


Calls = Mapping[str, Mapping[str, Call]]  # a call for each product, by implementation


def layer_of(width: int, *, batch: int, sparsity: float, dtype: torch.dtype, device: str, seed: int) -> Layer:
    """Layer drawn on the host, so that it is equal on every device."""
    draw = torch.Generator().manual_seed(seed)
    entries_kept = round((1 - sparsity) * width * width)
    index = torch.randperm(width * width, generator=draw)[:entries_kept].sort().values
    weight = torch.zeros(width * width)
    weight[index] = torch.randn(entries_kept, generator=draw)
    x, grad = (torch.randn(batch, width, generator=draw) for _ in range(2))
    weight, x, grad = (tensor.to(device, dtype) for tensor in (weight.view(width, width), x, grad))
    return Layer(weight, index.to(device), x, grad)


def implementations_of(layer: Layer) -> tuple[Calls, list[str]]:
    """All implementations with kernels on this device, and notes for readers of the times."""
    csr, notes = torch_csr(layer)
    if accelerator.on_host(layer.weight.device):
        notes = [
            "Sputnik-style on a CPU: torch's kernels in the layer that trains; torch CSR is its plain product",
            UNTRIED,
            *notes,
        ]
    else:
        notes = ["Sputnik-style: Triton kernels after Gale et al. (2020)", *notes]
    weight, x, grad = layer.weight, layer.x, layer.grad
    dense = _calls(lambda: x @ weight.t(), lambda: grad @ weight, lambda: grad.t() @ x)
    return {DENSE: dense, **csr, **sputnik(layer)}, notes


def _calls(*calls: Call) -> dict[str, Call]:
    return dict(zip(PRODUCTS, calls, strict=True))


def torch_csr(layer: Layer) -> tuple[Calls, list[str]]:
    """torch's sparse-dense product and its sampled product, and notes.

    They run in the layer's type, or in float32 with timed conversions where torch has no kernel for that type: its
    sampled product has none in 16 bits, and neither has MKL, which multiplies on a CPU.
    """
    dtype, x, grad = layer.weight.dtype, layer.x, layer.grad
    sampled = dtype if dtype in cpu.SAMPLED else torch.float32
    into = sampled if accelerator.on_host(x.device) else dtype
    size = layer.weight.shape[0]
    structure = Structure(layer.index, outputs=size, inputs=size)
    forward = cpu.matrix(structure.weight, layer.values.to(into))
    backward = cpu.matrix(structure.transposed, layer.values[structure.order.long()].to(into))

    def product(matrix: Tensor, other: Tensor) -> Tensor:
        product_value: Tensor = (matrix @ other.t().to(into)).t().to(dtype)
        return product_value

    sample = partial(cpu.sddmm, structure.weight, grad.t(), x.t())
    kinds = {"products": into, "the sampled product": sampled}
    notes = [
        f"{CSR}: {what} in {kind}, which {dtype} has no kernel for" for what, kind in kinds.items() if kind != dtype
    ]
    calls = _calls(partial(product, forward, x), partial(product, backward, grad), sample)
    return {CSR: calls}, [note.replace("torch.", "") for note in notes]


def sputnik(layer: Layer) -> Calls:
    """The layer as it is trained (linear.py), and its kernels on activations (features, batch)."""
    size, kernels = layer.weight.shape[0], kernels_of(layer.weight.device)
    structure, values = Structure(layer.index, outputs=size, inputs=size), layer.values
    turned, back = layer.x.t().contiguous(), layer.grad.t().contiguous()

    forward = partial(kernels.spmm, structure.weight, values)
    weight = partial(kernels.sddmm, structure.weight, back, turned)

    def into(grad: Tensor) -> Tensor:
        product: Tensor = kernels.spmm(structure.transposed, values.index_select(0, structure.order), grad)
        return product

    whole = _calls(
        lambda: forward(layer.x.t().contiguous()).t().contiguous(),
        lambda: into(layer.grad.t().contiguous()).t().contiguous(),
        weight,  # both of its transposes were made by the other two products
    )
    return {SPUTNIK: whole, ALONE: _calls(lambda: forward(turned).t(), lambda: into(back).t(), weight)}


# -- time ------------------------------------------------------------------------------------------------------------


class CallTimer:
    """Mean seconds of a call on one device over `times` calls. With several calls, one untimed call runs first.

    On a GPU, events measure the device's own time. Before each call the device overwrites a gigabyte. So the call finds
    no operand in the cache, as in training. It is queued in the meantime, so the cost of starting kernels is not
    included. Tests replace `clock` and `flush`.
    """

    def __init__(self, device: str, clock: accelerator.Clock | None = None, flush: Call | None = None) -> None:
        self.clock = clock or accelerator.Clock(torch.device(device))
        self.on_host = accelerator.on_host(device)
        self.flush = flush or torch.empty(0 if self.on_host else FLUSHED, dtype=torch.int8, device=device).zero_

    def seconds(self, call: Call, times: int) -> float:
        if times > 1:  # a short product finds in a CPU's caches what it left there, a long one fills them anew
            call()
        self.clock.restart()
        marks = []
        for _ in range(times):
            self.flush()
            begin = self.clock.mark()
            call()
            marks.append((begin, self.clock.mark()))
        time_of = self.clock.times()
        return sum(time_of(end) - time_of(begin) for begin, end in marks) / times


class LayerTiming:
    """All implementations of the layers of all widths, made and checked when they are first timed."""

    def __init__(
        self, *, widths: Sequence[int], device: str, dtype: str, clock: CallTimer | None = None, **layer: Any
    ) -> None:
        self.widths, self.device, self.layer = widths, device, {**layer, "dtype": getattr(torch, dtype)}
        self.clock = clock or CallTimer(device)
        self.notes: list[str] = []
        self.turn = 0

    def sweep(self, rounds: int) -> Sweep:
        """Seconds of each round by implementation and product, for each width.

        The rounds of the implementations are interleaved in an order that is drawn anew for every round.
        """
        timings: Sweep = {}
        for width in self.widths:
            several, times = self.made[width]
            for name in several:
                for product in PRODUCTS:
                    timings.setdefault(name, {}).setdefault(product, []).append([])
            for number in range(rounds):
                for name in Random(f"{width} {self.turn} {number}").sample([*several], len(several)):
                    for product, call in several[name].items():
                        timings[name][product][-1].append(self.clock.seconds(call, times[product]))
        self.turn += 1
        return timings

    @cached_property
    def made(self) -> dict[int, tuple[Calls, dict[str, int]]]:
        """Implementations of each width, and the repetitions of each product in a sample, equal for all.

        An implementation that cannot be made at one width is left out at all, before any time is taken.
        """
        by_width = {size: self._make(size) for size in self.widths}
        common = set.intersection(*({*several} for several, _ in by_width.values()))
        return {
            size: ({name: calls for name, calls in several.items() if name in common}, times)
            for size, (several, times) in by_width.items()
        }

    def _make(self, width: int) -> tuple[Calls, dict[str, int]]:
        layer = layer_of(width, device=self.device, **self.layer)
        several, notes = implementations_of(layer)
        right, times, whole = layer.right(), dict.fromkeys(PRODUCTS, 1), {}
        for name, calls in several.items():
            try:
                outputs = {product: call() for product, call in calls.items()}
            except RuntimeError as error:
                if name != CSR:  # ours and the dense one have no excuse
                    raise
                notes.append(f"{CSR}, {width} x {width}: {str(error).splitlines()[0]}")
                continue
            for product, call in calls.items():
                check(name, product, layer, outputs[product], right[product])
                quick = self.clock.seconds(call, 1)
                times[product] = max(times[product], min(MOST, math.ceil(LONG / max(quick, 1e-9))))
            whole[name] = calls
        self.notes += [note for note in notes if note not in self.notes]
        return whole, times


def check(name: str, product: str, layer: Layer, found: Tensor, right: Tensor) -> None:
    """Raise RankError for a product that differs from the float64 product by more than the layer's type allows."""
    if found.numel() == layer.weight.numel() != right.numel():
        found = found.flatten()[layer.index]  # a dense weight gradient is whole
    allowed = ALLOWED[layer.weight.dtype]
    off = math.inf
    if found.shape == right.shape and found.dtype == layer.weight.dtype:
        off = float((found.double() - right).abs().max() / right.abs().max())
    if not off <= allowed:
        size = layer.weight.shape[0]
        raise RankError(f"{name}: the {product} at {size} x {size} is off by {off:.2g} of its largest, not {allowed:g}")
