"""Training curves of two systems: batches, an evaluation, and the bytes of one system."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from suite.config.locate import locate
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.protocols import World
from suite.data.text import batch_at
from suite.engine.system import EngineSystem

HELD_OUT = 10_000  # the number of a batch that no training reaches


def config_of(overrides: Sequence[str]) -> RunConfig:
    """A config over a text that is quick to read."""
    from suite.config.compose import resolve  # not on ranks, which are given their config

    return resolve([*overrides, "data.source.limit_bytes=1000000"])


@cache
def _text(source: str) -> Any:
    return build(json.loads(source))


def batch(config: RunConfig, number: int) -> Any:
    sequence, text = config.model.shape.arguments["sequence"], _text(json.dumps(config.data.source.data()))
    return batch_at(text.train, number, batch=config.batch.size, sequence=sequence, seed=0)


def curve(system: Any, config: RunConfig, batches: int) -> dict[str, Any]:
    """Losses of `batches` batches, with an evaluation after half of them and the memory's batch as the last."""
    half = batches // 2
    losses = [system.train_batch(batch(config, number)) for number in range(half)]
    held_out = system.evaluate([batch(config, HELD_OUT), batch(config, HELD_OUT + 1)])
    losses += [system.train_batch(batch(config, number)) for number in range(half, batches - 1)]
    last, memory = system.memory(batch(config, batches - 1))
    return {"losses": [*losses, last], "held_out": held_out, "memory": memory, "spans": len(list(system.observe()))}


@cache
def one_process(batches: int, *overrides: str) -> dict[str, Any]:
    """Curve of plain PyTorch in this process."""
    from baselines.pytorch import PyTorch
    from suite.comm.p2p.threads import Hub, LoopbackWorld

    config = config_of(["system=pytorch", *overrides])
    return curve(PyTorch(world=LoopbackWorld(Hub(1), 0), config=config), config, batches)


def losses_of(kind: Any, overrides: Sequence[str], batches: int, device: str = "cpu", data: Any = None) -> list[float]:
    """Losses of the first batches of a run that a system of the class `kind` trains in this process, on `data`."""
    from suite.comm.p2p.threads import Hub, LoopbackWorld
    from suite.config.compose import resolve

    config = resolve(overrides)
    system, data = (
        kind(world=LoopbackWorld(Hub(1), 0, device=device), config=config),
        data or config.data.source.build(),
    )
    size, shape = config.batch.size, config.model.shape.build()
    return [system.train_batch(data.batch(n, size=size, seed=config.seed, shape=shape)) for n in range(batches)]


# -- several systems on the ranks of a world ---------------------------------------------------------------------------


def counting(passes: Counter[str]) -> RemovableHandle:
    """Every forward pass of a layer of the model into `passes`."""

    def begin(module: nn.Module, inputs: Any) -> None:
        kind = type(module)
        if kind.__module__ == "suite.models.gpt":
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


def peer_curves(world: World, batches: int, configs: Sequence[RunConfig]) -> list[dict[str, Any]]:
    """The curve of each config's system on this rank, and the forward passes of its last batch by kind of layer.

    Passes are counted where they begin, as a recomputation may end before its layer does; in the first batches of a
    kind PyTorch's pipelines also try out shapes.
    """
    passes: Counter[str] = Counter()
    handle, curves = counting(passes), []
    for config in configs:
        kind = locate(config.system.target)
        kind.probe(config)
        system = kind(world=world, config=config)
        own = isinstance(system, EngineSystem)
        assert config.precision.half is None or own or unrounded(system), "masters begin rounded"
        mine = curve(system, config, batches)
        passes.clear()
        system.train_batch(batch(config, batches))
        curves.append(mine | {"passes": dict(passes)})
        system.close()
        assert dist.is_initialized() == (world.size > 1), "a group of one's own is ended"
    handle.remove()
    return curves
