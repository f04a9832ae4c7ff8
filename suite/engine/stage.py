"""One pipeline stage: forward and backward passes of its layers, and the tensors kept between them.

A value is a tuple of tensors. Every floating tensor of a forward value has a gradient in the backward value (zeros if
the stage does not use the tensor); integer tensors pass forward only. The caller sets the divisor of the loss, and
divides by the `weight` of a loss that is a pair (sum, count).

With activation checkpointing a stage is a sequence of segments. A checkpointed segment keeps only its inputs, and its
backward pass recomputes it with the same random numbers. Layers with `checkpointed = False` (an embedding, a head)
keep their graphs: Equation 3 of AxoNN counts no recomputation of a head either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Read, Value
from suite.engine.guards.user_calls import call_loss, layer_note, output_tensors
from suite.engine.guards.user_state import check_graph, modules_of
from suite.engine.losses import Loss, read_loss, unit_of
from suite.engine.random_state import EVALUATION, HostRandom, LayerRandom, undisturbed
from suite.engine.split_backward import OwedGradients
from suite.engine.torch_api.structure import OutputStructure, Targets

RunGraph = Callable[[list[torch.Tensor], list[torch.Tensor | None]], None]  # (outputs, their gradients)


_WRITES_LEAF = "leaf Variable that requires grad is being used in an in-place operation"


class Segment(NamedTuple):
    """Consecutive layers of a stage, by their positions in it.

    Attributes:
        recomputed: Whether the backward pass recomputes the segment, and its activations are not kept.
    """

    layers: range
    recomputed: bool


class _ForwardPass(NamedTuple):
    """Tensors kept from a forward pass for its backward pass.

    Attributes:
        inputs: Inputs of each segment.
        outputs: Outputs of each segment; None if the segment is recomputed. Empty if the whole stage is recomputed.
        random: State of the host's random numbers before each segment that is recomputed.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value | None, ...]
    targets: Targets
    sample: int
    scale: float
    random: Sequence[Sequence[Any]]


