"""Evaluation: forward passes alone, and means over batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Op
from suite.core.protocols import Value
from suite.engine.flush import observe_loss, positive_count, returns_pairs, run_on_rank, sum_over_last_stages
from suite.engine.guards.checked_schedule import evaluation_program
from suite.engine.stream import Batch
from suite.engine.train_state import TrainState
from suite.engine.worker import Execute, run_to_end


def run_forwards(state: TrainState, microbatches: int, execute: Execute) -> None:
    """Run the forward passes of the next `microbatches` of this replica."""
    interval = FlushInterval(state.evaluated, microbatches, None, 0)
    program = evaluation_program(state.settings.place, interval, any_order=state.comm.transport.any_order)
    run_to_end(run_on_rank(state, program, execute, 0))


def run_evaluation(state: TrainState, batches: Iterable[Batch]) -> dict[str, float]:
    """Evaluate `batches`. Returns the means by name.

    A batch weighs as much as its samples; for a loss that is a pair, as much as its count. Raises InvalidRequest for no
    batches, within a stream, and for scores that do not match their names."""
    settings, guard, slicer = state.settings, state.comm.guard, state.slicer
    place, names = settings.place, ("loss", *settings.config.score_names)
    state.check_drained("an evaluation")
    if state.loss_check is not None:
        state.loss_check.begin()
    totals, total_weight, total_count, first_batch_size = [0.0] * len(names), 0.0, 0.0, 0
    for evaluated, batch in enumerate(batches):
        guard.begin("evaluation", batch)
        inputs, targets = slicer.split(batch)
        samples, first = inputs[0].shape[0], state.evaluated
        microbatches, most_microbatches = slicer.count_evaluation(inputs)
        outputs: list[torch.Tensor] = []
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

        def execute(op: Op, value: Value) -> Value:
            index = op.index - first  # noqa: B023 - called within this iteration only
            is_last, stage = op.stage == place.stages - 1, state.stages[op.stage]
            if is_last:
                observe_loss(state, evaluated, microbatches, evaluates=True)  # noqa: B023
            output = stage.evaluate(
                slicer.inputs(inputs, index) if op.stage == 0 else value,  # noqa: B023
                slicer.targets(targets, index) if is_last else (),  # noqa: B023
                sample=op.index * place.replicas + place.replica,
            )
            if is_last:
                if output[0].numel() != len(names):
                    raise InvalidRequest(
                        f"scores= returns {output[0].numel() - 1} numbers for score_names={list(names[1:])}",
                        rule="scores= returns one number for each of score_names=",
                    )
                numbers = output[0].reshape(-1)
                outputs.append(numbers / (slicer.whole(samples) / slicer.size(index, samples)))  # noqa: B023
                if stage.weight is not None:
                    pairs.append((numbers[0], stage.weight))  # noqa: B023
            return output

        if microbatches:
            run_forwards(state, microbatches, execute)
        state.evaluated += most_microbatches
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
