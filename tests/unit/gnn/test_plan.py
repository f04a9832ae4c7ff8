"""Exchange plans: rows needed by a dense product, for any graph and partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from suite.core.errors import DamagedRecord, InvalidRequest, UnknownName
from suite.gnn.plan import ASSIGNMENTS, ExchangePlan, Placement, volumes


def directed(n: int, seed: int, density: float = 0.1) -> csr_array:
    return csr_array(random_array((n, n), density=density, rng=np.random.default_rng(seed), format="csr"))


def brute(matrix: csr_array, parts: np.ndarray, k: int) -> np.ndarray:
    """Distinct nonzero columns of every block, one by one."""
    dense = matrix.toarray() != 0
    found = np.zeros((k, k), int)
    for i in range(k):
        for q in range(k):
            if i != q:
                found[i, q] = dense[parts == i][:, parts == q].any(axis=0).sum()
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 24), st.integers(1, 7), st.integers(0, 999), st.floats(0, 0.5))
def test_volumes_are_distinct_columns_of_blocks(n: int, k: int, seed: int, density: float) -> None:
    matrix, parts = directed(n, seed, density), np.random.default_rng(seed).integers(0, k, n)
    found = volumes(matrix, parts, k)
    assert (found.needed == brute(matrix, parts, k)).all()
    assert found.nonzeros.sum() == matrix.nnz
    assert found.send.sum() == found.receive.sum() == found.total
    assert (found.needed <= found.oblivious().needed).all()
    assert found.oblivious().total == n * (k - 1)
    plan = ExchangePlan.of(matrix, parts, Placement(k))
    assert (plan.volumes.needed == found.needed).all()
    for i in range(k):
        for q in range(k):
            block = matrix.toarray()[plan.order][:, plan.order]
            rows, columns = (slice(plan.offsets[x], plan.offsets[x + 1]) for x in (i, q))
            assert (plan.needs(i, q) == np.flatnonzero(block[rows, columns].any(axis=0))).all()


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize(("parts", "replication"), [(4, 1), (4, 2), (3, 3), (5, 2), (2, 3), (8, 4)])
def test_every_block_is_multiplied_once(parts: int, replication: int, assignment: str) -> None:
    placement = Placement(parts, replication, assignment)
    for row in range(parts):
        stages = [q for rank in placement.row(row) for q in placement.stages(rank)]
        assert sorted(stages) == list(range(parts))
    assert sorted(r for j in range(replication) for r in placement.column(j)) == list(range(placement.processes))
    assert all(placement.rank(*placement.place(rank)) == rank for rank in range(placement.processes))
    found = volumes(directed(40, 1), np.random.default_rng(2).integers(0, parts, 40), parts, placement)
    assert found.send.sum() == found.receive.sum() == found.total
    assert found.entries.sum() == found.nonzeros.sum()


def test_the_papers_assignment_sends_from_one_replica_and_the_interleaved_one_from_all() -> None:
    """Algorithm 2: with c squared dividing P every process has P / c^2 stages; block row q is sent by column q // s."""
    placement = Placement.of(16, 2)
    assert [placement.stages(r) for r in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    matrix, parts = directed(64, 3, 0.3), np.arange(64) % 8
    paper, spread = (volumes(matrix, parts, 8, Placement(8, 2, a)) for a in ASSIGNMENTS)
    assert (paper.send > 0).sum() == 8
    assert (spread.send > 0).sum() == 16
    assert spread.send.max() < paper.send.max()
    assert (paper.summed == 8).all()


def test_imbalance_is_the_excess_of_the_busiest_sender() -> None:
    """Both other parts need part 0's rows; no part needs the others' rows."""
    matrix = csr_array(np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]]))
    found = volumes(matrix, np.arange(3), 3)
    assert (found.send.tolist(), found.receive.tolist(), found.pair) == ([2, 0, 0], [0, 1, 1], 1)
    assert found.imbalance == pytest.approx(200)
    assert volumes(csr_array((3, 3)), np.arange(3), 3).imbalance == 0


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = ExchangePlan.of(directed(20, 4), np.arange(20) % 3, Placement(3, 2, "interleaved"))
    plan.save(tmp_path / "plan.npz")
    plan.save(tmp_path / "plan")  # read again under the name that it was given
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan", "plan.npz"]
    again = ExchangePlan.load(tmp_path / "plan.npz")
    assert (again.matrix != plan.matrix).nnz == 0
    assert (again.placement, again.order.tolist()) == (plan.placement, plan.order.tolist())
    assert (again.volumes.send == plan.volumes.send).all()
    (tmp_path / "other.npz").write_bytes(b"PK\x03\x04 no plan")
    with pytest.raises(DamagedRecord, match="is no plan"):
        ExchangePlan.load(tmp_path / "other.npz")
    np.savez(tmp_path / "later.npz", format=np.int64(2))
    with pytest.raises(DamagedRecord, match="format 2"):
        ExchangePlan.load(tmp_path / "later.npz")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (np.zeros(4, int), r"shape \(4,\) for 5 vertices"),
        (np.array([0, 1, 2, 0, 0]), "vertex 2 is in part 2, and 0 more"),
        (np.array([0, -1, 1, 0, 0]), "vertex 1 is in part -1"),
        (np.zeros(5), "float64"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(parts: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ExchangePlan.of(directed(5, 1), parts, Placement(2))


def test_grids_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"replication=3 of 8 processes.*c divides P.*replication=2"):
        Placement.of(8, 3)
    with pytest.raises(InvalidRequest, match="replication=0"):
        Placement.of(8, 0)
    with pytest.raises(UnknownName, match="assignment"):
        Placement.of(8, 2, "mine")
    with pytest.raises(InvalidRequest, match="square"):
        ExchangePlan.of(csr_array((2, 3)), np.zeros(2, int), Placement(1))
    with pytest.raises(InvalidRequest, match="3 parts on 2 block rows"):
        volumes(directed(6, 1), np.arange(6) % 3, 3).on(Placement(2))
