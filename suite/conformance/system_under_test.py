"""Parts of the system under test, and the small configurations on which its laws are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from suite.config.compose import composed, resolve
from suite.config.locate import locate
from suite.config.plugins import Plugin
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.conformance.fixtures import Case
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.members import lacking
from suite.core.protocols import Missing, Schedule, WeightPolicy
from suite.engine.system import EngineSystem
from suite.gnn.settings import exchange_settings, partitioner_settings
from suite.runner.runs import freeze

# small enough for seconds, deep enough for four stages
TINY = ("model.shape.layers=2", "model.shape.hidden=16", "model.shape.sequence=6", "model.shape.vocabulary=256")
TEXT = ("data.source.limit_bytes=400000",)
STILL = ("optimizer=sgd", "optimizer.lr=0.0", "optimizer.weight_decay=0.0", "seed=5")  # steps move nothing


@dataclass(frozen=True)
class Subject:
    """A system under test. overrides: the command line's."""

    overrides: Sequence[str]
    _made: dict[str, Case] = field(default_factory=dict, compare=False)

    @cached_property
    def base(self) -> RunConfig:
        return resolve(list(self.overrides))

    @property
    def name(self) -> str:
        return self.base.system.name

    @cached_property
    def made(self) -> Any:
        """The class that its ranks build."""
        return locate(self.base.system.target)

    @property
    def graphs(self) -> bool:
        """Whether it trains a whole graph."""
        return self.base.system.graphs

    @property
    def ours(self) -> bool:
        """Whether it stands on the suite's engine, with the parts that its config names."""
        return isinstance(self.made, type) and issubclass(self.made, EngineSystem)

    @property
    def orders(self) -> bool:
        """Whether the schedule of its config is the order of its ranks."""
        return self.ours or self.base.system.runs_schedule or self.base.system.brings_order

    def serves(self, stages: int, microbatches: int) -> bool:
        """Whether its order has this size."""
        system = self.base.system
        return system.processes in (None, stages) and not (system.requires_full_pipeline and microbatches < stages)

    @property
    def every(self) -> int | None:
        """Microbatches per update; None: a flush."""
        return self.base.update_interval

    @property
    def schedule(self) -> Schedule:
        return self.base.schedule.build()

    @property
    def policy(self) -> WeightPolicy:
        return self.base.weights.build()

    def given(self, key: str) -> bool:
        return any(override.lstrip("+~").partition("=")[0].startswith(key) for override in self.overrides)

    def asked(self, *more: str, shape: Sequence[str] = TINY) -> list[str]:
        """The overrides of a small run: what stands last holds. The command line's own model stays as it is."""
        small = () if self.graphs or self.given("model") or self.given("data") else (*shape, *TEXT)
        tied = () if self.every is None or self.given("model") else ("model.shape.tied=false",)
        steady = ("optimizer=sgd",) if self.policy.smoothed else ()
        last: dict[str, str] = {}
        for override in (*small, *tied, *steady, *self.overrides, *more):
            key = override.partition("=")[0]
            last.pop(key, None)
            last[key] = override
        return list(last.values())

    def whole(self, *more: str) -> RunConfig:
        """The config's own model: in a tiny one, what an allocator rounds shows."""
        return self.config(*more, shape=())

    def config(self, *more: str, shape: Sequence[str] = TINY) -> RunConfig:
        """Resolved, as ranks get it. Raises InvalidRequest for what cannot run."""
        run = freeze(composed(self.asked("measure.batches=8", *more, shape=shape)), "")
        if run.refusal is not None:
            raise run.refusal
        return run.config

    def still(self, *more: str) -> RunConfig:
        """The same in float64, with steps that move nothing: the velocity is the reduced gradient."""
        momentum = 0.9 if self.policy.smoothed else 0.0
        sized = ("batch.size=4", "batch.microbatch=1", "precision=full", "model.dtype=float64")
        return self.config(*sized, *STILL, f"optimizer.momentum={momentum}", *more)

    def parts(self) -> list[str]:
        """Parts of the system, one line each."""
        config = self.base
        lines = [f"{config.system.name}: {config.system.description or 'a system'}"]
        lines.append(f"class     {config.system.target}")
        if self.graphs:
            exchange, partitioner = exchange_settings(config), partitioner_settings(config)
            lines.append(f"exchange  {exchange.target}, partition {partitioner.name}")
        elif self.ours:
            kind = "a flush, one update per batch" if self.every is None else f"an update every {self.every}"
            lines.append(f"schedule  {_told(config.schedule)}; {kind}")
            lines.append(f"weights   {_told(config.weights)}")
            memory, pruning = config.memory.name, config.pruning.name
            lines.append(f"memory    {memory}, precision {config.precision.name}, pruning {pruning}")
        else:
            lines.append("engine    its own: weights and memory of the config are not read")
            if self.orders:
                lines.append(f"order     {_told(config.schedule)}")
        return lines

    def composes(self) -> str:
        """Builds each part, and asks whether it can run. Raises InvalidRequest, or AssertionError for a part that is
        none."""
        for member in lacking(self.made, System):
            raise AssertionError(f"{self.base.system.target} has no {member}")
        if self.ours:
            for part, kind in ((self.schedule, Schedule), (self.policy, WeightPolicy)):
                assert not (missing := lacking(part, kind)), f"{part!r} is no {kind.__name__}: no {missing}"
        try:
            config = self.config("grid.data=2" if self.graphs else "grid.inter=2")
        except IllegalSchedule:
            return "builds; its order is asked about below"
        ready = self.made.probe(config)
        if isinstance(ready, Missing):
            raise InvalidRequest(f"it cannot run here: {ready.reason}")
        return "builds, and takes two ranks"


def _told(part: Plugin[Any]) -> str:
    values = ", ".join(f"{key}={value}" for key, value in part.arguments.items())
    return f"{part.target}({values})"
