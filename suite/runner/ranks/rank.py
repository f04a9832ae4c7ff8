"""Process of one rank: connect to the parent, build the system, execute commands, end with the parent.

Started as `python -m mpi4py -m suite.runner.ranks.rank JOB.json`. Loads torch only after it has said hello, and not
at all where an executor names what stands in the system's place and computes nothing.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from suite.comm import here, started
from suite.comm.p2p.polling import short_sleeps
from suite.comm.rendezvous.rank_rendezvous import Meeting
from suite.config.executor import AnyExecutor, MicrobenchmarkExecutor
from suite.config.locate import locate, search
from suite.config.places import OF_RANKS, check_parts
from suite.config.run import RunConfig
from suite.core.errors import Diverged, InvalidRequest, MissingDependency, PeerEnded, SuiteError
from suite.core.keys import in_config_keys
from suite.core.protocols import Missing, World
from suite.core.record import Outcome
from suite.data.batches import Lazy, drawn
from suite.runner import batch_metrics
from suite.runner.launch.signals import die_with_parent
from suite.runner.ranks.rank_channel import Control
from suite.runner.ranks.resume import Resuming

# messages of connections whose other rank is gone
_SECONDARY = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "Cannot allocate memory")


def outcome_of(error: BaseException) -> Outcome:
    """The outcome that an exception of a rank stands for."""
    if isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY):
        return Outcome.OOM
    if isinstance(error, InvalidRequest):
        return Outcome.UNSUPPORTED
    if isinstance(error, Diverged):
        return Outcome.DIVERGED
    if isinstance(error, MissingDependency | ModuleNotFoundError):
        return Outcome.MISSING_DEPENDENCY
    return Outcome.FAILED


def follows_another(error: BaseException) -> bool:
    """Whether a rank raised because another one had ended: the reason of the run stands with that one."""
    return isinstance(error, PeerEnded) or any(text in str(error) for text in _SECONDARY)


def able(probed: Any, config: RunConfig) -> Any:
    """Requirements of this rank's own system. Raises MissingDependency where it cannot."""
    answer = probed.probe(config)
    if isinstance(answer, Missing):
        raise MissingDependency(config.system.name, answer.reason)
    return probed


def limit_memory(limit: int | None) -> None:
    """Of this process: `limit` bytes of address space, none for None."""
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))


Met = Callable[[], Meeting | None]  # waits until the ranks know their rendezvous address


def by_launcher() -> None:
    """Ranks meet as their launcher lets them."""


def _world(config: RunConfig, met: Met, *, device: str = "cpu", tensors: bool = True) -> World:
    comm = config.comm
    return here(
        device=device,
        transport=comm.transport,
        order=comm.order,
        tensors=tensors,
        inline=comm.eager_bytes,
        pair_exchange=comm.pair_exchange,
        meeting=met(),
    )


