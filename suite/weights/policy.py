"""Weight policies with one version: newest weights, or a prediction from them.

With a flush no microbatch is in flight during an update, so forward and backward pass read the same version. Without a
flush a stage updates its weights between the two passes. PipeOptim predicts these updates with the rule of the
optimizer, in the forward pass only. `graph` is the `backward_mode` of core.protocols.Read. GPipe uses `recompute`, and
so do all systems in the comparisons of PipeOptim, according to its authors.
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
    """Raises InvalidRequest for a flush, with which every pass reads the newest version."""
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

    A number of predicted updates that depends only on the stages assumes one update per mini-batch.
    """
    require_stream(name, update_interval)
    if update_interval != 1:
        raise InvalidRequest(
            "update_interval",
            update_interval,
            what=f"{name} with update_interval={update_interval}",
            rule="its number of predicted updates assumes one update per mini-batch",
            legal=legal,
        )


def versions_read_again(versions: StageVersions) -> frozenset[int]:
    """Versions that forward passes in flight have read and that their backward passes will read again."""
    return frozenset(read.version for read in versions.read_by.values() if read.backward_mode != "keep")


@dataclass(frozen=True, slots=True)
class Latest(WeightPolicy):
    """Every pass reads the newest weights."""

    graph: str = "keep"
    any_placement = True

    def __post_init__(self) -> None:
        check_choice("backward graph", self.graph, GRAPHS)

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(version=versions.updates, predict_steps=0, backward_mode=self.graph)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Predict(WeightPolicy):
    """Weight prediction of PipeOptim (Section III, Algorithm 1).

    A forward pass predicts the weights from the newest version. Its backward pass reads the newest version.

    Attributes:
        s: Number of updates to predict.
            paper     stages - stage - 1 (Equation 4) for every microbatch; the last stage predicts nothing
            authors   stages - stage, on the last stage too, as in the published code: one too many
            inflight  updates of this stage before the backward pass: the number of Equation 4 in a full pipeline,
                      fewer while it fills, and correct for any number of microbatches per update
        graph: Backward mode, one of GRAPHS.
    """

    s: str = "paper"
    graph: str = "recompute"
    predicts = True

    def __post_init__(self) -> None:
        check_choice("rule for the number of predicted updates", self.s, COUNTS)
        check_choice("backward graph", self.graph, GRAPHS)

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a flush, or for fewer updates than `s` assumes (one per mini-batch)."""
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
