"""The configuration of one run, whole and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from suite.comm.world import launcher_kind, uses_pair_exchange
from suite.config.base import MAX_LAYERS, MAX_SEED, Count, Name, OnError, Rerun, Settings, Word
from suite.config.batches import BatchConfig, Checkpoint, Checkpoints, Comm, GridConfig, Measure
from suite.config.executor import Executor, reads_graphs
from suite.config.experiment import Experiment, Scale
from suite.config.graphs import ExchangeConfig, GraphConfig, PartitionerConfig
from suite.config.launch import Launch
from suite.config.network import DataConfig, KernelForms, MemoryConfig, Model, Precision, PruningConfig
from suite.config.optimizer import Optimizer
from suite.config.plugins import Plugin
from suite.config.refusals import validated
from suite.config.system import SystemConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule, WeightPolicy
from suite.core.values import is_number
from suite.workload.gcn import GCN
from suite.workload.transformer import Network

GRAPHS = ("graph", "partitioner", "exchange")  # groups that only runs on a whole graph read
# groups of a composed configuration that are no part of a run
NOT_IN_RUN = ("machine", "efficiency")
_SIZES = ("hidden", "heads", "sequence", "vocabulary", "image", "colours", "classes")
MOST = {"layers": MAX_LAYERS, **dict.fromkeys(_SIZES, 10_000_000)}  # of a shape; larger ones take minutes to build


class RunConfig(Settings):
    """One run: training (model, data, optimizer), system (schedule, weights, memory), ranks (grid, launch) and
    measurement.
    """

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Selects initial weights, dropout masks, samples and partitions."""
    tag: Word = ""
    """Suffix of the run's label, to distinguish two runs of one system."""
    batch: BatchConfig = BatchConfig()
    activation_checkpointing: Checkpoints = None
    """Blocks between activation checkpoints; auto: AxoNN's rule (V-A); null: no checkpoints."""
    update_interval: Count | None = None
    """Microbatches per update in an asynchronous pipeline; null: the pipeline drains for one update per batch."""
    split: Name = "even"
    """Split of layers over stages: even (blocks), cost (flops) or pipedream (its rule)."""
    comm: Comm = Comm()
    measure: Measure = Measure()
    checkpoint: Checkpoint = Checkpoint()
    reports: Name = "reports"
    """Folder of records, traces and the page."""
    rerun: Rerun = "stale"
    """Configurations that run again although they have a record. stale: those whose code, data, machine or library
    versions have changed since the record was written; failed: also those with an outcome other than ok; timeout: also
    those that exceeded their deadline; all: every configuration; keep: none. Configurations whose outcome is
    unsupported, missing_dependency or cancelled always run again."""
    on_error: OnError = "record"
    """After a failed run, record: continue with the next run; stop: end the command."""
    schedule: Plugin[Schedule]
    """Order of the ops of each stage."""
    weights: Plugin[WeightPolicy]
    """Weight policy: the version of the weights that each pass reads."""
    optimizer: Optimizer
    memory: MemoryConfig
    precision: Precision
    kernels: KernelForms = KernelForms()
    pruning: PruningConfig
    model: Model
    data: DataConfig
    executor: Executor
    system: SystemConfig
    grid: GridConfig = GridConfig()
    launch: Launch
    scale: Scale
    experiment: Experiment
    graph: GraphConfig | None = None
    partitioner: PartitionerConfig | None = None
    exchange: ExchangeConfig | None = None

    @model_validator(mode="after")
    def _plugins_know_their_keys(self) -> RunConfig:
        for key, plugin in plugins_of(self):
            plugin.place = key
        return self

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
    def microbatches(self) -> int:
        """Microbatches per replica and batch."""
        return self.batch.size // (self.batch.microbatch * self.grid.data)

    @property
    def warm_up_batches(self) -> int:
        """Untimed batches before the first round. In an asynchronous pipeline they are at least enough to fill it."""
        batches = self.measure.warm_up
        if self.update_interval is None:
            return batches
        return max(batches, math.ceil(self.grid.inter / self.microbatches))

    def flush_interval(self) -> FlushInterval:
        """Interval from one drain to the next: a batch, or the round of an asynchronous system.

        A longer round is cut to its first 4 * stages + update_interval microbatches, after which its order repeats.
        """
        every, count = self.update_interval, self.microbatches
        if every is None:
            return FlushInterval(0, count, None, 0)
        turn = count * (self.measure.discard_first + self.measure.batches)
        return FlushInterval(0, min(turn, 4 * self.grid.inter + every), every, 0)

    @property
    def pair_exchange(self) -> bool:
        """Whether groups of two ranks all-reduce by exchanging bytes, which needs a receive buffer."""
        comm, launch = self.comm, self.launch
        launcher = launcher_kind(launch.launcher, launch.mpi)
        return uses_pair_exchange(comm.transport, launcher, launch.device, pair_exchange=comm.pair_exchange)

    def network(self) -> Network:
        """The model's shape, as a pipeline splits it.

        Raises Unsupported for a graph network, whose layers are products with a whole graph.
        """
        shape = self.model.shape.build()
        if isinstance(shape, GCN):
            what = f"model={self.model.name} under {self.system.command}"
            raise Unsupported(what, rule="its layers are products with a whole graph", legal="system=sparsity_aware")
        return shape


def plugins_of(group: Settings, at: str = "") -> Iterator[tuple[str, Plugin[Any]]]:
    """The plug-ins of a group by their keys."""
    for name in type(group).model_fields:
        value = getattr(group, name)
        if isinstance(value, Plugin):
            yield at + name, value
        elif isinstance(value, Settings):
            yield from plugins_of(value, f"{at}{name}.")


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run of a composed configuration has."""
    excluded = NOT_IN_RUN if reads_graphs(config.get("executor")) else (*NOT_IN_RUN, *GRAPHS)
    return {key: value for key, value in config.items() if key not in excluded}


def checked_run(config: Mapping[str, Any]) -> RunConfig:
    """The typed configuration. Raises InvalidRequest for the first key that is missing, unknown or has a wrong
    value."""
    run = validated(RunConfig, settings_of(config))
    for name, most in MOST.items():
        size = run.model.shape.arguments.get(name, 1)
        if is_number(size) and size > most:
            raise InvalidRequest(f"model.shape.{name}", size, f"at most {most}", f"model.shape.{name}=1")
    return run
