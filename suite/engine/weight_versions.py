"""Weight versions of a stage: hold the versions that its policy may read, and predict future ones.

weights.ledger counts the versions; this store holds exactly the tensors of the counted versions. The newest version is
in the layers; older versions are stored separately, as is a version that is still needed when a step comes. So a step
only overwrites weights that no op reads again. A prediction goes into one buffer that is used again and again
(PipeOptim Algorithm 1 caches the live weights instead), or, where a graph keeps it, into one of its own. Live
weights are never written by a pass: it is lent the tensors that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from suite.core.errors import Unsupported
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, UpdateRule, WeightPolicy
from suite.engine.optim.prediction import predict
from suite.engine.states.state import ModelState
from suite.weights.ledger import Ledger

Key = tuple[int, int]  # version, updates predicted ahead of it
Weights = list[torch.Tensor]


class _Place(NamedTuple):
    """Where in which weight a tensor lay that a graph wanted to keep."""

    parameter: nn.Parameter
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


class WeightVersions:
    """The weight versions of one stage over one work."""

    def __init__(self, policy: WeightPolicy, stages: int) -> None:
        self.policy, self.stages = policy, stages
        self.ledger: Ledger | None = None
        self.state: ModelState | None = None
        self.rule: UpdateRule | None = None
        self.reads: dict[int, Read] = {}  # of open forwards
        self.passes: list[tuple[Op, Read | None]] = []  # of this work, in the order in which they ran
        self._forget()

    def _forget(self) -> None:
        self.aside: dict[Key, Weights] = {}
        self.spare: list[Weights] = []
        self.buffer: Weights | None = None
        self.foreseen: Key | None = None  # what the buffer holds

    def hold(self, state: ModelState, rule: UpdateRule) -> None:
        """From now on the versions belong to these states."""
        self.state, self.rule = state, rule
        self._forget()

    def begin(self, interval: FlushInterval) -> None:
        """Nothing is in flight: a new account starts."""
        self.ledger = Ledger(self.policy, interval, self.stages)
        self.reads, self.passes, self.foreseen = {}, [], None

    def live(self) -> tuple[int, ...]:
        """The versions that later passes may read, as updates before the newest (0), which stands in the layers."""
        ledger = self.ledger
        return (0,) if ledger is None else tuple(sorted(ledger.updates - version for version, _ in ledger.alive))

    def beside(self) -> int:
        """Bytes of the tensors held in addition to the newest weights, and bytes of versions to come."""
        buffers = [*self.aside.values(), *self.spare, *([self.buffer] if self.buffer else [])]
        return sum(tensor.numel() * tensor.element_size() for weights in buffers for tensor in weights)

    def run(self, op: Op) -> Read | None:
        """Weights that `op` reads; None for an update, before which it is called, and for a backward that keeps its
        forward's graph. Raises InvalidRequest for a version that is not held, and a prediction from any but the
        newest.
        """
        assert self.ledger is not None, "begin a work first"
        newest = self.ledger.updates
        read = self.ledger.run(op)
        self.passes.append((op, read))
        if op.kind is Kind.UPDATE:
            self._release()  # a step itself reads no older version: the new one may take its place
            if self.state is not None and (newest, 0) in self.ledger.alive:
                self._set_aside(newest)
            return None
        if read is None:
            return None
        if read.predict_steps < 0:
            what = f"{op} reads version {read.version}+{read.predict_steps}"
            raise Unsupported(what, rule="a policy predicts later weights only", legal="predict_steps=0")
        if op.kind is Kind.FORWARD:
            self.reads[op.index] = read
        return read

    @contextmanager
    def lent(self, op: Op, read: Read | None) -> Iterator[None]:
        """Inside, the layers compute with what `op` reads; None: with what its forward read. Behind it, the tensors of
        versions that no later pass reads are free."""
        with self._lent(op, read):
            yield
        self._release()

    @contextmanager
    def _lent(self, op: Op, read: Read | None) -> Iterator[None]:
        forward = op.kind is Kind.FORWARD
        if read is None:
            read = self.reads[op.index]
        if not forward:
            del self.reads[op.index]
        weights = self._weights(read)
        swaps = forward and read.backward_mode == "swap"
        if weights is None and not swaps:
            yield
            return
        assert self.state is not None
        parameters = self.state.parameters
        tensors = [parameter.data for parameter in parameters]
        try:
            for parameter, tensor in zip(parameters, weights or tensors, strict=True):
                parameter.data = tensor
            if swaps:
                with self._by_place():
                    yield
            else:
                yield
        finally:
            for parameter, tensor in zip(parameters, tensors, strict=True):
                parameter.data = tensor

    def _weights(self, read: Read) -> Weights | None:
        """The tensors of a version; None where they are the layers' own."""
        assert self.ledger is not None
        key = read.version, read.predict_steps
        if key in self.aside:
            return self.aside[key]
        if not read.predict_steps:
            return None
        if read.backward_mode == "keep":
            self.aside[key] = self._predict(key, self._room())
            return self.aside[key]
        if self.buffer is None:
            self.buffer = self._room()
        if self.foreseen != key:
            self._predict(key, self.buffer)
            self.foreseen = key
        return self.buffer

    def _predict(self, key: Key, into: Weights) -> Weights:
        assert self.state is not None
        assert self.rule is not None
        predict(self.state, self.rule, key[1], into)
        return into

    def _room(self) -> Weights:
        """Tensors as the stage's weights are, whatever is in them."""
        assert self.state is not None
        return self.spare.pop() if self.spare else [torch.empty_like(p.data) for p in self.state.parameters]

    def _set_aside(self, version: int) -> None:
        """A step is due, and somebody will read this version again: the layers go on with a copy."""
        assert self.state is not None
        room = self._room()
        self.aside[version, 0] = [parameter.data for parameter in self.state.parameters]
        if room:  # a stage may have no weights
            torch._foreach_copy_(room, self.aside[version, 0])
        for parameter, tensor in zip(self.state.parameters, room, strict=True):
            parameter.data = tensor
        self.state.moved()

    def _release(self) -> None:
        """Versions that the ledger no longer counts may be overwritten."""
        if self.aside:
            assert self.ledger is not None
            for key in self.aside.keys() - self.ledger.alive:
                self.spare.append(self.aside.pop(key))

    @contextmanager
    def _by_place(self) -> Iterator[None]:
        """Inside, a graph keeps weights by their places, and finds there what stands in them when it goes back."""
        assert self.state is not None
        owners: dict[int, list[nn.Parameter]] = {}
        for parameter in self.state.parameters:
            owners.setdefault(parameter.data.untyped_storage().data_ptr(), []).append(parameter)

        def pack(tensor: torch.Tensor) -> torch.Tensor | _Place:
            for owner in owners.get(tensor.untyped_storage().data_ptr(), ()):
                offset = int(tensor.storage_offset() - owner.data.storage_offset())
                if 0 <= offset < owner.numel():  # several weights may lie in one piece of memory
                    return _Place(owner, tensor.size(), tensor.stride(), offset)
            return tensor

        def unpack(kept: torch.Tensor | _Place) -> torch.Tensor:
            if not isinstance(kept, _Place):
                return kept
            live = kept.parameter.data
            return live.as_strided(kept.size, kept.stride, live.storage_offset() + kept.offset)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
