"""Training setup: everything that a simulation of one training step reads.

The description is complete: it names the model, the machine, each parallel axis, the kernels and the schedule, and has
no unknown value. It knows no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Place
from suite.core.protocols import Schedule
from suite.schedule.placement import places
from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import SoftwareGeneration
from suite.workload.transformer import DecoderOnly

FLASH = ("flash1", "flash2", "flash3")  # attention kernels that keep the scores on the chip
ATTENTION = ("unfused", "fused_softmax", *FLASH)
PRECISIONS = ("tensorfloat32", "float16", "bfloat16", "float8", "float4")
RECOMPUTE = ("none", "selective", "operators", "alternate", "full")
SHARDING = ("none", "optimizer", "gradients", "parameters")
SPLITS = ("even", "ends_less", "flops")
VOCABULARY = ("last", "spread")


@dataclass(frozen=True)
class TrainingSetup:
    """One training step of `model` on `machine` with software of one generation.

    Attributes:
        schedule: Order of passes; None without a pipeline.
        tensor, pipeline, data, context: Sizes of the parallel axes. Their product is the number of devices.
        microbatch, batch: Sequences per microbatch and replica, and per step.
        sequence_parallel: Whether norms and residuals are split over the tensor-parallel ranks.
        sharding: States that data-parallel ranks shard: none, optimizer (ZeRO-1), gradients (ZeRO-2), parameters
            (ZeRO-3, FSDP).
        shard_group: Data-parallel ranks over which states are sharded; 0 for all of them.
        reshard: Whether sharded parameters are gathered again for the backward pass.
        precision: Type of matrix products. With tensorfloat32 everything else is in single precision.
        recompute: Activations computed again in the backward pass: none, selective (scores of attention), operators
            (every second product), alternate (every second block) or full (every block).
        attention: Attention kernel.
        fused_norm: Whether a norm is one kernel.
        dropout: Whether the model trains with dropout; None for what is usual in the generation.
        split: Blocks of the stages: even, ends_less (one block fewer on the first and the last stage), or flops.
        divided: Blocks of each stage, which may be fractions, in place of a split.
        vocabulary: Whether the last stage holds the language head, or all stages share it.
        offload: Whether the optimizer states are in host memory.
        waits_for_all: Whether no stage updates before every stage has drained (global norm of the gradients).
    """

    model: DecoderOnly
    machine: Machine
    generation: SoftwareGeneration
    schedule: Schedule | None
    tensor: int
    pipeline: int
    data: int
    context: int
    microbatch: int
    batch: int
    sequence_parallel: bool = False
    sharding: str = "none"
    shard_group: int = 0
    reshard: bool = True
    precision: str = "bfloat16"
    recompute: str = "none"
    attention: str = "flash2"
    fused_norm: bool = True
    dropout: bool | None = None
    split: str = "even"
    divided: tuple[float, ...] = ()
    vocabulary: str = "last"
    offload: bool = False
    waits_for_all: bool = True

    def __post_init__(self) -> None:
        for name, legal in (
            ("precision", PRECISIONS),
            ("recompute", RECOMPUTE),
            ("attention", ATTENTION),
            ("sharding", SHARDING),
            ("split", SPLITS),
            ("vocabulary", VOCABULARY),
        ):
            if getattr(self, name) not in legal:
                raise UnknownName(name, getattr(self, name), legal)
        for name in ("tensor", "pipeline", "data", "context", "microbatch", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name}={value}", rule="a whole number, at least 1", legal=f"{name}=1")
        if self.pipeline > 1 and self.schedule is None:
            raise InvalidRequest(f"pipeline={self.pipeline} without a schedule", rule="a pipeline has a schedule")
        if self.stages > self.model.layers + 2:
            raise InvalidRequest(
                f"{self.stages} stages for {self.model.layers} blocks",
                rule="every stage holds at least one layer",
                legal=f"pipeline={self.model.layers}",
            )
        self.machine.peak_of(self.precision)
        if self.precision == "tensorfloat32" and self.attention != "unfused":
            raise InvalidRequest(
                f"attention={self.attention} with precision=tensorfloat32",
                rule="fused attention kernels compute in 16 bits",
                legal="attention=unfused",
            )

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry of weights in use, and of activations."""
        return 4 if self.precision == "tensorfloat32" else 2

    @property
    def drops(self) -> bool:
        """Whether attention and residuals have dropout."""
        return self.generation.dropout and not self.model.gated if self.dropout is None else self.dropout

    @property
    def half_products(self) -> str:
        """Type of the products that are never in fewer than 16 bits: attention scores and the language head."""
        return self.precision if self.precision == "tensorfloat32" else "float16"

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def microbatches(self) -> int:
        """Microbatches per replica and step. A last microbatch that is not full counts as a full one."""
        return -(-self.batch // (self.microbatch * self.data))

    @property
    def interval(self) -> FlushInterval:
        return FlushInterval(0, self.microbatches, None, 0)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Place of each pipeline rank."""
        if self.schedule is None:
            return (Place(0, 1, 0, 1),)
        return places(self.schedule, self.pipeline)

    @property
    def stages(self) -> int:
        return self.places[0].stages

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one context-parallel rank."""
        return self.microbatch * self.model.sequence / self.context

    @cached_property
    def blocks(self) -> tuple[float, ...]:
        """Blocks of each stage."""
        if self.divided:
            return self.divided
        layers, stages = self.model.layers, self.stages
        if self.split == "ends_less" and stages > 1:
            inner, rest = divmod(layers + 2, stages)
            counts = [inner + (0 < stage <= rest) for stage in range(stages)]
            return tuple(n - (stage in (0, stages - 1)) for stage, n in enumerate(counts))
        if self.split == "flops" and stages > 1:
            head = 2 * self.model.sequence * self.model.hidden * self.model.vocabulary / self.model.block_flops
            share = (layers + head) / stages
            ends = [min(layers, round((stage + 1) * share)) for stage in range(stages)]
            return tuple(b - a for a, b in zip((0, *ends), (*ends[:-1], layers), strict=False))
        each, rest = divmod(layers, stages)
        # stages in the middle take what remains: the first and the last one hold an embedding or the head as well
        first = (stages - rest) // 2
        return tuple(each + (first <= stage < first + rest) for stage in range(stages))
