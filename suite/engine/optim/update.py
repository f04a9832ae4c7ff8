"""Update of a stage: overflow check, data-parallel reduction, reduction of tied weights, clipping, step.

Losses are divided by (microbatches * replicas), so the reduction is a sum and its result the gradient of the batch's
mean (AxoNN Algorithm 1, lines 12-13 and 7). Reductions of the same entries run one after the other.

In mixed precision all ranks of the grid first agree whether any sum could overflow, from the gradients before the first
reduction. Then either every weight, moment and counter changes, or none does. After this decision the reduction may run
in chunks of `buckets_per_reduction` buckets, and the step of one chunk overlaps the reduction of the next (V-C).
Clipping needs all sums first, and so excludes the overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import is_not

import torch

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Group, Handle, Transport, UpdateRule
from suite.core.trace import REDUCE, STEP, TIE
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD
from suite.engine.states.state import ModelState
from suite.engine.ties import TieGroup
from suite.engine.torch_api.torch_optimizer import TorchOptimizer

_EPSILON = 1e-6  # added to a norm before the division, as in torch's clip_grad_norm_


@dataclass(eq=False)
class Update:
    """Update of one stage.

    Attributes:
        rule: Update rule of the stage.
        data_parallel_group: Replicas of this stage.
        ties: Trained ties with ends on this stage, in the same order on all ranks.
        most_ends: The largest number of ends of a trained tie of the model; 1 without ties.
        world: All ranks of the grid; None on one rank.
        counts_in_norm: Whether this replica's gradients count in a norm (one replica's do).
        buckets_per_reduction: Buckets per all-reduce; None for one all-reduce of all entries.
        clip_norm: Largest norm of all gradients.
        loss_scaler: Loss scale of mixed precision; None in one precision.
        synchronous: Whether all ranks update at the same time and can decide together. Otherwise overflows are not
            checked.
        names: Names of the trained weights by id; empty where every weight is taken to have a gradient, as in a stream.
        skipped: Batches skipped because of an overflow.
        norm: Norm of all gradients of the last update before clipping; None without `clip_norm`.
    """

    state: ModelState
    rule: UpdateRule
    _: KW_ONLY
    data_parallel_group: Group
    transport: Transport
    ties: Sequence[TieGroup] = ()
    most_ends: int = 1
    reduce_number: Callable[[float, str], float] = lambda number, op: number
    counts_in_norm: bool = True
    buckets_per_reduction: int | None = None
    clip_norm: float | None = None
    loss_scaler: DynamicLossScaler | None = None
    synchronous: bool = True
    names: Mapping[int, str] = field(default_factory=dict)
    skipped: int = field(default=0, init=False)
    norm: float | None = field(default=None, init=False)

    @property
    def reduces(self) -> bool:
        """Whether gradients are summed over replicas."""
        return len(self.data_parallel_group.ranks) > 1 and self.state.entries > 0

    @property
    def overlaps(self) -> bool:
        """Whether steps overlap reductions: there are several chunks to reduce, and no norm to wait for."""
        chunk_numel = (self.buckets_per_reduction or 0) * self.state.bucket_numel
        return 0 < chunk_numel < self.state.entries and self.reduces and not self.clip_norm

    @property
    def overlap(self) -> str:
        """Note for the record on the overlap of step and reduction."""
        if self.overlaps:
            return f"chunks of {self.buckets_per_reduction} buckets of {self.state.bucket_numel}"
        if self.buckets_per_reduction is None:
            return "off"
        if self.clip_norm:
            return "off (clipping)"
        return "off (one chunk holds everything)" if self.reduces else "off (nothing is reduced)"

    def run(self, step: bool = True, total_weight: float = 1.0) -> Iterator[str]:
        """Reduce the gradients and, with `step`, step the weights, while messages progress.

        Args:
            total_weight: What the gradients are divided by, after the loss scale.

        Yields the category of each span of time when it ends."""
        check_attached(self.state, data=False)
        scale = (self.loss_scaler.scale if self.loss_scaler else 1.0) * total_weight
        if step and self.loss_scaler and self.synchronous and self._overflows(self.loss_scaler):
            self.skipped += 1
            self.state.finish(stepped=False)
            yield STEP
            return
        unused = self._unused() if step and self.names else []
        if step and self.overlaps:
            yield from self._reduce_and_step_overlapped(1.0 / scale)
        else:
            yield from self._reduce([slice(0, self.state.entries)])
            for weight in unused:
                weight.grad = None  # torch's optimizers leave such a weight and its states as they are
            if step:
                self.state.step(self.rule, self._clipped(1.0 / scale))
            for weight in unused:
                weight.grad = self.state.views[id(weight)]
        if step:
            self.state.finish(stepped=True)
            if isinstance(self.rule, TorchOptimizer):
                self.rule.updated()
        yield STEP

    # -- weights without a gradient ----------------------------------------------------------------------------------

    def _unused(self) -> list[torch.nn.Parameter]:
        """Weights that no backward pass of the batch has reached, on no replica and at no end of a tie.

        Raises Unsupported where a step would change them."""
        places, keys = self.state.without_gradient(), list(self.state.views)
        if self.reduces:
            used = torch.ones(len(keys), device=self.state.gradient.device)
            used[places] = 0.0
            complete(self.data_parallel_group.all_reduce(used, "max"), self.transport)
            places = (used == 0.0).nonzero().flatten().tolist()
        if not places:
            return []
        unused = {keys[place] for place in places}
        for tie in self.ties:
            ends = set(map(id, tie.weights.values()))
            if not (tie.local and ends <= unused):
                unused -= ends
        weights = [weight for weight in self.state.parameters if id(weight) in unused]
        if weights and not self._leaves_unused():
            raise Unsupported(
                f"the weight {self.names[id(weights[0])]} without a gradient in a batch",
                rule="torch leaves such a weight as it is, but this update steps all weights of a stage together",
                legal="torch.optim with half=None, and without bucket_numel=, offloaded states and pruning=",
            )
        return weights

    def _leaves_unused(self) -> bool:
        """Whether a step without a gradient changes nothing."""
        if isinstance(self.rule, TorchOptimizer) and not self.rule.translates:
            return True
        rules = self.rule.rules() if isinstance(self.rule, TorchOptimizer) else [self.rule]
        return all(isinstance(rule, SGD) and not rule.momentum and not rule.weight_decay for rule in rules)

    # -- mixed precision ---------------------------------------------------------------------------------------------

    def _overflows(self, loss_scaler: DynamicLossScaler) -> bool:
        """Whether a sum of gradients of any rank could exceed the range of their dtype; equal on all ranks."""
        largest = self.reduce_number(self.state.max_gradient(), "max")
        addends = len(self.data_parallel_group.ranks) * self.most_ends
        overflow = not largest * addends <= torch.finfo(self.state.gradient.dtype).max
        loss_scaler.observe(overflow)
        return overflow

    # -- reductions --------------------------------------------------------------------------------------------------

    def _reduce(self, spans: Sequence[slice]) -> Iterator[str]:
        """Sum `spans` over replicas, and all ties over their ends."""
        gradient = self.state.gradient
        if self.reduces:
            yield from self._wait(REDUCE, [self.data_parallel_group.all_reduce(gradient[span]) for span in spans])
        for tie in self.ties:
            if len(tie.ends) == 2 and not tie.local:  # the sum of two addends does not depend on their order
                (weight,) = tie.weights.values()
                yield from self._wait(TIE, [tie.group.all_reduce(self.state.kept_gradient(weight))])
            else:
                yield from self._sum_in_turns(tie)

    def _sum_in_turns(self, tie: TieGroup) -> Iterator[str]:
        """Sum a tie in the order of layers: each rank in turn adds its gradients and broadcasts the sum."""
        gradients = [self.state.kept_gradient(weight) for weight in tie.weights.values()]
        total = gradients[0] if tie.holds_first else torch.empty_like(gradients[0])
        for number, (rank, weights) in enumerate(tie.turns):
            for weight in weights if number else weights[1:]:  # the sum begins as the gradient of the first end
                total.add_(self.state.kept_gradient(weight))
            if not tie.local:
                yield from self._wait(TIE, [tie.group.broadcast(total, rank)])
        for gradient in gradients:
            if gradient is not total:
                gradient.copy_(total)

    def _wait(self, category: str, handles: Sequence[Handle]) -> Iterator[str]:
        for handle in handles:
            complete(handle, self.transport)
            yield category

    def _reduce_and_step_overlapped(self, factor: float) -> Iterator[str]:
        """Reduce ties first, because a bucket with a part of one needs both sums; then chunk by chunk."""
        assert self.buckets_per_reduction is not None
        weights = (weight for tie in self.ties for weight in tie.weights.values())
        tied = sorted(map(self.state.span, weights), key=lambda span: span.start)
        yield from self._reduce(tied)
        size = self.buckets_per_reduction * self.state.bucket_numel
        handles = self._start_chunk(slice(0, size), tied)
        for bucket in self.state.step_buckets(self.rule, factor):
            if bucket.start % size == 0:  # the first bucket of a chunk
                if bucket.start:
                    yield STEP
                yield from self._wait(REDUCE, handles)
                handles = []  # frees the buffers of one reduction before the next allocates its own
                handles = self._start_chunk(slice(bucket.start + size, bucket.start + 2 * size), tied)
            self.transport.progress()

    def _start_chunk(self, chunk: slice, reduced: Sequence[slice]) -> list[Handle]:
        """Begin the sums of a chunk, without the slices that are reduced already."""
        spans = subtract(slice(chunk.start, min(chunk.stop, self.state.entries)), reduced)
        return [self.data_parallel_group.all_reduce(self.state.gradient[span]) for span in spans]

    # -- clipping ----------------------------------------------------------------------------------------------------

    def _clipped(self, factor: float) -> float:
        """`factor`, reduced such that the norm of all gradients times the factor is at most `clip_norm`."""
        if not self.clip_norm:
            return factor
        squared_norm = 0.0
        if self.counts_in_norm:
            duplicates = {id(tie.weights[end]) for tie in self.ties for end in tie.duplicates}
            counted = [self.state.kept_gradient(p) for p in self.state.parameters if id(p) not in duplicates]
            norms = [*torch._foreach_norm(counted, dtype=torch.float64)] if counted else []
            read = torch.stack(norms).cpu().tolist() if norms else []  # one wait for a device, not one per weight
            squared_norm = math.fsum(norm**2 for norm in read)
        self.norm = norm = math.sqrt(self.reduce_number(squared_norm, "sum")) * factor
        return factor * min(1.0, self.clip_norm / (norm + _EPSILON))


def check_attached(state: ModelState, *, data: bool = True) -> None:
    """Raises InvalidRequest where the gradient or the data of a weight is no longer the tensor that a step reads.

    zero_grad() sets gradients to None, and a second engine of the same modules replaces both. Without this check the
    training would be lost silently."""
    # twice per batch, over all weights: by map, whose loop costs a quarter of a generator's
    address = torch.Tensor.data_ptr
    data_replaced = data and not state.half and [*map(address, state.flat.order)] != [*map(address, state.rule.weights)]
    gradients = [parameter.grad for parameter in state.parameters]
    if data_replaced or any(map(is_not, gradients, map(state.views.get, map(id, state.parameters)))):
        raise InvalidRequest(
            f"the {'.data' if data_replaced else '.grad'} of a weight of this engine was replaced",
            rule="an engine owns .data and .grad of its weights: do not call zero_grad() or .to(), and do not train "
            "modules from which a newer engine was made",
            legal="the newest engine of these modules, or an engine of copy.deepcopy(layers)",
        )


def subtract(span: slice, holes: Sequence[slice]) -> list[slice]:
    """The parts of `span` outside `holes`, which are disjoint and in order."""
    remaining, start = [], span.start
    for hole in holes:
        if hole.stop <= start or hole.start >= span.stop:
            continue
        if hole.start > start:
            remaining.append(slice(start, hole.start))
        start = max(start, hole.stop)
    if start < span.stop:
        remaining.append(slice(start, span.stop))
    return remaining