def as_value(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Value:
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def counts_as_block(layer: nn.Module) -> bool:
    """Whether activation checkpoints count the layer, as it states with `checkpointed`."""
    return bool(getattr(layer, "checkpointed", True))


def segments(layers: Sequence[nn.Module], interval: int | None) -> tuple[Segment, ...]:
    """Segments of `interval` layers that are recomputed; for None one segment that is kept.

    Raises InvalidRequest unless the interval divides the number of layers that may be recomputed."""
    if interval is None or not layers:
        return (Segment(range(len(layers)), recomputed=False),)
    may_recompute = [counts_as_block(layer) for layer in layers]
    count = sum(may_recompute)
    if interval < 1 or count % interval:
        legal = [n for n in range(1, count + 1) if count % n == 0]
        raise InvalidRequest(
            f"activation_checkpointing={interval} on a stage of {count} layers",
            rule="the interval divides the layers of a stage (AxoNN V-A)",
            legal=f"activation_checkpointing={' or '.join(map(str, legal))}, or None",
        )
    segment_list: list[Segment] = []
    start = 0
    while start < len(layers):
        stop, recomputed = start + 1, may_recompute[start]
        while stop < len(layers) and may_recompute[stop] == recomputed and (not recomputed or stop - start < interval):
            stop += 1
        segment_list.append(Segment(range(start, stop), recomputed=recomputed))
        start = stop
    return tuple(segment_list)


class Stage:
    """Consecutive layers of the model.

    Attributes:
        first_layer: Number of the first layer in the whole model.
        loss: Loss of the last stage; None on other stages.
        checkpoint_interval: Layers between activation checkpoints; None keeps every activation.
        scores: scores(*outputs, *targets) -> numbers that an evaluation returns after the loss.
        structure: Structure of the model's output, which the loss and the scores get; None for separate outputs.
        divides: Whether a pair (sum, count) is divided at once, because each microbatch makes an update.
        weight: Count of the last microbatch: in training relative to its entries, None for a loss that is a mean.
        observe: Called with outputs, targets and loss of the next microbatch, once.
        reads_batch: Whether the inputs are those of a batch, to which a forward may write.
        foreign: Names of weights that other ranks train, by id; the first loss may not hold them.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        first_layer: int = 0,
        seed: int = 0,
        loss: Callable[..., torch.Tensor] | None = None,
        checkpoint_interval: int | None = None,
        scores: Callable[..., torch.Tensor] | None = None,
        structure: OutputStructure | None = None,
        divides: bool = False,
        reads_batch: bool = False,
    ) -> None:
        self.layers, self.first_layer = nn.ModuleList(layers), first_layer
        # a layer or a loss with `draws = False` needs no seed before each pass
        layers_with_random = [
            (layer, LayerRandom(seed, number) if _draws(layer) else None)
            for number, layer in enumerate(layers, first_layer)
        ]
        self.loss, self.scores, self.structure = loss, scores, structure
        self.loss_draws = _draws(loss)
        self.loss_random = LayerRandom(seed, first_layer + len(layers))
        self.divides, self.reads_batch = divides, reads_batch
        self.weight: torch.Tensor | None = None
        self.observe: Callable[[Value, Targets, Loss], None] | None = None
        self.foreign: Mapping[int, str] = {}
        self.segments = segments(layers, checkpoint_interval)
        self.segment_layers = [layers_with_random[s.layers.start : s.layers.stop] for s in self.segments]
        self.draws = [any(random is not None for _, random in layers) for layers in self.segment_layers]
        # a segment such as ReLU(inplace=True) must not write to a leaf, a received message or the user's batch; its
        # first pass in each mode shows whether it does
        self.writes_input: dict[tuple[int, bool], bool] = {}
        self.host_random = HostRandom(module for layer in layers for module in modules_of(layer))
        self.open: dict[int, _ForwardPass] = {}
        self.owed_gradients = OwedGradients()

    def _run_layers(self, number: int, inputs: Value, sample: int) -> Value:
        """Output of the layers of segment `number`.

        A segment that writes to its input, as its first pass in each mode shows, computes with copies of it: a leaf, a
        received message and an input that is read again keep their values. The rows of a batch have no gradient then,
        and are written to where they are not read again, as in a plain script.
        """
        of_batch, key = self.reads_batch and number == 0, (number, self.layers.training)
        writes = self.writes_input.get(key)
        if writes:
            if of_batch:
                inputs = tuple(tensor.data for tensor in inputs)
            if not of_batch or not torch.is_grad_enabled():
                inputs = tuple(tensor.clone() for tensor in inputs)
            return self._call_layers(number, inputs, sample)
        kept = [] if torch.is_grad_enabled() or writes is False else [tensor.clone() for tensor in inputs]
        versions, drawn = [tensor._version for tensor in inputs], self.host_random.state() if writes is None else []
        try:
            value = self._call_layers(number, inputs, sample)
        except RuntimeError as error:
            if writes is not None or _WRITES_LEAF not in str(error):
                raise
            value = ()
            self.host_random.restore(drawn)
        self.writes_input[key] = not value or versions != [tensor._version for tensor in inputs]
        if not self.writes_input[key]:
            return value
        if writes is False or (len(inputs) > 1 and not of_batch):
            raise InvalidRequest(
                f"{type(self.segment_layers[number][0][0]).__name__}, which writes to its input",
                rule="such a layer writes in every pass, and is the only one to which the input goes",
                legal="a clone of the input in the forward, or Grid() without activation_checkpointing",
            )
        if not value:
            return self._run_layers(number, inputs, sample)
        if not torch.is_grad_enabled():  # the input is read again, and what the segment returns may be the input itself
            value = tuple(tensor.clone() for tensor in value)
            for tensor, before in zip(inputs, kept, strict=True):
                tensor.copy_(before)
        return value

    def _call_layers(self, number: int, value: Value, sample: int) -> Value:
        with undisturbed() if self.draws[number] else nullcontext():
            first = self.first_layer + self.segments[number].layers.start
            for number_of_layer, (layer, random) in enumerate(self.segment_layers[number], first):
                if random is not None:
                    random.set_generators(sample)
                try:
                    output = layer(*value)
                except Exception as error:
                    error.add_note(layer_note(layer, number_of_layer, value))
                    raise
                is_tensor = isinstance(output, torch.Tensor)
                value = (output,) if is_tensor else output_tensors(layer, number_of_layer, output)
        return value

    def _run_segment(self, number: int, inputs: Value, targets: Targets, sample: int, scale: float) -> Value:
        """Output of segment `number`; for the last one of the model the scaled loss."""
        value = self._run_layers(number, inputs, sample)
        if self.loss is None or number + 1 < len(self.segments):
            return value
        loss = self._compute_loss(value, targets, sample)
        total, count = loss.total, loss.count
        if self.foreign and total.requires_grad:
            check_graph(total, self.foreign)
            self.foreign = {}
        self.weight = count
        if count is not None and self.divides:
            total = total / torch.where(count == 0, 1.0, count).to(total.dtype)
        elif count is not None:
            unit = unit_of(value, targets)
            self.weight, scale = count / unit, scale / unit
        return (total * scale if scale != 1.0 else total,)

    def _compute_loss(self, outputs: Value, targets: Targets, sample: int) -> Loss:
        assert self.loss is not None
        with undisturbed() if self.loss_draws else nullcontext():
            if self.loss_draws:
                self.loss_random.set_generators(sample)
            loss = read_loss(self.loss, call_loss("loss", self.loss, outputs, targets, self.structure))
        if self.observe is not None:
            observe, self.observe = self.observe, None  # a recomputation is not observed again
            observe(outputs, targets, loss)
        return loss

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Context in which every module is in evaluation mode; it restores the mode of each."""
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

    def _run_forward(self, inputs: Value, targets: Targets, sample: int, scale: float) -> tuple[_ForwardPass, Value]:
        """Run all segments. Returns the tensors to keep, and the stage's output."""
        kept_inputs: list[Value] = []
        kept_outputs: list[Value | None] = []
        random: list[list[Any]] = []
        value = inputs
        for number, segment in enumerate(self.segments):
            inputs = tuple(_leaf(tensor) if has_gradient(tensor) else tensor for tensor in value)
            random.append(self.host_random.state() if segment.recomputed else [])
            with torch.set_grad_enabled(not segment.recomputed):
                value = self._run_segment(number, inputs, targets, sample, scale)
            kept_inputs.append(inputs)
            kept_outputs.append(None if segment.recomputed else value)
        return _ForwardPass(tuple(kept_inputs), tuple(kept_outputs), targets, sample, scale, random), value

    def forward(
        self, index: int, inputs: Value, *, targets: Targets = (), sample: int, scale: float = 1.0, read: Read
    ) -> Value:
        """Output of microbatch `index`, in the current modes of the modules; on the last stage the loss times
        `scale`."""
        if self.reads_batch:  # rows with a version of their own: a write to them is none to those of other microbatches
            inputs = tuple(tensor.data for tensor in inputs)
        if read.backward_mode == "recompute":
            outputs, random = inputs, [self.host_random.state()]
            with torch.no_grad():
                for number in range(len(self.segments)):
                    outputs = self._run_segment(number, outputs, targets, sample, scale)
            self.open[index] = _ForwardPass((inputs,), (), targets, sample, scale, random)
        else:
            self.open[index], outputs = self._run_forward(inputs, targets, sample, scale)
        return tuple(tensor.detach() for tensor in outputs)

    def backward(self, index: int, gradients: Value, *, whole: bool = True) -> Value:
        """Gradients of the inputs of microbatch `index`; gradients of weights are added to `.grad`.

        Args:
            gradients: Gradients of the outputs; empty on the last stage.
            whole: Whether this is op B. Op I leaves weight gradients that can wait to `owed_gradients`.
        """
        run = torch.autograd.backward if whole else self._split(index)
        forward_pass = self.open.pop(index)
        recomputes = not forward_pass.outputs or None in forward_pass.outputs
        statistics = [(buffer, buffer.clone()) for buffer in self.layers.buffers()] if recomputes else []
        if not forward_pass.outputs:
            inputs, random = forward_pass.inputs[0], forward_pass.random[0]
            with self.host_random.again(random):
                forward_pass, _ = self._run_forward(
                    inputs, forward_pass.targets, forward_pass.sample, forward_pass.scale
                )
            del inputs
        segment_inputs, segment_outputs = list(forward_pass.inputs), list(forward_pass.outputs)
        targets, sample, scale = forward_pass.targets, forward_pass.sample, forward_pass.scale
        states = forward_pass.random
        del forward_pass  # each segment's tensors are freed after its backward pass
        last = len(self.segments) - 1
        for number in range(last, -1, -1):
            inputs, outputs = segment_inputs.pop(), segment_outputs.pop()
            if outputs is None:
                with self.host_random.again(states[number]):
                    outputs = self._run_segment(number, inputs, targets, sample, scale)
            gradients = _backward(inputs, outputs, gradients, run, is_loss=self.loss is not None and number == last)
            del inputs, outputs  # frees a segment's graph before the next one is recomputed
        for buffer, before in statistics:
            buffer.data.copy_(before)  # running statistics count a forward pass once; .data hides this from graphs
        return gradients

    def _split(self, index: int) -> RunGraph:
        """The backward pass of a graph as part of op I of microbatch `index`."""
        self.owed_gradients.open(index)
        return partial(self.owed_gradients.backward, index)

    @torch.no_grad()
    def evaluate(self, inputs: Value, targets: Targets = (), *, sample: int = 0) -> Value:
        """Output in evaluation mode; on the last stage one tensor with the loss, followed by the scores."""
        outputs = self.outputs(inputs, sample=sample)
        if self.loss is None:
            return outputs
        found = self._compute_loss(outputs, targets, EVALUATION + sample)
        loss, self.weight = _for_summing(found.total), found.count
        if self.scores is None:
            return (loss,)
        with undisturbed():
            scores = torch.as_tensor(call_loss("scores", self.scores, outputs, targets, self.structure))
        return (torch.cat([loss.reshape(1), _for_summing(scores).reshape(-1)]),)  # torch.cat takes the wider dtype

    @torch.no_grad()
    def outputs(self, inputs: Value, *, sample: int = 0) -> Value:
        """Output of the layers in evaluation mode, without the loss."""
        value = inputs
        with self._evaluation_mode():
            for number in range(len(self.segments)):
                value = self._run_layers(number, value, EVALUATION + sample)
        return value


def _for_summing(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers in a dtype for sums over microbatches: at least float32, and float64 for integers (counts)."""
    if not numbers.is_floating_point():
        return numbers.double()
    return numbers if numbers.element_size() >= 4 else numbers.float()


def _draws(function: object) -> bool:
    """Whether a layer or a loss may use random numbers."""
    return bool(getattr(function, "draws", True))


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor have gradients: real and complex ones do, whole numbers do not."""
    return tensor.is_floating_point() or tensor.is_complex()


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _backward(inputs: Value, outputs: Value, gradients: Value, run: RunGraph, *, is_loss: bool) -> Value:
    """Gradients of the floating tensors of `inputs`. With `is_loss`, `outputs` is the loss.

    Args:
        run: `torch.autograd.backward`, or the part of it that op I runs.
    """
    floating = [tensor for tensor in outputs if has_gradient(tensor)]
    if is_loss:
        if not floating or not floating[0].requires_grad:
            raise InvalidRequest(
                "a loss without a gradient",
                rule="the loss is computed from the outputs by differentiable functions, and some weight is trained",
            )
        run([floating[0]], [None])
    else:
        pairs = [(o, g) for o, g in zip(floating, gradients, strict=True) if o.requires_grad]
        run([o for o, _ in pairs], [g for _, g in pairs])
    return tuple(
        torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in inputs if has_gradient(tensor)
    )
