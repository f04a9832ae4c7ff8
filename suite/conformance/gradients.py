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
from suite.conformance.reference import Reference, as_tuple
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule, World
from suite.engine.engine import Engine

BATCHES = (8, 1, 3, 5)  # microbatches per replica: many, one, fewer than stages, a short last batch


def gradients_of(engine: Engine) -> list[torch.Tensor]:
    """What the last update was given, per weight of this stage: the velocity of an SGD at rate 0 without momentum,
    whose steps move nothing."""
    return [engine.state.export(parameter)["velocity"].reshape(-1) for parameter in engine.state.parameters]


@dataclass(frozen=True)
class Right:
    """One batch in one process: its mean loss, and gradients and running statistics by layer; of what is held out the
    loss, on one replica."""

    loss: float
    gradients: list[list[torch.Tensor]]
    buffers: list[list[torch.Tensor]]
    evaluation: float | None


_one = Lock()  # ranks may be threads: one of them computes, for all and for every schedule


def right(case: Case, replicas: int, batches: tuple[int, ...] = BATCHES) -> list[Right]:
    """Of batches with one update each."""
    with _one:
        return _right(case, replicas, batches, None, 0.0)


def right_streams(case: Case, replicas: int, batches: tuple[int, ...], every: int, momentum: float) -> list[Right]:
    """Of batches whose microbatches stream, with an update after every few: in place of gradients the velocities after
    the last. Steps move nothing, so that it matters to no gradient which version a pass has read."""
    with _one:
        return _right(case, replicas, batches, every, momentum)


@cache
def _right(case: Case, replicas: int, batches: tuple[int, ...], every: int | None, momentum: float) -> list[Right]:
    reference, first, rights = Reference(case, replicas), 0, []
    velocity: list[torch.Tensor] | None = None
    for number, microbatches in enumerate(batches):
        loss, size = 0.0, every or microbatches
        rows = list(parted(case.batch(number, microbatches, replicas), microbatches))
        for at in range(0, microbatches, size):
            some = rows[at : at + size]
            mean, flat = reference.gradients(_together(some), first)
            first += len(some)
            loss += mean * len(some) / microbatches
            before = velocity if every else None
            velocity = flat if before is None else [v.mul(momentum).add(g) for v, g in zip(before, flat, strict=True)]
        assert velocity is not None
        each = iter(velocity)
        rights.append(
            Right(
                loss,
                [[next(each) for _ in layer.parameters()] for layer in reference.layers],
                [[buffer.clone() for buffer in layer.buffers()] for layer in reference.layers],
                # replicas keep their own running statistics
                reference.evaluate(_held_out(case, number)) if replicas == 1 else None,
            )
        )
    return rights


def parted(batch: tuple[Any, Any], parts: int) -> Iterator[tuple[Any, Any]]:
    """A batch in equal parts, in order."""
    size = as_tuple(batch[0])[0].shape[0] // parts
    for at in range(parts):
        rows = slice(at * size, (at + 1) * size)
        inputs, targets = (
            part[rows] if isinstance(part, torch.Tensor) else tuple(one[rows] for one in part) for part in batch
        )
        yield inputs, targets


