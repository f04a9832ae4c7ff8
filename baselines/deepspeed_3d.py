"""DeepSpeed (Rasley et al., 2020): its own PipelineModule and PipelineEngine, with ZeRO stage 0 or 1 over the replicas.

One forward, one backward with a flush (PipeDream-flush), blocking messages between neighbours, gradients reduced at the
end of a batch. Everything that moves or orders is DeepSpeed's; the suite gives it the layers, the split, the rows and
torch's optimizer, and takes the loss that DeepSpeed itself shares after every batch. Its ranks stand in DeepSpeed's own
order, replicas side by side. Dropout draws as PyTorch does: masks differ from the suite's.

On a CPU, DeepSpeed compiles a shared-memory all-reduce of its own when it first initialises. That takes a while and a
compiler, and a build that was killed leaves a lock for which every later one waits for ever. The only caller of it is
`deepspeed.comm.inference_all_reduce`, for tensor parallelism; no pipeline ever does. So it is left out here, by the
accelerator that DeepSpeed is given (which says what operators there are); system.shm_comm=true takes it in. No other
kernel is compiled, as the optimizer is torch's.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baselines.common import (
    DefaultGroup,
    Plan,
    bytes_of,
    bytes_of_moments,
    join,
    optimizer,
    refuse,
    set_rate,
)
from suite.bench.locks import build_folders, stale_locks
from suite.comm import started
from suite.core.errors import Unsupported
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import Trace
from suite.engine.live import LiveBytes

_NEVER = 1 << 62  # batches between two printed lines
_SHARED_MEMORY = "deepspeed_shm_comm"  # how DeepSpeed names what it builds


class DeepSpeed3D:
    """One rank of DeepSpeed's pipeline on grid.inter stages and grid.data replicas."""

    @classmethod
    def probe(cls, config: Mapping[str, Any]) -> Ready | Missing:
        refuse(config, dtypes=("float32",))
        stage = config["system"]["zero_stage"]
        if stage not in (0, 1):
            raise Unsupported(
                f"deepspeed_3d with system.zero_stage={stage}",
                rule="ZeRO 2 and 3 cut up gradients that a pipeline still adds to; DeepSpeed refuses them with one",
                legal="system.zero_stage=1",
            )
        if find_spec("deepspeed") is None:
            return Missing("deepspeed is not installed: pip install deepspeed")
        if config["system"]["shm_comm"] and config["launch"]["device"] == "cpu":
            return _can_build()
        return Ready()

    def __init__(self, world: World, config: Mapping[str, Any]) -> None:
        self.plan = Plan(config)
        # DeepSpeed reads both of them from the environment and has no other way to be told
        os.environ["DS_ACCELERATOR"] = world.device.type
        os.environ.setdefault("LOCAL_RANK", str(started().local_rank))
        self.group = DefaultGroup(world, self.plan.grid)
        with _quiet():
            self.engine, self.rate = _engine(self.plan, config)
        self.replica = self.engine.grid.get_data_parallel_id()
        self.updates = 0

    def train_batch(self, batch: Value) -> float:
        set_rate(self.engine.optimizer, self.rate(self.updates))
        self.updates += 1
        return float(self.engine.train_batch(self._microbatches(batch)))

    def evaluate(self, batches: Sequence[Value]) -> float:
        losses = [float(self.engine.eval_batch(self._microbatches(batch))) for batch in batches]
        return sum(losses) / len(losses)

    def observe(self) -> Trace:
        """DeepSpeed keeps no spans; its timers would slow it down."""
        return Trace()

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        own, weights = self.engine.basic_optimizer, bytes_of(self.engine.module.parameters())
        with LiveBytes() as live:
            loss = self.train_batch(batch)
        held = {"weights": weights, "gradients": weights, "moments": bytes_of_moments(own)}
        if self.engine.zero_optimization_stage():  # the optimizer steps on a flat copy of its share of the weights
            held["masters"] = bytes_of(p for group in own.param_groups for p in group["params"])
        # DeepSpeed frees gradients after a batch, so they are among what was allocated; reductions' buffers too
        return loss, {**held, "activations": max(0, live.peak - weights)}

    def close(self) -> None:
        import deepspeed

        self.engine.destroy()
        if self.group.own:
            deepspeed.comm.destroy_process_group()
        self.group.close()

    def _microbatches(self, batch: Value) -> Iterator[tuple[torch.Tensor, ...]]:
        inputs, targets = (self.plan.rows(part, self.replica) for part in batch)
        return zip(inputs, targets, strict=True)


