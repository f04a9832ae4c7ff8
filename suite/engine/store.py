"""Decides which weights an op computes with: asks the policy, and obeys it or refuses.

The account of versions is weights.ledger's; the store holds the tensors of the version that is read. It keeps the
newest only, in place, so a policy that reads an older or a predicted version is refused by name.
"""

from __future__ import annotations

from suite.core.errors import Unsupported
from suite.core.op import Kind, Op, Work
from suite.core.protocols import Read, WeightPolicy
from suite.weights.ledger import Ledger


class Store:
    """The weight versions of one stage over one work."""

    def __init__(self, policy: WeightPolicy, stages: int) -> None:
        self.policy, self.stages = policy, stages
        self.ledger: Ledger | None = None

    def begin(self, work: Work) -> None:
        """Nothing is in flight: a new account starts."""
        self.ledger = Ledger(self.policy, work, self.stages)

    def live(self) -> tuple[int, ...]:
        """The versions that later passes may read, as updates before the newest (0), which stands in the layers."""
        ledger = self.ledger
        return (0,) if ledger is None else tuple(sorted(ledger.updates - version for version, _ in ledger.alive))

    def run(self, op: Op) -> Read | None:
        """What `op` reads; None for an update and for a backward that keeps its forward's graph."""
        assert self.ledger is not None, "begin a work first"
        read = self.ledger.run(op)
        if read is None:
            return None
        if read.version != self.ledger.updates or read.ahead:
            raise Unsupported(
                f"{op} reads version {read.version}+{read.ahead} of {self.ledger.updates}",
                rule="this store keeps the newest weights only",
                legal="weights=latest",
            )
        if read.graph == "swap" and op.kind is Kind.FORWARD:
            raise Unsupported("a backward by swap", rule="keep or recompute on one version", legal="weights.graph=keep")
        return read
