"""Keys of a compared system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from suite.config.base import MAX_COUNT, Count, Name, Ranks, Settings, Text
from suite.config.locate import PARTIAL, TARGET
from suite.config.plugins import Plugin
from suite.core.errors import Unsupported
from suite.memory.layout import Layout

ENGINE = "suite.engine.system.EngineSystem"
MODELLED = "suite.simulate.block_model.Modelled"
MIXED = {TARGET: "suite.memory.mixed", PARTIAL: True}


class SimulationConfig(Settings):
    """Settings of a system's simulation that do not follow from its other keys. A value of another key may be
    overridden here, with the reason in its YAML.
    """

    layout: Plugin[Callable[..., Layout]] | None = None
    """Layout of the model states of a GPT's blocks; null: mixed precision, 20 bytes per parameter."""
    activation_checkpointing: Annotated[Literal["interval", "layer", "none"], Field(examples=["interval"])] = "interval"
    """Activations that are kept: interval: by AxoNN's rule (V-A); layer: each layer's input; none: no checkpoints."""
    blocking_sends: bool = False
    """A send occupies its stage (NCCL, AxoNN IV-A)."""
    device_initiated: bool = False
    """The device sends messages at once, without waiting for the host."""
    sync_before_update: bool = False
    """No stage updates before every stage has drained."""
    scatter_messages: Annotated[Literal["none", "forward", "both"], Field(examples=["none"])] = "none"
    """Passes whose messages are split over the ranks of a tensor-parallel layer."""
    zero_stage: Annotated[int, Field(ge=0, le=1, examples=[1])] = 0
    """ZeRO stage; 1: optimizer states are sharded over replicas."""
    allreduces_per_update: Annotated[float, Field(ge=0, examples=[1.0])] = 1.0
    """Traffic of an update in all-reduces of its gradients: 1.5 is an all-reduce and an all-gather."""
    tied_embeddings: bool = False
    """The first and last stage add the gradients of their shared embedding."""
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
    description: Text = ""
    """One line on the report's page."""
    paper: Text = ""
    """Paper that describes it."""
    has_memory_model: bool = False
    """Its memory is predicted by suite.memory."""
    microbatches: Annotated[Count | None, Field(examples=[None])] = None
    """Microbatches per replica and batch, where it allows no other number."""
    graphs: bool = False
    """It trains one whole graph."""
    supports_schedules: bool | None = None
    """Its ranks run the schedule of the config; null: as the engine of the suite does."""
    supports_streaming: bool | None = None
    """It trains without draining between batches; null: as the engine of the suite does."""
    supports_pruning: bool | None = None
    """It trains pruned networks; null: as the engine of the suite does."""
    supports_checkpoints: bool | None = None
    """It writes checkpoints; null: as the engine of the suite does."""
    order: Annotated[Name | None, Field(examples=[None])] = None
    """Class of the schedule that the system brings; null: it runs the config's, or an order that is not known."""
    processes: Annotated[Ranks | None, Field(examples=[None])] = None
    """Processes, where it allows no other number."""
    requires_full_pipeline: bool = False
    """Its order needs at least as many microbatches as stages."""
    tensor: bool = False
    """It can split layers: grid.tensor."""
    transformers: bool = False
    """It trains networks of transformer blocks and no others."""
    sparse: bool = False
    """Its products skip pruned weights, so its useful flops are a part of the dense ones."""
    asynchronous: bool = False
    """Its pipeline does not drain for an update."""
    bubble: Text | None = None
    """Formula of its idle time in `stages` and `microbatches`, which the law of closed forms checks; null: none."""
    simulation: Annotated[SimulationConfig | None, Field(examples=[None])] = None
    """Settings of the simulation that other keys do not give; null: it is not simulated."""

    @property
    def on_engine(self) -> bool:
        """Whether its ranks run the suite's engine itself, which has every capability below."""
        return self.target == ENGINE

    @property
    def runs_schedule(self) -> bool:
        """Whether its ranks run the schedule of the config."""
        return self.on_engine if self.supports_schedules is None else self.supports_schedules

    @property
    def brings_order(self) -> bool:
        """Whether its ranks run a fixed order, which its YAML names."""
        return not self.runs_schedule and self.order is not None

    @property
    def can_stream(self) -> bool:
        """Whether it trains without draining between batches."""
        return self.on_engine if self.supports_streaming is None else self.supports_streaming

    @property
    def can_prune(self) -> bool:
        """Whether it trains pruned networks."""
        return self.on_engine if self.supports_pruning is None else self.supports_pruning

    @property
    def can_resume(self) -> bool:
        """Whether it writes checkpoints and continues from them."""
        return self.on_engine if self.supports_checkpoints is None else self.supports_checkpoints

    def modelled(self, schedule: Mapping[str, Any]) -> dict[str, Any]:
        """The system as simulators build it, with the schedule of its configuration. Raises Unsupported for a system
        without a simulation.
        """
        if self.simulation is None:
            rule = "a system with a block system.simulation is simulated"
            legal = "system=axonn" if self.name != "axonn" else "executor=real"
            raise Unsupported(f"system={self.name} on a modelled machine", rule=rule, legal=legal)
        values = {key: value for key, value in self.simulation.plain().items() if value is not None}
        shared = {"name": self.name, "schedule": dict(schedule), "tensor": self.tensor, "sparse": self.sparse}
        return {TARGET: MODELLED, "layout": MIXED, **shared, **values}
