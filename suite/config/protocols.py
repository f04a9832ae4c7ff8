"""Protocols of plug-ins that read a whole configuration, or whose packages import torch or scipy.

A process that starts ranks imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from suite.core.errors import Unsupported
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.trace import Trace

if TYPE_CHECKING:
    from suite.config.run import RunConfig


class LossScale(Protocol):
    """Factor of the losses in mixed precision (suite.engine.optim.loss_scaler). It is constant where `least` equals
    `most`.
    """

    least: float
    most: float

    def observe(self, overflow: bool) -> None: ...

    def state(self) -> dict[str, float]: ...

    def restore(self, state: dict[str, float]) -> None: ...


class GraphSource(Protocol):
    """Generator or reader of a graph (suite.data.graphs)."""

    def load(self, seed: int) -> Any: ...


class PartitionMethod(Protocol):
    """Partitioner of vertices (suite.gnn.partition.protocol). A subclass inherits the default of `name`."""

    @property
    def name(self) -> str:
        """In messages and in the names of files."""
        return type(self).__name__.lower()

    def probe(self) -> Ready | Missing: ...

    def parts(self, matrix: Any, k: int, seed: int) -> Sequence[int]: ...


class System(Protocol):
    """A compared system, as each of its ranks runs it. The suite's systems and third-party systems implement the same
    methods.

    A class that implements it is built on every rank as `cls(world=..., config=...)`; `probe` is called first.
    Batches come from the data source. A class that inherits from this one has the defaults below.
    """

    @property
    def streams(self) -> bool:
        return False

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        """Missing if a package or device is absent. Raises Unsupported for an unsupported combination."""

    def train_batch(self, batch: Value) -> float | None:
        """Train on a batch. Returns the mean loss on every rank, or None if none is computed."""

    def evaluate(self, batches: Sequence[Value]) -> float | None:
        """Mean loss, without changing the training state."""

    def observe(self) -> Any:
        """The trace of the last batch, or an empty one for a system that keeps none."""

    def memory(self, batch: Value) -> tuple[float | None, dict[str, int]]:
        """Train on a batch. Returns its loss, and this rank's peak bytes by kind, counted at allocation."""

    def close(self) -> None: ...

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """Loss of each batch, and the time (suite.accelerator.host_time) at which this rank finished it."""
        raise Unsupported(f"a stream of {type(self).__name__}", rule="its batches are trained one by one")

    def score(self, batches: Sequence[Value]) -> Mapping[str, float | None]:
        """The loss of `evaluate` as "loss", and further means by name; by default only the loss."""
        return {"loss": self.evaluate(batches)}

    def decode(self, batches: Sequence[Value]) -> list[Any] | None:
        """Token ids per batch; None, the default, for a network without decoding."""
        return None

    def facts(self) -> dict[str, Any]:
        """Plain values that the record keeps next to the numbers; by default none."""
        return {}


class Executor(Protocol):
    """Executor of a run without ranks. With kind=plugin it is built from its YAML in conf/executor: the class at
    `_target_` is called with the keys that are not common to all executors.
    """

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a config that it cannot execute."""

    def run(self, config: RunConfig) -> ExecutorResult: ...


@runtime_checkable
class Declares(Protocol):
    """An executor, or a microbenchmark, that declares what it reads. Overrides of other keys are refused."""

    def reads(self, config: RunConfig) -> Sequence[str]:
        """Config groups and single keys that it reads, in addition to its own keys and those of its ranks' launch."""


def declared(executor: Any, config: RunConfig) -> Sequence[str] | None:
    """What an executor, or a microbenchmark, declares to read; None for one that declares nothing."""
    return executor.reads(config) if isinstance(executor, Declares) else None


class ExchangeMethod(Protocol):
    """Row exchange of a distributed sparse product (suite.gnn.exchange)."""

    def __call__(self, x: Any) -> Any: ...


class Sampler(Protocol):
    """One rank of a microbenchmark, which trains nothing. A batch is one sweep over the measured operations."""

    streams: bool = False

    def train_batch(self, batch: Value | None = None) -> None: ...

    def samples(self) -> Mapping[str, object]:
        """The "sweeps" since the last call, and notes for readers of the record."""

    def observe(self) -> Trace:
        """An empty trace: no op runs."""
        return Trace()

    def close(self) -> None:
        """Do nothing: no resource is open."""
        return None  # mypy takes a method without a statement for an abstract one


class Microbenchmark(Protocol):
    """Measurement by ranks that train nothing (suite.runner.executors.message_sizes), built from its own keys below
    `executor`.
    """

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a config under which it cannot be made. Loads no torch."""

    def probe(self, config: RunConfig) -> Ready | Missing: ...

    def bytes_per_rank(self, config: RunConfig) -> Sequence[int]:
        """Bytes of each rank, in order."""

    def on_rank(self, world: World, config: RunConfig) -> Sampler: ...

    def summarize(self, config: RunConfig, facts: Any, sweeps: Sequence[Any]) -> ExecutorResult:
        """Content of a record.

        Args:
            facts: samples() of rank 0.
            sweeps: One for each timed batch, each by rank.
        """
