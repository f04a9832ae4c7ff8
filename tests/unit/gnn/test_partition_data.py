"""Preparation of full-graph runs, and refusals before any rank starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.config.compose import composed, resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.data.graphs import Graph
from suite.gnn import partition_data
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import RankShard, build_plans, build_shards
from suite.runner.ranks.rank import KINDS, GraphRank
from suite.runner.runs import Run, freeze
from tests.support.drawn import drawn
from tests.support.refusals import refused

TINY = ["graph=rmat", "graph.source.vertices=256", "graph.source.features=6", "graph.source.classes=3"]


def config_of(*overrides: str) -> RunConfig:
    return resolve([*TINY, "system=sparsity_aware", *overrides])


def run_of(*overrides: str) -> Run:
    return freeze(composed([*TINY, "system=sparsity_aware", *overrides]), "")


IMPOSSIBLE = (
    ("exchange.form=fused", "system=cagnet", "exchange.form=fused"),
    (
        "exchange.assignment=interleaved",
        "system=cagnet",
        "grid.data=4",
        "exchange.replication=2",
        "exchange.assignment=interleaved",
    ),
    ("model=gpt_tiny", "model=gpt_tiny"),
    ("model.dtype=float16", "model.dtype=float16"),
    ("system=axonn under executor=full_graph", "system=axonn", "executor=full_graph"),
    ("system=sparsity_aware partitioner=random", "executor=real"),
    ("model=gcn under system=axonn", "system=axonn", "model=gcn"),
)


@pytest.mark.parametrize("row", drawn([(row,) for row in IMPOSSIBLE], n=4))
def test_impossible_run_is_refused_before_ranks_start(row: tuple[str, ...]) -> None:
    def refusal() -> Exception | None:
        try:
            return run_of(*row[1:]).refusal
        except InvalidRequest as error:
            return error

    assert row[0] in str(refusal())


def test_graph_runs_start_graph_ranks() -> None:
    assert not {"graph", "partitioner", "exchange"} & freeze(composed([]), "").settings.keys()
    run = run_of("grid.data=4")
    assert (run.label, run.ranks, run.refusal) == ("sparsity_aware_random p=4 c=1", 4, None)
    assert KINDS[run.config.executor.kind] is GraphRank


def test_shards_cover_graph_and_send_planned_rows(tmp_path: Path) -> None:
    config = config_of("grid.data=4", "exchange.replication=2", f"reports={tmp_path}", "partitioner=metis")
    prepared = partition_data.Prepared(config, tmp_path / "shards")
    shards = [RankShard.load(tmp_path / "shards" / f"rank-{rank}.npz") for rank in range(4)]
    sent = [shard.forward.send_counts.sum() for shard in shards]
    assert sum(len(shard.vertices) for shard in shards) == 2 * 256
    assert sorted(np.concatenate([shard.vertices for shard in shards[::2]])) == list(range(256))
    assert sum(shard.forward.matrix.nnz for shard in shards) == prepared.provenance["edges"] + 256  # self loops
    assert prepared.metrics["rows_sent"].values[0] == sum(sent)
    assert prepared.metrics["max_send"].values[0] == max(sent)
    assert prepared.provenance["random"] == ["features", "labels"]
    assert any("random features and labels" in note for note in prepared.notes)
    assert all(len(ranks) == 4 for ranks in prepared.memory.values())
    again = partition_data.Prepared(config, tmp_path / "again")
    assert again.partition.cached
    assert again.metrics["partition_time"].note == "from the cache"


def test_graph_without_features_labels_or_training_vertices_is_refused(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "edges.txt", [[0, 1], [1, 2]], fmt="%d")
    config = resolve(["system=sparsity_aware", "graph=edge_list", f"graph.source.file={tmp_path / 'edges.txt'}"])
    config = config.changed({"graph.source.features": 0, "graph.source.classes": 0, "reports": str(tmp_path)})
    with refused(InvalidRequest, "graph"):
        partition_data.Prepared(config, tmp_path / "shards")
    plans = build_plans(csr_array(np.zeros((3, 3))), np.zeros(3, int), Placement(1))
    for label, train in ((-1, True), (0, False)):
        given = {"features": np.ones((3, 2), np.float32), "labels": np.array([label, 0, 0]), "classes": 2}
        graph = Graph.of("g", [0], [1], 3, **given)
        with pytest.raises(InvalidRequest):
            list(build_shards(*plans, replace(graph, train=np.array([train, False, False]))))


@pytest.mark.parametrize("override", ["model.dtype=float64", "model.shape.epoch=lean"])
def test_directed_graph_is_partitioned_for_forward_product(tmp_path: Path, override: str) -> None:
    """The forward product moves the features; partition metrics and volumes refer to it, with and without ranks."""
    rng = np.random.default_rng(0)
    file = tmp_path / "edges.txt"  # edges from many vertices to few, so that both products need other rows
    np.savetxt(file, np.stack([rng.integers(0, 400, 4000), rng.integers(0, 40, 4000)], 1), fmt="%d")
    source = ["graph=edge_list", f"graph.source.file={file}"]
    overrides = ["system=sparsity_aware", "partitioner=metis", *source, "grid.data=4", override]
    config = resolve([*overrides, f"reports={tmp_path}"])
    prepared = partition_data.Prepared(config, tmp_path / "shards")
    assert not prepared.provenance["symmetric"]
    for of_partition, of_plan in (("partition_total", "rows_sent"), ("partition_max_send", "max_send")):
        assert prepared.metrics[of_partition].values == prepared.metrics[of_plan].values
    _, matrix, transposed = partition_data.graph_of(config)
    assert (transposed != matrix.T).nnz == 0
    config = resolve([*overrides, f"reports={tmp_path}", "executor=volumes"])
    executed = config.executor.build().run(config)
    assert executed.metrics["planned_bytes"].values == prepared.metrics["planned_bytes"].values
    assert executed.memory["predicted"]["features"] == prepared.memory["features"]
