"""Update of a stage: overflow check, data-parallel reduction, reduction of tied weights, clipping, step.

Gradients are sums of losses divided by (microbatches * replicas), so the reduction is a sum and the result the batch's
mean (AxoNN Algorithm 1, lines 12-13 and 7). Parts that name one buffer run one after the other: two asynchronous
reductions of the same numbers would race.

In mixed precision the whole grid first agrees whether any sum could overflow, from the gradients as they are before the
first reduction, so that either every weight, moment and count moves or none does. So the reduction may come in
chunks of k buckets, and the step of one chunk overlaps the reduction of the next (V-C). Clipping needs every sum
first: no overlap."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence

import torch

from suite.comm.p2p.polling import all_reduce_scalar, wait_for
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Handle, Transport, UpdateRule, World
from suite.core.trace import REDUCE, STEP, TIE
from suite.engine.optim.loss_scaler import Dynamic
from suite.engine.states.state import ModelState

_TINY = 1e-6  # added to a norm that divides, as in torch's clip_grad_norm_


class Update:
    """The update of one stage.

    Attributes:
        column: The replicas of this stage.
        ends: The pipeline's two ends.
        everyone: The grid, None for one rank.
        ties: Weights that share their gradient with the other end, the input's end first where both stand here.
        twins: Those of them that are the output's end: a norm counts a tied weight once.
        own: Whether this replica's gradients count (one of the column's).
        chunk: Buckets per reduction; None: one reduction of everything.
        clip: The largest norm of all gradients.
        scaler: The loss scale of mixed precision, whose overflows are looked for.
        meets: Whether all ranks update at the same time, and can decide together; otherwise overflows are not checked.
    """

    def __init__(
        self,
        state: ModelState,
        rule: UpdateRule,
        *,
        column: Group,
        ends: Group,
        ties: Sequence[tuple[torch.nn.Parameter, ...]],
        transport: Transport,
        everyone: World | None = None,
        twins: Sequence[torch.nn.Parameter] = (),
        own: bool = True,
        chunk: int | None = None,
        clip: float | None = None,
        scaler: Dynamic | None = None,
        meets: bool = True,
    ) -> None:
        self.state, self.rule, self.transport, self.progress = state, rule, transport, transport.progress
        self.column, self.ends, self.everyone = column, ends, everyone
        self.clip, self.scaler, self.own = clip, scaler, own
        self.chunk, self.meets = chunk, meets
        self.skipped = 0  # batches that overflowed
        self.twins = {id(parameter) for parameter in twins}
        self.tied: list[slice] = []  # what the other end holds too
        self.local: list[tuple[slice, slice]] = []
        for tie in ties:
            spans = [state.span(parameter) for parameter in tie]
            if len(spans) == 2:
                self.local.append((spans[0], spans[1]))  # both ends stand here: input part, then output part
            elif spans and len(ends.ranks) == 2:
                self.tied.append(spans[0])

    @property
    def reduces(self) -> bool:
        """Whether there are replicas to add."""
        return len(self.column.ranks) > 1 and self.state.entries > 0

    @property
    def overlaps(self) -> bool:
        """Whether steps overlap reductions: there are several chunks to reduce, and no norm to wait for."""
        several = self.chunk is not None and self.chunk * self.state.bucket < self.state.entries
        return several and self.reduces and not self.clip

    @property
    def overlap(self) -> str:
        """The record's note on the overlap of step and reduction."""
        if self.overlaps:
            return f"chunks of {self.chunk} buckets of {self.state.bucket}"
        if self.chunk is None:
            return "off"
        if self.clip:
            return "off (clipping)"
        return "off (one chunk holds everything)" if self.reduces else "off (nothing is reduced)"

    def run(self, step: bool = True) -> Iterator[str | None]:
        """Reduce and, if told to, step, while messages keep moving. Yields what each piece of time went into, and None
        where other ranks of this process must go on first."""
        check_attached(self.state)
        scale = self.scaler.scale if self.scaler else 1.0
        if step and self.scaler and self.meets and (yield from self._overflows(self.scaler)):
            self.skipped += 1
            self.state.finish(stepped=False)
            yield STEP
            return
        if step and self.overlaps:
            yield from self._overlapped(1.0 / scale)
        else:
            yield from self._sums([slice(0, self.state.entries)])
            if step:
                self.state.step(self.rule, (yield from self._clipped(1.0 / scale)))
        if step:
            self.state.finish(stepped=True)
        yield STEP

    # -- mixed precision ---------------------------------------------------------------------------------------------

    def _overflows(self, scaler: Dynamic) -> Generator[None, None, bool]:
        """One decision for the grid: could a sum of anybody's gradients leave the range of the format?"""
        largest = self.state.largest()
        if self.everyone is not None:
            largest = yield from all_reduce_scalar(self.everyone, largest, self.transport, "max")
        addends = len(self.column.ranks) * (2 if len(self.ends.ranks) == 2 or self.local else 1)
        overflow = not largest * addends <= torch.finfo(self.state.gradient.dtype).max
        scaler.observe(overflow)
        return overflow

    # -- reductions --------------------------------------------------------------------------------------------------

    def _sums(self, spans: Sequence[slice]) -> Iterator[str | None]:
        """The sums of `spans`, and of the ties, which the other end waits for."""
        if self.reduces:
            yield from self._wait(REDUCE, [self.column.all_reduce(self.state.gradient[span]) for span in spans])
        for span in self.tied:
            yield from self._wait(TIE, [self.ends.all_reduce(self.state.gradient[span])])
        for first, last in self.local:
            self.state.gradient[first].add_(self.state.gradient[last])
            self.state.gradient[last].copy_(self.state.gradient[first])

    def _wait(self, category: str, handles: Sequence[Handle]) -> Iterator[str | None]:
        for handle in handles:
            yield from wait_for(handle, self.transport)
            yield category

    def _overlapped(self, factor: float) -> Iterator[str | None]:
        """Ties first, as a bucket with a part of one waits for both sums; then chunk by chunk."""
        assert self.chunk is not None
        first = sorted([*self.tied, *(span for pair in self.local for span in pair)], key=lambda span: span.start)
        yield from self._sums(first)
        size = self.chunk * self.state.bucket
        coming = self._start(slice(0, size), first)
        for bucket in self.state.stepping(self.rule, factor):
            if bucket.start % size == 0:  # a chunk begins: wait for its sums, and start the next reduction
                if bucket.start:
                    yield STEP
                yield from self._wait(REDUCE, coming)
                coming = []  # the room that a reduction took goes before the next takes its own
                coming = self._start(slice(bucket.start + size, bucket.start + 2 * size), first)
            self.progress()

    def _start(self, chunk: slice, done: Sequence[slice]) -> list[Handle]:
        """Begin the sums of a chunk, less what was added before."""
        rest = without(slice(chunk.start, min(chunk.stop, self.state.entries)), done)
        return [self.column.all_reduce(self.state.gradient[span]) for span in rest]

    # -- clipping ----------------------------------------------------------------------------------------------------

    def _clipped(self, factor: float) -> Generator[None, None, float]:
        """`factor`, less where the norm of all gradients times it is above the limit."""
        if not self.clip:
            return factor
        square_sum = 0.0
        if self.own:
            parts = (self.state.part(p) for p in self.state.parameters if id(p) not in self.twins)
            square_sum = math.fsum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in parts)
        squares = (
            square_sum
            if self.everyone is None
            else (yield from all_reduce_scalar(self.everyone, square_sum, self.transport))
        )
        norm = math.sqrt(squares) * factor
        return factor * min(1.0, self.clip / (norm + _TINY))