def _engine(plan: Plan, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """DeepSpeed's engine on this rank, and the rate of each update."""
    import deepspeed

    settings = config["system"]
    if not settings["shm_comm"]:
        _leave_out_shared_memory()
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    with torch.no_grad():  # it broadcasts weights, and autograd would watch
        module = _module(plan, settings)
    trained = [p for p in module.parameters() if p.requires_grad]
    own, rate = optimizer(config, trained, fused=settings["fused"] or None)
    bucket = settings["bucket_entries"] or sum(p.numel() for p in trained)
    engine, *_ = deepspeed.initialize(model=module, optimizer=own, config=_told(plan, settings, bucket))
    return engine, rate


def _told(plan: Plan, settings: Mapping[str, Any], bucket: int) -> dict[str, Any]:
    """The configuration that DeepSpeed is given. No timer, no printing, no clipping, float32 throughout."""
    zero = {
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "contiguous_gradients": settings["contiguous_gradients"],
        "reduce_scatter": settings["reduce_scatter"],
        "overlap_comm": False,  # DeepSpeed has none with a pipeline
        "compute_grad_norm": False,  # wanted for clipping alone
    }
    return {
        "train_batch_size": plan.size,
        "train_micro_batch_size_per_gpu": plan.microbatch,
        "gradient_accumulation_steps": plan.microbatches,
        "zero_optimization": {"stage": settings["zero_stage"]} | (zero if settings["zero_stage"] else {}),
        "zero_allow_untested_optimizer": True,  # SGD
        "pipeline": {"use_reentrant": False},  # recomputation must take tokens, which have no gradient
        "gradient_clipping": 0.0,
        "disable_python_gc": settings["disable_python_gc"],
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
    }


def _module(plan: Plan, settings: Mapping[str, Any]) -> Any:
    """The layers as DeepSpeed's specifications, divided as the suite divides them.

    DeepSpeed has no partition by list, and a method of its own to override: a subclass sets the bounds. A tie is a
    TiedLayerSpec at both ends, which DeepSpeed keeps equal; on one stage it is one parameter.
    """
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    made: dict[int, nn.Module] = {}

    def make(number: int) -> nn.Module:
        made[number] = plan.layer(number)
        join(made, plan.ties)
        return made[number]

    class Layer(LayerSpec):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            super().__init__(nn.Module)
            self.number = number

        def build(self, log: bool = False) -> nn.Module:
            return make(self.number)

    class TiedLayer(TiedLayerSpec):  # type: ignore[misc]
        def __init__(self, number: int, key: str, name: str) -> None:
            super().__init__(key, nn.Module, tied_weight_attr=name)
            self.number = number

        def build(self, log: bool = False) -> nn.Module:
            return make(self.number)

    class Divided(PipelineModule):  # type: ignore[misc]
        def _partition_layers(self, method: str = "") -> None:
            self.parts = [own.start for own in plan.split] + [plan.split[-1].stop]
            self._set_bounds(*self.parts[self.stage_id : self.stage_id + 2])

    ends = [number for tie in plan.ties for number in (tie[0], tie[2])]
    if len(set(ends)) < len(ends):
        raise Unsupported("two ties at one layer", rule="DeepSpeed ties a layer once", legal="model.shape.tied=false")
    specs: list[Any] = [Layer(number) for number in range(len(plan.makers))]
    for tie, (first, first_name, last, last_name) in enumerate(plan.ties):
        if plan.grid.inter > 1:
            specs[first] = TiedLayer(first, f"tie_{tie}", first_name)
            specs[last] = TiedLayer(last, f"tie_{tie}", last_name)
    interval = settings["activation_checkpoint_interval"]
    return Divided(specs, plan.grid.inter, loss_fn=plan.network.loss, activation_checkpoint_interval=interval)


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
    """DeepSpeed prints its seeds and partitions, and warns of what it was told on purpose. Its errors are heard."""
    from deepspeed.utils import logger  # before the redirection: it keeps the standard output that it finds

    logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_tensor` is deprecated", FutureWarning)
    with redirect_stdout(io.StringIO()):
        yield


def _can_build() -> Ready | Missing:
    """Whether DeepSpeed could compile an operator here."""
    compiler = os.environ.get("CXX", "c++")
    lacking = [f"no {tool}" for tool in ("ninja", compiler) if shutil.which(tool) is None]
    if lacking:
        return Missing(f"{', '.join(lacking)} to compile {_SHARED_MEMORY} with: install it, or system.shm_comm=false")
    locks = [lock for lock in stale_locks(build_folders()[:1]) if lock.parent.name == _SHARED_MEMORY]
    if locks:
        return Missing(f"a build of {_SHARED_MEMORY} was killed, and every later one waits for it: rm {locks[0]}")
    return Ready()
