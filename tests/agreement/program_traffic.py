"""Program of each rank for test_traffic.py: DeepSpeed on some configs, and every call of one batch to
torch.distributed.

Calls are seen where torch hands them to a process group, below every name that Python has for them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from mpi4py import MPI
from torch._C._distributed_c10d import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from baselines import deepspeed_3d
from suite.comm.world import init_world
from suite.config.run import RunConfig
from suite.engine.guards.rank_consistency import tensors_in
from tests.support.curves import batch

WARM_UP = 2  # the first batch tells the neighbours shapes
HALF = {"fp16": {"enabled": True, "loss_scale": 1}}  # no step overflows, so none is left out

torch.set_num_threads(1)


class Calls(TorchDispatchMode):
    """Payloads handed to process groups: name, types, bytes, ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, list[str], int, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            payloads = [list(tensors_in(argument)) for argument in args]  # what goes in, and what comes out
            dtypes = sorted({str(t.dtype).removeprefix("torch.") for payload in payloads for t in payload})
            size = max(sum(t.numel() * t.element_size() for t in payload) for payload in payloads)
            (group,) = [member for argument in args if (member := _group(argument)) is not None]
            self.made.append((func.overloadpacket.__name__, dtypes, size, dist.get_process_group_ranks(group)))
        return func(*args, **(kwargs or {}))


def _group(value: Any) -> ProcessGroup | None:
    if isinstance(value, torch.ScriptObject) and str(value._type()).endswith("ProcessGroup"):
        return ProcessGroup.unbox(value)
    return None


def count(world: Any, config: RunConfig) -> dict[str, Any]:
    system = deepspeed_3d.DeepSpeed3D(world, config)
    for number in range(WARM_UP):
        system.train_batch(batch(config, number))
    with Calls() as calls:
        system.train_batch(batch(config, WARM_UP))
    weights = list(system.engine.module.parameters())
    system.close()
    return {"entries": sum(p.numel() for p in weights), "dtype": str(weights[0].dtype), "calls": calls.made}


def main(cases: list[tuple[bool, RunConfig]]) -> None:
    # DeepSpeed refuses float16 on a CPU that has no instructions for it; torch computes it nonetheless
    CPU_Accelerator.is_fp16_supported = lambda self: True
    reference_arguments = deepspeed_3d._told
    world = init_world()
    for half, config in cases:
        more = HALF if half else {}
        deepspeed_3d._told = lambda *given, more=more: reference_arguments(*given) | more
        every: list[Any] = [None] * world.size
        dist.all_gather_object(every, count(world, config))
        if world.rank == 0:
            print(json.dumps(every), flush=True)
    world.close()


if __name__ == "__main__":
    main([(half, RunConfig.model_validate(data)) for half, data in json.loads(Path(sys.argv[1]).read_text())])
    MPI.Finalize()
    sys.stdout.flush()
    os._exit(0)  # threads that libraries leave to the interpreter's end abort it now and then: all is said by here
