"""Law 2 on one rank of a world: gradients, loss and running statistics equal a one-process reference.

Sums are taken in the order of the grid, so the comparison is bit for bit. Threads and MPI ranks run the same check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import torch

from suite.config.run import RunConfig
from suite.conformance.fixtures import Case
from suite.conformance.orders import order_of_sum
from suite.conformance.reference import Reference, as_tuple
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule, World
from suite.engine.engine import Engine
from suite.engine.system import EngineSystem
from suite.schedule.check import accepts_size

BATCHES = (8, 1, 3, 5)  # microbatches per replica: many, one, fewer than stages, a short last batch


def gradients_of(engine: Engine) -> list[torch.Tensor]:
    """Reduced gradient of each weight of this stage: the velocity of SGD at rate 0 without momentum."""
    return [
        engine.state.model_states.export(parameter)["velocity"].reshape(-1)
        for parameter in engine.state.model_states.parameters
    ]


@dataclass(frozen=True)
class ExpectedBatch:
    """One batch in one process.

    Attributes:
        loss: Mean loss.
        gradients: Gradients by layer.
        buffers: Running statistics by layer.
        evaluation: Loss of a validation batch; None with several replicas, which have their own running statistics.
    """

    loss: float
    gradients: list[list[torch.Tensor]]
    buffers: list[list[torch.Tensor]]
    evaluation: float | None


_lock = Lock()  # ranks may be threads: one of them computes the expected values, for all and for every schedule


Orders = tuple[tuple[int, ...], ...]  # of each batch, the order in which gradients of microbatches are added


def expected_batches(
    case: Case, replicas: int, batches: tuple[int, ...] = BATCHES, orders: Orders | None = None
) -> list[ExpectedBatch]:
    """Expected values of batches with one update each.

    Args:
        case: Model and batches.
        replicas: Data-parallel replicas.
        batches: Microbatches per replica of each batch.
        orders: Orders of the sums; None: by index.
    """
    in_order = tuple(tuple(range(microbatches)) for microbatches in batches)
    with _lock:
        return _expected(case, replicas, batches, None, 0.0, orders or in_order)


def expected_streams(
    case: Case, replicas: int, batches: tuple[int, ...], update_interval: int, momentum: float
) -> list[ExpectedBatch]:
    """Expected values of batches whose microbatches stream, with an update after every `update_interval`.

    The gradients are the velocities after the last update. Steps at rate 0 change no weight, so the version that a pass
    reads does not affect them.
    """
    with _lock:
        return _expected(case, replicas, batches, update_interval, momentum, None)


@cache
def _expected(
    case: Case,
    replicas: int,
    batches: tuple[int, ...],
    update_interval: int | None,
    momentum: float,
    orders: Orders | None,
) -> list[ExpectedBatch]:
    reference, first, expected = Reference(case, replicas), 0, []
    velocity: list[torch.Tensor] | None = None
    for number, microbatches in enumerate(batches):
        loss, size = 0.0, update_interval or microbatches
        rows = list(split_batch(case.batch(number, microbatches, replicas), microbatches))
        for start in range(0, microbatches, size):
            group = rows[start : start + size]
            mean, gradients = reference.gradients(_concatenate(group), first, order=orders[number] if orders else None)
            first += len(group)
            loss += mean * len(group) / microbatches
            before = velocity if update_interval else None
            velocity = gradients
            if before is not None:
                velocity = [v.mul(momentum).add(g) for v, g in zip(before, gradients, strict=True)]
        assert velocity is not None
        remaining = iter(velocity)
        expected.append(
            ExpectedBatch(
                loss,
                [[next(remaining) for _ in layer.parameters()] for layer in reference.layers],
                [[buffer.clone() for buffer in layer.buffers()] for layer in reference.layers],
                reference.evaluate(_validation_batch(case, number)) if replicas == 1 else None,
            )
        )
    return expected


def split_batch(batch: tuple[Any, Any], parts: int) -> Iterator[tuple[Any, Any]]:
    """Equal parts of a batch, in order."""
    size = as_tuple(batch[0])[0].shape[0] // parts

    def select(value: Any, rows: slice) -> Any:
        return value[rows] if isinstance(value, torch.Tensor) else tuple(tensor[rows] for tensor in value)

    for number in range(parts):
        rows = slice(number * size, (number + 1) * size)
        yield select(batch[0], rows), select(batch[1], rows)


def _concatenate(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], torch.Tensor):
            return torch.cat(list(values))
        return tuple(join(column) for column in zip(*values, strict=True))

    inputs, targets = (join([part[side] for part in parts]) for side in (0, 1))
    return inputs, targets


def _validation_batch(case: Case, number: int) -> tuple[Any, Any]:
    return case.batch(100 + number, 2, 1)


def check_engine(
    engine: Engine,
    case: Case,
    schedule: Schedule,
    world: World,
    *,
    system: Any = None,
    expected: Sequence[ExpectedBatch] | None = None,
    batches: tuple[int, ...] = BATCHES,
    tolerance: float = 0.0,
) -> int:
    """Compare this rank's gradients, loss, evaluation and running statistics with the reference.

    Args:
        engine: Engine of this rank.
        case: Model and batches.
        schedule: Schedule of the engine, whose in-flight bound is checked.
        world: World of the rank.
        system: System that trains, if it is not the engine itself. A streaming system trains each batch as a stream of
            microbatches.
        expected: Expected values of the batches, if they are not one update each.
        batches: Microbatches per replica of each batch; those that the schedule refuses are left out.
        tolerance: Largest difference of a gradient; 0 compares bit for bit.

    Returns:
        Number of compared tensors.
    """
    layers, grid = dict(engine.state.numbered_layers()), engine.grid
    compared = 0
    if expected is None:
        batches = tuple(m for m in batches if accepts_size(schedule, grid.inter, FlushInterval(0, m, None, 0)))
        assert batches, f"{schedule} accepts no batch on {grid}"
        orders = tuple(order_of_sum(schedule, grid.inter, microbatches) for microbatches in batches)
        expected = expected_batches(case, grid.data, batches, orders)
    for number, (microbatches, batch) in enumerate(zip(batches, expected, strict=True)):
        where = f"{case.name} {grid} {schedule} batch {number} rank {world.rank}"
        loss = _train(system or engine, case.batch(number, microbatches, grid.data), microbatches)
        assert abs(loss - batch.loss) <= 1e-12 * abs(batch.loss), f"{where}: loss {loss} for {batch.loss}"
        gradients = [gradient for k in layers for gradient in batch.gradients[k]]
        for actual, gradient in zip(gradients_of(engine), gradients, strict=True):
            difference = (actual - gradient.flatten()).abs().max().item() if actual.numel() else 0.0
            assert difference <= tolerance, f"{where}: a gradient is off by {difference}{_ratio(actual, gradient)}"
            compared += 1
        if engine.place.replica == 0:
            buffers = [buffer for k in layers for buffer in batch.buffers[k]]
            pairs = zip((buffer for layer in layers.values() for buffer in layer.buffers()), buffers, strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), f"{where}: running statistics differ"
        interval = FlushInterval(0, microbatches, engine.state.settings.config.update_interval, 0)
        assert engine.state.peak_in_flight <= schedule.in_flight(engine.place, interval), where
        if batch.evaluation is not None:
            score = (system or engine).evaluate([_as_arrays(_validation_batch(case, number), system)])
            assert abs(score - batch.evaluation) < 1e-6, f"{where}: evaluation"
    engine.close()
    return compared


def _train(system: Any, batch: tuple[Any, Any], microbatches: int) -> float:
    """Train on a batch, as a stream of its microbatches if the system streams. Returns the mean loss."""
    if isinstance(system, Engine):
        return system.train_batch(batch)
    if not system.streams:
        return float(system.train_batch(_as_arrays(batch, system)))
    losses, _ = system.stream([_as_arrays(part, system) for part in split_batch(batch, microbatches)])
    return float(sum(losses) / len(losses))


def _as_arrays(value: Any, system: Any) -> Any:
    """A batch as numpy arrays, as data sources give it to a system; unchanged for an engine."""
    if system is None:
        return value
    return value.numpy() if isinstance(value, torch.Tensor) else tuple(_as_arrays(part, system) for part in value)


def _ratio(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """The common factor of a wrong gradient, which shows a loss that is divided twice or not at all."""
    flat = expected.flatten()
    rows = flat.abs() > 1e-3 * flat.abs().max()
    ratios = actual[rows] / flat[rows]
    constant = ratios.numel() > 1 and float(ratios.std()) < 1e-6 * abs(float(ratios.mean()))
    return f"; each entry is {float(ratios.mean()):.6g} times the expected one" if constant else ""


def check_system(system_class: type[EngineSystem], config: RunConfig, case: Case, world: World) -> int:
    """Law 2 of a system on the suite's engine, which this rank builds. Returns the number of compared tensors.

    Args:
        system_class: Class of the system.
        config: Its config, with learning rate 0 and the seed of the reference.
        case: Model and batches.
        world: World of the rank.
    """
    system = system_class(world=world, config=config)
    engine, interval, replicas = system.engine, config.update_interval, config.grid.data
    tolerance = 0.0 if replicas <= 2 else 1e-12
    if interval is None:
        return check_engine(engine, case, engine.state.schedule, world, system=system, tolerance=tolerance)
    full = max(2 * engine.grid.inter, interval)
    batches = (full + 1, full)  # the first ends with a short group if the interval is longer than 1
    expected = expected_streams(case, replicas, batches, interval, float(config.optimizer.arguments["momentum"]))
    return check_engine(
        *(engine, case, engine.state.schedule, world),
        system=system,
        expected=expected,
        batches=batches,
        tolerance=tolerance,
    )
