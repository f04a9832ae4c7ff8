"""PipeDream (Narayanan et al., SOSP 2019) and PipeDream-2BW (ICML 2021): 1F1B without a flush, with stashed weights.

The difference between them is the old version that a backward pass finds, and it is implemented here and nowhere else.
Order and update are the suite's 1F1B with `update_interval`. PipeDream updates after every mini-batch and keeps the
version that each forward pass in flight has read, and the backward pass reads the same. This version is consistent, and
stale by as many updates as there are later stages (PipeOptim Section II-C2). 2BW sums the gradients of at least as
many microbatches as there are stages before it updates, so that two versions serve everything in flight, and is stale
by one update on every stage: W(k+1) = W(k) - lr * g(W(k-1)).

Both are made from their definitions. PipeDream's published code forgets to empty its stash when an epoch has drained,
and its 2BW for convolutional networks reads two different versions in the two passes of some microbatches; here a drain
leaves one version, and both passes always agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.weights.policy import GRAPHS, check_choice, require_stream, versions_read_again


@dataclass(frozen=True, slots=True)
class Stash(WeightPolicy):
    """PipeDream: a forward pass reads the newest weights, its backward pass the version that the forward pass read."""

    graph: str = "recompute"

    def __post_init__(self) -> None:
        check_choice("backward graph", self.graph, GRAPHS)

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a flush."""
        require_stream("a stash of weights", update_interval)

    def read(self, op: Op, versions: StageVersions) -> Read:
        if op.kind is Kind.BACKWARD:
            return versions.read_by[op.index]
        return Read(versions.updates, 0, self.graph)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        """Versions read by the forward passes in flight; a forward pass to come reads the newest version."""
        return versions_read_again(versions)


@dataclass(frozen=True, slots=True)
class DoubleBuffer(WeightPolicy):
    """PipeDream-2BW: both passes read the version before the version that their gradient updates. The first update
    group after a drain has no such version, and reads the weights of the drain.
    """

    graph: str = "recompute"

    def __post_init__(self) -> None:
        check_choice("backward graph", self.graph, GRAPHS)

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a flush, and for updates so frequent that two versions are too few."""
        require_stream("2BW", update_interval)
        if update_interval is not None and update_interval < stages:
            raise InvalidRequest(
                f"2BW on {stages} stages with update_interval={update_interval}",
                rule="an update sums at least as many microbatches as there are stages",
                legal=f"update_interval={stages}",
            )

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(max(versions.drained_at, versions.update - 1), 0, self.graph)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        """Versions read by the forward passes in flight, and by the next forward pass; later ones read that or a
        newer version.
        """
        if versions.next_forward_update is None:
            return versions_read_again(versions)
        return versions_read_again(versions) | {max(versions.drained_at, versions.next_forward_update - 1)}
