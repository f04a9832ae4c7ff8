"""DeepSpeed (Rasley et al., 2020): PipelineModule and PipelineEngine, with ZeRO stage 0 or 1 over the replicas.

The schedule is 1F1B with a flush (PipeDream-flush), with blocking messages between neighbours and a reduction of
gradients at the end of a batch. Messages and order are DeepSpeed's. The suite provides layers, split, rows and torch's
optimizer, and takes the loss that DeepSpeed shares after every batch. Dropout masks are PyTorch's and differ from the
suite's.

Ranks are in DeepSpeed's order (PipeModelDataParallelTopology): parts of a layer, then replicas, then stages, so rank =
(stage * replicas + replica) * tensor + part. In the suite's order, replicas are outermost. With grid.tensor > 1, blocks
are split as in baselines.tensor_parallel. Messages between stages are sent in slices, one per part, which DeepSpeed
gathers (system.partitioned).

Mixed precision is DeepSpeed's bf16. Master weights are partitioned over the replicas even in ZeRO stage 0, where
DeepSpeed uses its BF16_Optimizer, which accumulates and reduces gradients in bfloat16. ZeRO stage 1 has its own
optimizer, or uses BF16_Optimizer to accumulate in float32 (system.accumulate). Reductions are in bfloat16 unless
system.reduce names another type.

Master weights begin as the initial weights of all systems, not as DeepSpeed's rounded copies. In float16, DeepSpeed
scales the loss by its own rule with the suite's numbers; it refuses a CPU without float16 instructions. A skipped batch
is no update, and the learning rate does not change.

A group of blocks that is recomputed is one layer for DeepSpeed, which checkpoints exactly these layers.

On a CPU, DeepSpeed compiles a shared-memory all-reduce at its first initialization. This takes time and a compiler, and
a killed build leaves a lock for which later builds wait forever. Only `deepspeed.comm.inference_all_reduce` calls it,
for tensor parallelism in inference, and no pipeline does. It is therefore left out, through the accelerator that
DeepSpeed receives. No other kernel is compiled, because the optimizer is torch's.
"""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

from baselines.common import (
    DefaultGroup,
    PeerPlan,
    bytes_of,
    bytes_of_moments,
    gpt,
    optimizer,
    refuse,
    set_rate,
    train_options,
)
from baselines.deepspeed_layers import module
from baselines.tensor_parallel import check_heads
from suite.comm.rendezvous.launcher_env import launch_info
from suite.config import protocols
from suite.config.plugins import own_settings
from suite.config.run import RunConfig
from suite.core import errors
from suite.core.errors import Broken, Unsupported
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import Trace
from suite.engine.memory_tracker import MemoryTracker

_NEVER = 1 << 62  # batches between two printed lines


@dataclass(frozen=True, kw_only=True)
class DeepSpeedSettings:
    """DeepSpeed's own keys of `system`; conf/system/deepspeed_3d.yaml explains them."""

    zero_stage: int
    fused: bool
    bucket_entries: int | None
    contiguous_gradients: bool
    reduce_scatter: bool
    partitioned: bool
    accumulate: Literal["half", "float32"]
    reduce: Literal["half", "float32"]
    disable_python_gc: bool


class DeepSpeed3D(protocols.System):
    """One rank of DeepSpeed's pipeline on grid.inter stages and grid.data replicas."""

    settings = DeepSpeedSettings

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        refuse(config, dtypes=("float32",))
        errors.refuse(_rules(config, own_settings(DeepSpeedSettings, config)), Unsupported)
        if find_spec("deepspeed") is None:
            return Missing("deepspeed is not installed: pip install deepspeed")
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        self.plan = PeerPlan(config)
        # DeepSpeed takes both values from the environment only
        os.environ["DS_ACCELERATOR"] = world.device.type
        os.environ.setdefault("LOCAL_RANK", str(launch_info().local_rank))
        self.group = DefaultGroup(world, self.plan.grid)
        with _quiet():
            self.engine, self.rate = _engine(self.plan, config)
        self.replica = self.engine.grid.get_data_parallel_id()

    def train_batch(self, batch: Value) -> float:
        set_rate(self.engine.optimizer, self.rate(self.engine.global_steps - self.engine.skipped_steps))
        return float(self.engine.train_batch(self._microbatches(batch)))

    def evaluate(self, batches: Sequence[Value]) -> float:
        losses = [float(self.engine.eval_batch(self._microbatches(batch))) for batch in batches]
        return sum(losses) / len(losses)

    def observe(self) -> Trace:
        """An empty trace: DeepSpeed records no spans, and its timers would slow it down."""
        return Trace()

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

        optimizer, weights = self.engine.basic_optimizer, bytes_of(self.engine.module.parameters())
        with MemoryTracker() as live:
            loss = self.train_batch(batch)
        bytes_by_kind = {"weights": weights, "gradients": weights, "moments": bytes_of_moments(optimizer)}
        if self.engine.zero_optimization_stage() or self.plan.options.half:
            # the optimizer steps on a flat copy of its share of the weights
            bytes_by_kind["masters"] = bytes_of(p for group in optimizer.param_groups for p in group["params"])
        # BF16_Optimizer adds the gradients of all microbatches in a buffer next to the gradients of one
        if isinstance(self.engine.optimizer, BF16_Optimizer):
            bytes_by_kind["gradients"] += bytes_of(self.engine.optimizer.fp32_groups_gradients_flat)
        # DeepSpeed frees gradients after a batch, so they are among what was allocated; reductions' buffers too
        return loss, {**bytes_by_kind, "activations": max(0, live.peak - weights)}

    def close(self) -> None:
        import deepspeed

        self.engine.destroy()
        if self.group.owns_group:
            deepspeed.comm.destroy_process_group()
        self.group.close()

    def _microbatches(self, batch: Value) -> Iterator[tuple[torch.Tensor, ...]]:
        inputs, targets = (self.plan.rows(part, self.replica) for part in batch)
        return zip(inputs, targets, strict=True)


