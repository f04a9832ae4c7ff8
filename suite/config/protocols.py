"""Protocols of plug-ins whose own rooms need torch or scipy, which a parent process does not load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from suite.core.protocols import Missing, Ready


class LossScale(Protocol):
    """Factor of the losses in mixed precision (suite.engine.scale)."""

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
