"""GVB-style partitioner: minimise the total volume and the maximum volume of a part.

The paper partitions with Graph-VB for the total and the maximum send volume (Section 5). This has the same two goals
and none of its code: partitions by METIS from several seeds, refined in cycles (levels.py) under a cap on entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.kahip import kaffpa
from suite.gnn.partition.metis import kway
from suite.gnn.partition.pattern import Rows, check, connected, directed, entries
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import volumes

if TYPE_CHECKING:
    from suite.gnn.partition.refine import Level

# What a row of a busy sender costs more than another, cycle by cycle: a start that is too strict about the busiest
# leaves a larger total, and one that is never strict a busier one.
PENALTIES = (2, 8, 32)
CYCLES = 6  # of the best start, in all
STRIDE = 1000  # between the seeds of starts, which use one for each level of each cycle
GAIN = 0.005  # share of the most rows sent by a part; two cycles that gain less are the last


class ScoredPartition(NamedTuple):
    """(n,) parts, and what decides between them: entries of the fullest, most rows sent by one, and rows by all."""

    heaviest: int
    most: int
    total: int
    parts: Rows


@dataclass(frozen=True)
class Gvb(Partitioner):
    """GVB-style: small total and maximum send volume of matrix @ X, exact for directed matrices too.

    The result keeps the cap if a start did. The most that a part sends, and then the total, are no larger than of any
    METIS start, or of any that kept the cap. The total is at most the median of METIS' wherever that and the cap allow
    it.

    Attributes:
        starts: METIS partitions, of the seeds seed, seed + 1.
        kahip: Additional starts by KaHIP. None by default: after refinement they are no better than METIS' (a tenth
            more or less on community graphs of 2^15 vertices into 4 to 64 parts), and not every machine has it.
        imbalance: Share by which the entries of a part may exceed the mean. Where every start exceeds it, and relieving
            it would cost more rows, no part grows beyond the fullest of its start. The paper calls Graph-VB's
            constraint rather loose (Section 7.1.1).
        effort: Steps of refinement per entry, level and cycle: work and not time, so that a seed gives the same parts.
    """

    starts: int = 3
    kahip: int = 0
    imbalance: float = 0.10
    effort: int = 32
    ufactor: int = 30
    name: str = "gvb"
    objective = "most rows sent by a part, then the total volume"
    seedable = True
    packages = ("pymetis", "numba", "kahip")

    def __post_init__(self) -> None:
        for name, least in (("starts", 1), ("kahip", 0), ("effort", 1), ("ufactor", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidRequest(
                    f"{name}={value}", rule=f"a whole number, at least {least}", legal=f"{name}={least}"
                )
        if not 0 <= self.imbalance < float("inf"):
            raise InvalidRequest(
                f"imbalance={self.imbalance}", rule="a share of the mean, not negative", legal="imbalance=0.1"
            )

    def probe(self) -> Ready | Missing:
        missing = [name for name in ("pymetis", "numba") if not find_spec(name)]
        return Missing(f"not installed: {', '.join(missing)}") if missing else Ready()

    def notes(self) -> tuple[str, ...]:
        missing = self.kahip and not find_spec("kahip")
        return (f"gvb without its {self.kahip} starts by KaHIP, which is not installed",) if missing else ()

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32. Raises MissingDependency without pymetis or numba."""
        check(matrix, k, seed)
        weight = entries(matrix)
        cap = int((1 + self.imbalance) * weight.sum() / k)

        def solve(pattern: csr_array, linked: Rows) -> Rows:
            reads = directed(matrix)
            reads = reads if len(linked) == len(weight) else csr_array(reads[linked][:, linked])
            return self._solve(pattern, reads, weight[linked], k, cap, seed)

        return connected(matrix, k, solve, room=self.imbalance)

    def _solve(self, pattern: csr_array, reads: csr_array, weight: Rows, k: int, cap: int, seed: int) -> Rows:
        try:
            from suite.gnn.partition.refine import Level
        except ImportError as error:
            raise MissingDependency("numba", f"pip install numba ({error})") from error
        finest = Level.finest(reads, weight)
        makers = [partial(kway, pattern, k, seed + number, ufactor=self.ufactor) for number in range(self.starts)]
        if self.kahip and find_spec("kahip"):
            makers += [partial(kaffpa, pattern, k, seed + number) for number in range(self.kahip)]
        starts = [_found(reads, weight, make().astype(np.int32), k) for make in makers]
        search = _Search(finest, k, cap, int(np.median([start.total for start in starts[: self.starts]])), self.effort)
        tried = [search.improve(start, PENALTIES[:2], seed + STRIDE * at) for at, start in enumerate(starts)]
        best = search.exhaust(min(tried, key=search.rank), seed + STRIDE * len(starts))
        own_starts = starts[: self.starts]
        first = min([start for start in own_starts if start.heaviest <= cap] or own_starts, key=_moved)
        if _moved(best) > _moved(first):  # the total, or a cap that METIS exceeds, was had at the maximum's expense
            fallback = replace(search, cap=max(cap, first.heaviest), ceiling=first.total)
            best = fallback.exhaust(first, seed + STRIDE * len(starts))
        return best.parts


@dataclass(frozen=True)
class _Search:
    """Criteria between partitions of one matrix. ceiling: rows in all that a partition should not exceed."""

    finest: Level
    k: int
    cap: int
    ceiling: int
    effort: int

    def rank(self, found: ScoredPartition) -> tuple[bool, int, int, int]:
        return found.heaviest > self.cap, max(0, found.total - self.ceiling), found.most, found.total

    def improve(self, found: ScoredPartition, penalties: Sequence[int], seed: int) -> ScoredPartition:
        """Cycles in turn. Parts above the cap are relieved, at a loss if need be."""
        from suite.gnn.partition.refine import MoveRule, cycle

        rule = MoveRule(self.cap, self.ceiling, self.effort)
        parts, send = found.parts, np.zeros(self.k, np.int64)
        for number, penalty in enumerate(penalties):
            parts, send = cycle(self.finest, parts, self.k, rule, penalty=penalty, seed=10 * (seed + number))
        load = np.bincount(parts, weights=self.finest.weight, minlength=self.k)
        return ScoredPartition(int(load.max()), int(send.max()), int(send.sum()), parts)

    def exhaust(self, found: ScoredPartition, seed: int) -> ScoredPartition:
        """Cycles until two have hardly gained, or their number is up."""
        idle = 0
        for number in range(2, CYCLES):
            better = self.improve(found, [PENALTIES[2 - number % 2]], seed + number)
            idle = idle + 1 if better.most > (1 - GAIN) * found.most else 0
            found = better
            if idle == 2:
                break
        return found


def _moved(found: ScoredPartition) -> tuple[int, int]:
    return found.most, found.total


def _found(reads: csr_array, weight: Rows, parts: Rows, k: int) -> ScoredPartition:
    send = volumes(reads, parts, k).send
    load = np.bincount(parts, weights=weight, minlength=k)
    return ScoredPartition(int(load.max()), int(send.max()), int(send.sum()), parts)
