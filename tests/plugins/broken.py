"""Systems that break one law each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suite.config.run import RunConfig
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Read, StageVersions, WeightPolicy, World
from suite.engine.system import EngineSystem
from suite.weights import Latest


@dataclass(frozen=True)
class _Order:
    """GPipe's, for its children to spoil."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            for index in self.indices(place, interval, kind):
                yield (Op(place.stage, kind, index),)
        yield (Op(place.stage, Kind.UPDATE, interval.update),)

    def indices(self, place: Place, interval: FlushInterval, kind: Kind) -> list[int]:
        return list(range(interval.first, interval.end))

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return interval.microbatches


@dataclass(frozen=True)
class Deadlock(_Order):
    """Of longer batches the first stage wants a gradient before the last stage, which waits for all, has begun."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        early = place.stage == 0 and place.stages > 1 and interval.microbatches > 2
        order = list(super().program(place, interval))
        if early:
            order[1], order[interval.microbatches] = order[interval.microbatches], order[1]
        for op in order:  # noqa: UP028 - a list takes no answer
            yield op


@dataclass(frozen=True)
class TooMany(_Order):
    """Promises less than it holds, from four microbatches on."""

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return min(3, interval.microbatches)


@dataclass(frozen=True)
class Dropped(_Order):
    """The last backward of a longer batch never runs."""

    def indices(self, place: Place, interval: FlushInterval, kind: Kind) -> list[int]:
        microbatches = super().indices(place, interval, kind)
        return microbatches[:-1] if kind is Kind.BACKWARD and len(microbatches) > 4 else microbatches


@dataclass(frozen=True)
class Stale(WeightPolicy):
    """Reads the version before the newest, and lets it be freed."""

    graph: str = "keep"

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(max(0, versions.updates - 1), 0, "recompute")

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()


class Scaled(EngineSystem):
    """The loss is divided by the microbatches of a batch, and then once more by two."""

    @classmethod
    def engine_arguments(cls, config: RunConfig) -> dict[str, Any]:
        settings = super().engine_arguments(config)
        loss = settings["loss"]
        return {**settings, "loss": lambda *values: loss(*values) / 2}


class Disobedient(EngineSystem):
    """Its ranks read the newest weights, whatever the policy of the config."""

    def __init__(self, world: World, config: RunConfig) -> None:
        super().__init__(world, config)
        self.engine.state.versions.policy = Latest("recompute")


class Forgetful(EngineSystem):
    """A checkpoint leaves the count of steps behind, by which Adam corrects its moments."""

    def load(self, path: Any) -> Any:
        loaded = super().load(path)
        self.engine.state.model_states.rule.updates = 0
        return loaded
