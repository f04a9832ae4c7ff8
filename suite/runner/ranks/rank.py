"""Process of one rank: connect to the parent, build the system, execute commands, end with the parent.

Started as `python -m mpi4py -m suite.runner.ranks.rank JOB.json`. The process connects before it loads torch, and never
loads torch for an executor whose stand-in computes nothing.
"""

from __future__ import annotations

import gc
import json
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from suite.comm.p2p.polling import set_timer_slack
from suite.comm.world import init_world
from suite.config.executor import MicrobenchmarkExecutor
from suite.config.locate import locate, search
from suite.config.places import check_rank_parts
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, MissingDependency, PeerEnded
from suite.core.keys import in_config_keys
from suite.core.protocols import Missing, World
from suite.data.batches import Lazy, draw_batches
from suite.runner import batch_metrics
from suite.runner.ending import ending_of
from suite.runner.launch.signals import die_with_parent
from suite.runner.ranks.rank_channel import ParentChannel
from suite.runner.ranks.resume import BatchHistory

# messages of connections whose peer rank has ended
_PEER_ENDED = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")


def follows_from_peer(error: BaseException) -> bool:
    """Whether a rank raised `error` because another rank had ended. The other rank then gives the reason of the run."""
    return isinstance(error, PeerEnded) or any(text in str(error) for text in _PEER_ENDED)


def require_ready(probed: Any, config: RunConfig) -> Any:
    """Return the system class `probed`. Raises MissingDependency if its probe reports a missing requirement."""
    answer = probed.probe(config)
    if isinstance(answer, Missing):
        raise MissingDependency(config.system.name, answer.reason)
    return probed


def limit_memory(limit: int | None) -> None:
    """Limit the address space of this process to `limit` bytes; None sets no limit."""
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))


def _world(config: RunConfig, *, device: str = "cpu", tensors: bool = True) -> World:
    comm = config.comm
    return init_world(
        device=device,
        transport=comm.transport,
        order=comm.order,
        tensors=tensors,
        eager_bytes=comm.eager_bytes,
        pair_exchange=comm.pair_exchange,
        suspended=True,
    )


