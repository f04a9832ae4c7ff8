"""Step runner: execute the ops of one flush interval, and reduce the losses.

A pipeline that drains for every update runs one batch per interval and reduces its loss at the end. A stream reduces
the losses of `LOSS_BATCHES` batches at a time without blocking: a rank starts the reduction after its backward passes
of those batches, and yields the losses when the reduction is complete.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, FlushInterval, Kind, Op, Program
from suite.core.protocols import Handle, Value
from suite.core.trace import Trace
from suite.engine.guards.asynchronous import NO_COMMON_UPDATE
from suite.engine.guards.checked_schedule import checked_order
from suite.engine.layers import share_buffers
from suite.engine.optim.update import check_attached
from suite.engine.pruning.step import prune_if_due
from suite.engine.random_state import same_draws
from suite.engine.stage import Stage
from suite.engine.stream import BatchStream
from suite.engine.train_state import TrainState
from suite.engine.versions import keep_newest
from suite.engine.worker import Execute, run_program
from suite.schedule.static import fixed

KEPT_OPS = 100_000  # newest ops of a stream whose spans and reads stay in memory
CHECKED = 64  # updates between two searches for draws of the host, and for results of passes in modules
LOSS_BATCHES = 8  # batches whose losses share one reduction


class _LossReduction(NamedTuple):
    """A running reduction of the losses of a stream.

    Attributes:
        numbers: Loss sums of the batches, up to LOSS_BATCHES, followed by the codes of all ranks.
    """

    handle: Handle
    numbers: torch.Tensor
    batches: range


class StepRunner:
    """One flush interval of one rank.

    Attributes:
        apply_update: Whether updates step the weights; otherwise they only reduce the gradients.
        weights: Weights of microbatches, on the last stage, for a loss that is a pair (sum, count).
        total_weight: Sum of the weights of all last stages, which divides losses and gradients; 1 for means.
        batch_losses: Losses of the microbatches of each batch, on the last stage.
        completed: Microbatches that the stages of this rank have completed, summed over the stages.
        ends: Ends of batches of a stream that are not read yet.
        trace: Spans whose times are not read yet.
        pieces: Pieces of compression and expansion that are not read yet, with the end of the span that holds them.
        reduction: Reduction of losses that is under way.
        batches_sent: Batches whose losses are reduced, or under way.
    """

    def __init__(self, state: TrainState, stream: BatchStream, *, apply_update: bool = True) -> None:
        self.state, self.stream, self.apply_update = state, stream, apply_update
        self.interval = FlushInterval(
            state.microbatches, stream.microbatches, state.settings.config.update_interval, state.updates
        )
        self.loss_scale = state.loss_scaler.scale if state.loss_scaler else 1.0
        self.total_weight = 1.0
        self.weights: list[torch.Tensor] = []
        self.batch_losses: dict[int, list[torch.Tensor]] = {}
        self.completed = 0
        self.ends: list[float] = []
        self.trace, self.pieces = Trace(), list[tuple[float, list[tuple[str, float, float]]]]()
        self.reduction: _LossReduction | None = None
        self.batches_sent = 0

    def run(self) -> Iterator[float]:
        """Run every op. Yields the losses of batches as they become known."""
        state, streams = self.state, self.state.settings.streams
        check_attached(state.model_states)  # a pass must not add to the gradients of another engine
        program = self._program()
        state.trace, state.drained, state.batch_end_times = Trace(), False, []
        state.versions.begin(self.interval)
        if state.copies.followers:
            state.copies.follow(state.model_states)
        state.model_states.begin()
        state.user.begin()
        if not state.noted:
            state.note_statistics(self.interval.microbatches)
        if state.loss_check is not None:
            state.loss_check.begin()
        trace = self.trace if state.record_trace else None
        bound = state.schedule.in_flight(state.settings.place, self.interval)
        ops = run_on_rank(state, program, self.execute, bound, trace)
        while True:
            try:
                op = next(ops)
            except StopIteration as end:
                state.peak_in_flight = end.value
                break
            if streams:
                yield from self._after_streamed_op(op)
        if streams:
            self._finish()
            yield from self._send_losses(len(self.stream.ends))
            yield from self._receive_losses(wait=True)
            self._read_times()
            self.stream.finish()
            return
        loss = sum_over_last_stages(state, self.batch_losses.pop(0, ())) / self.scale
        self._read_times()
        self._finish()
        yield loss

    def _program(self) -> Program:
        """The program of this rank. The first interval of a length raises IllegalSchedule where it breaks a law."""
        state, interval = self.state, self.interval
        place, count = state.settings.place, interval.microbatches
        if count not in state.orders:
            any_order = state.comm.transport.any_order
            state.orders[count] = checked_order(state.schedule, place, interval, any_order=any_order)
        order = state.orders[count]
        return fixed(order, interval) if order else state.schedule.program(place, interval)

    def execute(self, op: Op, value: Value) -> Value:
        """Compute `op` with the weights that the policy selects. Returns the tensors to send."""
        state, place = self.state, self.state.settings.place
        read = state.versions.run(op)
        if op.kind is Kind.UPDATE:
            if not state.settings.streams:
                self._check_modules()
                self.total_weight = _total_weight(state, self.weights)
            self._update(op)
            return ()
        stage = state.stages[op.stage]
        if op.kind is Kind.WEIGHT:
            stage.owed_gradients.pay(op.index)
            self._take_pieces()
            return ()
        if op.kind in SENDS_GRADIENT:
            with state.versions.swapped_in(op, read):
                split = {"whole": False} if op.kind is Kind.INPUT else {}
                gradients = stage.backward(op.index, value, **split)
            self._take_pieces()
            return gradients
        assert read is not None
        is_last = op.stage == place.stages - 1
        self.stream.read_up_to(op.index)
        microbatches = self.interval.group_size(op.index)
        if is_last:
            observe_loss(state, self.interval.update_of(op.index), microbatches)
        first = op.index == self.interval.first and not state.settings.alone and state.updates % CHECKED == 0
        drawn = stage.host_random.state() if first else None
        with state.versions.swapped_in(op, read):
            output = stage.forward(
                op.index,
                self.stream.inputs(op.index) if op.stage == 0 else value,
                targets=self.stream.targets(op.index) if is_last else (),
                sample=op.index * place.replicas + place.replica,
                scale=self.loss_scale / (microbatches * place.replicas),
                read=read,
            )
        if first and not same_draws(drawn, stage.host_random.state()):
            raise InvalidRequest(
                f"a forward of stage {op.stage} that draws from random, numpy.random or a generator of its own",
                rule="ranks draw from these in another order; the engine seeds torch's default generators",
                legal="torch.rand or nn.Dropout in the forward, or Grid()",
            )
        if is_last:
            self._weigh(stage, microbatches)
            losses = self.batch_losses.setdefault(self.stream.batch_of(op.index), [])
            losses.append(self._share_of_batch(op.index, output[0]))
        if op.stage == place.held_stages[-1]:
            self.stream.forward_done(op.index)
        return output

    def _check_modules(self) -> None:
        """Compare the user's modules after the passes of a batch: see engine.guards.user_state."""
        state = self.state
        if not state.settings.alone or state.copies.followers:
            state.user.check_update()
        if state.settings.place.ranks > 1 and state.updates % CHECKED == 0:
            state.user.check_results()

    def _update(self, op: Op) -> None:
        """Run the update `op`: reduce gradients and, with `apply_update`, step."""
        state, tracker = self.state, self.state.memory_tracker
        assert not any(stage.owed_gradients.products for stage in state.stages.values()), (
            "the check puts W before updates"
        )
        if tracker is not None:
            tracker.phase = "scratch"
        start = state.clock.mark()
        for category in state.update.run(self.apply_update, self.total_weight):
            end = state.clock.mark()
            self._take_pieces(end)
            if state.record_trace:
                self.trace.add(state.settings.rank, category, start, end, op)
            start = end
        if tracker is not None:
            tracker.phase = "activations"  # passes of a stream continue

    def _take_pieces(self, end: float | None = None) -> None:
        """Keep the pieces of compression and expansion within the span that ends at `end`, or now."""
        if pieces := self.state.model_states.take_pieces():
            self.pieces.append((self.state.clock.mark() if end is None else end, pieces))

    def _read_times(self) -> None:
        """Add the spans so far to the trace, after the device has passed their marks.

        The pieces of a category within one span are one span at its end."""
        state, time_of = self.state, self.state.clock.times()
        state.batch_end_times += [time_of(mark) for mark in self.ends]
        state.trace += self.trace.timed(time_of)
        for mark, pieces in self.pieces:
            end, seconds = time_of(mark), dict[str, float]()
            for category, begun, ended in pieces:
                seconds[category] = seconds.get(category, 0.0) + time_of(ended) - time_of(begun)
            for category, total in seconds.items():
                state.trace.add(state.settings.rank, category, end - total, end)
                end -= total
        self.trace.clear()
        self.pieces, self.ends = [], []
        state.clock.restart()

    @property
    def scale(self) -> float:
        """Factor of the gradients, and of the losses' sum."""
        return self.loss_scale * self.total_weight

    def _weigh(self, stage: Stage, microbatches: int) -> None:
        """Keep the weight of the microbatch that has run, one of `microbatches` of its update and replica."""
        state, weight = self.state, stage.weight
        replicas = state.settings.place.replicas
        if state.pairs is not None and state.pairs != (weight is not None):
            raise InvalidRequest(
                f"loss= returns {'a mean' if state.pairs else 'a pair (sum, count)'}",
                rule="a loss returns means always, or pairs always",
                legal="a pair (sum, count) for every microbatch",
            )
        if weight is not None and state.settings.streams and microbatches * replicas > 1:
            raise Unsupported(
                f"a loss that returns (sum, count) with update_interval={state.settings.config.update_interval} on "
                f"{replicas} replicas",
                rule=f"{NO_COMMON_UPDATE}, at which counts could be added",
                legal="update_interval=1 on one replica, or a loss that is a mean",
            )
        if weight is not None and not state.settings.streams:  # a stream divides at once
            self.weights.append(weight / (microbatches * replicas))

    def _share_of_batch(self, index: int, loss: torch.Tensor) -> torch.Tensor:
        """The microbatch's share of the mean of its batch; an update of a stream may not be made of one batch."""
        update_microbatches = self.interval.group_size(index)
        batch_microbatches = self.stream.counts[self.stream.batch_of(index)]
        return loss if update_microbatches == batch_microbatches else loss * (update_microbatches / batch_microbatches)

    def _finish(self) -> None:
        """Count the interval: no microbatch is in flight."""
        state, interval = self.state, self.interval
        state.drained = True
        state.comm.guard.end()
        if not state.settings.streams and state.settings.place.replicas > 1:  # a stream has no common update
            layers = (stage.layers for stage in state.stages.values())
            share_buffers(layers, state.comm.data_parallel_group, state.comm.transport)
        if state.copies.followers:
            state.copies.write_buffers()
        if self.apply_update:
            state.microbatches += interval.microbatches
            state.updates += interval.updates
            if state.pruning is not None:
                prune_if_due(state, state.pruning, since=interval.update)

    # -- losses of a stream ------------------------------------------------------------------------------------------

    def _after_streamed_op(self, op: Op) -> Iterator[float]:
        """Record the batches that end with `op`, and send or yield losses that are complete."""
        ends, known = self.stream.ends, len(self.state.batch_end_times)
        held = len(self.state.stages)
        if op.kind in COMPLETES_MICROBATCH:
            self.completed += 1
        elif op.kind is Kind.UPDATE:
            now = self.state.clock.mark()
            while known + len(self.ends) < len(ends) and self.completed >= held * ends[known + len(self.ends)]:
                self.ends.append(now)
            keep_newest(self.state.trace, KEPT_OPS)
            self.state.versions.forget(KEPT_OPS)
        due = self.batches_sent + (1 if self.state.settings.alone else LOSS_BATCHES)
        complete = due < len(ends) and self.completed >= held * ends[due - 1]  # `run` sends the last batches itself
        if complete and op.kind in COMPLETES_MICROBATCH:
            yield from self._send_losses(due)
        elif self.reduction is not None:
            yield from self._receive_losses(wait=False)

    def _send_losses(self, stop: int) -> Iterator[float]:
        """Start the reduction of the losses of the batches before number `stop`, after that of earlier batches."""
        yield from self._receive_losses(wait=True)
        if stop == self.batches_sent:
            return
        batches = range(self.batches_sent, stop)
        self.batches_sent, guard = stop, self.state.comm.guard
        sums = torch.stack([_float64_sum(self.batch_losses.pop(batch, ())) for batch in batches])
        if guard.group is None:
            losses = (sums / self.loss_scale).tolist()
            self._read_times()
            yield from losses
            return
        rest = [0.0] * (LOSS_BATCHES - len(batches)) + guard.stream_slots(batches)
        numbers = torch.cat([sums, torch.tensor(rest, dtype=sums.dtype, device=sums.device)])
        numbers = numbers.to(self.state.comm.world.device)
        self.reduction = _LossReduction(guard.group.all_reduce(numbers), numbers, batches)

    def _receive_losses(self, *, wait: bool) -> Iterator[float]:
        """Yield the losses of the reduction, if it is complete or with `wait`.

        Raises InvalidRequest for batches that differ, with `wait`: every rank has then sent the numbers that the others
        need to raise at the same place."""
        if self.reduction is None or not (wait or self.reduction.handle.done()):
            return
        handle, numbers, batches = self.reduction
        complete(handle, self.state.comm.transport)
        clause = f"one of the batches {batches.start + 1} to {batches.stop}"
        fault = self.state.comm.guard.fault(numbers[LOSS_BATCHES:].tolist(), clause)
        if fault is None:
            self.reduction = None
            losses = (numbers[: len(batches)] / self.loss_scale).tolist()
            self._read_times()
            yield from losses
        elif wait:
            self.state.comm.guard.end()
            raise fault


