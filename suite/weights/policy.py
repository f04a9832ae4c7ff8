"""Decides which weights a pass reads, for systems that keep one version: the newest.

With a flush nothing is in flight when an update runs, so the newest version is the only one and forward and backward
agree. `graph='recompute'` is GPipe's activation recomputation: only the stage's input stays alive in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import UnknownName
from suite.core.op import Op
from suite.core.protocols import Clock, Read

GRAPHS = ("keep", "recompute", "swap")


@dataclass(frozen=True, slots=True)
class Latest:
    """Every pass reads the newest weights."""

    graph: str = "keep"

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            raise UnknownName("backward graph", self.graph, GRAPHS)

    def read(self, op: Op, clock: Clock) -> Read:
        return Read(version=clock.updates, ahead=0, graph=self.graph)

    def oldest(self, clock: Clock) -> int:
        return clock.updates
