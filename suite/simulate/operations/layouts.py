"""Search over layouts: every way to divide a number of devices over the parallel axes, simulated and ranked.

A layout is a setup of the same model, machine, devices and batch. Layouts that do not fit the memory of a device are
left out before they are simulated, and so are layouts whose busiest rank alone needs longer than the best layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum, isqrt, log2
from typing import Generic, Protocol, TypeVar

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName, Unsupported
from suite.core.protocols import Schedule
from suite.core.units import si
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import FLASH, TrainingSetup
from suite.simulate.operations.states import fullest_device
from suite.simulate.operations.step import StageCosts, TrainingStep, simulate_step, slowest_of_nodes
from suite.workload.transformer import DecoderOnly

MICROBATCHES = (1, 2, 4, 8)
MOST_TENSOR = 8  # largest tensor-parallel group
BATCH_TOKENS = 4e6  # of the default batch
PRECISION = {"fp8": "float8", "fp4": "float4"}  # of the generations whose products have fewer than 16 bits


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A schedule with the name of its file in conf/schedule; `none` without a pipeline."""

    name: str
    schedule: Schedule | None
    chunks: int = 1


class Timed(Protocol):
    """A simulated layout."""

    @property
    def seconds(self) -> float:
        """Seconds of a step."""


Layout = TypeVar("Layout")
Simulated = TypeVar("Simulated", bound=Timed)


@dataclass(frozen=True, slots=True)
class RankedLayouts(Generic[Simulated]):
    """Layouts that fit, fastest first.

    Attributes:
        steps: The fastest layouts.
        tried: Layouts that were tried.
        fit: Layouts whose fullest device fits its memory.
    """

    steps: tuple[Simulated, ...]
    tried: int
    fit: int


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a number in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def default_batch(sequence: int, devices: int) -> int:
    """Sequences of about four million tokens: a power of two, or the number of devices if that is larger."""
    return max(devices, 1 << max(0, round(log2(BATCH_TOKENS / sequence))))


def pipeline_schedules(pipeline: int, layers: int) -> Iterator[NamedSchedule]:
    """Schedules to try on `pipeline` ranks: 1F1B, ZB-H1, and interleaved 1F1B and ZBV with several stages per rank.

    Several stages per rank hold equally many blocks, or the first and the last stage one block fewer.
    """
    if pipeline == 1:
        yield NamedSchedule("none", None)
        return
    yield NamedSchedule("one_f_one_b", OneFOneB())
    yield NamedSchedule("zb_h1", Staircase(lead=1, split=True))
    interleaved = [NamedSchedule("interleaved", Staircase(chunks, lead=2), chunks) for chunks in (2, 4)]
    for named in (*interleaved, NamedSchedule("zbv", ZBV(), ZBV.chunks)):
        stages = pipeline * named.chunks
        if stages <= layers and 0 in (layers % stages, (layers + 2) % stages):
            yield named


def named_schedule(setup: TrainingSetup) -> NamedSchedule:
    """The schedule of a layout with its name and its stages per rank."""
    known = pipeline_schedules(setup.pipeline, setup.model.layers)
    return next(named for named in known if named.schedule == setup.schedule)


def one_device(model: DecoderOnly, machine: Machine, generation: str, batch: int) -> TrainingSetup:
    """Setup of one device from which layouts are searched.

    Raises UnknownName for an unknown generation, and Unsupported for one whose precision the machine does not have.
    """
    known = generations()
    if generation not in known:
        raise UnknownName("generation", generation, known)
    precision = PRECISION.get(generation, "bfloat16" if "bfloat16" in machine.peak else "float16")
    if precision not in machine.peak:
        raise Unsupported(
            "generation",
            generation,
            what=f"generation={generation} on machine={machine.name}",
            rule=f"the machine multiplies matrices of {precision}",
            legal="generation=compiled",
        )
    return TrainingSetup(
        model,
        machine,
        known[generation],
        None,
        tensor=1,
        pipeline=1,
        data=1,
        context=1,
        microbatch=1,
        batch=batch,
        precision=precision,
        attention=known[generation].attention,
    )


