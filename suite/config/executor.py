"""Keys of the executors, a model for each kind.

`executor.kind` selects the model. The classes that implement the built-in kinds are listed in
suite.runner.executors.registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field

from suite.config import protocols
from suite.config.base import Count, Name, Positive, Settings, Text
from suite.config.locate import TARGET
from suite.config.plugins import Plugin, build
from suite.core.protocols import CostModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

Folder = Annotated[str, Field(pattern=r"^(suite|baselines)(/\w+)*$")]  # hashing any other could read a whole disk
Factors = dict[Annotated[int, Field(strict=False, ge=0)], Positive]  # JSON has text as keys
Seconds = Annotated[float, Field(ge=0)]


class ExecutorSettings(Settings):
    """Keys of every executor."""

    starts_ranks: ClassVar[bool] = True
    trains: ClassVar[bool] = False
    """Whether its ranks train the system."""
    one_process: ClassVar[bool] = False
    """Whether one process runs all stages."""
    loads_torch: ClassVar[bool] = True
    """Whether its ranks load torch."""

    kind: str
    """Kind of executor; each kind has its own keys."""
    name: Name | None = None
    """Name in the record and on the page."""
    label: Text | None = None
    """Label of the run; null: the system and its grid."""
    sources: Annotated[list[Folder], Field(default_factory=list)]
    """Folders whose code decides the numbers, in addition to the code of the ranks."""

    @property
    def ranks(self) -> int | None:
        """Processes that are started; None: one for each place of the grid."""
        return 1 if self.one_process else None

    @property
    def reads_graphs(self) -> bool:
        """Whether it reads the groups graph, partitioner and exchange."""
        return reads_graphs(self.plain())


class RealExecutor(ExecutorSettings):
    """Real ranks train the system."""

    trains: ClassVar[bool] = True

    kind: Literal["real"]
    """Real processes, tensors and messages."""


class FullGraphExecutor(ExecutorSettings):
    """Real ranks train a whole graph; the process that starts them partitions it. An epoch is a batch."""

    trains: ClassVar[bool] = True

    kind: Literal["full_graph"]
    """Real processes, each with its part of one graph."""


class Jitter(Settings):
    """Factor on each forward and backward pass, by seed, rank and op."""

    kind: Literal["lognormal", "uniform"] = "lognormal"
    """Distribution: lognormal, or uniform from 1 - spread to 1 + spread."""
    spread: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the logarithm, or half the width of the uniform distribution, below 1."""


class LinkConfig(Settings):
    """Link between two ranks."""

    latency: Annotated[float, Field(ge=0)]
    """Seconds from the end of an op to the start of the op that waits for it."""
    bandwidth: Annotated[float, Field(gt=0)]
    """Bytes per second."""


class EmulatedExecutor(ExecutorSettings):
    """Real ranks and real messages; compute is a timed sleep."""

    loads_torch: ClassVar[bool] = False

    kind: Literal["emulated"]
    """Timed sleeps in place of compute."""
    cost: Plugin[CostModel]
    """Seconds and bytes of each op."""
    prediction: Seconds = 0.0
    """Seconds of each prediction of a stage's weights that the weight policy requests."""
    copying: Annotated[Seconds, Field(alias="copy")] = 0.0
    """Seconds of each copy of a stage's weights that the weight policy requests."""
    jitter: Annotated[Jitter | None, Field(examples=[None])] = None
    """Random factor on each pass; null: none."""
    stragglers: Annotated[Factors | None, Field(examples=[{0: 1.5}])] = None
    """Factor on the passes of a rank, by rank; null: none."""
    network: Annotated[LinkConfig | None, Field(examples=[None])] = None
    """Link of the simulation of the run; null: the mean of the run's own messages."""


class MicrobenchmarkExecutor(ExecutorSettings):
    """Real ranks that measure operations and train nothing. Its class takes further keys."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["microbenchmark"]
    """Measurement of single operations."""
    target: Annotated[Text, Field(alias="_target_")]
    """Class of the measurement."""

    def build(self) -> protocols.Microbenchmark:
        """The measurement. Raises InvalidRequest for an argument that its class refuses."""
        built: protocols.Microbenchmark = build(
            {TARGET: self.target, **self.more}, "executor", protocols.Microbenchmark
        )
        return built


class Ticks(Settings):
    """Whole ticks of each kind of op."""

    forward: Count
    """Ticks of a forward pass."""
    backward: Count
    """Ticks of a whole backward pass: input gradient and weight gradient."""
    weight: Count
    """Ticks of the weight gradient, where the schedule splits backward passes."""
    update: Annotated[int, Field(ge=0, le=1_000_000_000)]
    """Ticks of an update."""


class CheckExecutor(ExecutorSettings):
    """The schedule alone, without ranks, tensors or a clock."""

    starts_ranks: ClassVar[bool] = False

    kind: Literal["check"]
    """The schedule checker, in ticks."""
    ticks: Ticks


class SimulatedExecutor(ExecutorSettings):
    """The run in virtual time on a modelled machine, without ranks."""

    starts_ranks: ClassVar[bool] = False

    kind: Literal["simulated"]
    """Virtual time."""
    machine: Plugin[Machine]
    """Modelled machine."""
    efficiency: Plugin[Efficiency]
    """Share of the machine's peak that the software reaches."""
    plan: Literal["given", "search"] = "given"
    """given: grid and microbatch of the config; search: the fastest grid and microbatch on the same devices."""
    account: Literal["auto", "blocks", "layers"] = "auto"
    """blocks: simulate the blocks of a GPT; layers: the layers of any network; auto: blocks for a GPT that drains."""
    symmetric: bool = True
    """Whether one replica is simulated for all; false: every rank is simulated."""


class ReplayExecutor(ExecutorSettings):
    """One process runs the ops of all ranks in turn, with the same losses, scores and weight versions as real ranks."""

    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    kind: Literal["replay"]
    """One process in place of all ranks of a system on the suite's engine."""
    memory: bool = False
    """Count the bytes of each rank over one more batch; passes are recomputed wherever they are on ranks."""


class PluginExecutor(ExecutorSettings):
    """A class that executes the run without ranks. It takes further keys."""

    model_config = ConfigDict(extra="allow")
    starts_ranks: ClassVar[bool] = False

    kind: Literal["plugin"]
    """A class by its path."""
    target: Annotated[Text, Field(alias="_target_")]
    """Class that executes the run."""
    graphs: bool = False
    """It reads the groups graph, partitioner and exchange."""

    def build(self) -> protocols.Executor:
        """The executor. Raises InvalidRequest for an argument that its class refuses."""
        built: protocols.Executor = build({TARGET: self.target, **self.more}, "executor", protocols.Executor)
        return built


AnyExecutor = (
    RealExecutor
    | FullGraphExecutor
    | EmulatedExecutor
    | MicrobenchmarkExecutor
    | SimulatedExecutor
    | CheckExecutor
    | ReplayExecutor
    | PluginExecutor
)
Executor = Annotated[AnyExecutor, Field(discriminator="kind")]
BY_KIND: Mapping[str, type[ExecutorSettings]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(AnyExecutor)
}


def reads_graphs(executor: Any) -> bool:
    """Whether an executor that is not validated yet reads the groups graph, partitioner and exchange."""
    if not isinstance(executor, Mapping):
        return False
    return executor.get("kind") == "full_graph" or (executor.get("kind") == "plugin" and bool(executor.get("graphs")))


def starts_ranks(kind: Any) -> bool:
    """Whether an executor of this kind starts ranks; true for an unknown kind."""
    return not isinstance(kind, str) or kind not in BY_KIND or BY_KIND[kind].starts_ranks
