"""CAGNET's sparsity-oblivious exchange (Tripathy et al., SC 2020): whole block rows of X are broadcast in stages.

In stage q the holder of block row q broadcasts all its rows to its grid column, and every process multiplies its block
(i, q) by them. It serves 1D and 1.5D, a P/c x c grid. The volume does not depend on the edges of the graph, so a
partition changes only the load balance."""

from __future__ import annotations

import torch

from suite.core.trace import EXCHANGE
from suite.gnn.exchange import Exchange


class Oblivious(Exchange):
    """Broadcasts every block row, on the same parts, even or uneven, as any other exchange."""

    oblivious = True

    def configure(self, *, form: str = "staged", overlap: bool = False) -> None:
        self.stages = self.placement.stages(self.block.rank)
        self.matrices = {q: self.matrix(self.block.full_width(q)) for q in self.stages}

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        z, width, members = None, x.shape[1], len(self.group.ranks)
        for q in self.stages:
            # parts of equal size share a buffer
            rows = x if q == self.block.row else self.buffer("receive", int(self.block.sizes[q]), width)
            size = rows.nbytes * (members - 1) if q == self.block.row else 0
            if members > 1 and rows.numel():
                with self.recorder.span(EXCHANGE, size):
                    self.group.broadcast(rows, self.group.ranks[q]).wait()
            z = self.accumulate(z, self.matrices[q], rows)
        return self.or_zeros(z, width)
