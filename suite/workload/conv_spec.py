"""Parameters, flops and bytes of convolution and pooling layers.

A list of steps describes a network like AlexNet or Inception. This module counts over these steps as torch's automatic
differentiation runs them, and suite.models.chain builds modules from the same list. Branches read one input, and their
outputs are concatenated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from suite.core.errors import InvalidRequest
from suite.workload.transformer import LayerShape

INDEX = 8  # bytes of the index of a maximum, which max pooling saves for its backward pass


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, a batch norm unless `norm` is False, and an in-place ReLU.

    Attributes:
        sides: Rows and columns of the kernel.
        padding: Rows and columns added on each side.
        eps: Epsilon of the batch norm.
    """

    outputs: int
    sides: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    norm: bool = True
    bias: bool = False
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class Pooling:
    """Maximum or mean of each `side` x `side` window.

    Padding is ignored by a maximum, and counts as zero in a mean.

    Attributes:
        up: Whether the output includes a window that ends outside the image (ceil_mode of torch).
    """

    kind: str
    side: int
    stride: int
    padding: int = 0
    up: bool = False


@dataclass(frozen=True, slots=True)
class Branches:
    """Chains that read one input. Their outputs are concatenated in this order."""

    chains: tuple[tuple[Step, ...], ...]


Step = Convolution | Pooling | Branches
Chain = tuple[Step, ...]
Value = tuple[int, int]  # channels, and the side of the square image of each channel


def through(step: Step, value: Value) -> Value:
    """Output shape of a step for the input `value`.

    Raises InvalidRequest if no pixel is left, or if the outputs of branches differ in side.
    """
    channels, side = value
    match step:
        case Branches():
            outputs = [after(chain, value) for chain in step.chains]
            if len({side for _, side in outputs}) != 1:
                sides = [side for _, side in outputs]
                rule = "the outputs of all branches have one side, so that they can be concatenated"
                raise InvalidRequest(f"branches with outputs of sides {sides}", rule=rule)
            return sum(channels for channels, _ in outputs), outputs[0][1]
        case Convolution():
            rows, columns = (
                (side + 2 * padding - kernel) // step.stride + 1
                for kernel, padding in zip(step.sides, step.padding, strict=True)
            )
            if rows != columns:
                what = f"a convolution with an output of {rows} x {columns} pixels"
                raise InvalidRequest(what, rule="the output of a convolution is square")
            made_channels, side = step.outputs, rows
        case Pooling():
            over = side + 2 * step.padding - step.side
            made_channels, side_before, side = channels, side, over // step.stride + 1
            if step.up and over % step.stride and side * step.stride < side_before + step.padding:
                side += 1
    if side < 1:
        what = f"an image of {value[1]} x {value[1]} pixels as the input of {step}"
        raise InvalidRequest(what, rule="the output has at least one pixel")
    return made_channels, side


def after(chain: Sequence[Step], value: Value) -> Value:
    for step in chain:
        value = through(step, value)
    return value


def check_image(kind: str, chain: Sequence[Step], value: Value) -> None:
    """Raise InvalidRequest if an image is too small for a network of this `kind`.

    The error suggests the next larger legal size.
    """
    try:
        after(chain, value)
    except InvalidRequest as error:
        colours, image = value
        while not _fits(chain, (colours, image)):
            image += 1
        raise InvalidRequest(
            f"model.shape.image={value[1]} for {kind} ({error})",
            rule="the output of every convolution and pooling has at least one pixel",
            legal=f"model.shape.image={image}",
        ) from None


def _fits(chain: Sequence[Step], value: Value) -> bool:
    try:
        after(chain, value)
    except InvalidRequest:
        return False
    return True


def convolutions(chain: Sequence[Step], value: Value) -> Iterator[tuple[Convolution, Value, int]]:
    """Every convolution in order, with the shape of its input and the side of its output."""
    for step in chain:
        if isinstance(step, Branches):
            for branch in step.chains:
                yield from convolutions(branch, value)
        elif isinstance(step, Convolution):
            yield step, value, through(step, value)[1]
        value = through(step, value)


def counted(name: str, chain: Sequence[Step], value: Value, *, width: int, images: bool = False) -> LayerShape:
    """Shape of the layer that `chain` describes, for one input of shape `value`.

    Args:
        width: Bytes of one entry.
        images: Whether the input is an image of the data set, which has no gradient.
    """
    weights, parameters, flops, deferred, owed = [], 0, 0, 0, 0
    for number, (step, (inputs, entered), side) in enumerate(convolutions(chain, value)):
        kernel = inputs * step.outputs * prod(step.sides)
        weights.append(kernel)
        parameters += kernel + step.outputs * (2 * step.norm + step.bias)
        flops += 2 * kernel * side * side
        if number or not images:
            deferred += 2 * kernel * side * side
            owed += (inputs * entered * entered + step.outputs * side * side) * width
    passes = Passes(chain, value, width=width, images=images)
    channels, side = after(chain, value)
    return LayerShape(
        name=name,
        parameters=parameters,
        flops=flops,
        saved=passes.saved,
        output=channels * side * side * width,
        working=passes.peak - passes.saved,
        weight_working=max(weights, default=0) * width,
        prunable=tuple(weights),
        deferred=deferred,
        owed=owed,  # at most: branches share their input
    )


