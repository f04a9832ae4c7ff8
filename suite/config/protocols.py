"""Protocols of plug-ins that read a whole configuration, or whose rooms need torch or scipy.

A process that starts ranks loads neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from suite.core.protocols import Carried, Missing, Ready, Value
from suite.core.trace import Trace

if TYPE_CHECKING:
    from suite.config.run import RunConfig


class LossScale(Protocol):
    """Factor of the losses in mixed precision (suite.engine.scale). It is constant where `least` equals `most`."""

    least: float
    most: float

    def observe(self, overflow: bool) -> None: ...

    def state(self) -> dict[str, float]: ...

    def restore(self, state: dict[str, float]) -> None: ...


class MaskMethod(Protocol):
    """How a mask is drawn (suite.pruning)."""

    def due(self, batches: int) -> bool: ...

    def draw(self, view: Any) -> Any: ...


class GraphSource(Protocol):
    """Generator or reader of a graph (suite.data.graphs)."""

    def load(self, seed: int) -> Any: ...


class PartitionMethod(Protocol):
    """How vertices are shared out (suite.gnn.partition.protocol)."""

    def probe(self) -> Ready | Missing: ...

    def parts(self, matrix: Any, k: int, seed: int) -> Sequence[int]: ...


class System(Protocol):
    """One thing compared, as each of its ranks runs it. Ours and third parties' stand behind the same methods.

    A class that implements it is built on every rank as `cls(world=..., config=...)`; `probe` is asked first. A batch
    is what Data gives. A system may also have `streams`, true where batches go through stream(batches), which gives
    losses and when each batch ended, instead of train_batch; score(batches), which gives evaluate's loss as "loss" and
    other means by name; and decode(batches), token ids per batch.
    """

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        """Missing if a package or device is not here. Raises Unsupported for a combination the system does not have."""

    def train_batch(self, batch: Value) -> float | None:
        """One training batch; the mean loss, known on every rank. None from what computes none."""

    def evaluate(self, batches: Sequence[Value]) -> float | None:
        """Mean loss, changing no training state."""

    def observe(self) -> Any:
        """The trace of the last batch, or an empty one for a system that keeps none."""

    def memory(self, batch: Value) -> tuple[float | None, dict[str, int]]:
        """Trains on `batch`: its loss, and this rank's peak bytes by kind, counted at allocation."""

    def close(self) -> None: ...


class Executor(Protocol):
    """What carries out a run that starts no ranks, built from its YAML in conf/executor: its `_target_`, called with
    the other keys. `label` among them names the run where a system and a grid do not; `sources` are the folders whose
    code and data decide what it finds."""

    def check(self, config: RunConfig) -> None:
        """Raises Refused for a config that it cannot carry out."""

    def run(self, config: RunConfig) -> Carried: ...


class Exchange(Protocol):
    """How rows travel for a product with a whole graph (suite.gnn.exchange)."""

    def __call__(self, x: Any) -> Any: ...


class StandIn(Protocol):
    """Class that a rank builds in the place of a system, and that the parent checks before."""

    source: Any

    def check(self, config: RunConfig) -> None: ...

    def probe(self, config: RunConfig) -> Ready | Missing: ...

    def train_batch(self, batch: Value | None = None) -> None: ...

    def observe(self) -> Trace: ...

    def memory(self, batch: Value | None = None) -> Any: ...

    def close(self) -> None: ...


class Preparation(Protocol):
    """Files that a parent makes for its ranks (suite.gnn.prepare)."""

    def check(self, config: RunConfig) -> None: ...


class Replay(Protocol):
    """Class that one rank builds in the place of all ranks of a system (suite.engine.replayed)."""

    def train_batch(self, batch: Value) -> float: ...

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]: ...

    def score(self, batches: Sequence[Value]) -> dict[str, float]: ...

    def observe(self) -> Trace: ...

    def memory(self, batch: Value) -> Any: ...

    def close(self) -> None: ...
