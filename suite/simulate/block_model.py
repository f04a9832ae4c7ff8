"""Plan of a simulated GPT: model, batch, system and grid.

A plan knows no machine and no clock. With split="share", every stage has the same fraction of the blocks. Published
runs must have come near this fraction where their stages do not divide the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from suite.core.errors import InvalidRequest, UnknownName, Unsupported, refuse
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Place
from suite.core.protocols import Schedule
from suite.memory.budget import Budget
from suite.memory.checkpointing import activations
from suite.memory.layout import Layout, zero_1
from suite.memory.stage_budget import stage_budget
from suite.schedule.placement import homes_of, is_plain, places
from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import SoftwareGeneration, generations
from suite.simulate.operations.setup import TrainingSetup
from suite.workload import Transformer
from suite.workload.megatron_activations import FULL, HALF, saved_per_token
from suite.workload.split import divide_ranks
from suite.workload.stage_memory import MicrobatchMemory

CHECKPOINTS = ("interval", "layer", "none")
SLICED = ("none", "forward", "both")
SPLITS = ("even", "cost", "pipedream", "share")
MOMENTS = ("moment_1", "moment_2")  # Adam, which every published cluster run used


@dataclass(frozen=True, slots=True)
class SystemModel:
    """A compared system in the simulator (suite.config.system.SimulationConfig).

    Attributes:
        schedule, layout: Schedule and memory layout of the system.
        activation_checkpointing: Which activations are saved: one per AxoNN interval (V-A), the input of every layer
            (Megatron), or all.
        tensor: Whether the system can split a layer.
        blocking_sends: Whether a send occupies its stage (NCCL, AxoNN IV-A).
        device_initiated: Whether the device sends messages at once, without the host.
        sync_before_update: Whether updates begin only when every stage has drained.
        scatter_messages: Passes whose messages the ranks of a split layer send in slices: none, forward or both.
        zero_stage: 1 if replicas shard optimizer states.
        allreduces_per_update: Traffic of an update relative to an all-reduce; 1.5 is an all-reduce and an all-gather.
        tied_embeddings: Whether the ends of a pipeline add the gradients of their shared embedding, which training one
            model requires.
        bucket_numel: Entries per optimizer step.
        buckets_per_reduction: Buckets per all-reduce (AxoNN V-C); 0 for one reduction before one step.
        sparse: Whether products with weights skip pruned entries.
    """

    name: str
    schedule: Schedule
    layout: Callable[..., Layout]
    activation_checkpointing: str = "interval"
    tensor: bool = False
    blocking_sends: bool = False
    device_initiated: bool = False
    sync_before_update: bool = False
    scatter_messages: str = "none"
    zero_stage: int = 0
    allreduces_per_update: float = 1.0
    tied_embeddings: bool = False
    bucket_numel: int = 0
    buckets_per_reduction: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.activation_checkpointing not in CHECKPOINTS:
            raise UnknownName("activation_checkpointing", self.activation_checkpointing, CHECKPOINTS)
        if self.scatter_messages not in SLICED:
            raise UnknownName("scatter_messages", self.scatter_messages, SLICED)
        if self.zero_stage not in (0, 1):
            raise Unsupported(
                f"zero_stage={self.zero_stage}", rule="ZeRO stages 0 and 1 are modelled", legal="zero_stage=1"
            )
        names = ("bucket_numel", "buckets_per_reduction", "allreduces_per_update")
        refuse(
            (getattr(self, each) < 0, f"modelled.{each}={getattr(self, each)}", "not negative", "0") for each in names
        )


def transformer(shape: object) -> Transformer:
    """Shape of a GPT. Raises Unsupported for another kind of network."""
    if isinstance(shape, Transformer):
        return shape
    kind = type(shape).__name__
    raise Unsupported(
        f"a {kind} on a modelled machine", rule="blocks that are modelled are a GPT's", legal="model=gpt3_xl"
    )


@dataclass(frozen=True)
class SimulationPlan:
    """A network `shape` trained by `system` on `grid`, with `batch` sequences in microbatches of `microbatch`.

    The software `generation` determines the bytes of activations.
    """

    shape: Transformer
    system: SystemModel
    grid: Grid
    batch: int
    microbatch: int
    split: str = "even"
    generation: str = "megatron"

    def __post_init__(self) -> None:
        transformer(self.shape)
        if self.split not in SPLITS:
            raise UnknownName("split", self.split, SPLITS)
        if self.grid.tensor > 1 and not self.system.tensor:
            raise Unsupported(
                f"grid.tensor={self.grid.tensor} with {self.system.name}",
                rule="it splits no layer",
                legal="grid.tensor=1",
            )
        chunk, heads = max(1, self.microbatch) * self.grid.data, self.shape.heads
        replicas = f"{self.grid.data} replicas with microbatches of {self.microbatch}"
        uneven, legal = self.batch < 1 or self.batch % chunk, f"a batch of {max(1, self.batch // chunk) * chunk}"
        refuse(
            [
                (self.microbatch < 1, f"microbatch={self.microbatch}", "at least 1 sequence", "1"),
                (uneven, f"a batch of {self.batch} on {replicas}", "replicas * microbatch divides the batch", legal),
                (heads % self.grid.tensor, f"{heads} heads on grid.tensor={self.grid.tensor}", "G_intra divides heads"),
            ]
        )
        if (stages := self.places[0].stages) > self.shape.layers:
            what, legal = f"{stages} stages for {self.shape.layers} blocks", f"grid.inter={max(1, self.deepest)}"
            raise InvalidRequest(what, rule="every stage holds at least one block", legal=legal)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Place of each pipeline rank of the first replica."""
        return places(self.system.schedule, self.grid.inter, replicas=self.grid.data)

    @property
    def deepest(self) -> int:
        """Largest number of pipeline ranks."""
        return self.shape.layers * self.grid.inter // self.places[0].stages

    @property
    def microbatches(self) -> int:
        return self.batch // (self.microbatch * self.grid.data)

    @property
    def interval(self) -> FlushInterval:
        return FlushInterval(0, self.microbatches, None, 0)

    @property
    def boundary(self) -> int:
        """Bytes of the output of a block for a microbatch."""
        return HALF * self.microbatch * self.shape.sequence * self.shape.hidden

    @property
    def message(self) -> int:
        """Bytes of the activation of a microbatch that a rank sends to the next stage."""
        return self.boundary if self.system.scatter_messages == "none" else -(-self.boundary // self.grid.tensor)

    @cached_property
    def blocks(self) -> tuple[float, ...]:
        """Blocks of each stage. The first one also has the embedding, and the last one the head."""
        stages, end = self.places[0].stages, self.shape.layers + 1
        if self.split == "share":
            return (self.shape.layers / stages,) * stages
        ranges = divide_ranks(self.shape, homes_of(self.system.schedule, self.grid.inter), self.split)
        return tuple(len([index for index in layers if 0 < index < end]) for layers in ranges)

    def setup(self, machine: Machine, software: SoftwareGeneration) -> TrainingSetup:
        """The plan on a machine, with the software of its kernels."""
        return TrainingSetup(
            self.shape,
            machine,
            software,
            self.system.schedule,
            self.grid.tensor,
            self.grid.inter,
            self.grid.data,
            1,
            self.microbatch,
            self.batch,
            precision="float16",
            recompute="full" if self.recomputes else "none",
            attention=software.attention,
            divided=self.blocks,
        )

    def entries(self, *stages: int) -> int:
        """Parameters of `stages` on one rank. A tied head on another rank than the embedding is a copy."""
        shape = self.shape
        parameters = sum(self.blocks[stage] for stage in stages) * shape.block().parameters
        if 0 in stages:
            parameters += shape.embedding().parameters
        if len(self.blocks) - 1 in stages:
            head = shape.head()
            parameters += head.parameters + (0 if 0 in stages else head.tied)
        return -(-round(parameters) // self.grid.tensor)

    def layout(self, rank: int) -> Layout:
        """Model states of pipeline rank `rank`."""
        layout = self.system.layout(
            entries=self.entries(*self.places[rank].held_stages), moments=MOMENTS, dtype="float32"
        )
        return zero_1(self.grid.data)(layout) if self.system.zero_stage else layout

    def checkpoint_interval(self, stage: int) -> float:
        """Blocks between two activation checkpoints on `stage`: AxoNN's rule, every block, or none."""
        blocks = max(1, round(self.blocks[stage]))
        if self.system.activation_checkpointing == "interval":
            factors = [n for n in range(1, blocks + 1) if blocks % n == 0]
            layers, stages = self.shape.layers, len(self.blocks)
            return min(factors, key=lambda n: (abs(n - sqrt(layers)), activations(layers, stages, n)))
        return 1 if self.system.activation_checkpointing == "layer" else blocks

    @property
    def recomputes(self) -> bool:
        return self.system.activation_checkpointing != "none"

    def microbatch_memory(self, stage: int) -> MicrobatchMemory:
        """Bytes of one microbatch on `stage`, by the closed form of the generation's kernels.

        They are the checkpoints or all saved activations of the blocks, and the segment that is recomputed. From an
        input gradient to its weight gradient, recomputed blocks too hold the inputs of their products.
        """
        place, blocks, has_head = self.places[0], self.blocks[stage], stage == len(self.blocks) - 1
        apart, layout = self.checkpoint_interval(stage), self.layout(place.rank_of(stage))
        software, tokens, tensor = (
            generations()[self.generation],
            self.microbatch * self.shape.sequence,
            self.grid.tensor,
        )
        kept = tokens * saved_per_token(
            self.shape, tensor, attention=software.attention, drops=software.dropout, saved=software.saved_bytes
        )
        # log-probabilities stay until the microbatch's backward pass begins, and are gone when its blocks run again
        stays, head = (each * has_head * tokens * self.shape.vocabulary / tensor for each in (FULL, HALF))
        if self.recomputes:
            segment = apart * kept + self.boundary
            saved, working = blocks / apart * self.boundary + stays, max(segment - stays, head)
        else:
            saved, working = blocks * kept + stays, head
        dense = 0.0
        if layout["half_gradient"].entries < layout["half"].entries:
            # a layer's gradient is dense until it is compressed (SAMO III-C)
            dense = HALF * self.shape.block().parameters / tensor
        owed = blocks * self.shape.block(HALF).owed + has_head * self.shape.head(HALF).owed
        return MicrobatchMemory(
            round(saved),
            round(working + dense),
            input=self.message if stage else 0,
            owed=round(self.microbatch * owed / tensor),
        )

    def budget(self, rank: int) -> Budget:
        """Peak bytes of pipeline rank `rank`: checkpoints of every microbatch in flight, and one segment."""
        place = self.places[rank]
        return stage_budget(
            self.layout(rank),
            [self.microbatch_memory(stage) for stage in place.held_stages],
            self.system.schedule,
            place,
            self.interval,
            extra_versions=0,  # a plan drains, and its passes read the newest weights
            reducing=0,  # a ring reduces in place
            overlaps_step=False,
            # both papers add buckets to the activations; otherwise AxoNN's printed 130 GB (V-B) would be 114, not 126
            scratch_stays=True,
        )

    @property
    def peak(self) -> int:
        """Peak bytes of the fullest rank."""
        ends = {0, self.grid.inter - 1, *range(min(2, self.grid.inter))}
        if not is_plain(self.system.schedule):
            ends = {*range(self.grid.inter)}
        return max(self.budget(rank).peak for rank in ends)

    def total(self) -> int:
        """Peak bytes of all ranks together."""
        ranks = self.grid.data * self.grid.tensor
        return ranks * sum(self.budget(rank).peak for rank in range(self.grid.inter))

    def on(self, grid: Grid, microbatch: int | None = None) -> SimulationPlan:
        return replace(self, grid=grid, microbatch=microbatch or self.microbatch)
