"""GVB-style partitioner: minimise the maximum send volume of a part and the total volume.

The paper uses Graph-VB for these two goals (Section 5). This partitioner shares the goals and none of the code: METIS
partitions from several seeds are refined in cycles (refine.py) under a cap on matrix entries per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from suite.config.base import Count, Size
from suite.gnn.partition.metis import directed_pattern, entries_per_row, kway, partition_linked
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import IntArray, count_volumes

if TYPE_CHECKING:
    from suite.gnn.partition.refine import Level

# Additional price of a row of a busy sender, cycle by cycle. A high price at the start leaves a larger total volume; a
# price that stays low leaves a busier sender.
PENALTIES = (2, 8, 32)
CYCLES = 6  # total for the best start
STRIDE = 1000  # between the seeds of starts; a start uses one seed for each level of each cycle
GAIN = 0.005  # share of the maximum send volume; refinement ends after two cycles that gain less


class ScoredPartition(NamedTuple):
    """A partition with its objectives.

    Attributes:
        max_entries: Matrix entries of the fullest part.
        max_send: Rows sent by the busiest part.
        total: Rows sent by all parts.
        parts: (n,) part of each vertex.
    """

    max_entries: int
    max_send: int
    total: int
    parts: IntArray


@dataclass(frozen=True)
class Gvb(Partitioner):
    """GVB-style partitioner for the product matrix @ X; volumes are exact for directed matrices too.

    The partition respects the cap on entries if a METIS start does. Its maximum send volume, then its total volume, is
    no larger than that of any METIS start (of those within the cap, if there are any). The total is at most the median
    of the METIS starts wherever the maximum and the cap allow it.

    Attributes:
        starts: Number of METIS partitions to start from, with seeds seed, seed + 1, ...
        imbalance: Share by which the entries of a part may exceed the mean. If every start exceeds it and a repair
            would cost more rows, no part grows beyond the fullest part of its start. The paper calls Graph-VB's
            constraint rather loose (Section 7.1.1).
        effort: Refinement steps per entry, level and cycle. Work, not time, is bounded, so a seed is reproducible.
        ufactor: Imbalance of the METIS starts, in thousandths.
    """

    starts: Count = 3
    imbalance: Size = 0.10
    effort: Count = 32
    ufactor: Count = 30
    name: str = "gvb"
    packages = ("pymetis", "numba")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32."""
        weight = entries_per_row(matrix)
        cap = int((1 + self.imbalance) * weight.sum() / k)

        def solve(pattern: csr_array, linked: IntArray) -> IntArray:
            reads = directed_pattern(matrix)
            reads = reads if len(linked) == len(weight) else csr_array(reads[linked][:, linked])
            return self._solve(pattern, reads, weight[linked], k, cap, seed)

        return partition_linked(matrix, k, solve, imbalance=self.imbalance)

    def _solve(self, pattern: csr_array, reads: csr_array, weight: IntArray, k: int, cap: int, seed: int) -> IntArray:
        from suite.gnn.partition.refine import Level

        finest = Level.finest(reads, weight)
        makers = [partial(kway, pattern, k, seed + number, ufactor=self.ufactor) for number in range(self.starts)]
        starts = [_score(reads, weight, make().astype(np.int32), k) for make in makers]
        search = _Search(finest, k, cap, int(np.median([start.total for start in starts])), self.effort)
        refined = [search.improve(start, PENALTIES[:2], seed + STRIDE * at) for at, start in enumerate(starts)]
        best = search.exhaust(min(refined, key=search.rank), seed + STRIDE * len(starts))
        first = min([start for start in starts if start.max_entries <= cap] or starts, key=_volumes)
        if _volumes(best) > _volumes(first):  # the ceiling on the total, or the cap, cost a higher maximum
            fallback = replace(search, cap=max(cap, first.max_entries), ceiling=first.total)
            best = fallback.exhaust(first, seed + STRIDE * len(starts))
        return best.parts


@dataclass(frozen=True)
class _Search:
    """Refinement of partitions of one matrix. `ceiling` is the total volume that a partition should not exceed."""

    finest: Level
    k: int
    cap: int
    ceiling: int
    effort: int

    def rank(self, scored: ScoredPartition) -> tuple[bool, int, int, int]:
        """Sort key: within the cap, within the ceiling, maximum send volume, total volume."""
        return (
            scored.max_entries > self.cap,
            max(0, scored.total - self.ceiling),
            scored.max_send,
            scored.total,
        )

    def improve(self, scored: ScoredPartition, penalties: Sequence[int], seed: int) -> ScoredPartition:
        """One refinement cycle per penalty. Parts above the cap lose vertices, even where that costs rows."""
        from suite.gnn.partition.refine import MoveRule, cycle

        rule = MoveRule(self.cap, self.ceiling, self.effort)
        parts, send = scored.parts, np.zeros(self.k, np.int64)
        for number, penalty in enumerate(penalties):
            parts, send = cycle(self.finest, parts, self.k, rule, penalty=penalty, seed=10 * (seed + number))
        load = np.bincount(parts, weights=self.finest.weight, minlength=self.k)
        return ScoredPartition(int(load.max()), int(send.max()), int(send.sum()), parts)

    def exhaust(self, scored: ScoredPartition, seed: int) -> ScoredPartition:
        """Refinement cycles until two in a row gain less than GAIN, or CYCLES is reached."""
        idle = 0
        for number in range(2, CYCLES):
            improved = self.improve(scored, [PENALTIES[2 - number % 2]], seed + number)
            idle = idle + 1 if improved.max_send > (1 - GAIN) * scored.max_send else 0
            scored = improved
            if idle == 2:
                break
        return scored


def _volumes(scored: ScoredPartition) -> tuple[int, int]:
    return scored.max_send, scored.total


def _score(reads: csr_array, weight: IntArray, parts: IntArray, k: int) -> ScoredPartition:
    send = count_volumes(reads, parts, k).send
    load = np.bincount(parts, weights=weight, minlength=k)
    return ScoredPartition(int(load.max()), int(send.max()), int(send.sum()), parts)