def _together(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The batch of these parts."""

    def joined(values: Sequence[Any]) -> Any:
        if isinstance(values[0], torch.Tensor):
            return torch.cat(list(values))
        return tuple(joined(one) for one in zip(*values, strict=True))

    inputs, targets = (joined([part[side] for part in parts]) for side in (0, 1))
    return inputs, targets


def _held_out(case: Case, number: int) -> tuple[Any, Any]:
    return case.batch(100 + number, 2, 1)


def check_engine(
    engine: Engine,
    case: Case,
    schedule: Schedule,
    world: World,
    *,
    system: Any = None,
    expected: Sequence[Right] | None = None,
    batches: tuple[int, ...] = BATCHES,
    tolerance: float = 0.0,
) -> int:
    """Over several batches with evaluation between them: this rank's gradients against the reference (bit for bit at
    tolerance 0), the loss on every rank, evaluation, running statistics. The number of tensors compared.

    Args:
        system: What trains, where that is not the engine itself; of one that streams each batch is a stream of
            microbatches.
        expected: What is right of these batches, where they are not one update each.
    """
    stage_layers, grid = engine.split[engine.place.stage], engine.grid
    compared = 0
    wanted_of = right(case, grid.data, batches) if expected is None else expected
    for number, (microbatches, outputs) in enumerate(zip(batches, wanted_of, strict=True)):
        where = f"{case.name} {grid} {schedule} batch {number} rank {world.rank}"
        loss = _trained(system or engine, case.batch(number, microbatches, grid.data), microbatches)
        off = abs(loss - outputs.loss)
        assert off <= 1e-12 * abs(outputs.loss), f"{where}: loss {loss} for {outputs.loss}"
        gradients = [gradient for k in stage_layers for gradient in outputs.gradients[k]]
        for got, want in zip(gradients_of(engine), gradients, strict=True):
            difference = (got - want.flatten()).abs().max().item() if got.numel() else 0.0
            assert difference <= tolerance, f"{where}: a gradient is off by {difference}{_scaled(got, want)}"
            compared += 1
        if engine.place.replica == 0:
            buffers = zip(
                engine.stage.layers.buffers(), (b for k in stage_layers for b in outputs.buffers[k]), strict=True
            )
            assert all(torch.equal(a, b) for a, b in buffers), f"{where}: running statistics differ"
        assert engine.peak <= schedule.in_flight(
            engine.place, FlushInterval(0, microbatches, engine.update_every, 0)
        ), where
        if outputs.evaluation is not None:
            score = (system or engine).evaluate([_plain(_held_out(case, number), system)])
            assert abs(score - outputs.evaluation) < 1e-6, f"{where}: evaluation"
    engine.close()
    return compared


def _trained(system: Any, batch: tuple[Any, Any], microbatches: int) -> float:
    """The mean loss of a batch; of an asynchronous system it is a stream of its microbatches, in one update."""
    if isinstance(system, Engine):
        return system.train_batch(batch)
    if not system.streams:
        return float(system.train_batch(_plain(batch, system)))
    losses, _ = system.stream([_plain(one, system) for one in parted(batch, microbatches)])
    return float(sum(losses) / len(losses))


def _plain(value: Any, system: Any) -> Any:
    """A batch as Data gives it to a system: arrays."""
    if system is None:
        return value
    return value.numpy() if isinstance(value, torch.Tensor) else tuple(_plain(part, system) for part in value)


def _scaled(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """By how much, where it is by the same everywhere: what divides a loss twice, or not at all, is seen at once."""
    flat = wanted.flatten()
    rows = flat.abs() > 1e-3 * flat.abs().max()
    ratios = got[rows] / flat[rows]
    same = ratios.numel() > 1 and float(ratios.std()) < 1e-6 * abs(float(ratios.mean()))
    return f"; each entry is {float(ratios.mean()):.6g} times what it should be" if same else ""


def check_system(made: Any, config: RunConfig, case: Case, world: World) -> int:
    """The same of a system on the suite's engine, built as its ranks build it. config: at rate 0, seed as in the
    reference."""
    system = made(world=world, config=config)
    engine, every, data = system.engine, config.update_interval, config.grid.data
    tolerance = 0.0 if data <= 2 else 1e-12
    if every is None:
        return check_engine(engine, case, engine.schedule, world, system=system, tolerance=tolerance)
    full = max(2 * engine.grid.inter, every)
    batches = (full + 1, full)  # the first ends with a short group, where a group is more than one
    expected = right_streams(case, data, batches, every, float(config.optimizer.arguments["momentum"]))
    return check_engine(
        *(engine, case, engine.schedule, world),
        system=system,
        expected=expected,
        batches=batches,
        tolerance=tolerance,
    )
