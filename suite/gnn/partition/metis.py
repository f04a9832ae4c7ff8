"""METIS partitioner: fewest cut edges k ways, with edges and vertices balanced.

Source: Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci.
Comput. 20 (1998); the paper partitions with it to compare (Table 2, Section 7.1.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import Rows, check, connected
from suite.gnn.partition.protocol import Partitioner

# vertices a part: METIS left parts of sparse random graphs of up to 3 empty (k = 2 to 40), of 4 or more none
DEALT = 4


@dataclass(frozen=True)
class Metis(Partitioner):
    """Multilevel k-way. A vertex weighs its degree + 1: edges are the work of a product, vertices the rows held.

    ufactor: thousandths by which the heaviest part may exceed the mean; 30 is METIS' own default k ways
    """

    ufactor: int = 30
    name: str = "metis"
    objective = "edge cut"
    seedable = True
    packages = ("pymetis",)

    def __post_init__(self) -> None:
        if isinstance(self.ufactor, bool) or not isinstance(self.ufactor, int) or self.ufactor < 1:
            raise InvalidRequest(f"ufactor={self.ufactor}", rule="thousandths, at least 1", legal="ufactor=30")

    def probe(self) -> Ready | Missing:
        return Ready() if find_spec("pymetis") else Missing("pymetis is not installed")

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32; of a directed matrix, edges either way are edges."""
        check(matrix, k, seed)
        room = self.ufactor / 1000
        return connected(matrix, k, lambda pattern, _: kway(pattern, k, seed, ufactor=self.ufactor), room=room)


def kway(pattern: csr_array, k: int, seed: int, *, ufactor: int = 30) -> Rows:
    """(n,) part ids of an undirected pattern without loops. Raises MissingDependency without pymetis.

    Fewer than two vertices a part are dealt: METIS cannot bisect them, says so on the terminal and leaves parts empty.
    It leaves some where there are more, too, and then they are dealt if they are fewer than `DEALT` a part.
    """
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependency("pymetis", f"pip install pymetis ({error})") from error
    weight = np.diff(pattern.indptr).astype(np.int64) + 1
    if len(weight) < 2 * k:
        return dealt(weight, k)
    options = pymetis.Options(seed=seed % 2**31, ufactor=ufactor)
    graph = pymetis.CSRAdjacency(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int64))
    assignment = np.asarray(pymetis.part_graph(k, graph, vweights=weight, options=options, recursive=False).vertex_part)
    empty = bool((np.bincount(assignment, minlength=k) == 0).any())
    return dealt(weight, k) if empty and len(weight) < DEALT * k else assignment


def dealt(weight: Rows, k: int) -> Rows:
    """(n,) part ids: the heaviest first, to the parts in turn and back again, so that numbers differ by at most one."""
    turn = np.arange(len(weight))
    place = turn % k
    parts = np.empty(len(weight), np.int64)
    parts[np.argsort(-weight, kind="stable")] = np.where(turn // k % 2, k - 1 - place, place)
    return parts
