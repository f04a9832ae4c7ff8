"""Search over layouts: every way to divide a number of devices over the parallel axes, simulated and ranked.

A layout is a setup of the same model, machine, devices and batch. Layouts that do not fit the memory of a device are
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName
from suite.core.protocols import Schedule
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.step import TrainingStep, simulate_step
from suite.workload.language_model import LanguageModel

MICROBATCHES = (1, 2, 4, 8)
PRECISION = {"fp8": "float8", "fp4": "float4"}  # of the generations whose products have fewer than 16 bits


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A schedule with the name of its file in conf/schedule."""

    name: str
    schedule: Schedule | None
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class RankedLayouts:
    """Layouts that fit, quickest first, and the number of layouts that were tried."""

    steps: tuple[TrainingStep, ...]
    tried: int


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a number in ascending order."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def pipeline_schedules(pipeline: int, layers: int) -> Iterator[NamedSchedule]:
    """Schedules to try on `pipeline` ranks: 1F1B, and interleaved 1F1B where every rank holds several equal chunks."""
    if pipeline == 1:
        yield NamedSchedule("none", None)
        return
    yield NamedSchedule("1f1b", OneFOneB())
    for chunks in (2, 4):
        if layers % (pipeline * chunks) == 0:
            yield NamedSchedule("interleaved", Staircase(chunks, lead=2), chunks)


def one_device(model: LanguageModel, machine: Machine, generation: str, batch: int) -> TrainingSetup:
    """Setup of one device from which layouts are searched. Raises UnknownName for an unknown generation."""
    known = generations()
    if generation not in known:
        raise UnknownName("generation", generation, known)
    precision = PRECISION.get(generation, "bfloat16" if "bfloat16" in machine.peak else "float16")
    attention = known[generation].attention
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
        attention=attention,
    )


def layouts(base: TrainingSetup, devices: int, *, context: Sequence[int] = (1,)) -> Iterator[TrainingSetup]:
    """Every layout of `devices` devices for the model, the machine and the batch of `base`.

    Tensor-parallel groups stay within a node and divide the heads of keys and values.
    """
    model, machine = base.model, base.machine
    for tensor in divisors(min(devices, machine.devices_per_node, 8)):
        if model.kv_heads % tensor or devices % tensor:
            continue
        for pipeline in divisors(devices // tensor):
            if pipeline > model.layers:
                continue
            for cp in context:
                replicas = devices // tensor // pipeline
                if replicas % cp:
                    continue
                yield from _with_microbatches(base, tensor, pipeline, replicas // cp, cp)


def _with_microbatches(base: TrainingSetup, tensor: int, pipeline: int, data: int, cp: int) -> Iterator[TrainingSetup]:
    for named in pipeline_schedules(pipeline, base.model.layers):
        for microbatch in MICROBATCHES:
            if base.batch % (microbatch * data):
                continue
            for recompute in ("none", "full"):
                for sharding in ("optimizer", "parameters") if pipeline == 1 else ("optimizer",):
                    yield replace(
                        base,
                        schedule=named.schedule,
                        tensor=tensor,
                        pipeline=pipeline,
                        data=data,
                        context=cp,
                        microbatch=microbatch,
                        recompute=recompute,
                        sharding=sharding,
                        sequence_parallel=tensor > 1,
                    )


def ranked(candidates: Iterable[TrainingSetup]) -> RankedLayouts:
    """Simulate every candidate and sort those that fit.

    Raises InvalidRequest without candidates, and DoesNotFit if none fits.
    """
    steps = []
    for setup in candidates:
        try:
            steps.append(simulate_step(setup))
        except InvalidRequest:
            continue  # a schedule refuses the pipeline
    if not steps:
        raise InvalidRequest("no layout divides the devices and the batch", rule="the replicas divide the batch")
    fitting = sorted((step for step in steps if step.fits), key=lambda step: step.seconds)
    if not fitting:
        least = min(step.peak_memory for step in steps)
        raise DoesNotFit(
            f"no layout of {len(steps)} fits: the smallest needs {least / 1e9:.0f} GB",
            rule="the fullest device fits its memory",
            legal="more devices, or a smaller model",
        )
    return RankedLayouts(tuple(fitting), len(steps))