class RankProcess:
    """The commands a parent may give. Batches are counted over the whole run, evaluation apart."""

    resuming: Resuming | None = None  # of a system that trains
    control: Control | None = None  # hears which batch is trained

    def __init__(self, config: RunConfig, met: Met = by_launcher) -> None:
        from suite.engine.process_setup import device_of, gemm_rate, prepare

        prepare(config.launch.threads)
        limit_memory(config.launch.memory_limit)
        self.config, self.gemm_rate = config, gemm_rate
        check_parts(config.plain(), OF_RANKS)
        system = able(locate(config.system.target), config)
        self.data, self.shape = config.data.source.build(), config.model.shape.build()
        self.device = device_of(config.launch.device, started().local_rank)
        self.world = _world(config, met, device=self.device)
        self.system = self._system(system)
        self.resuming = Resuming(config, self.system)
        self.seen = 0

    def _system(self, system: Any) -> Any:
        return system(world=self.world, config=self.config)

    def _batch(self, number: int) -> Any:
        size, seed = self.config.batch.size, self.config.seed
        return self.data.batch(number, size=size, seed=seed, shape=self.shape)

    def _next(self, count: int) -> Sequence[Any]:
        self.seen += count
        return drawn(self._batch, range(self.seen - count, self.seen))

    def built(self) -> dict[str, Any]:
        """Answered as soon as the system stands. Objects of the built system are excluded from garbage collection."""
        gc.collect()
        gc.freeze()
        return {}

    def prepare(self) -> dict[str, Any]:
        """All ranks at once: the rate of matrix products while every rank computes, as in a batch."""
        half = self.config.precision.half
        return {
            "gemm": self.gemm_rate(dtype=half or self.config.model.dtype, device=self.device),
            **self._messages(),
            # every rank reads the same data; one of them takes its hash
            "data": self.data.provenance() if self.world.rank == 0 else None,
            "told": {"resumed": list(self.resuming.notes)} if self.resuming and self.resuming.notes else {},
        }

    def _messages(self) -> dict[str, Any]:
        """How they travel."""
        return {"staged": bool(self.world.staged), "carrier": self.world.backend, "order": self.world.order}

    def train(self, batches: int) -> dict[str, Any]:
        """Seconds, loss (where there is one) and update of each batch, and the spans of the last."""
        durations: list[float] = []
        losses: list[float | None] = []
        traces: list[Any] = []
        if self.resuming:
            for seconds, loss in self.resuming.earlier(self.seen, batches):
                durations.append(seconds)
                losses.append(loss)
                traces.append(())
            self.seen += len(durations)
        ready = self._next(batches - len(durations))
        if ready and self.system.streams:
            took, outcome = self._stream(ready)
            durations, losses = [*durations, *took], [*losses, *outcome]
            traces += [()] * len(ready)
            ready = []
        last = perf_counter()
        for number, batch in enumerate(ready, self.seen - len(ready)):
            if isinstance(ready, Lazy):  # drawing is no part of a batch
                last = perf_counter()
            if self.control:
                self.control.at = number
            if (loss := self.system.train_batch(batch)) is not None:
                losses.append(loss)
            end = perf_counter()
            durations.append(end - last)
            traces.append(self.system.observe())
            last = self.resuming.trained(durations[-1], loss) if self.resuming else end
        return {
            "durations": durations,
            "losses": losses,
            "updates": [batch_metrics.update(trace) for trace in traces],
            "parts": [batch_metrics.parts(trace) for trace in traces],
            "spans": [span.row() for span in self.system.observe()],
        }

    def _stream(self, ready: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Seconds and loss of each batch of a stream, which drains at its end. A batch takes from the end of the one
        before to its own: the first also fills the pipeline."""
        begin = perf_counter()
        losses, ends = self.system.stream(ready)
        seconds = [end - before for before, end in zip([begin, *ends], ends, strict=False)]
        if self.resuming:
            self.resuming.streamed(seconds, losses)
        return seconds, losses

    def memory(self) -> dict[str, Any]:
        loss, counts = self.system.memory(self._next(1)[0])
        return {"losses": [loss] if counts or loss is not None else [], "memory": counts, "told": self.system.told()}

    def evaluate(self, batches: int) -> dict[str, Any]:
        if self.resuming and self.seen in self.resuming.scores:  # by these weights, in a process before this one
            return {"scores": self.resuming.scores[self.seen]}
        size = self.config.batch.size
        chosen = list(islice(self.data.validation_batches(size=size, shape=self.shape), batches))
        if not chosen:
            what = f"no validation batch of batch.size={size} in data={self.config.data.name}"
            raise InvalidRequest(what, rule="at least one whole batch", legal="measure.eval_batches=0")
        scores = self._scores(chosen)
        if self.resuming:
            self.resuming.scores[self.seen] = scores
        return {"scores": scores}

    def _scores(self, chosen: list[Any]) -> dict[str, float | None]:
        """The loss over validation batches, and what else the system and the data can say of them."""
        scores = dict(self.system.score(chosen))
        decoded = self.system.decode(chosen)
        return scores if decoded is None else scores | self.data.score(decoded, chosen)

    def close(self) -> None:
        self.system.close()
        self.world.close()


class ReplayRank(RankProcess):
    """A rank that runs the ops of all ranks."""

    def _system(self, system: Any) -> Any:
        from suite.runner.executors.registry import replay

        return replay()(made=system, world=self.world, config=self.config)


class EmulatingRank(RankProcess):
    """A rank that computes nothing: no torch, no text, no loss, nothing that memory would hold for a model."""

    def __init__(self, config: RunConfig, met: Met = by_launcher) -> None:
        from suite.runner.executors.registry import emulated

        short_sleeps()
        limit_memory(config.launch.memory_limit)
        self.config = config
        self.world = _world(config, met, tensors=False)
        self.system = emulated()(world=self.world, config=config)
        self.seen = 0

    def _next(self, count: int) -> list[Any]:
        self.seen += count
        return [()] * count

    def prepare(self) -> dict[str, Any]:
        return {"gemm": 0.0, **self._messages(), "data": None}

    def memory(self) -> dict[str, Any]:
        return {"losses": [], "memory": {}}

    def evaluate(self, batches: int) -> dict[str, Any]:
        return {"scores": {"loss": None}}


class SamplingRank(EmulatingRank):
    """A rank that trains nothing either, but whose tensors are real: what it measures is its messages."""

    def __init__(self, config: RunConfig, met: Met = by_launcher) -> None:
        from suite.engine.process_setup import device_of, prepare

        prepare(config.launch.threads)
        limit_memory(config.launch.memory_limit)
        self.config = config
        assert isinstance(config.executor, MicrobenchmarkExecutor)
        measurement = able(config.executor.build(), config)
        device = device_of(config.launch.device, started().local_rank)
        self.world = _world(config, met, device=device)
        self.system = measurement.on_rank(self.world, config)
        self.seen = 0

    def train(self, batches: int) -> dict[str, Any]:
        return {**super().train(batches), "told": self.system.samples()}


class GraphRank(RankProcess):
    """A rank that trains a whole graph, of which its parent has given it a part: an epoch is a batch."""

    def __init__(self, config: RunConfig, met: Met = by_launcher) -> None:
        from suite.engine.process_setup import device_of, gemm_rate, prepare

        prepare(config.launch.threads)
        limit_memory(config.launch.memory_limit)
        self.config, self.gemm_rate = config, gemm_rate
        check_parts(config.plain(), OF_RANKS)
        system = able(locate(config.system.target), config)
        self.device = device_of(config.launch.device, started().local_rank)
        self.world = _world(config, met, device=self.device)
        self.system = system(world=self.world, config=config)
        self.seen = 0

    def _next(self, count: int) -> list[Any]:
        self.seen += count
        return [()] * count

    def prepare(self) -> dict[str, Any]:
        rate = self.gemm_rate(dtype=self.config.model.dtype, device=self.device)
        return {"gemm": rate, **self._messages(), "data": None}

    def evaluate(self, batches: int) -> dict[str, Any]:
        return {"scores": self.system.score(())}


KINDS: Mapping[str, type[RankProcess]] = {  # by executor.kind
    "real": RankProcess,
    "full_graph": GraphRank,
    "emulated": EmulatingRank,
    "microbenchmark": SamplingRank,
    "replay": ReplayRank,
}


def kind_of(executor: AnyExecutor) -> type[RankProcess]:
    """The commands that ranks of an executor obey."""
    return KINDS[executor.kind]


def serve(config: RunConfig, control: Control) -> None:
    """Makes the rank and carries out the parent's commands until the last."""
    search(config.launch.python_path)
    rank = kind_of(config.executor)(config, control.meeting)
    rank.control = control
    while True:
        message = control.commands.get()
        if message["do"] == "stop":
            control.stopping = True
            rank.close()
            return
        answer = getattr(rank, message.pop("do"))(**message)
        control.answer(event="done", **answer)


def main(job: Path) -> None:
    content = json.loads(job.read_text())
    die_with_parent(signal.SIGKILL)  # a rank that is stopped between turns does not see its socket's end
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    config = RunConfig.model_validate(content["config"])
    if config.launch.launcher == "srun":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of a job is its parent's to tell, and to write down
    control = Control(content["control"])
    try:
        with in_config_keys():
            serve(config, control)
    except BaseException as error:
        control.stopping = True
        reason = "".join(traceback.format_exception(error)).strip()
        if isinstance(error, InvalidRequest | MissingDependency):  # says everything itself
            reason = str(error)
        elif isinstance(error, SuiteError):  # what it says comes first
            reason = f"{error}\n{reason}"
        secondary = follows_another(error)
        control.say(event="failed", outcome=outcome_of(error).value, reason=reason, secondary=secondary)
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
