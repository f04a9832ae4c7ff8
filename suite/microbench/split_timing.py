"""Whole and split backward passes of transformer blocks: their times, and the bytes that they hold.

The three ways run on graphs of one stage. "ours" is suite.engine.split_backward, "torch" is stage_backward_input and
stage_backward_weight of torch.distributed.pipelining. Every way is compared with a whole backward pass before it is
timed: ours bit for bit, torch's within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from time import perf_counter
from typing import NamedTuple

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from suite.core.errors import RankError
from suite.core.protocols import Read, Value
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.random_state import drawing
from suite.engine.stage import Stage
from suite.models import gpt
from suite.workload.transformer import Transformer

WHOLE, OURS, TORCH = "whole", "ours", "torch"
_KEEP = Read(0, 0, "keep")
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of the largest entry


class Held(NamedTuple):
    """Bytes of tensors that one microbatch holds: after its forward pass, and after op I (M_B and M_W of the paper)."""

    forward: int
    input: int


class SplitTiming:
    """One stage of transformer blocks, whose backward passes are timed.

    Args:
        width: Hidden size, a multiple of `heads`.
        blocks: Transformer blocks of the stage.
        samples: Samples per microbatch.
    """

    def __init__(
        self,
        width: int,
        *,
        blocks: int,
        heads: int,
        sequence: int,
        samples: int,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        shape = Transformer(blocks, width, heads, sequence, 1)
        layers = []
        for number, make in enumerate(gpt.layers(shape, dtype=dtype)[1:-1]):
            with drawing(seed, number, 0):
                layers.append(make().to(device))
        self.stage = Stage(layers)
        self.device = torch.device(device)
        draw = torch.Generator().manual_seed(seed)
        self.input, self.gradient = (
            torch.randn(samples, sequence, width, generator=draw).to(device, getattr(torch, dtype)) for _ in range(2)
        )
        self.ways: dict[str, Callable[[list[torch.Tensor]], Iterator[Value]]] = {
            WHOLE: self._whole,
            OURS: self._ours,
            TORCH: self._torch,
        }
        self._check()

    # A way takes the gradient of the output out of a list, so that nobody else holds it. It yields after each of its
    # ops, first the gradient of the stage's input.

    def _whole(self, received: list[torch.Tensor]) -> Iterator[Value]:
        yield self.stage.backward(0, (received.pop(),))

    def _ours(self, received: list[torch.Tensor]) -> Iterator[Value]:
        yield self.stage.backward(0, (received.pop(),), whole=False)
        self.stage.weight_gradients(0)
        yield ()

    def _torch(self, received: list[torch.Tensor]) -> Iterator[Value]:
        forward_pass = self.stage.open.pop(0)
        inputs, outputs = list(forward_pass.inputs[0]), list(forward_pass.outputs[0] or ())
        parameters = self.stage.layers.parameters
        del forward_pass
        gradients, groups = stage_backward_input(outputs, [received.pop()], inputs, parameters())
        yield tuple(gradient for gradient in gradients if gradient is not None)
        del inputs, outputs, gradients
        stage_backward_weight(parameters(), groups)
        yield ()

    def _forward(self) -> None:
        self.stage.forward(0, (self.input.clone(),), sample=0, read=_KEEP)

    def _gradients(self, way: str) -> list[torch.Tensor]:
        """Gradients of the input and of all weights."""
        self.stage.layers.zero_grad(set_to_none=True)
        self._forward()
        into = [tensor for value in self.ways[way]([self.gradient]) for tensor in value]
        return into + [p.grad for p in self.stage.layers.parameters() if p.grad is not None]

    def _check(self) -> None:
        """Raises RankError for a way whose gradients differ from those of a whole backward pass."""
        whole = self._gradients(WHOLE)
        for way in (OURS, TORCH):
            allowed = 0.0 if way == OURS else _TOLERANCE[self.gradient.dtype]
            for expected, gradient in zip(whole, self._gradients(way), strict=True):
                difference = (expected - gradient).abs().max()
                if not difference <= allowed * expected.abs().max():
                    raise RankError(f"the split backward pass of way={way} has other gradients than a whole one")

    def sweep(self, rounds: int) -> dict[str, list[list[float]]]:
        """Seconds of each op of each way, one list per op with a sample per round. The order of ways is random."""
        samples: dict[str, list[list[float]]] = {way: [] for way in self.ways}
        for number in range(rounds):
            for way in Random(number).sample(list(self.ways), len(self.ways)):
                self._forward()
                times = self._op_seconds(way)
                samples[way] = [[*old, new] for old, new in zip(samples[way] or [[]] * len(times), times, strict=True)]
        return samples

    def _op_seconds(self, way: str) -> list[float]:
        seconds = []
        start = self._now()
        for _ in self.ways[way]([self.gradient]):
            end = self._now()
            seconds.append(end - start)
            start = end
        return seconds

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def held(self, way: str) -> Held:
        """Bytes that a microbatch holds after its forward pass, and after the first op of the way.

        The messages that the stage receives count, those that it sends do not."""
        self._gradients(way)  # allocates the gradients of weights, which no microbatch holds
        with MemoryTracker() as tracker:
            self._forward()
            forward = tracker.live
            ops = self.ways[way]([self.gradient.clone()])
            next(ops)
            after = tracker.live
            for _ in ops:
                pass
        return Held(forward, after)