def layouts(base: TrainingSetup, devices: int, *, context: Sequence[int] = (1,)) -> Iterator[TrainingSetup]:
    """Every layout of `devices` devices for the model, the machine and the batch of `base`.

    Tensor-parallel groups stay within a node and divide the heads of keys and values.
    """
    model, machine = base.model, base.machine
    for tensor in divisors(devices):
        if tensor > min(machine.devices_per_node, MOST_TENSOR) or model.kv_heads % tensor:
            continue
        for pipeline in divisors(devices // tensor):
            if pipeline > model.layers:
                continue
            for cp in context:
                replicas = devices // tensor // pipeline
                if replicas % cp:
                    continue
                grid = replace(base, schedule=None, tensor=tensor, data=replicas // cp, context=cp)
                yield from _with_schedules(replace(grid, sequence_parallel=tensor > 1), pipeline)


def _with_schedules(grid: TrainingSetup, pipeline: int) -> Iterator[TrainingSetup]:
    """Layouts of one grid: every schedule, microbatch, recomputation and sharding."""
    shardings = ("optimizer", "parameters") if grid.data * grid.context > 1 else ("none",)
    # flash attention keeps no scores, so that selective recomputation of them would free nothing
    recomputations = ("none", "full") if grid.attention in FLASH else ("none", "selective", "full")
    for named in pipeline_schedules(pipeline, grid.model.layers):
        for microbatch in MICROBATCHES:
            if grid.batch % (microbatch * grid.data):
                continue
            for recompute in recomputations:
                for sharding in shardings:
                    yield replace(
                        grid,
                        schedule=named.schedule,
                        pipeline=pipeline,
                        microbatch=microbatch,
                        recompute=recompute,
                        sharding=sharding,
                    )


def least_seconds(setup: TrainingSetup) -> float:
    """Seconds in which the busiest rank computes and updates. The step of a pipeline takes at least as long."""
    costs, busiest = StageCosts(setup), 0.0
    for rank, place in enumerate(setup.places):
        passes = [costs.passes[stage] for stage in place.held_stages]
        computing = setup.microbatches * fsum(one.forward + one.backward for one in passes)
        busiest = max(busiest, computing + costs.update(rank)[0].step)
    return busiest * slowest_of_nodes(setup)


def ranked(candidates: Iterable[TrainingSetup], best: int | None = None) -> RankedLayouts[TrainingStep]:
    """Simulate the layouts that fit and sort them by the seconds of a step; see `fastest`."""
    setups = [*candidates]
    if not setups:
        raise InvalidRequest("no layout is given", rule="at least one layout to simulate")
    first = setups[0]
    sizes = [fsum(fullest_device(setup).values()) for setup in setups]
    return fastest(
        list(zip(sizes, setups, strict=True)), first.devices, first.machine.memory, least_seconds, simulate_step, best
    )


def fastest(
    candidates: Sequence[tuple[float, Layout]],
    devices: int,
    memory: float,
    least: Callable[[Layout], float],
    simulate: Callable[[Layout], Simulated],
    best: int | None = None,
) -> RankedLayouts[Simulated]:
    """Simulate the layouts of `devices` devices that fit `memory` bytes, and sort them by the seconds of a step.

    Args:
        candidates: Layouts with the bytes of their fullest device.
        least: A lower bound of the seconds of a step.
        best: Number of layouts wanted; None for all that fit. A layout is not simulated once so many are faster than
            the least seconds that it needs.

    Raises:
        DoesNotFit: No candidate fits.
    """
    fitting = [layout for size, layout in candidates if size <= memory]
    if not fitting:
        smallest = min(size for size, _ in candidates)
        raise DoesNotFit(
            "devices",
            devices,
            what=f"devices={devices}, on which the smallest of {len(candidates)} layouts needs {si(smallest, 'B')}",
            rule=f"the fullest device fits its memory of {si(memory, 'B')}",
            legal="more devices, or a smaller model",
        )
    steps: list[Simulated] = []
    for bound, layout in sorted(((least(layout), layout) for layout in fitting), key=lambda each: each[0]):
        if best is not None and len(steps) >= best and bound > steps[best - 1].seconds:
            break
        steps.append(simulate(layout))
        steps.sort(key=lambda step: step.seconds)
    return RankedLayouts(tuple(steps[:best]), len(candidates), len(fitting))
