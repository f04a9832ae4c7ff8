"""One stage: forward and backward passes of its layers, and the tensors kept between them.

A value is a tuple of tensors. Every floating tensor of a forward's value has one gradient in the backward's (zeros
where the stage does not use it); integers pass forward only. Loss divisors are the caller's: the stage scales as told.

With activation checkpoints a stage is a chain of segments. A checkpointed layer keeps only its inputs, and its
backward pass recomputes it with the same random numbers. Layers that say `checkpointed = False` (an embedding, a
head) keep their graphs: Equation 3 of AxoNN counts no second pass of a head either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Read, Value
from suite.engine.arguments import named, not_a_mean
from suite.engine.loss_mean_check import MeanCheck
from suite.engine.random_state import EVALUATION, LayerRandom, undisturbed


class Segment(NamedTuple):
    """Consecutive layers of a stage, by their places in it, that are kept or computed again together."""

    layers: range
    again: bool


class _ForwardPass(NamedTuple):
    """Tensors kept from one forward pass for its backward pass."""

    inputs: tuple[Value, ...]  # of each segment
    outputs: tuple[Value | None, ...]  # of each; None: compute it again
    targets: Value
    sample: int
    scale: float


def as_value(item: torch.Tensor | Sequence[torch.Tensor]) -> Value:
    return (item,) if isinstance(item, torch.Tensor) else tuple(item)


def segments(layers: Sequence[nn.Module], interval: int | None) -> tuple[Segment, ...]:
    """A stage's layers in pieces of `interval` that are computed again; one piece that is kept for None.

    Raises InvalidRequest unless the interval divides the stage's layers that may be computed again."""
    if interval is None or not layers:
        return (Segment(range(len(layers)), again=False),)
    may = [getattr(layer, "checkpointed", True) for layer in layers]
    count = sum(may)
    if interval < 1 or count % interval:
        legal = [n for n in range(1, count + 1) if count % n == 0]
        raise InvalidRequest(
            f"checkpoints={interval} on a stage of {count} layers",
            rule="the interval divides the layers of a stage (AxoNN V-A)",
            legal=f"checkpoints={' or '.join(map(str, legal))}, or None",
        )
    segment_list: list[Segment] = []
    start = 0
    while start < len(layers):
        stop = start + 1
        while stop < len(layers) and may[stop] == may[start] and (not may[start] or stop - start < interval):
            stop += 1
        segment_list.append(Segment(range(start, stop), again=may[start]))
        start = stop
    return tuple(segment_list)


