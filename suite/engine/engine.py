"""Training API: an engine trains a model on a grid of ranks and returns losses.

    engine = Engine(model, loss=cross_entropy, optimizer=AdamW(lr=1e-3), grid=Grid(inter=2), microbatch=4)
    for loss in engine.train(batches): ...

Every rank of the grid runs the same lines, under mpiexec, torchrun or srun. Without a launcher the ranks are threads of
one process (engine.replay.thread_ranks). A batch is (inputs, targets), each a tensor, or a tuple or dict of tensors,
with the samples in the first dimension. Every rank receives the whole batch and slices its own rows: chunk
(microbatch * replicas + replica) of `microbatch` rows. Losses are means over the batch, and every rank returns them.

The engine raises InvalidRequest for batches that differ between ranks (engine.rank_consistency). User code keeps its
own random state (engine.random_state)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch

from suite.comm.rendezvous.launcher_env import launch_info
from suite.core.op import Op
from suite.core.protocols import Read
from suite.core.values import Json
from suite.engine.build import build_train_state
from suite.engine.checkpoint import files, model_files, restore, save
from suite.engine.engine_config import EngineConfig, takes
from suite.engine.evaluate import predict, run_evaluation
from suite.engine.fit import OnBatch, fit
from suite.engine.flush import StepRunner
from suite.engine.guards import asynchronous
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.pruning.step import prune
from suite.engine.replay.thread_ranks import ThreadRanks, batch_readers, closed_engine
from suite.engine.stream import Batch, BatchStream
from suite.engine.torch_api import optimizer_states, state_dicts
from suite.engine.torch_api.optimizer_states import OptimizerStateDict
from suite.engine.torch_api.torch_optimizer import learning_rate
from suite.pruning.mask import Key

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class on_every_rank:
    """Decorator of a method that, where ranks are threads, runs on every rank and returns the result of rank 0.

    Args:
        compared: The call as guards.rank_consistency compares it; None for a method that begins its own.
    """

    def __init__(self, compared: str | None = None) -> None:
        self.compared = compared

    def __call__(
        self, method: Callable[Concatenate[Engine, _Arguments], _Result]
    ) -> Callable[Concatenate[Engine, _Arguments], _Result]:
        @wraps(method)
        def call(engine: Engine, /, *args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            if engine.closed:
                raise closed_engine(f"{method.__name__}()")
            if engine.ranks is not None:
                results: list[_Result] = engine.ranks.call(
                    f"{method.__name__}()", lambda rank: call(rank, *args, **named)
                )
                return results[0]
            with engine.state.comm.guard.call(self.compared) if self.compared else nullcontext():
                return method(engine, *args, **named)

        return call


class Engine:
    """One rank's part of a training run on a `G_inter x G_data` grid (AxoNN Algorithms 1 and 2).

    Its arguments are the fields of `EngineConfig`, which documents them.

    Attributes:
        state: Training state of this rank; of rank 0 where ranks are threads.
        ranks: Ranks that are threads of this process; None on a rank of its own.
        closed: Whether `close` was called, after which an engine neither trains nor evaluates.
    """

    @takes(EngineConfig)
    def __init__(self, config: EngineConfig) -> None:
        in_threads = config.grid.size > 1 and config.world is None and launch_info().launcher == "none"
        self._begin(config, ThreadRanks(config, lambda of_rank: Engine(**vars(of_rank))) if in_threads else None)

    def _begin(self, config: EngineConfig, ranks: ThreadRanks | None) -> None:
        self.closed, self.ranks = False, ranks
        self.state = build_train_state(config) if self.ranks is None else self.ranks.state
        self.grid, self.rank, self.place = self.state.settings.grid, self.state.settings.rank, self.state.settings.place

    @property
    def streams(self) -> bool:
        """Whether batches stream through a pipeline that drains only after the last of them (`update_interval`)."""
        return self.state.settings.streams

    @property
    def lr(self) -> float:
        """Learning rate of the next update; of the first parameter group where there are several."""
        return learning_rate(self.state.update.rule, self.state.model_states.rule.updates)

    @property
    def gradient_norm(self) -> float | None:
        """Norm of all gradients of the last update before clipping, with `clip_norm`; None before an update."""
        return self.state.update.norm

    @property
    def passes(self) -> tuple[tuple[Op, Read | None], ...]:
        """Ops of the last interval on this rank, in the order in which they ran, each with the weights it read.

        Of a stream at least the newest 100,000."""
        return tuple(self.state.versions.passes)

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on each batch when its loss is requested; yields the losses in order.

        With `update_interval` the batches stream through the pipeline, which drains at the end. Losses of several
        batches then arrive together, and batches are read ahead.

        Raises InvalidRequest on every rank: for batches that differ between ranks, for fewer microbatches than stages,
        and after an interrupted stream."""
        if self.closed:
            raise closed_engine("train()")
        return self._steps(batches) if self.ranks is None else self.ranks.train(batches)

    def fit(self, batches: Iterable[Batch], *, on_batch: OnBatch | None = None, progress: bool = False) -> list[float]:
        """Train on all batches. Returns their losses.

        Args:
            on_batch: Called on every rank as on_batch(loss, seconds) after each batch. Training ends early where it
                returns True, which must follow from the loss, as all ranks know the same one.
            progress: Whether rank 0 shows a progress bar (tqdm).

        Raises Unsupported for an early end of batches that stream."""
        return fit(
            self.train(batches), on_batch, bar=progress and self.rank == 0, batches=batches, streams=self.streams
        )

    @on_every_rank()
    def train_batch(self, batch: Batch) -> float:
        """Train on one batch. Returns its mean loss, on every rank."""
        if self.streams:
            raise asynchronous.never_drains("train_batch", self.state.settings.config.update_interval)
        (loss,) = self._steps([batch])
        return loss

    def _steps(self, batches: Iterable[Batch]) -> Iterator[float]:
        """The losses of `train`."""
        state, guard = self.state, self.state.comm.guard
        if state.settings.streams:
            stream = BatchStream(batches, state.slicer, state.microbatches, guard.read)
            guard.begin("training", counts=stream.counts)
            guard.reduce(0.0)  # the first losses come late
            if stream.microbatches:
                asynchronous.check_stream(stream.microbatches, self.grid.inter, drained=state.drained)
                yield from StepRunner(state, stream).run()
            return
        for batch in batches:
            if self.closed:
                raise closed_engine("train()")
            guard.begin("training", batch)
            yield from StepRunner(state, self._stream_of(batch)).run()

    def gradients(self, batch: Batch) -> list[torch.Tensor]:
        """Reduced gradients of this rank's weights for `batch`, without the loss scale.

        Where ranks are threads, they are those of the first replica, in the order of its ranks.

        Weights and counters do not change; running statistics do, as in any forward pass."""
        if self.closed:
            raise closed_engine("gradients()")
        if self.ranks is not None:
            by_rank = self.ranks.call("gradients()", lambda engine: engine.gradients(batch))
            return [gradient for rank in self.grid.pipeline(0) for gradient in by_rank[rank]]
        state = self.state
        if self.streams:
            raise asynchronous.never_drains("gradients", state.settings.config.update_interval)
        state.comm.guard.begin("gradients", batch)
        runner = StepRunner(state, self._stream_of(batch), apply_update=False)
        list(runner.run())
        states = state.model_states
        gradients = [states.dense(states.gradient, p).to(states.dtype) / runner.scale for p in states.parameters]
        states.gradient.zero_()
        return gradients

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Mean loss over the samples of `batches` in evaluation mode.

        A batch may have any number of samples. Training state and the modes of modules do not change."""
        return self.score(batches)["loss"]

    def score(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Means over the samples of `batches` in evaluation mode: the loss and the scores, by name."""
        if self.closed:
            raise closed_engine("an evaluation")
        if self.ranks is not None:
            readers = batch_readers(batches, self.grid.size)
            return self.ranks.call("an evaluation", lambda engine: engine.score(readers[engine.rank]))[0]
        return run_evaluation(self.state, batches)

    @on_every_rank("pruning")
    def prune(self, indices: Mapping[Key, torch.Tensor]) -> None:
        """Train only the entries `indices` of weights from now on: see engine.pruning.step.prune."""
        prune(self.state, indices)

    @on_every_rank()
    def memory(self, batch: Batch) -> tuple[float, dict[str, int]]:
        """Train on `batch` and count allocations; a pipeline that streams trains on copies of it until it is full.

        Returns:
            The loss, and this rank's peak bytes by kind; those of rank 0 where the ranks share this process.
        """
        state = self.state
        allocated = state.model_states.allocated()
        allocated["weights"] += state.versions.extra_bytes()
        repeats = 2 * self.grid.inter if self.streams else 1
        check, state.loss_check = state.loss_check, None  # its calls of the loss are no part of training
        try:
            with MemoryTracker() as tracker:
                state.memory_tracker = tracker
                # a message received before the count begins would be missing: no rank sends before all ranks count
                state.comm.guard.reduce(0.0)
                *_, loss = self.train([batch] * repeats)
        finally:
            state.loss_check, state.memory_tracker = check, None
        return loss, {**allocated, tracker.peak_phase: tracker.peak}

    @on_every_rank()
    def predict(self, inputs: Any) -> Any:
        """Output of the model in evaluation mode for any number of samples, on every rank (engine.evaluate)."""
        return predict(self.state, inputs)

    @on_every_rank("weights")
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Weights and buffers of the whole model on rank 0, by the names of plain PyTorch; empty on other ranks."""
        return state_dicts.state_dict(self.state)

    @on_every_rank("weights")
    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue from the weights and buffers of a plain model. Moments and counters stay."""
        state_dicts.load_state_dict(self.state, weights)

    @on_every_rank("weights")
    def optimizer_state_dict(self) -> OptimizerStateDict:
        """The state dict that the optimizer of a plain script has, on rank 0 (engine.torch_api.optimizer_states)."""
        return optimizer_states.optimizer_state_dict(self.state)

    @on_every_rank("weights")
    def load_optimizer_state_dict(self, saved: OptimizerStateDict) -> None:
        """Continue from the state dict of the optimizer of a plain script."""
        optimizer_states.load_optimizer_state_dict(self.state, saved)

    @on_every_rank("weights")
    def save_model(self, folder: str | Path, *, sharded: bool = False) -> Path:
        """Write the weights of the whole model in the safetensors format: see engine.checkpoint.model_files."""
        return model_files.save_model(self.state, Path(folder), sharded=sharded)

    @on_every_rank("weights")
    def load_model(self, path: str | Path) -> None:
        """Load weights that save_model, torch.save or Hugging Face has written: see engine.checkpoint.model_files."""
        model_files.load_model(self.state, Path(path))

    @on_every_rank("saving")
    def save(self, folder: str | Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
        """Write the checkpoint `folder`/step-000042 (42 updates): see engine.checkpoint.save."""
        return save.save(self.state, files.folder_of(folder), keep=keep, extra=extra)

    @on_every_rank("loading")
    def load(self, path: str | Path) -> restore.Loaded:
        """Resume from a checkpoint, or from the newest complete one of a folder: see engine.checkpoint.restore."""
        return restore.load(self.state, files.folder_of(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:  # after an error messages may be under way, which close() would report in its place
            self.close()

    def close(self) -> None:
        """Close the transport; every rank calls it.

        In mixed precision the user's modules then hold all full-precision weights on the engine's device."""
        if self.closed:
            return
        self.closed = True
        if self.ranks is not None:
            self.ranks.close()
            return
        self.state.copies.return_weights(self.state.model_states)
        self.state.comm.guard.close()
        self.state.comm.transport.close()

    def _stream_of(self, batch: Batch) -> BatchStream:
        return BatchStream([batch], self.state.slicer, self.state.microbatches)
