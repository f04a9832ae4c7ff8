"""Evaluation: forward passes alone, for means over batches and for predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Op
from suite.core.protocols import Value
from suite.engine.flush import observe_loss, positive_count, returns_pairs, run_on_rank, sum_over_last_stages
from suite.engine.guards.checked_schedule import evaluation_program
from suite.engine.stage import Stage
from suite.engine.stream import Batch, BatchSlicer
from suite.engine.torch_api.state_dicts import on_host, transfer
from suite.engine.train_state import TrainState
from suite.engine.worker import run_to_end


def run_evaluation(state: TrainState, batches: Iterable[Batch]) -> dict[str, float]:
    """Evaluate `batches`. Returns the means by name.

    A batch weighs as much as its samples; for a loss that is a pair, as much as its count. Raises InvalidRequest for no
    batches, within a stream, and for scores that do not match their names."""
    settings, guard, slicer = state.settings, state.comm.guard, state.slicer
    names = ("loss", *settings.config.score_names)
    state.check_drained("an evaluation")
    if state.loss_check is not None:
        state.loss_check.begin()
    totals, total_weight, total_count, first_batch_size = [0.0] * len(names), 0.0, 0.0, 0
    for evaluated, batch in enumerate(batches):
        guard.begin("evaluation", batch)
        inputs, targets = slicer.split(batch)
        samples = inputs[0].shape[0]
        microbatches, _ = slicer.count_evaluation(inputs)
        outputs: list[torch.Tensor] = []
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

        def run(stage: Stage, index: int, value: Value, sample: int) -> Value:
            is_last = stage.loss is not None
            if is_last:
                observe_loss(state, evaluated, microbatches, evaluates=True)  # noqa: B023
            output = stage.evaluate(value, slicer.targets(targets, index) if is_last else (), sample=sample)  # noqa: B023
            if is_last:
                if output[0].numel() != len(names):
                    raise InvalidRequest(
                        f"scores= returns {output[0].numel() - 1} numbers for score_names={list(names[1:])}",
                        rule="scores= returns a tensor with one number for each of score_names=",
                        legal="torch.stack([...]) of the numbers",
                    )
                numbers = output[0].reshape(-1)
                outputs.append(numbers / (slicer.whole(samples) / slicer.size(index, samples)))  # noqa: B023
                if stage.weight is not None:
                    pairs.append((numbers[0], stage.weight))  # noqa: B023
            return output

        _run_passes(state, slicer, inputs, run)
        first_batch_size = first_batch_size or samples
        weight = samples / first_batch_size
        for number in range(len(names)):
            if number == 0 and returns_pairs(state, bool(pairs)):
                totals[0] += sum_over_last_stages(state, [total for total, _ in pairs])
                total_count += sum_over_last_stages(state, [count for _, count in pairs])
            else:
                means = [output[number] for output in outputs]
                totals[number] += weight * sum_over_last_stages(state, means)
        total_weight += weight
        guard.end()
    if not total_weight:
        raise InvalidRequest("an evaluation of 0 batches", rule="at least 1 batch", legal="1 batch")
    divisors = [positive_count(total_count) if state.pairs else total_weight, *[total_weight] * (len(names) - 1)]
    return {name: total / divisor for name, total, divisor in zip(names, totals, divisors, strict=True)}


def _run_passes(
    state: TrainState, slicer: BatchSlicer, inputs: Value, run: Callable[[Stage, int, Value, int], Value]
) -> None:
    """Run the forward passes of a batch.

    Args:
        run: Function of a stage, a microbatch of the batch, its input and its sample number that returns the output.
    """
    place, first = state.settings.place, state.evaluated
    microbatches, most_microbatches = slicer.count_evaluation(inputs)

    def execute(op: Op, value: Value) -> Value:
        index = op.index - first
        value = slicer.inputs(inputs, index) if op.stage == 0 else value
        return run(state.stages[op.stage], index, value, op.index * place.replicas + place.replica)

    if microbatches:
        interval = FlushInterval(first, microbatches, None, 0)
        program = evaluation_program(place, interval, any_order=state.comm.transport.any_order)
        run_to_end(run_on_rank(state, program, execute, 0))
    state.evaluated += most_microbatches


@torch.no_grad()
def predict(state: TrainState, inputs: Any) -> Any:
    """Outputs of the model in evaluation mode for `inputs`, on the host of every rank. Every rank calls it.

    Args:
        inputs: Inputs of a batch, with any number of samples, at least one, in the first dimension.

    Returns:
        The output in the structure of the model's; for a list of layers a tensor, or a tuple of several.

    Raises:
        InvalidRequest: Within a stream, and for outputs without samples in the first dimension.
    """
    state.check_drained("predict()")
    settings, guard, slicer = state.settings, state.comm.guard, replace(state.slicer, shard=False)
    guard.begin("prediction", (inputs, ()))
    guard.reduce(0.0)  # no loss follows
    tensors, _ = slicer.split((inputs, ()))
    place, chunks = settings.place, dict[int, Value]()

    def run(stage: Stage, index: int, value: Value, sample: int) -> Value:
        output = stage.outputs(value, sample=sample)
        if stage.loss is not None:
            rows = slicer.size(index, tensors[0].shape[0])
            if shapes := [tuple(tensor.shape) for tensor in output if tensor.shape[:1] != (rows,)]:
                raise InvalidRequest(
                    f"an output of shape {shapes[0]} for {rows} samples",
                    rule="outputs have their samples in the first dimension, as those of microbatches form a batch",
                )
            chunks[index * place.replicas + place.replica] = output
        return output

    _run_passes(state, slicer, tensors, run)
    if guard.group is None:
        chunks = on_host(chunks)
    else:
        own, chunks = chunks, {}
        for replica in range(settings.grid.data):
            pipeline = settings.grid.pipeline(settings.grid.rank(data=replica, inter=0))
            root = pipeline[place.rank_of(place.stages - 1)]
            broadcast = partial(guard.group.broadcast, root=root)
            chunks |= transfer(state, own if settings.rank == root else None, broadcast)
    guard.end()
    values = tuple(torch.cat(parts) for parts in zip(*(chunks[number] for number in sorted(chunks)), strict=True))
    if settings.parts.output is not None:
        return settings.parts.output.restore(iter(values))
    return values[0] if len(values) == 1 else values
