"""Training API: layers, loss, optimizer, grid and schedule make an engine, which trains on batches and returns losses.

    engine = Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=1e-3), grid=Grid(inter=2), microbatch=4)
    for loss in engine.train(batches): ...

Every rank of the grid runs the same lines. A batch is (inputs, targets), each a tensor or a tuple of tensors with
the samples in the first dimension. Every rank receives the whole batch and takes its own rows: chunk (microbatch *
replicas + replica) of `microbatch` rows. Losses are means over the batch, known on every rank. Batches that differ
between ranks are refused (engine.batch_agreement); user code sees its own random state (engine.random)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from suite.comm.p2p.polling import all_reduce_scalar
from suite.comm.rendezvous import mpiexec_flags
from suite.comm.world import init_world
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import Read, Schedule, UpdateRule, WeightPolicy, World
from suite.core.trace import Trace
from suite.core.values import Json
from suite.engine import arguments, asynchronous
from suite.engine.argument_types import given
from suite.engine.batch_agreement import BatchAgreement
from suite.engine.batch_slicing import Rows
from suite.engine.batch_source import END, BatchSource
from suite.engine.batch_stream import Batch, BatchStream
from suite.engine.checkpoint import restore, save, storage
from suite.engine.layers import Layer, agree, cast, ends_here, find_ties, make
from suite.engine.memory_tracker import LiveBytes
from suite.engine.optim.loss_scaler import Dynamic, unscaled
from suite.engine.optim.optimizer import states_of
from suite.engine.optim.update import Update
from suite.engine.process_setup import check_half
from suite.engine.prune import Pruning, prune
from suite.engine.random_state import outside
from suite.engine.stage import Stage
from suite.engine.states.flat_layout import LayoutOf
from suite.engine.states.state import ModelState
from suite.engine.step_runner import Running, scoring
from suite.engine.weight_versions import WeightVersions
from suite.memory.layout import compressed
from suite.pruning.mask import Key
from suite.schedule import MessageDriven, OneFOneB
from suite.weights.policy import Latest
from suite.workload.split import Split, evenly


class Engine:
    """One rank's part of a training run on a `G_inter x G_data` grid (AxoNN Algorithms 1 and 2).

    Attributes:
        layers: modules, which train in place, or functions that make them (then each rank makes its own stage's only,
            the same on every split). Training runs in the modes (train or eval) that the modules have.
        loss: loss(*outputs, *targets) -> the mean over the samples of a microbatch, one number; a sum is refused. To
            detect one, the engine calls the loss 3 or 6 more times in each of the first microbatches, until one of them
            (at most the fourth) decides.
        microbatch: Samples per microbatch.
        split: Which layers make a stage; None divides them evenly.
        tied: Pairs of weights that are one, as (first layer, name, last layer, name), both trained or both frozen; a
            weight that two modules of the list share is found by itself. Ties join the first stage and the last.
        seed: Selects dropout masks and, for functions, initial weights.
        half: "bfloat16" or "float16", the type of passes, messages and reductions in mixed precision, on copies of the
            modules. The modules in `layers` hold the full-precision weights; a pruned one is rounded until `close`.
        scaler: The loss scale of mixed precision; None: 1.
        bucket, chunk: Entries per step, and buckets per reduction, which overlaps the previous step (AxoNN V-B, V-C).
        clip: The largest norm of all gradients.
        checkpoints: Layers between activation checkpoints (V-A).
        pruning: Which weights go, and when (SAMO III).
        memory: Form and place of each state; by default all on the device, and compressed for pruned weights.
        weights: Which versions passes read (PipeOptim III), the newest by default.
        update_every: Microbatches per update of a pipeline that does not drain for it; None: an update per batch, a
            flush.
        compare_batches: Ranks compare their calls and batches, a small reduction per batch; False where every rank
            makes its batches from one seed.
        scores: scores(*outputs, *targets) -> means over a microbatch, as many as `score_names`, that `score` tells.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        loss: Callable[..., torch.Tensor],
        optimizer: UpdateRule,
        microbatch: int,
        grid: Grid | None = None,
        schedule: Schedule | None = None,
        weights: WeightPolicy | None = None,
        memory: LayoutOf = compressed,
        split: Split | None = None,
        tied: Sequence[tuple[int, str, int, str]] = (),
        seed: int = 0,
        half: str | None = None,
        scaler: Dynamic | None = None,
        bucket: int | None = None,
        chunk: int | None = None,
        clip: float | None = None,
        checkpoints: int | None = None,
        pruning: Pruning | None = None,
        update_every: int | None = None,
        scores: Callable[..., torch.Tensor] | None = None,
        score_names: Sequence[str] = (),
        compare_batches: bool = True,
        world: World | None = None,
    ) -> None:
        layers = arguments.check(given(**locals()))
        self.grid, self.world = grid or Grid(), world or init_world()
        if self.world.size != self.grid.size:
            raise InvalidRequest(
                f"a grid of {self.grid.size} ranks ({self.grid}) in a world of {self.world.size}",
                rule="one rank per place of the grid",
                legal=mpiexec_flags.command_line(self.grid.size),
            )
        if half:
            check_half(half, self.world.device)
        policy = weights or Latest()
        self.microbatch, self.update_every = int(microbatch), update_every
        self.schedule: Schedule = schedule or (MessageDriven() if update_every is None else OneFOneB())
        self.rank, self.seed = self.world.rank, seed
        self.place = place = self.grid.place(self.rank)
        self.split = split or evenly(len(layers), self.grid.inter)
        self.columns = [self.world.group(self.grid.data_parallel_group(rank)) for rank in range(self.grid.inter)]
        ends = [
            self.world.group(self.grid.embedding_group(self.grid.rank(data=d, inter=0))) for d in range(self.grid.data)
        ]
        self.transport = self.world.transport(
            self.grid.neighbour(self.rank, -1), self.grid.neighbour(self.rank, +1), self.grid.inter
        )
        own_layers = self.split[place.stage]
        self.half: torch.dtype | None = getattr(torch, half) if half else None
        self.ties = ties = find_ties(layers, tied, self.split)
        layer_modules, self.copies = make(layers, own_layers, seed, device=self.world.device, half=self.half)
        arguments.check_half(layer_modules, half)
        asynchronous.check(
            policy, optimizer, memory, self.grid, update_every, tied=bool(ties), clip=clip, half=half, scaler=scaler
        )
        self.agreement = BatchAgreement(self.world, self.transport, self.grid.size, off=not compare_batches)
        self.ends, progress = ends[place.replica], self.transport.progress
        agree(layer_modules, own_layers, ties, column=self.columns[place.stage], ends=self.ends, progress=progress)
        self.rows = Rows(place, microbatch, self.world.device, self.half)
        self.stage = Stage(
            layer_modules,
            first_layer=own_layers.start,
            seed=seed,
            loss=loss if place.last else None,
            scores=scores if place.last else None,
            checkpoints=checkpoints,
        )
        self.store = WeightVersions(policy, self.grid.inter)
        self.scaler = (copy.deepcopy(scaler) or unscaled()) if self.half else None  # it counts for one engine
        here_tied = [tuple(p for p in ends_here(layer_modules, own_layers, tie) if p.requires_grad) for tie in ties]
        trained = [p for p in self.stage.layers.parameters() if p.requires_grad]
        self.layout, self.bucket = memory, bucket
        states = states_of(optimizer, predicts=policy.predicts)
        self._state = partial(ModelState, trained, states, memory, half=self.half, bucket=bucket)
        self._update_of = partial(
            Update,
            rule=optimizer,
            column=self.columns[place.stage],
            ends=self.ends,
            ties=here_tied,
            transport=self.transport,
            everyone=self.world if self.grid.size > 1 else None,
            twins=[tie[-1] for tie in here_tied if tie and place.last],
            own=place.replica == 0,
            chunk=chunk,
            clip=clip,
            scaler=self.scaler,
            meets=update_every is None,
        )
        self.microbatches = self.updates = self.evaluated = 0  # counted over the whole training, per replica
        self.drained = True  # nothing is in flight, and no batch was broken off
        self.trace = Trace()
        self.score_names = tuple(score_names)
        self.ended: list[float] = []  # of the last stream: when this rank was done with each batch
        self.traced = True
        self.legal: dict[int, tuple[Op, ...]] = {}  # this stage's checked order, by number of microbatches
        self.live: LiveBytes | None = None
        self.peak = 0
        self.pruning = copy.deepcopy(pruning)  # a search remembers
        self.pruned: int | None = None  # updates after which the network was
        self.held: ModelState | None = None
        if self.pruning is None or not self.pruning.look(self):
            self.hold({})

    def hold(self, kept: Mapping[int, torch.Tensor]) -> None:
        """Makes the model states, of a pruned network where places are `kept` of weights, by their ids; anew if need
        be."""
        self.state = self.held = self._state(kept=kept)
        if self.half:
            cast(self.stage.layers, self.half)
            self.copies.lend(self.state)
        self.update = self._update_of(self.state)
        self.store.hold(self.state, self.update.rule)

    # -- what a user calls -------------------------------------------------------------------------------------------

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """The loss of each batch, in order, made as it is asked for. With `update_every` the batches stream through
        the pipeline, which drains when they end: the losses of a few come together, and batches are read ahead.

        Raises InvalidRequest, on every rank, for batches that differ between ranks; for fewer microbatches than stages;
        and after a stream that was broken off."""
        arguments.check_batches(batches)
        return outside(self.training(batches))

    def train_batch(self, batch: Batch) -> float:
        """One batch: forward and backward passes of its microbatches, an update. Its mean loss, on every rank."""
        asynchronous.check_flush(self.update_every, "train_batch")
        (loss,) = outside(self.training([batch], single=True))
        return loss

    def training(self, batches: Iterable[Batch], *, single: bool = False) -> Generator[float | None, None, None]:
        """The losses, and None where this rank waits and others of its process may go on."""
        source, agreement = self.source(batches, single=single), self.agreement
        if self.update_every is not None:
            stream = agreement.begin_stream(source, self.rows, self.microbatches)
            if stream.microbatches:
                asynchronous.check_stream(stream.microbatches, self.grid.inter, self.update_every, self.drained)
                yield from Running(self, stream).ops()
            return
        while (batch := agreement.next(source, "training")) is not END:
            with agreement.finishing():
                yield from Running(self, BatchStream([batch], self.rows, self.microbatches)).ops()

    def prune(self, indices: Mapping[Key, torch.Tensor]) -> None:
        """From now on only the places `indices` of weights are trained, the rest is zero: see engine.prune.prune."""
        with self.agreement.call("pruning"):
            prune(self, indices)

    def gradients(self, batch: Batch) -> list[torch.Tensor]:
        """The reduced gradients of this stage's weights for `batch`, in order, without the loss scale. No step and no
        count; running statistics see a forward pass."""
        asynchronous.check_flush(self.update_every, "gradients")
        self.agreement.one(batch, "gradients")
        list(outside(Running(self, BatchStream([batch], self.rows, self.microbatches), step=False).ops()))
        state = self.state
        gradients = [state.whole(state.gradient, p).to(state.dtype) / self.scale for p in state.parameters]
        self.state.gradient.zero_()
        return gradients

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Mean loss over the samples of `batches`, in evaluation mode; changes no training state. A batch may have any
        number of samples. Every module has the mode afterwards that it had before."""
        return self.score(batches)["loss"]

    def score(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Means over the samples of `batches` in evaluation mode: the loss, and by their names what `scores` gives."""
        arguments.check_batches(batches)
        (scores,) = outside(scoring(self, self.source(batches)))
        return scores

    @property
    def passes(self) -> tuple[tuple[Op, Read | None], ...]:
        """The ops of the last work on this rank in the order in which they ran, with what each read."""
        return tuple(self.store.passes)

    def memory(self, batch: Batch) -> tuple[float, dict[str, int]]:
        """Trains on `batch`, streams on several of it: its loss, and this rank's peak bytes by kind, counted at
        allocation."""
        allocated = self.state.allocated()
        allocated["weights"] += self.store.beside()
        some = 1 if self.update_every is None else 2 * self.grid.inter  # a stream that is full for a while
        mean, self.stage.mean = self.stage.mean, None  # its losses of repeated rows are no part of training
        try:
            with LiveBytes() as self.live:
                *_, loss = self.train([batch] * some)
            peak, phase = self.live.peak, self.live.peak_phase
        finally:
            self.stage.mean, self.live = mean, None
        return loss, {**allocated, phase: peak}

    def save(self, folder: str | Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
        """A checkpoint `folder`/step-000042 (42 updates), of which `keep` stay: see engine.checkpoint.save."""
        with self.agreement.call("saving"):
            return save.save(self, storage.folder_of(folder), keep=keep, extra=extra)

    def load(self, path: str | Path) -> restore.Loaded:
        """Resume from the newest whole checkpoint in a folder, or from the one named: see engine.restore.load."""
        with self.agreement.call("loading"):
            return restore.load(self, storage.folder_of(path))

    def close(self) -> None:
        """Ends the transport's connections; call it on every rank. In mixed precision the user's modules hold their
        full-precision weights on the engine's device from then on, pruned and offloaded ones too."""
        if self.held is not None:
            self.copies.give_back(self.held)
        self.agreement.close()
        self.transport.close()

    def source(self, batches: Iterable[Batch], *, single: bool = False) -> BatchSource:
        """The user's batches, to be read by the engine."""
        return BatchSource(batches, exclusive=self.world.backend == "threads" and self.grid.size > 1, single=single)

    # -- how --------------------------------------------------------------------------------------------------------

    @property
    def scale(self) -> float:
        """By what losses are multiplied."""
        return self.scaler.scale if self.scaler else 1.0

    def step(self, op: Op, step: bool) -> Iterator[None]:
        """The update `op`; without `step` gradients are reduced, and that is all. Yields as `training` does."""
        if self.live is not None:
            self.live.phase = "scratch"
        start = perf_counter()
        for category in self.update.run(step):
            if category is None:
                yield None
                continue
            end = perf_counter()
            self.parts(end)
            if self.traced:
                self.trace.add(self.rank, category, start, end, op)
            start = end
        if self.live is not None:
            self.live.phase = "activations"  # of a stream, which goes on

    def parts(self, end: float) -> None:
        """Record what compressing and expanding took of the span that ends at `end`: each in one piece, the last one
        at the span's end."""
        if self.pruned is None:
            return
        for category, seconds in self.state.taken().items():
            self.trace.add(self.rank, category, end - seconds, end)
            end -= seconds

    def sharing(self, losses: Sequence[torch.Tensor]) -> Generator[None, None, float]:
        """The sum of numbers of all last stages, in double precision, on every rank. Yields as `training` does."""
        loss_sum = float(torch.stack(list(losses)).double().sum()) if losses else 0.0
        return loss_sum if self.grid.size == 1 else (yield from all_reduce_scalar(self.world, loss_sum, self.transport))