def observe_loss(state: TrainState, batch: int, microbatches: int, *, evaluates: bool = False) -> None:
    """Let the check see the loss of the next microbatch of the last stage, where the batch is due.

    Args:
        batch: Number of the update, or of the batch in an evaluation.
    """
    check, every = state.loss_check, state.settings.config.check_loss
    last = state.stages[state.settings.place.stages - 1]
    last.observe = None  # one of a batch that was interrupted
    if check is not None and every and batch % every == 0:
        last.observe = partial(check.observe, -1 - batch if evaluates else batch, microbatches)


def _float64_sum(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(losses)).double().sum() if losses else torch.zeros((), dtype=torch.float64)


def sum_over_last_stages(state: TrainState, losses: Sequence[torch.Tensor]) -> float:
    """The float64 sum of numbers of all last stages, on every rank."""
    local = float(torch.stack(list(losses)).double().sum()) if losses else 0.0
    return state.comm.guard.reduce(local)


def returns_pairs(state: TrainState, found: bool) -> bool:
    """Whether the loss returns pairs (sum, count): the ranks of last stages have found it, and all agree on it once."""
    if state.pairs is None:
        state.pairs = state.comm.guard.max(found) > 0
    return state.pairs


def _total_weight(state: TrainState, weights: Sequence[torch.Tensor]) -> float:
    """Sum of the weights of an update's microbatches on all last stages; 1 for a loss that is a mean."""
    if not returns_pairs(state, bool(weights)):
        return 1.0
    return positive_count(sum_over_last_stages(state, weights))


def positive_count(count: float) -> float:
    """The count. Raises InvalidRequest, on all ranks, for a batch that counts nothing."""
    if not count > 0:
        raise InvalidRequest(
            f"a batch whose loss counts {count:g}", rule="a count above 0", legal="a batch with a target that counts"
        )
    return count


def run_on_rank(
    state: TrainState, program: Program, execute: Execute, bound: int, trace: Trace | None = None
) -> Generator[Op, None, int]:
    """Run a program on this rank, as `worker.run_program` does."""
    return run_program(
        program,
        execute,
        state.comm.transport,
        rank=state.settings.rank,
        homes=state.settings.homes,
        bound=bound,
        trace=trace,
        patience=state.comm.guard.patience,
        clock=state.clock.mark,
    )
