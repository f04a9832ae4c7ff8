"""Memory of a stage per microbatch: saved activations and the largest transient.

The budget of a run (suite.runner.estimate) and of a simulated run (suite.simulate) use this count. Activation
checkpoints and recomputation of a whole stage reduce saved activations and increase the transient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.workload.transformer import LayerShape


@dataclass(frozen=True, slots=True)
class MicrobatchMemory:
    """Bytes of one microbatch on one stage.

    Attributes:
        saved: Bytes saved from the forward to the backward pass.
        transient: Largest transient of a pass, in addition to saved bytes.
        input: Bytes of the message that the stage receives; 0 on the first stage.
        owed: Bytes from an input gradient to its weight gradient, with a split backward pass: inputs and output
            gradients of the products whose weight gradients run later.
    """

    saved: int
    transient: int
    input: int
    owed: int = 0


def microbatch_memory(
    shapes: Sequence[LayerShape],
    split: Sequence[range],
    stage: int,
    microbatch: int,
    *,
    apart: int | None = None,
    again: bool = False,
) -> MicrobatchMemory:
    """Bytes of one microbatch on stage number `stage` of `split`.

    Args:
        apart: Blocks between activation checkpoints.
        again: Whether the stage is recomputed as a whole from its input, which it saves.
    """
    layers, last = split[stage], stage == len(split) - 1
    stage_shapes = [shapes[index] for index in layers]
    # a stage's output stays with its graph, and its input is the first layer's saved one
    boundary = 0 if last else stage_shapes[-1].output
    saved = microbatch * (sum(layer.saved for layer in stage_shapes) + boundary)
    entering = microbatch * shapes[layers.start - 1].output if stage else 0
    working, owed = _working(stage_shapes, microbatch), sum(layer.owed for layer in stage_shapes)
    if apart and any(layer.checkpointed for layer in stage_shapes):
        entered = [shapes[index - 1].output if index else 0 for index in layers]
        saved, working = _checkpointed(stage_shapes, entered, apart, microbatch)
        owed = sum(layer.owed for layer in stage_shapes if not layer.checkpointed)  # checkpointed blocks defer nothing
    if again:
        working, saved = saved + working, entering
    return MicrobatchMemory(saved, working, entering, microbatch * owed)


def held_entries(own: Iterable[LayerShape]) -> int:
    """Parameters of a stage with the layers `own`. Both ends of a pipeline hold a tied matrix."""
    return sum(layer.parameters + layer.tied for layer in own)


def _working(own: Sequence[LayerShape], microbatch: int) -> int:
    """Largest transient of a stage's passes, in addition to its saved activations.

    It is the transient of one layer minus the saved activations of the later layers, which the backward pass has freed.
    """
    largest = gone = 0
    for layer in reversed(own):
        largest = max(largest, microbatch * (layer.working - gone) + layer.weight_working)
        gone += layer.saved
    return largest


def _checkpointed(own: Sequence[LayerShape], entered: Sequence[int], apart: int, microbatch: int) -> tuple[int, int]:
    """Saved bytes of a microbatch with a checkpoint every `apart` blocks, and the largest transient.

    The transient belongs to the backward pass of another layer, or to the recomputation of one interval. `entered` are
    the bytes of each layer's input.
    """
    blocks = [(layer, size) for layer, size in zip(own, entered, strict=True) if layer.checkpointed]
    others = [layer for layer in own if not layer.checkpointed]
    saved = sum(layer.saved for layer in others)
    intervals = [blocks[at : at + apart] for at in range(0, len(blocks), apart)]
    inputs = [interval[0][1] for interval in intervals]
    largest = max((microbatch * layer.working + layer.weight_working for layer in others), default=0)
    gone = saved
    for interval, saved_input in zip(reversed(intervals), reversed(inputs), strict=True):
        layers = [layer for layer, _ in interval]
        again = sum(layer.saved for layer in layers) - saved_input
        largest = max(largest, microbatch * (again - gone) + _working(layers, microbatch))
        gone += saved_input
    return microbatch * (sum(inputs) + saved), largest
