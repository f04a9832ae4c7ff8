"""System under test, and the small configurations on which its laws are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from suite.config.compose import composed, resolve
from suite.config.locate import locate
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.conformance.fixtures import Case
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.members import missing_members
from suite.core.protocols import Missing, Schedule, WeightPolicy
from suite.engine.system import EngineSystem
from suite.runner.runs import freeze
from suite.schedule.placement import places

# small enough for seconds, deep enough for four stages
TINY = ("model.shape.hidden=16", "model.shape.sequence=6", "model.shape.vocabulary=256")
TEXT = ("data.source.limit_bytes=400000",)
ZERO_RATE = ("optimizer=sgd", "optimizer.lr=0.0", "optimizer.weight_decay=0.0", "seed=5")  # steps change no weight


@dataclass(frozen=True)
class SystemUnderTest:
    """A system under test.

    Attributes:
        overrides: Overrides of the command line.
        cases: Models by their settings, so that expected values are computed once.
    """

    overrides: Sequence[str]
    cases: dict[str, Case] = field(default_factory=dict, compare=False)

    @cached_property
    def base(self) -> RunConfig:
        """Config of the overrides alone."""
        return resolve(list(self.overrides))

    @property
    def name(self) -> str:
        """Name of the system."""
        return self.base.system.name

    @cached_property
    def system_class(self) -> Any:
        """Class that each rank builds."""
        return locate(self.base.system.target)

    @property
    def trains_graphs(self) -> bool:
        """Whether it trains one whole graph."""
        return self.base.system.graphs

    @property
    def on_engine(self) -> bool:
        """Whether it uses the suite's engine with the parts that its config names."""
        return isinstance(self.system_class, type) and issubclass(self.system_class, EngineSystem)

    @property
    def runs_config_schedule(self) -> bool:
        """Whether its ranks run the schedule of its config."""
        return self.on_engine or self.base.system.supports_schedules or self.base.system.brings_order

    @property
    def update_interval(self) -> int | None:
        """Microbatches per update; None: a flush."""
        return self.base.update_interval

    @property
    def schedule(self) -> Schedule:
        """Its schedule."""
        return self.base.schedule.build()

    @property
    def policy(self) -> WeightPolicy:
        """Its weight policy."""
        return self.base.weights.build()

    def _overrides_group(self, key: str) -> bool:
        return any(override.lstrip("+~").partition("=")[0].startswith(key) for override in self.overrides)

    @property
    def tiny(self) -> tuple[str, ...]:
        """Overrides of a small GPT that has a layer for each stage of 4 ranks; two layers are its ends."""
        return (f"model.shape.layers={max(2, places(self.schedule, 4)[0].stages - 2)}", *TINY)

    def small_overrides(self, *more: str, shape: Sequence[str] | None = None) -> list[str]:
        """Overrides of a small run. A later override of a key replaces earlier ones.

        A model or data set of the command line is not made smaller.
        """
        default_model = not (self.trains_graphs or self._overrides_group("model") or self._overrides_group("data"))
        small = (*(self.tiny if shape is None else shape), *TEXT) if default_model else ()
        untied = self.update_interval is not None and not self._overrides_group("model")
        tied = ("model.shape.tied=false",) if untied else ()
        smoothed = ("optimizer=sgd",) if self.policy.smoothed else ()
        last: dict[str, str] = {}
        for override in (*small, *tied, *smoothed, *self.overrides, *more):
            key = override.partition("=")[0]
            last.pop(key, None)
            last[key] = override
        return list(last.values())

    def config(self, *more: str, shape: Sequence[str] | None = None) -> RunConfig:
        """Resolved config of a small run, as ranks receive it. Raises InvalidRequest if it cannot run."""
        run = freeze(composed(self.small_overrides("measure.batches=8", *more, shape=shape)), "")
        if run.refusal is not None:
            raise run.refusal
        return run.config

    def trained_config(self, *more: str, microbatch: Sequence[str]) -> RunConfig:
        """Config of a small run with the smallest batch, of 4 to 64 sequences, that the system accepts.

        Raises InvalidRequest, with the refusal of 4 sequences, if it accepts none.
        """
        refusals = []
        for size in (4, 8, 16, 32, 64):
            try:
                return self.config(f"batch.size={size}", *microbatch, *more)
            except InvalidRequest as error:
                refusals.append(error)
        raise refusals[0]

    def full_size_config(self, *more: str) -> RunConfig:
        """Config with the model in its own size, in which rounding by the allocator is negligible."""
        return self.config(*more, shape=())

    def zero_rate_config(self, *more: str) -> RunConfig:
        """Config in float64 at learning rate 0: no step changes a weight, and the velocity is the reduced gradient."""
        momentum = 0.9 if self.policy.smoothed else 0.0
        exact = ("precision=full", "model.dtype=float64", *ZERO_RATE, f"optimizer.momentum={momentum}")
        return self.trained_config(*exact, *more, microbatch=("batch.microbatch=1",))

    def check_composes(self) -> str:
        """Build each part and probe the class. Raises InvalidRequest, or AssertionError for a part without a member."""
        for member in missing_members(self.system_class, System):
            raise AssertionError(f"{self.base.system.target} has no {member}")
        if self.on_engine:
            for part, protocol in ((self.schedule, Schedule), (self.policy, WeightPolicy)):
                missing = missing_members(part, protocol)
                assert not missing, f"{part!r} is no {protocol.__name__}: no {missing}"
        try:
            config = self.config("grid.data=2" if self.trains_graphs else "grid.inter=2")
        except IllegalSchedule:
            return "builds; law 1 checks its order"
        probed = self.system_class.probe(config)
        if isinstance(probed, Missing):
            raise InvalidRequest(f"it cannot run here: {probed.reason}")
        return "builds, and accepts two ranks"
