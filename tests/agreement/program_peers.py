"""Program of each rank for test_peers.py: several systems one after the other, in this world; their losses and bytes.

Forward passes of a last batch are counted where they begin, as a recomputation may end before its layer does; in the
first batches of a kind PyTorch's pipelines also try out shapes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from suite.comm.world import init_world
from suite.config.locate import locate
from suite.config.run import RunConfig
from suite.engine.system import EngineSystem
from tests.support.curves import batch, curve

torch.set_num_threads(1)


def counting(passes: Counter[str]) -> RemovableHandle:
    """Every forward pass of a layer of the model into `passes`, a split block's as a block's."""

    def begin(module: nn.Module, inputs: Any) -> None:
        kind = type(module)
        if kind.__module__ in ("suite.models.gpt", "baselines.tensor_parallel"):
            passes[kind.__name__] += 1

    return nn.modules.module.register_module_forward_pre_hook(begin)


def unrounded(system: Any) -> bool:
    """Whether some master is no number of bfloat16: masters begin as the weights that every system begins with."""
    if hasattr(system, "stepper"):
        masters = system.stepper.masters
    else:
        from deepspeed.utils import safe_get_full_fp32_param

        masters = [safe_get_full_fp32_param(weight) for weight in system.engine.module.parameters()]
    return any(bool((master.bfloat16() != master).any()) for master in masters)


def main(batches: int, configs: list[RunConfig]) -> None:
    world = init_world()
    passes: Counter[str] = Counter()
    handle = counting(passes)
    for config in configs:
        kind = locate(config.system.target)
        kind.probe(config)
        system = kind(world=world, config=config)
        own = isinstance(system, EngineSystem)
        assert config.precision.half is None or own or unrounded(system), "masters begin rounded"
        mine = curve(system, config, batches)
        passes.clear()
        system.train_batch(batch(config, batches))
        mine["passes"] = dict(passes)
        every = [mine] * world.size
        if world.size > 1:
            dist.all_gather_object(every, mine)
        system.close()
        assert dist.is_initialized() == (world.size > 1), "a group of one's own is ended"
        if world.rank == 0:
            print(json.dumps(every), flush=True)
    handle.remove()
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), [RunConfig.model_validate(data) for data in json.loads(Path(sys.argv[2]).read_text())])