class Stage:
    """Consecutive layers of the model, numbered from `first_layer`; the last stage has a `loss`.

    Attributes:
        checkpoints: Layers between activation checkpoints; None keeps every activation.
        scores: Of outputs and targets, numbers that an evaluation tells behind the loss.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        first_layer: int = 0,
        seed: int = 0,
        loss: Callable[..., torch.Tensor] | None = None,
        checkpoints: int | None = None,
        scores: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        self.layers = nn.ModuleList(layers)
        # a layer may say that it draws no random numbers (`draws = False`), which spares seeding before each pass
        drawn = [
            (layer, LayerRandom(seed, number) if getattr(layer, "draws", True) else None)
            for number, layer in enumerate(layers, first_layer)
        ]
        self.loss, self.scores = loss, scores
        self.loss_stream = LayerRandom(seed, first_layer + len(layers))  # of a loss that draws
        self.mean = None if loss is None else MeanCheck(loss)
        self.segments = segments(layers, checkpoints)
        self.parts = [drawn[segment.layers.start : segment.layers.stop] for segment in self.segments]
        self.draws = [any(stream is not None for _, stream in part) for part in self.parts]
        # a first layer such as ReLU(inplace=True): no leaf, kept message or user's batch is its own
        self.writes = [
            bool(s.layers) and any(getattr(module, "inplace", False) for module in layers[s.layers[0]].modules())
            for s in self.segments
        ]
        self.open: dict[int, _ForwardPass] = {}

    def _through(self, number: int, inputs: Value, sample: int) -> Value:
        """Segment `number` of `inputs`."""
        value = tuple(tensor.clone() for tensor in inputs) if self.writes[number] else inputs
        with undisturbed() if self.draws[number] else nullcontext():
            for layer, stream in self.parts[number]:
                if stream is not None:
                    stream.stand_at(sample)
                value = as_value(layer(*value))
        return value

    def _segment(self, number: int, inputs: Value, targets: Value, sample: int, scale: float) -> Value:
        """Segment `number`, and behind the last one the loss."""
        value = self._through(number, inputs, sample)
        if self.loss is None or number + 1 < len(self.segments):
            return value
        loss = self._loss(value, targets, sample)
        return (loss * scale if scale != 1.0 else loss,)

    def _loss(self, outputs: Value, targets: Value, sample: int) -> torch.Tensor:
        assert self.loss is not None
        with undisturbed():
            self.loss_stream.stand_at(sample)
            loss = self.loss(*outputs, *targets)
        if not isinstance(loss, torch.Tensor):
            what = f"loss={named(self.loss)} returns a {type(loss).__name__}"
            rule = "a tensor of one number, the mean over the samples of a microbatch"
            raise InvalidRequest(what, rule=rule, legal="the tensor itself, without .item() or float()")
        if loss.numel() != 1:
            raise not_a_mean(self.loss, f"returns a tensor of shape {tuple(loss.shape)}")
        if self.mean is not None:
            self.mean.look(outputs, targets)
        return loss

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Inside, every module is in evaluation mode; afterwards each has the mode that it had."""
        modes = [(module, module.training) for module in self.layers.modules()]
        try:
            self.layers.eval()
            yield
        finally:
            for module, training in modes:  # train() of a module may do more than set its mode
                if module.training != training:
                    module.train(training)
            for module, training in modes:
                module.training = training

    def _all(self, inputs: Value, targets: Value, sample: int, scale: float) -> tuple[_ForwardPass, Value]:
        """Every segment in turn: what is kept of them, and the stage's output."""
        kept_inputs: list[Value] = []
        kept_outputs: list[Value | None] = []
        value = inputs
        for number, segment in enumerate(self.segments):
            inputs = tuple(_leaf(tensor) if tensor.is_floating_point() else tensor for tensor in value)
            with torch.set_grad_enabled(not segment.again):
                value = self._segment(number, inputs, targets, sample, scale)
            kept_inputs.append(inputs)
            kept_outputs.append(None if segment.again else value)
        return _ForwardPass(tuple(kept_inputs), tuple(kept_outputs), targets, sample, scale), value

    def forward(
        self, index: int, inputs: Value, *, targets: Value = (), sample: int, scale: float = 1.0, read: Read
    ) -> Value:
        """The output of microbatch `index`, in the modes that the modules have; on the last stage the loss times
        `scale`."""
        if read.backward_mode == "recompute":
            value = inputs
            with torch.no_grad():
                for number in range(len(self.segments)):
                    value = self._segment(number, value, targets, sample, scale)
            self.open[index] = _ForwardPass((inputs,), (), targets, sample, scale)
            outputs = value
        else:
            self.open[index], outputs = self._all(inputs, targets, sample, scale)
        return tuple(tensor.detach() for tensor in outputs)

    def backward(self, index: int, gradients: Value) -> Value:
        """The gradients of microbatch `index`'s inputs; weights add theirs to `.grad`. None given on the last stage."""
        passed = self.open.pop(index)
        again = not passed.outputs or None in passed.outputs
        statistics = [(buffer, buffer.clone()) for buffer in self.layers.buffers()] if again else []
        if not passed.outputs:
            passed, _ = self._all(passed.inputs[0], passed.targets, passed.sample, passed.scale)
        inputs, outputs, targets, sample, scale = list(passed.inputs), list(passed.outputs), *passed[2:]
        del passed  # an input, and its gradient, go with their segment
        last = len(self.segments) - 1
        for number in range(last, -1, -1):
            segment_input, segment_output = inputs.pop(), outputs.pop()
            if segment_output is None:
                segment_output = self._segment(number, segment_input, targets, sample, scale)
            gradients = _backward(
                segment_input, segment_output, gradients, ends=self.loss is not None and number == last
            )
            del segment_input, segment_output  # a segment's graph goes before the next one is made
        for buffer, before in statistics:
            buffer.data.copy_(before)  # running statistics count a forward pass once; open graphs must not see it
        return gradients

    @torch.no_grad()
    def evaluate(self, inputs: Value, targets: Value = (), *, sample: int = 0) -> Value:
        """The output, or on the last stage the loss and behind it the scores in one tensor, changing nothing."""
        outputs = self.outputs(inputs, sample=sample)
        if self.loss is None:
            return outputs
        loss = _precise(self._loss(outputs, targets, EVALUATION + sample))
        if self.scores is None:
            return (loss,)
        with undisturbed():
            scores = self.scores(*outputs, *targets)
        if not isinstance(scores, torch.Tensor) or scores.dim() > 1:
            tensor = isinstance(scores, torch.Tensor)
            description = f"tensor of shape {tuple(scores.shape)}" if tensor else type(scores).__name__
            raise InvalidRequest(
                f"scores={named(self.scores)} returns a {description}",
                rule="a flat tensor with a number for each of score_names=",
                legal="torch.stack([...]) of the numbers",
            )
        return (torch.cat([loss.reshape(1), _precise(scores).reshape(-1)]),)  # torch.cat takes the wider type

    @torch.no_grad()
    def outputs(self, inputs: Value, *, sample: int = 0) -> Value:
        """The output in evaluation mode, on the last stage too."""
        value = inputs
        with self._evaluating():
            for number in range(len(self.segments)):
                value = self._through(number, value, EVALUATION + sample)
        return value


def _precise(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers that are summed over microbatches: in float32 at least, and whole numbers (counts) in float64."""
    if not numbers.is_floating_point():
        return numbers.double()
    return numbers if numbers.element_size() >= 4 else numbers.float()


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _backward(inputs: Value, outputs: Value, gradients: Value, *, ends: bool) -> Value:
    """The gradients of `inputs`, of which there is none for an integer. ends: `outputs` is the loss."""
    floating = [tensor for tensor in outputs if tensor.is_floating_point()]
    if ends:
        if not floating or not floating[0].requires_grad:
            rule = (
                "the loss is computed from the outputs by functions that torch differentiates, and some weight trains"
            )
            raise InvalidRequest("a loss without a gradient", rule=rule)
        torch.autograd.backward(floating[0])
    else:
        paired = [(o, g) for o, g in zip(floating, gradients, strict=True) if o.requires_grad]
        torch.autograd.backward([o for o, _ in paired], [g for _, g in paired])
    return tuple(
        torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for tensor in inputs
        if tensor.is_floating_point()
    )
