"""Keys of a compared system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from suite.config.base import MAX_COUNT, Count, Name, Ranks, Settings, Text
from suite.config.locate import PARTIAL, ROOTS, TARGET
from suite.config.plugins import Plugin
from suite.core.errors import Unsupported
from suite.core.protocols import Schedule
from suite.memory.layout import Layout

ENGINE = "suite.engine.system.EngineSystem"
MODELLED = "suite.simulate.block_model.SystemModel"
_TRAINING = (  # read by every system that trains on batches
    *("seed", "batch", "grid", "data", "optimizer", "precision", "schedule", "activation_checkpointing", "split"),
    *("kernels", "model.network", "model.shape", "model.dropout", "model.dtype", "comm.transport", "system._target_"),
)
_OF_ENGINE = ("weights", "update_interval", "memory", "pruning", "checkpoint", "comm")
_WHOLE_GRAPH = (
    *("seed", "grid.data", "graph", "partitioner", "exchange", "optimizer", "memory", "comm", "system._target_"),
    *("model.shape", "model.dtype"),
)
# a capability of the suite's engine, which other systems may declare too
OfEngine = Annotated[bool, Field(default_factory=lambda keys: keys.get("target") == ENGINE)]
MIXED = {TARGET: "suite.memory.mixed", PARTIAL: True}


class SimulationConfig(Settings):
    """Settings of a system's simulation that do not follow from its other keys.

    A setting may replace another key of the system; its YAML file then gives the reason.
    """

    layout: Plugin[Callable[..., Layout]] | None = None
    """Layout of the model states of a GPT's blocks; null: mixed precision, 20 bytes per parameter."""
    activation_checkpointing: Annotated[Literal["interval", "layer", "none"], Field(examples=["interval"])] = "interval"
    """Activation checkpoints: interval (AxoNN's rule, V-A), layer (the input of each layer) or none."""
    blocking_sends: bool = False
    """Whether a stage computes nothing while it sends (NCCL, AxoNN IV-A)."""
    device_initiated: bool = False
    """Whether the device starts messages itself, without waiting for the host."""
    scatter_messages: Annotated[Literal["none", "forward", "both"], Field(examples=["none"])] = "none"
    """Passes whose messages are split over the ranks of a tensor-parallel layer."""
    zero_stage: Annotated[int, Field(ge=0, le=1, examples=[1])] = 0
    """ZeRO stage; 1: optimizer states are sharded over replicas."""
    allreduces_per_update: Annotated[float, Field(ge=0, examples=[1.0])] = 1.0
    """Traffic of an update in all-reduces of its gradients: 1.5 is an all-reduce and an all-gather."""
    tied_embeddings: bool = False
    """Whether the first and the last stage add the gradients of their shared embedding."""
    bucket_numel: Annotated[int, Field(ge=0, le=MAX_COUNT, examples=[4_000_000])] = 0
    """Entries per optimizer step; 0: one step."""
    buckets_per_reduction: Count | None = None
    """Buckets per reduction (AxoNN V-C); null: one reduction, then the step."""


class SystemConfig(Settings):
    """A compared system: its class, its name, and its capabilities. Its class may read further keys."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_")]
    """Class that each rank builds."""
    name: Name
    choice: Text = ""
    """What follows `system=` in its command where that is not its name, such as torch_pipelining schedule=gpipe."""
    description: Text = ""
    """One line on the report's page."""
    paper: Text = ""
    """Paper that describes it."""
    has_memory_model: bool = False
    """Whether suite.memory predicts its memory."""
    microbatches: Annotated[Count | None, Field(examples=[None])] = None
    """Number of microbatches per replica and batch if the system requires a fixed number; null: any."""
    graphs: bool = False
    """Whether it trains one whole graph."""
    supports_schedules: OfEngine
    """Whether its ranks run the schedule of the config; by default, whether it runs on the suite's engine."""
    supports_streaming: OfEngine
    """Whether it can train without draining between batches; by default, whether it runs on the suite's engine."""
    supports_pruning: OfEngine
    """Whether it can train pruned networks; by default, whether it runs on the suite's engine."""
    supports_checkpoints: OfEngine
    """Whether it writes checkpoints; by default, whether it runs on the suite's engine."""
    orders: Mapping[str, Plugin[Schedule]] = Field(default_factory=dict)
    """Fixed orders of the system by its own names: schedules of the suite, with the arguments that an order fixes."""
    processes: Annotated[Ranks | None, Field(examples=[None])] = None
    """Number of processes if the system requires a fixed number; null: any."""
    tensor: bool = False
    """Whether it can split layers over ranks (grid.tensor)."""
    transformers: bool = False
    """Whether it trains networks of transformer blocks only."""
    sparse: bool = False
    """Whether its kernels skip pruned weights, so that its useful flops are fewer than those of dense kernels."""
    asynchronous: bool = False
    """Whether its pipeline updates without draining."""
    bubble: Text | None = None
    """Closed form of its idle time in `stages` and `microbatches`, which a conformance law checks; null: none."""
    simulation: Annotated[SimulationConfig | None, Field(examples=[None])] = None
    """Settings of the simulation that other keys do not give; null: it is not simulated."""

    @property
    def command(self) -> str:
        """The overrides that choose it."""
        return f"system={self.choice or self.name}"

    @property
    def on_engine(self) -> bool:
        """Whether its ranks run the suite's engine itself, which has every capability below."""
        return self.target == ENGINE

    @property
    def brings_order(self) -> bool:
        """Whether its ranks run fixed orders, which its YAML lists."""
        return bool(self.orders) and not self.supports_schedules

    def order_of(self, schedule: Plugin[Schedule]) -> str:
        """The system's own name of a schedule. Raises Unsupported for a schedule that is none of its orders."""
        unlike = {  # for each order of the schedule's class, the arguments that it fixes to other values
            name: {key: value for key, value in order.arguments.items() if schedule.arguments.get(key) != value}
            for name, order in self.orders.items()
            if order.target == schedule.target
        }
        if not unlike:
            targets = " or ".join(dict.fromkeys(order.target for order in self.orders.values()))
            rule = f"the ranks of {self.name} run {targets}"
            raise Unsupported("schedule", schedule.target, rule, "system=pipeline")
        name, other = min(unlike.items(), key=lambda row: len(row[1]))
        for key, value in other.items():
            rule = f"the ranks of {self.name} run this schedule with {key}={value}"
            raise Unsupported(f"schedule.{key}", schedule.arguments.get(key), rule, f"schedule.{key}={value}")
        return name

    @property
    def reads(self) -> tuple[str, ...] | None:
        """Groups and keys that its ranks read; None for a user's own class, which may read every key."""
        if self.target.partition(".")[0] not in ROOTS:
            return None
        if self.graphs:
            return _WHOLE_GRAPH
        own_settings = (f"system.{name}" for name in self.more)
        return (*_TRAINING, *own_settings, *(_OF_ENGINE if self.supports_schedules else ()))

    def modelled(self, schedule: Mapping[str, Any]) -> dict[str, Any]:
        """The system as simulators build it, with the schedule of its configuration. Raises Unsupported for a system
        without a simulation.
        """
        if self.simulation is None:
            rule = "a system with a block system.simulation is simulated"
            legal = "system=axonn" if self.name != "axonn" else "executor=real"
            raise Unsupported(f"{self.command} on a modelled machine", rule=rule, legal=legal)
        values = {key: value for key, value in self.simulation.plain().items() if value is not None}
        shared = {"name": self.name, "schedule": dict(schedule), "tensor": self.tensor, "sparse": self.sparse}
        return {TARGET: MODELLED, "layout": MIXED, **shared, **values}
