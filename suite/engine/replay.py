"""Replay in one process: run every op of every stage and replica with the code of the ranks.

Numbers do not depend on time, only on the order of ops on each rank and on the version that each pass read. So a
replay of an order is bit-identical to the run on ranks, at any depth, without the cost of processes, messages and
waiting. Accuracy studies use it. An order that was recorded replays by its own list of ops and versions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from suite.comm.p2p.coroutine import CoroutineHub
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, Value, WeightPolicy, World
from suite.engine.batch_stream import Batch
from suite.engine.engine import Engine
from suite.engine.layers import Layer
from suite.engine.random_state import outside
from suite.engine.recorded_order import Passes, Recorded, Versions
from suite.engine.stage import as_value
from suite.engine.step_runner import scoring


class Replay:
    """A whole grid in one process. Its arguments are the engine's (suite.engine.engine), `world` apart.

    Attributes:
        recorded: By rank, the ops and reads of one work, as `Engine.passes` tells them; the replay runs those and no
            others.
        traced: Whether spans are kept; numbers alone do not need them.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        grid: Grid | None = None,
        recorded: Sequence[Passes] | None = None,
        traced: bool = False,
        **told: Any,
    ) -> None:
        self.grid = grid or Grid()
        self.hub = CoroutineHub(self.grid.size)
        if recorded is not None and len(recorded) != self.grid.size:
            raise InvalidRequest(f"a record of {len(recorded)} ranks on {self.grid}", rule="one list per rank")

        def made(world: World) -> Engine:
            arguments = dict(told)
            if recorded is not None:
                passes = recorded[world.rank]
                arguments |= {"schedule": Recorded(passes), "weights": Versions(passes)}
            memo: dict[int, nn.Module] = {}  # of all layers: two that share a weight go on sharing it
            copies = [copy.deepcopy(layer, memo) if isinstance(layer, nn.Module) else layer for layer in layers]
            arguments |= {
                name: copy.deepcopy(arguments[name])
                for name in ("scaler", "weights")
                if arguments.get(name) is not None
            }
            engine = Engine(copies, grid=self.grid, world=world, **arguments)
            engine.traced = traced
            if recorded is None:
                engine.store.policy = Lean(engine.store.policy)
            return engine

        self.engines: list[Engine] = self.hub.create_ranks(made)
        first = self.engines[0]
        if first.pruning is not None and first.pruned is None:
            what = f"a search by {type(first.pruning.method).__name__} in a replay"
            raise Unsupported(what, rule="its ranks cannot wait for one another", legal="a ticket that is due at once")

    @property
    def stages(self) -> list[Engine]:
        """The engines of the first replica, by stage."""
        return [self.engines[self.grid.rank(data=0, inter=stage)] for stage in range(self.grid.inter)]

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """The loss of each batch, in order, made as it is asked for."""
        works = ([batch] for batch in batches) if self.engines[0].update_every is None else [_sequence(batches)]
        for some in works:
            last = None
            for loss in outside(self.hub.run([engine.training(some) for engine in self.engines])):
                if last is not None:
                    yield last
                last = loss
            if last is not None:  # when every rank is done
                yield last

    def score(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Means over `batches` in evaluation mode: the loss, and the scores by their names."""
        batches = list(batches)
        (scores,) = outside(self.hub.run([scoring(engine, engine.source(batches)) for engine in self.engines]))
        return dict(scores)

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Mean loss over `batches`, in evaluation mode."""
        return self.score(batches)["loss"]

    def outputs(self, inputs: torch.Tensor | Sequence[torch.Tensor]) -> Value:
        """Outputs of the network for `inputs` in evaluation mode, with the newest weights and replica 0's
        statistics.
        """
        first = self.engines[0]
        value = as_value(inputs)
        value = tuple(t.to(first.half) if first.half and t.is_floating_point() else t for t in value)
        for engine in self.stages:
            value = engine.stage.outputs(value)
        return value


@dataclass(frozen=True)
class Lean(WeightPolicy):
    """A weight policy whose recomputations are left out where they would find the graph of the forward pass again:
    where both passes read the same. A backward pass runs when every update before its own has been made, so what it
    will read is known at the forward pass. Bit for bit, of layers whose kernels compute alike with and without a graph
    (torch's float32 LSTM does not; models.recurrent.LSTM does)."""

    policy: WeightPolicy

    def read(self, op: Op, versions: StageVersions) -> Read:
        read = self.policy.read(op, versions)
        if op.kind is not Kind.FORWARD or read.backward_mode != "recompute":
            return read
        then = replace(versions, updates=versions.update, read_by={**versions.read_by, op.index: read})
        later = self.policy.read(op._replace(kind=Kind.BACKWARD), then)
        return (
            replace(read, backward_mode="keep")
            if (later.version, later.predict_steps) == (read.version, read.predict_steps)
            else read
        )

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return self.policy.needed(versions)


def _sequence(batches: Iterable[Batch]) -> Sequence[Batch]:
    """The batches, which each rank reads by itself."""
    return batches if isinstance(batches, Sequence) else list(batches)
