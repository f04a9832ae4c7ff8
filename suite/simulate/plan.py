"""Decides what one run on a cluster is: a model, a batch, a system and how they are spread over devices.

A plan knows no machine and no clock. What a stage holds is counted in blocks, embedding and head; `share` gives every
stage the same fraction of the blocks, which is what a published run must have come near where its stages do not divide
its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from suite.core.errors import Refused, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.op import Work
from suite.core.protocols import Schedule
from suite.memory import Layout, zero_1
from suite.memory.budget import Budget
from suite.memory.checkpointing import activations
from suite.workload import Transformer
from suite.workload.kernels import HALF, Kernels
from suite.workload.split import divide

CHECKPOINTS = ("interval", "layer", "none")
SLICED = ("none", "forward", "both")
SPLITS = ("even", "cost", "pipedream", "share")
MOMENTS = ("moment_1", "moment_2")  # Adam, which every published cluster run used


@dataclass(frozen=True, slots=True)
class Modelled:
    """A compared system as the simulator knows it (suite.config.system.Simulation).

    schedule, layout: as in its config; checkpoints: which activations are kept: every AxoNN interval (V-A), every
        layer's input (Megatron), or all
    tensor: whether it can split a layer; blocking: whether a send occupies its stage (NCCL, AxoNN IV-A)
    direct: whether messages leave by the device at once, not when the host comes round to them
    apart: whether no stage updates before every stage has drained
    sliced: the passes whose messages the ranks of a split layer share out, a slice each: none, forward or both
    zero: 1 where replicas share optimizer states out; reductions: the share of an all-reduce's traffic that an update
        sends, so 1.5 is an all-reduce and an all-gather
    ties: whether the ends of a pipeline add the gradients of their shared embedding, as they must to train one model
    bucket: entries per optimizer step; coarsening: buckets per reduction (AxoNN V-C); 0: one reduction, then one step
    sparse: whether products with weights skip what is pruned
    """

    name: str
    schedule: Schedule
    layout: Callable[..., Layout]
    checkpoints: str = "interval"
    tensor: bool = False
    blocking: bool = False
    direct: bool = False
    apart: bool = False
    sliced: str = "none"
    zero: int = 0
    reductions: float = 1.0
    ties: bool = False
    bucket: int = 0
    coarsening: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.checkpoints not in CHECKPOINTS:
            raise UnknownName("checkpoints", self.checkpoints, CHECKPOINTS)
        if self.sliced not in SLICED:
            raise UnknownName("sliced", self.sliced, SLICED)
        if self.zero not in (0, 1):
            raise Unsupported(f"zero={self.zero}", rule="ZeRO stages 0 and 1 are modelled", legal="zero=1")
        for name in ("bucket", "coarsening", "reductions"):
            if getattr(self, name) < 0:
                raise Refused(f"modelled.{name}={getattr(self, name)}", rule="not negative", legal="0")


@dataclass(frozen=True, slots=True)
class Holding:
    """What a stage holds: blocks (a fraction where the split is `share`), and whether embedding and head."""

    blocks: float
    embedding: bool
    head: bool


def transformer(shape: object) -> Transformer:
    """The shape of a GPT. Raises Unsupported for that of another network."""
    if isinstance(shape, Transformer):
        return shape
    kind = type(shape).__name__
    raise Unsupported(
        f"a {kind} on a modelled machine", rule="blocks that are modelled are a GPT's", legal="model=gpt3_xl"
    )


@dataclass(frozen=True)
class Plan:
    """`shape` trained by `system` on `grid`, `batch` sequences at a time in microbatches of `microbatch`."""

    shape: Transformer
    system: Modelled
    grid: Grid
    batch: int
    microbatch: int
    split: str = "even"

    def __post_init__(self) -> None:
        transformer(self.shape)
        if self.split not in SPLITS and not self.split.endswith(".json"):
            raise UnknownName("split", self.split, SPLITS)
        if self.microbatch < 1:
            raise Refused(f"microbatch={self.microbatch}", rule="at least 1 sequence", legal="1")
        chunk = self.microbatch * self.grid.data
        if self.batch < 1 or self.batch % chunk:
            raise Refused(
                f"a batch of {self.batch} on {self.grid.data} replicas with microbatches of {self.microbatch}",
                rule="replicas * microbatch divides the batch",
                legal=f"a batch of {max(1, self.batch // chunk) * chunk}",
            )
        if self.grid.tensor > 1 and not self.system.tensor:
            raise Unsupported(
                f"grid.tensor={self.grid.tensor} with {self.system.name}",
                rule="it splits no layer",
                legal="grid.tensor=1",
            )
        if self.grid.tensor > 1 and self.shape.heads % self.grid.tensor:
            raise Refused(f"{self.shape.heads} heads on grid.tensor={self.grid.tensor}", rule="G_intra divides heads")
        if self.grid.inter > self.shape.layers:
            raise Refused(
                f"{self.grid.inter} stages for {self.shape.layers} blocks",
                rule="every stage holds at least one block",
                legal=f"grid.inter={self.shape.layers}",
            )

    @property
    def deepest(self) -> int:
        """Stages at most."""
        return self.shape.layers

    @property
    def microbatches(self) -> int:
        return self.batch // (self.microbatch * self.grid.data)

    @property
    def work(self) -> Work:
        return Work(0, self.microbatches, None, 0)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels.of(self.shape, self.grid.tensor)

    @cached_property
    def stages(self) -> tuple[Holding, ...]:
        last = self.grid.inter - 1
        if self.split == "share":
            blocks = self.shape.layers / self.grid.inter
            return tuple(Holding(blocks, stage == 0, stage == last) for stage in range(self.grid.inter))
        ranges = divide(self.shape, self.grid.inter, self.split)
        end = self.shape.layers + 1
        return tuple(Holding(len([i for i in r if 0 < i < end]), 0 in r, end in r) for r in ranges)

    def entries(self, stage: int) -> int:
        """Parameters of one rank of `stage`; a tied head on another stage than the embedding is a copy."""
        held, shape = self.stages[stage], self.shape
        own = held.blocks * shape.block().parameters
        if held.embedding:
            own += shape.embedding().parameters
        if held.head:
            head = shape.head()
            own += head.parameters + (0 if held.embedding else head.tied)
        return -(-round(own) // self.grid.tensor)

    def layout(self, stage: int) -> Layout:
        layout = self.system.layout(entries=self.entries(stage), moments=MOMENTS, dtype="float32")
        return zero_1(self.grid.data)(layout) if self.system.zero else layout

    def interval(self, stage: int) -> float:
        """Blocks between two activation checkpoints on `stage`: AxoNN's rule, or each, or none."""
        blocks = max(1, round(self.stages[stage].blocks))
        if self.system.checkpoints == "interval":
            factors = [n for n in range(1, blocks + 1) if blocks % n == 0]
            layers, stages = self.shape.layers, self.grid.inter
            return min(factors, key=lambda n: (abs(n - sqrt(layers)), activations(layers, stages, n)))
        return 1 if self.system.checkpoints == "layer" else blocks

    @property
    def recomputes(self) -> bool:
        return self.system.checkpoints != "none"

    def budget(self, stage: int) -> Budget:
        """Bytes of one rank of `stage` at its peak: checkpoints of every microbatch in flight, and one segment."""
        held, kernels, size = self.stages[stage], self.kernels, self.microbatch
        place = self.grid.place(self.grid.rank(data=0, inter=stage))
        apart, layout = self.interval(stage), self.layout(stage)
        head = kernels.logits if held.head else 0.0  # gone before the blocks are computed again
        if self.recomputes:
            kept, working = held.blocks / apart * kernels.boundary, max(apart * kernels.kept + kernels.boundary, head)
        else:
            kept, working = held.blocks * kernels.kept, head
        dense = 0.0
        if layout["half_gradient"].form != layout["half"].form:
            # a layer's gradient is dense until it is compressed (SAMO III-C)
            dense = HALF * self.shape.block().parameters / self.grid.tensor
        return Budget(
            layout=layout,
            activations=round(size * kept),
            in_flight=self.system.schedule.in_flight(place, self.work),
            working=round(size * working + dense),
            waiting=layout.bytes(life="bucket") + layout.bytes(life="step"),  # kept from batch to batch, as both count
        )

    @property
    def peak(self) -> int:
        """Bytes of the fullest rank."""
        ends = {0, self.grid.inter - 1, *range(min(2, self.grid.inter))}
        return max(self.budget(stage).peak for stage in ends)

    def total(self) -> int:
        """Bytes of all ranks together."""
        ranks = self.grid.data * self.grid.tensor
        return ranks * sum(self.budget(stage).peak for stage in range(self.grid.inter))

    def on(self, grid: Grid, microbatch: int | None = None) -> Plan:
        return replace(self, grid=grid, microbatch=microbatch or self.microbatch)
