"""Machines, efficiencies, systems and models for simulator tests, from conf/ or small enough to count by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from suite.config.compose import resolve
from suite.config.families import content, groups
from suite.config.plugins import build
from suite.core.op import Op
from suite.core.protocols import Chunk, CostModel
from suite.memory import mixed
from suite.schedule import MessageDriven
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Link, Machine
from suite.simulate.worker import NetworkModel
from suite.workload import Transformer

FREE = NetworkModel(lambda first, second: Link(0.0, 1e30))  # messages take no time
TINY = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=16)  # 872 parameters a block, 160, 16 + 128


def network(latency: float, bandwidth: float, *, blocking: bool = False) -> NetworkModel:
    """Equal links of `latency` seconds and `bandwidth` bytes per second between all ranks."""
    return NetworkModel(lambda first, second: Link(latency, bandwidth), blocking=blocking)


@dataclass
class Drawn(CostModel):
    """Any duration and size for any op, equal for the same op. Durations may be zero, and equal."""

    seed: int
    times: Sequence[float] = (0.0, 0.5, 1.0, 3.7, 0.1)
    sizes: Sequence[int] = (0,)
    chunks: Sequence[Chunk] = ()
    drawn: dict[Op, tuple[float, int]] = field(default_factory=dict)

    def of(self, op: Op) -> tuple[float, int]:
        if op not in self.drawn:
            clock = random.Random(f"{self.seed} {op}")
            self.drawn[op] = clock.choice(self.times), clock.choice(self.sizes)
        return self.drawn[op]

    def compute(self, op: Op) -> float:
        return self.of(op)[0]

    def message(self, op: Op) -> int:
        return self.of(op)[1]

    def update(self, rank: int) -> Sequence[Chunk]:
        return self.chunks


def raw(group: str, name: str) -> dict[str, Any]:
    return dict(content(group, name).keys)


def names(group: str) -> list[str]:
    return groups()[group]


def conf(group: str, name: str) -> Any:
    """Object built from one file of conf, alone."""
    return build(raw(group, name))


def systems() -> list[str]:
    """The systems of conf that are simulated."""
    return [name for name in names("system") if "simulation" in raw("system", name)["system"]]


@cache
def simulated(name: str) -> SystemModel:
    """A system of conf as simulators have it."""
    config = resolve([f"system={name}"])
    modelled_system = build(config.system.modelled(config.schedule.data()))
    assert isinstance(modelled_system, SystemModel)
    return modelled_system


def shape(name: str) -> Transformer:
    built = build(raw("model", name)["shape"])
    assert isinstance(built, Transformer)
    return built


def machine(**changes: Any) -> Machine:
    """Two devices a node, 1000 flop/s each; 100 bytes/s inside a node, one adapter of 10 bytes/s between nodes."""
    usual: dict[str, Any] = {
        "name": "small",
        "devices_per_node": 2,
        "memory": 1e9,
        "peak": {"float16": 1000.0},
        "memory_bandwidth": 500.0,
        "within": Link(0.0, 100.0),
        "between": Link(0.0, 10.0),
        "adapters": 1,
        "host": Link(0.0, 50.0),
    }
    return Machine(**{**usual, **changes})


def efficiency(**changes: Any) -> Efficiency:
    """Products at the machine's peak; a GPT's blocks have the kernels of Megatron-LM."""
    return Efficiency(**{"name": "small", "products": 1.0, "traffic": 0.0, "generation": "megatron", **changes})


def system(**changes: Any) -> SystemModel:
    """AxoNN's order on mixed precision."""
    return SystemModel(**{"name": "small", "schedule": MessageDriven(), "layout": mixed, **changes})