def _engine(plan: PeerPlan, config: RunConfig) -> tuple[Any, Any]:
    """DeepSpeed's engine on this rank, and the learning rate of each update."""
    import deepspeed

    settings = own_settings(DeepSpeedSettings, config)
    _leave_out_shared_memory()
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    with torch.no_grad():  # it broadcasts weights, and autograd would watch
        layers = module(plan)
    trained = [p for p in layers.parameters() if p.requires_grad]
    chosen_optimizer, rate = optimizer(config, trained, fused=settings.fused or None)
    bucket = settings.bucket_entries or sum(p.numel() for p in trained)
    before = [weight.detach().clone() for weight in trained] if plan.options.half else []
    engine, *_ = deepspeed.initialize(model=layers, optimizer=chosen_optimizer, config=_told(plan, settings, bucket))
    for weight, value in zip(trained, before, strict=False):  # DeepSpeed's masters begin as rounded weights
        deepspeed.utils.safe_set_full_fp32_param(weight, value)
    return engine, rate


def _told(plan: PeerPlan, settings: DeepSpeedSettings, bucket: int) -> dict[str, Any]:
    """DeepSpeed's configuration, without timers and printing."""
    clip, zero_stage = plan.options.clip, settings.zero_stage
    zero = {
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "contiguous_gradients": settings.contiguous_gradients,
        "reduce_scatter": settings.reduce_scatter,
        "overlap_comm": False,  # DeepSpeed has none with a pipeline
        # wanted for clipping alone, and by BF16_Optimizer, which always takes it
        "compute_grad_norm": bool(clip or plan.options.half),
    }
    return {
        "train_batch_size": plan.size,
        "train_micro_batch_size_per_gpu": plan.microbatch,
        "gradient_accumulation_steps": plan.microbatches,
        "zero_optimization": {"stage": zero_stage} | (zero if zero_stage else {}),
        "zero_allow_untested_optimizer": True,  # SGD
        "pipeline": {
            "use_reentrant": False,  # recomputation must take tokens, which have no gradient
            "pipe_partitioned": settings.partitioned,
            "grad_partitioned": settings.partitioned,
        },
        "gradient_clipping": clip or 0.0,
        "disable_python_gc": settings.disable_python_gc,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
        **_half(plan, settings),
    }


def _half(plan: PeerPlan, settings: DeepSpeedSettings) -> dict[str, Any]:
    """DeepSpeed's settings of mixed precision. Its loss scale has no upper bound."""
    options = plan.options
    if options.half is None:
        return {}
    names = {"half": "bf16", "float32": "fp32"}
    mode: dict[str, dict[str, bool | int | float]]
    mode = {"bf16": {"enabled": True, "check_grad_overflow": False}}  # bfloat16 has the range of float32
    if options.half is torch.float16:
        names["half"] = "fp16"
        scale = options.scale()
        dynamic = {"loss_scale": 0, "initial_scale_power": int(math.log2(scale.start)), "hysteresis": 1}
        window = {"loss_scale_window": scale.patience, "min_loss_scale": scale.least}
        mode = {"fp16": {"enabled": True, **dynamic, **window}}
    return {
        **mode,
        "data_types": {"grad_accum_dtype": names[settings.accumulate]},
        "communication_data_type": names[settings.reduce],
    }


def _leave_out_shared_memory() -> None:
    """DeepSpeed's CPU accelerator without the builder of its shared-memory all-reduce."""
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    class WithoutSharedMemory(CPU_Accelerator):  # type: ignore[misc]
        def create_op_builder(self, op_name: str) -> Any:
            return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)

    if type(get_accelerator()) is CPU_Accelerator:
        set_accelerator(WithoutSharedMemory())


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress DeepSpeed's output of seeds, partitions and intended settings. Errors are still printed."""
    from deepspeed.utils import logger  # before the redirection: it keeps the standard output that it finds

    logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_tensor` is deprecated", FutureWarning)
    with redirect_stdout(io.StringIO()):
        yield


def _rules(config: RunConfig, settings: DeepSpeedSettings) -> Iterator[Broken]:
    """Combinations that DeepSpeed does not have."""
    half, stage, tensor = train_options(config).half, settings.zero_stage, config.grid.tensor
    name, zero_1 = "deepspeed_3d with", "system.zero_stage=1"
    rule = "DeepSpeed's pipeline supports ZeRO stages 0 and 1; stages 2 and 3 shard unfinished gradients"
    yield stage not in (0, 1), f"{name} system.zero_stage={stage}", rule, zero_1
    if half is torch.float16:
        emulated = config.launch.device == "cpu" and not torch.ops.mkldnn._is_mkldnn_fp16_supported()
        rule = "DeepSpeed has float16 on CUDA, and on a CPU with float16 instructions"
        yield emulated, f"{name} precision.half=float16", rule, "precision=bf16"
        rule = "DeepSpeed's ZeRO stage 0 follows another rule for the loss scale"
        yield stage == 0, f"{name} precision.half=float16 and system.zero_stage=0", rule, zero_1
    widened = half and settings.accumulate == "float32" and stage == 0
    rule = "DeepSpeed accumulates halves in float32 only in ZeRO stage 1"
    yield widened, f"{name} system.accumulate=float32", rule, zero_1
    if tensor > 1:
        check_heads(gpt(config).heads, tensor)
        dropout = config.model.dropout
        rule = "ranks that split a layer would have to draw the same masks"
        yield dropout, f"{name} grid.tensor={tensor} and model.dropout={dropout}", rule, "model.dropout=0.0"
