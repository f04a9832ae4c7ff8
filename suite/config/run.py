"""The configuration of one run, whole and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from suite.comm import by_exchange, launcher_of
from suite.config.base import MOST_SEED, Name, Settings, Word, name_like
from suite.config.experiment import Executor, Experiment, Scale
from suite.config.graphs import Exchange, Graph, Partitioner
from suite.config.launch import Launch
from suite.config.measure import Measure, Resume
from suite.config.network import Data, Memory, Model, Precision, Pruning
from suite.config.parallel import Batch, Checkpoints, Comm, Grid, Update
from suite.config.plugins import Plugin
from suite.config.system import System
from suite.core.errors import Unsupported
from suite.core.protocols import Schedule, UpdateRule, WeightPolicy
from suite.workload.gcn import GCN
from suite.workload.shapes import Network


class RunConfig(Settings):
    """What one run trains (model, data, optimizer), by which system (schedule, weights, memory), where (grid, launch),
    and how it is measured."""

    seed: Annotated[int, Field(ge=0, le=MOST_SEED, examples=[0])] = 0
    """Selects initial weights, dropout masks, samples and partitions."""
    tag: Word = ""
    """Ends the label of a run: distinguishes two runs of one system."""
    batch: Batch = Batch()
    checkpoints: Checkpoints = None
    """Blocks between activation checkpoints; auto: AxoNN's rule (V-A); null: every activation is kept."""
    update: Update = Update()
    split: Annotated[Name, name_like("even")] = "even"
    """Layers per stage: even counts blocks, cost adds flops, pipedream its rule, FILE.json a measured profile."""
    comm: Comm = Comm()
    measure: Measure = Measure()
    resume: Resume = Resume()
    reports: Name = "reports"
    """Folder of records, traces and the page."""
    rerun: Annotated[Name, name_like("stale")] = "stale"
    """Runs that are made although they have a record: stale, failed, timeout, all or keep."""
    on_error: Annotated[Name, name_like("record")] = "record"
    """record: later runs are made after one that failed; stop: they are not."""
    schedule: Plugin[Schedule]
    """Order of the ops of each stage."""
    weights: Plugin[WeightPolicy]
    """Version of the weights that each pass reads."""
    optimizer: Plugin[UpdateRule]
    """Update rule of the weights."""
    memory: Memory
    precision: Precision
    pruning: Pruning
    model: Model
    data: Data
    executor: Executor
    system: System
    grid: Grid = Grid()
    launch: Launch
    scale: Scale
    experiment: Experiment
    unread: list[str] | None = None
    """Overrides that the run does not read, for which it is refused."""
    graph: Graph | None = None
    partitioner: Partitioner | None = None
    exchange: Exchange | None = None

    def changed(self, values: Mapping[str, Any]) -> RunConfig:
        """A copy with other values at dotted keys. Raises ValidationError for a value that its key does not allow."""
        data = self.plain()
        for key, value in values.items():
            *groups, name = key.split(".")
            group = data
            for each in groups:
                group = group[each]
            group[name] = value
        return RunConfig.model_validate(data)

    @property
    def pair_exchange(self) -> bool:
        """Whether the two ranks of a group add by an exchange of bytes, with room for the other's part."""
        comm, launch = self.comm, self.launch
        launcher = launcher_of(launch.starter, launch.mpi)
        return by_exchange(comm.transport, launcher, launch.device, pair_exchange=comm.pair_exchange)

    def network(self) -> Network:
        """The model's shape, as a pipeline splits it.

        Raises Unsupported for a model whose layers no stage can hold alone: each is a product with a whole graph.
        """
        shape = self.model.shape.build()
        if isinstance(shape, GCN):
            what = f"model={self.model.name} under system={self.system.name}"
            raise Unsupported(what, rule="its layers are those of a whole graph", legal="system=sparsity_aware")
        return shape
