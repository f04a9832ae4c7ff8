"""Weight policies with one version: read the newest weights, or predict from them.

With a flush nothing is in flight when an update runs, so the newest version is the only one and forward and backward
agree. Without one a forward pass meets weights that lack the updates to come before its backward: PipeOptim predicts
them from the optimizer's own rule, in the forward pass alone. `graph` says how a backward pass is made, as
core.protocols.Read has it; `recompute` is GPipe's, and what PipeOptim's authors say that they compare everything with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy

GRAPHS = ("keep", "recompute", "swap")
COUNTS = ("paper", "authors", "inflight")


def check_choice(kind: str, name: str, names: Iterable[str]) -> None:
    """Raises UnknownName unless `name` is one of `names`."""
    if name not in names:
        raise UnknownName(kind, name, names)


def require_stream(name: str, update_interval: int | None) -> None:
    """Raises InvalidRequest for a flush, where only the newest version is ever read."""
    if update_interval is None:
        raise InvalidRequest(
            "update_interval",
            None,
            what=f"{name} with a flush (update_interval=None)",
            rule="its versions bridge updates that a pipeline makes without draining",
            legal="update_interval=1, or weights=Latest()",
        )


def require_update_per_microbatch(name: str, update_interval: int | None, *, legal: str) -> None:
    """Raises InvalidRequest unless every mini-batch is followed by an update.

    A number of updates that follows from the stages alone assumes this.
    """
    require_stream(name, update_interval)
    if update_interval != 1:
        raise InvalidRequest(
            "update_interval",
            update_interval,
            what=f"{name} with update_interval={update_interval}",
            rule="its count of updates ahead is of one update per mini-batch",
            legal=legal,
        )


def versions_read_again(versions: StageVersions) -> frozenset[int]:
    """Versions that forward passes in flight have read and that their backward passes read again."""
    return frozenset(read.version for read in versions.read_by.values() if read.backward_mode != "keep")


@dataclass(frozen=True, slots=True)
class Latest(WeightPolicy):
    """Every pass reads the newest weights."""

    graph: str = "keep"

    def __post_init__(self) -> None:
        check_choice("backward graph", self.graph, GRAPHS)

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(version=versions.updates, predict_steps=0, backward_mode=self.graph)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Predict(WeightPolicy):
    """PipeOptim (Section III, Algorithm 1): a forward pass reads the newest weights predicted `s` updates ahead, its
    backward pass reads the newest.

    s: how many updates ahead.
        paper     stages - stage - 1 (Equation 4), everywhere and always; the last stage predicts nothing
        authors   stages - stage, on the last stage too, as their published code has it: one too many
        inflight  the updates that this stage will have made when the backward pass comes: Equation 4's number in a
                  full pipeline, fewer while it fills, and right for any number of microbatches per update
    """

    s: str = "paper"
    graph: str = "recompute"
    predicts = True

    def __post_init__(self) -> None:
        check_choice("count of updates ahead", self.s, COUNTS)
        check_choice("backward graph", self.graph, GRAPHS)

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a flush, and if `s` assumes one update per mini-batch and there are fewer."""
        if self.s == "inflight":
            require_stream("a prediction", update_interval)
        else:
            require_update_per_microbatch(
                f"a prediction with s={self.s}", update_interval, legal='update_interval=1, or s="inflight"'
            )

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(versions.updates, self._ahead(op, versions) if op.kind is Kind.FORWARD else 0, self.graph)

    def _ahead(self, op: Op, versions: StageVersions) -> int:
        if self.s == "inflight":
            return versions.update - versions.updates
        return versions.stages - op.stage - (self.s == "paper")

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()