class RankProcess:
    """Commands of a rank. This one trains a model; those of other executors replace a few methods.

    Attributes:
        device: Device of the rank.
        rounded: Whether products of the half precision are rounded products of float32.
        data: Source of batches; None for a rank that reads none.
        history: Batches trained so far, of a system with checkpoints.
        channel: Channel to the parent, whose heartbeats carry the batch number.
        trained: Number of batches trained in the run, without evaluation.
    """

    device = "cpu"
    rounded = False
    data: Any = None
    channel: ParentChannel | None = None

    def __init__(self, config: RunConfig) -> None:
        self.config, self.trained = config, 0
        self._set_up()
        self.history = BatchHistory(config, self.system)

    def _set_up(self) -> None:
        """Set up the process, its data, its device, its world and its system, in this order."""
        from suite.engine.process_setup import device_of, prepare

        launch = self.config.launch
        prepare(launch.threads)
        limit_memory(launch.memory_limit)
        build = self._builder()
        self.device = device_of((), launch.device)
        self.world = _world(self.config, device=self.device)
        self.system = build(world=self.world, config=self.config)

    def _builder(self) -> Any:
        """The class of the system, once its parts are checked and its data is built."""
        self.rounded = self._round_slow_products()
        check_rank_parts(self.config)
        system = require_ready(locate(self.config.system.target), self.config)
        self._build_data()
        return system

    def _round_slow_products(self) -> bool:
        """Round products of float32 for the rest of the process if those of the half precision are slow here."""
        if not (half := self.config.precision.half) or self.config.launch.device != "cpu":
            return False
        from suite.engine.half_products import RoundedProducts, are_slow

        if slow := are_slow(half):
            RoundedProducts(half).__enter__()  # type: ignore[no-untyped-call]
        return slow

    def _build_data(self) -> None:
        self.data, self.shape = self.config.data.source.build(), self.config.model.shape.build()

    def _batch(self, number: int) -> Any:
        size, seed = self.config.batch.size, self.config.seed
        return self.data.batch(number, size=size, seed=seed, shape=self.shape)

    def _next_batches(self, count: int) -> Sequence[Any]:
        self.trained += count
        return draw_batches(self._batch, range(self.trained - count, self.trained))

    def built(self) -> dict[str, Any]:
        """Answer once the system is built, and exclude its objects from garbage collection."""
        gc.collect()
        gc.freeze()
        return {}

    def prepare(self) -> dict[str, Any]:
        """Measure the rate of matrix products (flop/s) while all ranks compute, as in a batch."""
        half, world = self.config.precision.half, self.world
        notes = list(self.history.notes)
        if self.rounded:
            notes.append(f"products of {half} are rounded products of float32, as torch's own are slow here")
        # every rank reads the same data, so the hash of one rank is enough
        data = self.data.provenance() if self.data is not None and world.rank == 0 else None
        facts = {"data": data, "staged": bool(world.staged), "carrier": world.backend, "order": world.order}
        rate = 0.0
        if self.config.executor.trains:
            from suite.engine.process_setup import gemm_rate

            rate = gemm_rate(dtype=half or self.config.model.dtype, device=self.device)
        return {"gemm": rate, "facts": facts | {"at_start": notes}}

    def train(self, batches: int) -> dict[str, Any]:
        """Train batches. Returns the seconds, loss (if any) and update of each batch, and the spans of the last one."""
        if self.config.executor.trains:
            from suite import accelerator

            accelerator.reset_peaks(self.device)  # those of the last round are reported
        cpu = process_time()
        earlier = self.history.batches[self.trained : self.trained + batches]
        trained: list[tuple[float, float | None, Any]] = [(*batch, ()) for batch in earlier]
        self.trained += len(earlier)
        pending = self._next_batches(batches - len(earlier))
        if pending and self.system.streams:
            trained += self._train_stream(pending)
        else:
            trained += self._train_each(pending)
        return {
            "durations": [seconds for seconds, _, _ in trained],
            "cpu": process_time() - cpu,
            "losses": [loss for _, loss, _ in trained if loss is not None],
            "updates": [batch_metrics.update_interval(trace) for _, _, trace in trained],
            "parts": [batch_metrics.inner_seconds(trace) for _, _, trace in trained],
            "spans": [span.row() for span in self.system.observe()],
        }

    def _train_each(self, batches: Sequence[Any]) -> Iterator[tuple[float, float | None, Any]]:
        """Train batch after batch. Yields the seconds, the loss and the trace of each."""
        begin = perf_counter()
        for number, batch in enumerate(batches, self.trained - len(batches)):
            if isinstance(batches, Lazy):  # the time to draw a batch does not count
                begin = perf_counter()
            if self.channel:
                self.channel.batch = number
            loss = self.system.train_batch(batch)
            seconds = perf_counter() - begin
            yield seconds, loss, self.system.observe()
            self.history.add([(seconds, loss)])
            begin = perf_counter()

    def _train_stream(self, batches: Sequence[Any]) -> list[tuple[float, float | None, Any]]:
        """Train a stream of batches, which drains at its end. Returns the seconds and the loss of each batch.

        A batch lasts from the end of the previous batch to its own end, so the first includes filling the pipeline.
        """
        begin = perf_counter()
        losses, ends = self.system.stream(batches)
        seconds = [end - previous for previous, end in zip([begin, *ends], ends, strict=False)]
        self.history.add(list(zip(seconds, losses, strict=True)))
        return [(second, loss, ()) for second, loss in zip(seconds, losses, strict=True)]

    def memory(self) -> dict[str, Any]:
        """Train one more batch and count its bytes by kind. On a GPU its allocator's peaks are reported too."""
        from suite import accelerator

        peaks = accelerator.peaks(self.device)  # of the last round: the next batch is counted tensor by tensor
        loss, counts = self.system.memory(self._next_batches(1)[0])
        losses = [loss] if counts or loss is not None else []
        ranks = counts if isinstance(counts, list) else [counts]  # a replay counts those of all ranks
        return {"losses": losses, "memory": ranks, "peaks": peaks, "facts": self.system.facts()}

    def evaluate(self, batches: int) -> dict[str, Any]:
        """Scores over validation batches, taken from the checkpoint if an earlier process computed them."""
        if self.trained in self.history.scores:
            return {"scores": self.history.scores[self.trained]}
        size = self.config.batch.size
        validation = list(islice(self.data.validation_batches(size=size, shape=self.shape), batches))
        if not validation:
            subject = f"no validation batch of batch.size={size} in data={self.config.data.name}"
            raise InvalidRequest(subject, rule="at least one whole batch", legal="measure.eval_batches=0")
        scores = self.history.scores[self.trained] = self._scores(validation)
        return {"scores": scores}

    def _scores(self, validation: list[Any]) -> dict[str, float | None]:
        """The system's scores, and the data's scores of decoded outputs if the system decodes."""
        scores = dict(self.system.score(validation))
        decoded = self.system.decode(validation)
        return scores if decoded is None else scores | self.data.score(decoded, validation)

    def close(self) -> None:
        self.system.close()
        self.world.close()