@dataclass(slots=True)
class _Tensor:
    """One storage: its size in bytes, and its number of references."""

    size: int
    held: int = 0


@dataclass(slots=True)
class _Node:
    """One operation of the forward pass.

    Attributes:
        reads: Numbers of its input tensors.
        makes: Number of its output tensor.
        keeps: Numbers of the tensors that it saves for its backward pass.
        beside: Further bytes that it saves, such as the indices of max pooling.
        joins: Whether it concatenates its inputs.
    """

    reads: list[int]
    makes: int
    keeps: list[int]
    beside: int = 0
    joins: bool = False


@dataclass(slots=True)
class Passes:
    """Forward and backward pass of one layer, storage by storage.

    Attributes:
        saved: Bytes that the layer's operations save, including its input if one of them saves it. The output belongs
            to the next layer, or to the end of a stage.
        peak: Largest number of bytes at one moment of the backward pass, or at the end of the forward pass. Gradients
            count, and the output counts while an operation saves it.
    """

    chain: Sequence[Step]
    value: Value
    width: int
    images: bool = False
    saved: int = 0
    peak: int = 0
    tensors: list[_Tensor] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        entered = self._tensor(self.value)
        inputs, _ = self._walk(self.chain, entered, self.value)
        kept_numbers = {number for node in self.nodes for number in node.keeps}
        beside = sum(node.beside for node in self.nodes)
        self.saved = sum(self.tensors[number].size for number in kept_numbers | {entered} if number != inputs) + beside
        self.peak = max(self.saved + self.tensors[inputs].size, self._backward(entered, inputs, kept_numbers, beside))

    def _tensor(self, value: Value) -> int:
        self.tensors.append(_Tensor(value[0] * value[1] ** 2 * self.width))
        return len(self.tensors) - 1

    def _walk(self, chain: Sequence[Step], number: int, value: Value) -> tuple[int, Value]:
        for step in chain:
            output = through(step, value)
            match step:
                case Branches():
                    ends = [self._walk(branch, number, value)[0] for branch in step.chains]
                    joined = self._tensor(output)
                    self.nodes.append(_Node(ends, joined, [], joins=True))
                    number = joined
                case Convolution():
                    plain = self._tensor(output)
                    self.nodes.append(_Node([number], plain, [number]))
                    if step.norm:
                        normed = self._tensor(output)
                        self.nodes.append(_Node([plain], normed, [plain]))
                        plain = normed
                    self.nodes.append(_Node([plain], plain, [plain]))
                    number = plain
                case Pooling():
                    pooled = self._tensor(output)
                    beside = self.tensors[pooled].size // self.width * INDEX if step.kind == "max" else 0
                    self.nodes.append(_Node([number], pooled, [number], beside))
                    number = pooled
            value = output
        return number, value

    def _backward(self, entered: int, left: int, kept: set[int], beside: int) -> int:
        """Largest number of live bytes during the backward pass.

        Live are the input and output gradients of the current operation, gradients of later operations, and all tensors
        that are still saved. A second gradient of a tensor is added to the first. The gradient of a concatenation is
        freed after the last of its slices.
        """
        for node in self.nodes:
            for number in node.keeps:
                self.tensors[number].held += 1
        live = sum(self.tensors[number].size for number in kept) + beside
        gradients = {left: _Tensor(self.tensors[left].size, 1)}
        live += gradients[left].size
        peak = live
        for node in reversed(self.nodes):
            incoming = gradients.pop(node.makes)
            if node.joins:
                incoming.held += len(node.reads) - 1
                gradients.update(dict.fromkeys(node.reads, incoming))
                continue
            (read,) = node.reads
            if not (self.images and read == entered):
                gradient = _Tensor(self.tensors[read].size, 1)
                live += gradient.size
                peak = max(peak, live)
                if read in gradients:
                    live -= gradient.size
                else:
                    gradients[read] = gradient
            incoming.held -= 1
            live -= 0 if incoming.held else incoming.size
            live -= node.beside
            for number in node.keeps:
                self.tensors[number].held -= 1
                if not self.tensors[number].held and number != entered:
                    live -= self.tensors[number].size
        return peak