def check_attached(state: ModelState) -> None:
    """Raises InvalidRequest where the gradient or the data of a weight is no longer the tensor that a step reads
    (zero_grad sets None, and a second engine puts its own there): training would be lost silently."""
    stepped = () if state.half else zip(state.flat.order, state.rule.weights, strict=True)
    data = any(parameter.data_ptr() != weight.data_ptr() for parameter, weight in stepped)
    if data or any(parameter.grad is not state.views.get(id(parameter)) for parameter in state.parameters):
        raise InvalidRequest(
            f"the {'.data' if data else '.grad'} of a weight of this engine was replaced",
            rule="an engine owns .data and .grad of its weights: do not call zero_grad() or .to(), and do not train "
            "modules of which another engine was made since",
            legal="the newest engine of these modules, or an engine of copy.deepcopy(layers)",
        )


def without(span: slice, taken: Sequence[slice]) -> list[slice]:
    """The parts of `span` that none of `taken` (in order, apart) covers."""
    rest, start = [], span.start
    for hole in taken:
        if hole.stop <= start or hole.start >= span.stop:
            continue
        if hole.start > start:
            rest.append(slice(start, hole.start))
        start = max(start, hole.stop)
    if start < span.stop:
        rest.append(slice(start, span.stop))
    return rest
