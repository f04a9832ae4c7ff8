"""Layouts of a language model on the devices of a machine: the fastest, the smallest, and the fewest devices.

A layout is a setup of a current software generation (suite.simulate.operations.layouts), or a plan of a system of the
papers (suite.simulate.search). The two classes below give both the same interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Generic, NamedTuple, TypeVar

from suite.core.errors import DoesNotFit, InvalidRequest, refuse
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.core.trace import breakdown
from suite.simulate import search
from suite.simulate.block_model import SimulationPlan, SystemModel, transformer
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.nearest import SetupFeatures
from suite.simulate.network.machine import Machine
from suite.simulate.operations import layouts
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.states import memory_of_ranks
from suite.simulate.operations.step import TrainingSimulator, TrainingStep, simulate_step
from suite.workload import flops
from suite.workload.transformer import DecoderOnly

COUNTS = (*range(1, 65), *sorted({times << power for times in (2, 3) for power in range(5, 14)} - {64}))
"""Numbers of devices that may suffice."""
MOST_PASSES = 400_000  # of a layout with a pipeline: an order is counted pass by pass
Layout = TypeVar("Layout", TrainingSetup, SimulationPlan)
Range = tuple[float, float]


class SimulatedLayout(NamedTuple, Generic[Layout]):
    """A layout and the simulated seconds of its step."""

    layout: Layout
    seconds: float


@dataclass(frozen=True, slots=True)
class Ranking(Generic[Layout]):
    """The fastest of the layouts that were tried: none if even the smallest does not fit a device.

    Attributes:
        smallest: Bytes of the fullest device of the smallest layout, and this layout.
    """

    fastest: Sequence[SimulatedLayout[Layout]]
    tried: int
    fit: int
    smallest: tuple[float, Layout]


class Cluster(ABC, Generic[Layout]):
    """A model with batches of `batch` sequences on a machine."""

    def __init__(self, model: DecoderOnly, machine: Machine, batch: int) -> None:
        self.model, self.machine, self.batch = model, machine, batch

    @abstractmethod
    def layouts(self, devices: int) -> Iterable[Layout]:
        """Every layout of a number of devices."""

    @abstractmethod
    def memory(self, layout: Layout) -> Sequence[Mapping[str, float]]:
        """Bytes of a device of each pipeline rank by kind."""

    @abstractmethod
    def least_seconds(self, layout: Layout) -> float:
        """A lower bound of the seconds of a step."""

    @abstractmethod
    def simulate(self, layout: Layout) -> SimulatedLayout[Layout]:
        """The seconds of a step."""

    @abstractmethod
    def percent_of_peak(self, step: SimulatedLayout[Layout]) -> float:
        """Flops of the model in percent of the peak of the data sheet."""

    @abstractmethod
    def breakdown(self, layout: Layout) -> Mapping[str, float]:
        """Seconds of a step by category of suite.core.trace; empty for a step that is too long to be traced."""

    @abstractmethod
    def settings(self, layout: Layout) -> dict[str, object]:
        """The sizes and settings of a layout by name, without its replicas."""

    @abstractmethod
    def features(self, layout: Layout) -> SetupFeatures:
        """Features of the setup, by which public measurements near to it are found."""

    @abstractmethod
    def constants(self, layout: Layout) -> Iterator[tuple[str, Range, Range]]:
        """Each constant with its plausible range, and the seconds of a step at both ends."""

    def devices(self, layout: Layout) -> int:
        return layout.devices if isinstance(layout, TrainingSetup) else layout.grid.size

    def tokens_per_second(self, step: SimulatedLayout[Layout]) -> float:
        """Tokens per second and device."""
        return self.batch * self.model.sequence / step.seconds / self.devices(step.layout)

    def bytes(self, layout: Layout) -> float:
        """Bytes of the fullest device."""
        return max(fsum(kinds.values()) for kinds in self.memory(layout))

    def rank(self, candidates: Iterable[Layout], devices: int, count: int) -> Ranking[Layout]:
        """The fastest layouts of some. Raises InvalidRequest if there are none."""
        sized = [(self.bytes(layout), layout) for layout in candidates]
        if not sized:
            raise search.no_plan(devices, self.batch)
        smallest = min(sized, key=lambda each: each[0])
        try:
            found = layouts.fastest(sized, devices, self.machine.memory, self.least_seconds, self.simulate, count)
        except DoesNotFit:
            return Ranking((), len(sized), 0, smallest)
        return Ranking(found.steps, found.tried, found.fit, smallest)

    def smallest_layouts(self) -> Iterator[tuple[int, Layout]]:
        """The smallest layout of each number of devices of COUNTS that has one, up to the first that fits."""
        for devices in COUNTS:
            sized = ((self.bytes(layout), layout) for layout in self.layouts(devices))
            size, layout = min(sized, key=lambda each: each[0], default=(0.0, None))
            if layout is not None:
                yield devices, layout
                if size <= self.machine.memory:
                    return


class StackCluster(Cluster[TrainingSetup]):
    """Layouts of a software generation.

    Args:
        base: Setup of one device.
        ranges: Plausible ranges of the constants of a generation.
    """

    def __init__(self, base: TrainingSetup, ranges: Mapping[str, Range]) -> None:
        super().__init__(base.model, base.machine, base.batch)
        self.base, self.ranges = base, ranges

    def layouts(self, devices: int) -> Iterable[TrainingSetup]:
        every = layouts.layouts(self.base, devices)
        return (each for each in every if each.pipeline == 1 or _passes(each) <= MOST_PASSES)

    def given(
        self, devices: int, tensor: int, pipeline: int, microbatch: int, schedule: Schedule, **settings: str
    ) -> TrainingSetup:
        """The layout with these sizes and settings. Raises InvalidRequest unless they divide devices and batch."""
        data, heads = replicas(devices, tensor, pipeline), self.model.kv_heads
        each, many = data * microbatch, f"batch={self.batch} on {data} replicas with microbatches of {microbatch}"
        whole = f"batch={max(1, self.batch // each) * each}"
        refuse(
            [
                (heads % tensor, f"tensor={tensor} with {heads} heads of keys", "tensor divides the heads", "tensor=1"),
                (self.batch % each, many, "replicas * microbatch divides the batch", whole),
            ]
        )
        sizes = {"tensor": tensor, "pipeline": pipeline, "data": data, "microbatch": microbatch}
        order = schedule if pipeline > 1 else None
        found = replace(self.base, schedule=order, sequence_parallel=tensor > 1, **sizes, **settings)  # type: ignore[arg-type]
        if order and _passes(found) > MOST_PASSES:
            raise InvalidRequest("batch", self.batch, f"{_passes(found)} passes, at most {MOST_PASSES}", whole)
        return found

    def memory(self, layout: TrainingSetup) -> Sequence[Mapping[str, float]]:
        return memory_of_ranks(layout)

    def least_seconds(self, layout: TrainingSetup) -> float:
        return layouts.least_seconds(layout)

    def simulate(self, layout: TrainingSetup) -> SimulatedLayout[TrainingSetup]:
        return SimulatedLayout(layout, simulate_step(layout).seconds)

    def percent_of_peak(self, step: SimulatedLayout[TrainingSetup]) -> float:
        return 100 * TrainingStep(step.layout, step.seconds, {}).utilization

    def breakdown(self, layout: TrainingSetup) -> Mapping[str, float]:
        return TrainingSimulator(layout).breakdown()

    def settings(self, layout: TrainingSetup) -> dict[str, object]:
        known = layouts.pipeline_schedules(layout.pipeline, layout.model.layers)
        named = next((each for each in known if each.schedule == layout.schedule), None)
        order = {"schedule": named.name} if named and layout.schedule else {}
        chunks = {"schedule.chunks": named.chunks} if named and named.name == "interleaved" else {}
        sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "microbatch": layout.microbatch}
        return {**sizes, **order, **chunks, "recompute": layout.recompute, "sharding": layout.sharding}

    def features(self, layout: TrainingSetup) -> SetupFeatures:
        return SetupFeatures.of(layout)

    def constants(self, layout: TrainingSetup) -> Iterator[tuple[str, Range, Range]]:
        for name, ends in self.ranges.items():
            software = (layout.generation.varied(name, end, self.machine.family, layout.attention) for end in ends)
            low, high = (simulate_step(replace(layout, generation=each)).seconds for each in software)
            yield name, ends, (low, high)


class SystemCluster(Cluster[SimulationPlan]):
    """Plans of a system of the papers with an efficiency. Raises Unsupported for another model than a GPT."""

    def __init__(
        self, model: DecoderOnly, machine: Machine, batch: int, system: SystemModel, efficiency: Efficiency
    ) -> None:
        super().__init__(model, machine, batch)
        self.shape, self.system, self.efficiency = transformer(model), system, efficiency
        self.software = efficiency.generation_of_blocks

    def layouts(self, devices: int) -> Iterable[SimulationPlan]:
        plans = search.plans(self.shape, self.system, devices, self.batch, generation=self.software)
        return (plan for plan in plans if search.passes(plan) <= search.DRIVEN)

    def given(self, devices: int, tensor: int, pipeline: int, microbatch: int) -> SimulationPlan:
        """The plan with these sizes. Raises InvalidRequest for an illegal one, and for one of too many passes."""
        grid = Grid(data=replicas(devices, tensor, pipeline), inter=pipeline, tensor=tensor)
        plan = SimulationPlan(self.shape, self.system, grid, self.batch, microbatch, generation=self.software)
        search.check_size(plan)
        return plan

    def memory(self, layout: SimulationPlan) -> Sequence[Mapping[str, float]]:
        return [layout.budget(rank).by_kind() for rank in range(layout.grid.inter)]

    def bytes(self, layout: SimulationPlan) -> float:
        return layout.peak

    def least_seconds(self, layout: SimulationPlan) -> float:
        return search.least_seconds(layout, self.machine, self.efficiency)

    def simulate(self, layout: SimulationPlan) -> SimulatedLayout[SimulationPlan]:
        return SimulatedLayout(layout, search.run(layout, self.machine, self.efficiency).makespan)

    def percent_of_peak(self, step: SimulatedLayout[SimulationPlan]) -> float:
        peak = self.devices(step.layout) * self.machine.peak_of("float16")
        return 100 * flops.training(self.shape, self.batch) / (step.seconds * peak)

    def breakdown(self, layout: SimulationPlan) -> Mapping[str, float]:
        if search.passes(layout) > search.TRACED:
            return {}
        return breakdown(search.run(layout, self.machine, self.efficiency, traced=True).trace, layout.grid)

    def settings(self, layout: SimulationPlan) -> dict[str, object]:
        return {"tensor": layout.grid.tensor, "pipeline": layout.grid.inter, "microbatch": layout.microbatch}

    def features(self, layout: SimulationPlan) -> SetupFeatures:
        software = self.efficiency.software(self.machine.family, self.system.name, sparse=self.system.sparse)
        own = SetupFeatures.of(layout.setup(self.machine, software))
        return own._replace(sharding="optimizer") if self.system.zero_stage else own

    def constants(self, layout: SimulationPlan) -> Iterator[tuple[str, Range, Range]]:
        for name, ends in self.efficiency.plausible_ranges():
            changed = (replace(self.efficiency, **{name: end}) for end in ends)  # type: ignore[arg-type]
            low, high = (search.run(layout, self.machine, each).makespan for each in changed)
            yield name, ends, (low, high)


def _passes(setup: TrainingSetup) -> int:
    """Forward and backward passes of all stages of a pipeline."""
    return 2 * setup.microbatches * setup.stages


def replicas(devices: int, tensor: int, pipeline: int) -> int:
    """Data-parallel ranks on a number of devices. Raises InvalidRequest if the other sizes do not divide it."""
    each = tensor * pipeline
    if devices % each:
        legal = f"devices={max(1, devices // each) * each}"
        raise InvalidRequest("devices", devices, rule=f"a multiple of tensor * pipeline, {each}", legal=legal)
    return devices // each