class ReplayRank(RankProcess):
    """A rank that runs the ops of all ranks."""

    def _builder(self) -> Any:
        from suite.engine.replay.system import ReplaySystem

        return partial(ReplaySystem, system=super()._builder())


class GraphRank(RankProcess):
    """A rank that trains on its part of a whole graph, which the parent has written; one epoch counts as a batch."""

    def _build_data(self) -> None:
        """Read nothing."""

    def _batch(self, number: int) -> Any:
        return ()

    def evaluate(self, batches: int) -> dict[str, Any]:
        return {"scores": self.system.score(())}


class UntrainedRank(GraphRank):
    """A rank without a model."""

    def memory(self) -> dict[str, Any]:
        return {"losses": [], "memory": []}


class SamplingRank(UntrainedRank):
    """A rank of a microbenchmark, which measures messages or products of real tensors."""

    def _builder(self) -> Any:
        executor = self.config.executor
        assert isinstance(executor, MicrobenchmarkExecutor)
        return require_ready(executor.build(), self.config).on_rank

    def train(self, batches: int) -> dict[str, Any]:
        return {**super().train(batches), "facts": self.system.samples()}


class EmulatingRank(UntrainedRank):
    """A rank that computes nothing: it loads no torch and no data, and allocates no tensor."""

    def _set_up(self) -> None:
        from suite.runner.executors.emulated_rank import EmulatedRank

        set_timer_slack()
        limit_memory(self.config.launch.memory_limit)
        self.world = _world(self.config, tensors=False)
        self.system = EmulatedRank(world=self.world, config=self.config)


KINDS: Mapping[str, type[RankProcess]] = {  # by executor.kind
    "real": RankProcess,
    "full_graph": GraphRank,
    "emulated": EmulatingRank,
    "microbenchmark": SamplingRank,
    "replay": ReplayRank,
}


def serve(config: RunConfig, channel: ParentChannel) -> None:
    """Build the rank and execute the parent's commands until it sends `stop`."""
    search(config.launch.python_path)
    channel.meet()
    rank = KINDS[config.executor.kind](config)
    rank.channel = channel
    while True:
        message = channel.commands.get()
        if message["do"] == "stop":
            channel.closing = True
            rank.close()
            return
        arguments = {name: value for name, value in message.items() if name not in ("do", "seconds")}
        channel.send(event="done", **getattr(rank, message["do"])(**arguments))


def main(job: Path) -> None:
    content = json.loads(job.read_text())
    die_with_parent(signal.SIGKILL)  # a rank that is stopped between rounds does not see the end of its socket
    config = RunConfig.model_validate(content["config"])
    if config.launch.launcher == "srun":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent ends the ranks of a job, and records the reason
    channel = ParentChannel(config.launch, **content["endpoint"])
    try:
        with in_config_keys():
            serve(config, channel)
    except BaseException as error:
        channel.closing = True
        outcome, reason = ending_of(error)
        channel.send(event="failed", outcome=outcome.value, reason=reason, secondary=follows_from_peer(error))
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
