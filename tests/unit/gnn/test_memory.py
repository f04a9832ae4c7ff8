"""Predicted bytes of a process equal the allocated bytes.

On threads what messages copy is counted too: over real messages see tests/distributed/test_graphs.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.engine.optim.optimizer import Adam
from suite.gnn.memory import predicted
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import RankShard
from suite.workload.gcn import GCN
from tests.support.graphs import held, problem, trainers, uneven


@pytest.mark.parametrize("exchange", ["fused", "oblivious"])
@pytest.mark.parametrize(
    "ways", [("paper", "paper"), ("auto", "paper"), ("auto", "lean"), ("paper", "lean")], ids="-".join
)
def test_predicted_bytes_are_those_allocated(exchange: str, ways: tuple[str, str]) -> None:
    """Law 4 for full graphs, on a directed graph of features much wider than what follows."""
    placement, shape = Placement(1), GCN(3, 16)
    given = problem(1600, density=0.004, features=60, seed=5)
    parts = np.zeros(1600, int)
    options = {"order": ways[0], "epoch": ways[1]}

    def then(trainer, own):  # type: ignore[no-untyped-def]
        trainer.epoch()
        return trainer.memory()[1], predicted(own, shape, form=exchange, width=8, **options)

    for ours, foretold in trainers(
        given, placement, parts, then, exchange=exchange, optimizer=Adam(lr=0.01), shape=shape, **options
    )[:1]:
        assert ours == {**foretold, "activations": pytest.approx(foretold["activations"], abs=64)}


def ring(n: int) -> csr_array:
    at = np.arange(n)
    return csr_array((np.ones(2 * n), (np.tile(at, 2), np.concatenate([(at + 1) % n, (at - 1) % n]))), shape=(n, n))


@pytest.mark.parametrize("processes", [4, 16, 64])
def test_memory_grows_with_own_rows_and_halo(processes: int) -> None:
    """Of a ring every part needs two rows: what a process holds is its own 64 vertices', however many there are."""
    n = 64 * processes
    at = np.arange(n)
    from suite.gnn.rank_shard import holdings, plans

    masks = {name: at % 3 == number for number, name in enumerate(("train", "validation", "test"))}
    forward, backward = plans(ring(n), at // 64, Placement(processes))
    made = holdings(forward, backward, features=np.ones((n, 8)), labels=at % 2, masks=masks, classes=2)
    totals = [sum(predicted(own, GCN(), form="fused", width=4).values()) for own in made]
    assert max(totals) - min(totals) <= 64 * 8
    assert totals[0] == pytest.approx(29_100, rel=0.02)


def test_what_a_process_holds_comes_back_from_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    own = held(problem(), Placement.of(6, 2, "interleaved"), uneven(37, 3))[3]
    own.save(tmp_path / "rank.npz")
    again = RankShard.load(tmp_path / "rank.npz")
    for ours, theirs in ((own.forward, again.forward), (own.backward, again.backward)):
        assert (ours.matrix != theirs.matrix).nnz == 0
        assert all(
            (getattr(ours, name) == getattr(theirs, name)).all() for name in ("sizes", "gathered", "sent", "ids")
        )
        assert (ours.rank, ours.placement) == (theirs.rank, theirs.placement)
    assert (own.features == again.features).all()
    assert own.counts == again.counts
