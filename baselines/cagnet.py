"""CAGNET's sparsity-oblivious exchange (Tripathy et al., SC 2020): whole block rows of X are broadcast, stage by stage.

Block row after block row, its holder broadcasts all its rows to the column of the grid, and every process multiplies
its block over all of the part's columns with them. 1D, and 1.5D over a P/c x c grid. The volume does not depend on
where the graph has edges, so a partition changes only the balance."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from suite.core.trace import EXCHANGE
from suite.gnn.exchange import Exchange
from suite.gnn.plan import check_form


class Oblivious(Exchange):
    """Broadcast stages on the same parts, even or uneven, as any other exchange."""

    oblivious = True

    def options(self, *, form: str = "staged", overlap: bool = False) -> None:
        placement = self.placement
        check_form(
            form,
            oblivious=True,
            overlap=overlap,
            assignment=placement.assignment,
            replication=placement.replication,
        )
        self.stages = self.placement.stages(self.share.rank)
        self.blocks = {q: self.matrix(self.share.whole(q)) for q in self.stages}
        self.room: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def matrices(self) -> Iterable[torch.Tensor | None]:
        return self.blocks.values()

    @property
    def kept(self) -> Iterable[torch.Tensor]:
        return self.room.values()

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        z, width, members = None, x.shape[1], len(self.group.ranks)
        for q in self.stages:
            part = x if q == self.share.row else self._rows_of(q, width)
            size = part.numel() * part.element_size() * (members - 1) if q == self.share.row else 0
            if members > 1 and part.numel():
                with self.watch.span(EXCHANGE, size):
                    self.group.broadcast(part, self.group.ranks[q]).wait()
            z = self.add(z, self.blocks[q], part)
        return self.zeros(z, width)

    def _rows_of(self, q: int, width: int) -> torch.Tensor:
        """Room for a part's rows; parts of one size take turns in it."""
        size = int(self.share.sizes[q])
        if (size, width) not in self.room:
            self.room[size, width] = self.rows(size, width)
        return self.room[size, width]
