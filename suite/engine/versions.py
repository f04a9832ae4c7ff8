"""Weight versions of a rank: tensors of the versions that its policy may read, and predicted weights.

weights.ledger counts the versions, and this store holds exactly the counted tensors. The newest version is in the
layers. Older versions have tensors of their own, as has a version that is still needed when the next update comes, so
an update only overwrites weights that no op reads again. A prediction is written to one buffer that is reused, or to
tensors of its own if a graph keeps it (PipeOptim Algorithm 1 copies the live weights aside instead). Passes never write
live weights: the layers' parameters point to the version that a pass reads while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from suite.core.errors import Unsupported
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, UpdateRule, WeightPolicy
from suite.engine.optim.prediction import predict
from suite.engine.states.state import ModelState
from suite.weights.ledger import Ledger

VersionKey = tuple[int, int]  # version, and updates that are predicted ahead of it
Weights = list[torch.Tensor]
_UNCHANGED = nullcontext()  # the layers keep their weights


class _SavedView(NamedTuple):
    """Position of a tensor that a graph saves, in the weight that it is a view of."""

    parameter: nn.Parameter
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def keep_newest(values: list[Any], newest: int) -> None:
    """Delete old values once there are twice as many as the `newest` to keep."""
    if len(values) >= 2 * newest:
        del values[:-newest]


class WeightVersions:
    """Weight versions of one rank. Its stages have the same updates.

    Attributes:
        ledger: Account of the versions of this interval.
        state, rule: Model states that the versions belong to, and their update rule.
        reads: Reads of forward passes without a backward pass, by stage and microbatch.
        passes: Ops of this interval in the order in which they ran, each with its read; of a long stream the newest.
        stored: Tensors of versions other than the newest.
        free: Tensors of versions that no op reads any more, for reuse.
        prediction: Buffer of predicted weights; `predicted_key` is the version that it holds.
    """

    def __init__(self, policy: WeightPolicy, stages: int) -> None:
        self.policy, self.stages = policy, stages
        self.begin(FlushInterval(0, 1, None, 0))

    def attach(self, state: ModelState, rule: UpdateRule) -> None:
        """Use these model states from now on."""
        self.state, self.rule = state, rule
        self.stored: dict[VersionKey, Weights] = {}
        self.free: list[Weights] = []
        self.prediction: Weights | None = None

    def begin(self, interval: FlushInterval) -> None:
        """Start the account of an interval; nothing is in flight."""
        self.ledger = Ledger(self.policy, interval, self.stages)
        self.reads: dict[tuple[int, int], Read] = {}
        self.passes: list[tuple[Op, Read | None]] = []
        self.predicted_key: VersionKey | None = None

    def forget(self, newest: int) -> None:
        """Keep the accounts of the `newest` ops, at least, of a long stream."""
        keep_newest(self.passes, newest)
        keep_newest(self.ledger.entries, newest)

    def extra_bytes(self) -> int:
        """Bytes of all tensors in addition to the newest weights, including free ones."""
        buffers = [*self.stored.values(), *self.free, *([self.prediction] if self.prediction else [])]
        return sum(tensor.numel() * tensor.element_size() for weights in buffers for tensor in weights)

    def run(self, op: Op) -> Read | None:
        """Enter `op` in the account, before it runs. Returns the weights that it reads.

        None stands for an update, for a weight gradient, and for a backward pass on its forward's graph. Raises
        InvalidRequest for a version that is not stored, and for a prediction from an older version."""
        newest = self.ledger.updates
        read = self.ledger.run(op)
        self.passes.append((op, read))
        if op.kind is Kind.UPDATE:
            self._release()  # an update reads no older version, so the new one may reuse its tensors
            if (newest, 0) in self.ledger.alive:
                self._store_newest(newest)
            return None
        if read is None:
            return None
        if read.predict_steps < 0:
            what = f"{op} reads version {read.version}+{read.predict_steps}"
            raise Unsupported(what, rule="predictions are for later versions", legal="predict_steps=0")
        if op.kind is Kind.FORWARD and not self.ledger.newest_only:
            self.reads[op.stage, op.index] = read
        return read

    def swapped_in(self, op: Op, read: Read | None) -> AbstractContextManager[None]:
        """Context in which the layers have the weights that `op` reads; None for those that its forward pass read.

        At the end, tensors of versions that no later pass reads become free."""
        return _UNCHANGED if self.ledger.newest_only else self._swapped_in(op, read)

    @contextmanager
    def _swapped_in(self, op: Op, read: Read | None) -> Iterator[None]:
        forward = op.kind is Kind.FORWARD
        if read is None:
            read = self.reads[op.stage, op.index]
        if not forward:
            del self.reads[op.stage, op.index]
        weights = self._weights(read)
        newest = [parameter.data for parameter in self.state.parameters]
        try:
            if weights is not None:
                self._give(weights)
            with self._saving_positions() if forward and read.backward_mode == "swap" else _UNCHANGED:
                yield
        finally:
            if weights is not None:
                self._give(newest)
        self._release()

    def _give(self, weights: Weights) -> None:
        """Give the layers other weights."""
        for parameter, tensor in zip(self.state.parameters, weights, strict=True):
            parameter.data = tensor

    def _weights(self, read: Read) -> Weights | None:
        """Tensors of a version; None if they are the layers' own."""
        key = read.version, read.predict_steps
        if key in self.stored:
            return self.stored[key]
        if not read.predict_steps:
            return None
        if read.backward_mode == "keep":
            self.stored[key] = self._predict(key, self._allocate())
            return self.stored[key]
        if self.prediction is None:
            self.prediction = self._allocate()
        if self.predicted_key != key:
            self._predict(key, self.prediction)
            self.predicted_key = key
        return self.prediction

    def _predict(self, key: VersionKey, into: Weights) -> Weights:
        predict(self.state, self.rule, key[1], into)
        return into

    def _allocate(self) -> Weights:
        """Tensors in the shapes of the stage's weights, with undefined content."""
        return self.free.pop() if self.free else [torch.empty_like(p.data) for p in self.state.parameters]

    def _store_newest(self, version: int) -> None:
        """Store the newest version, which is read again, before an update; the layers continue with a copy."""
        copies = self._allocate()
        self.stored[version, 0] = [parameter.data for parameter in self.state.parameters]
        if copies:  # a stage may have no weights
            torch._foreach_copy_(copies, self.stored[version, 0])
        self._give(copies)
        self.state.weights_moved()

    def _release(self) -> None:
        """Free the tensors of versions that the ledger no longer counts."""
        if self.stored:
            for key in self.stored.keys() - self.ledger.alive:
                self.free.append(self.stored.pop(key))

    @contextmanager
    def _saving_positions(self) -> Iterator[None]:
        """Context in which a graph saves positions of weights, and its backward pass reads the weights then there."""
        owners: dict[int, list[nn.Parameter]] = {}
        for parameter in self.state.parameters:
            owners.setdefault(parameter.data.untyped_storage().data_ptr(), []).append(parameter)

        def pack(tensor: torch.Tensor) -> torch.Tensor | _SavedView:
            for owner in owners.get(tensor.untyped_storage().data_ptr(), ()):
                offset = int(tensor.storage_offset() - owner.data.storage_offset())
                if 0 <= offset < owner.numel():  # several weights may share a storage
                    return _SavedView(owner, tensor.size(), tensor.stride(), offset)
            return tensor

        def unpack(saved: torch.Tensor | _SavedView) -> torch.Tensor:
            if not isinstance(saved, _SavedView):
                return saved
            weight = saved.parameter.data
            return weight.as_strided(saved.size, saved.stride, weight.storage_offset() + saved.offset)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
