"""Preparation of full-graph runs, and refusals by the parent."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.config.compose import composed, resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.record import Outcome
from suite.gnn import partition_data
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import RankShard, holdings, plans
from suite.gnn.settings import graph_settings
from suite.runner.executors.in_process import run_in_process
from suite.runner.ranks.rank import GraphRank, kind_of
from suite.runner.runs import Run, freeze
from suite.runner.store import Store

TINY = ["graph=rmat", "graph.source.vertices=256", "graph.source.features=6", "graph.source.classes=3"]


def config_of(*overrides: str) -> RunConfig:
    return resolve([*TINY, "system=sparsity_aware", *overrides])


def run_of(*overrides: str) -> Run:
    return freeze(composed([*TINY, "system=sparsity_aware", *overrides]), "")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["grid.data=8", "exchange.replication=3"], "replication=3 of 8 processes.*c divides P"),
        (["grid.inter=2"], "grid.inter=2.*split no layers"),
        (["exchange.form=round"], "no exchange.form named 'round'"),
        (["exchange.form=staged", "exchange.overlap=true"], "exchange.overlap with exchange.form=staged"),
        (["system=cagnet", "exchange.form=fused"], "broadcasts in stages"),
        (["system=cagnet", "grid.data=4", "exchange.replication=2", "exchange.assignment=interleaved"], "whole column"),
        (["model=gpt_tiny"], "model=gpt_tiny on a whole graph"),
        (["model.order=mine"], "no model.order named 'mine'"),
        (["model.epoch=short"], "no model.epoch named 'short'"),
        (["model.dtype=float16"], "model.dtype=float16"),
        (["precision=bf16"], "precision.half=bfloat16"),
        (["optimizer.clip_norm=1.0"], "optimizer.clip_norm=1.0"),
        (["checkpoint.folder=there"], "checkpoint.folder=there"),
        (["system=axonn", "executor=full_graph"], "system=axonn under executor=full_graph"),
        (["executor=real"], "system=sparsity_aware under executor=real"),
        (["executor=replay"], "executor=replay"),
        (["system=axonn", "model=gcn"], "model=gcn under system=axonn"),
        (["exchange.replication=0"], "replication=0"),
        (["model.shape.layers=0"], "model.shape.layers=0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_run_is_refused_before_any_rank_starts(overrides: list[str], said: str) -> None:
    def refusal() -> Exception | None:
        try:
            return run_of(*overrides).refusal
        except InvalidRequest as error:
            return error

    assert re.search(said, str(refusal()))


def test_a_run_of_another_kind_says_nothing_of_graphs() -> None:
    assert not {"graph", "partitioner", "exchange"} & freeze(composed([]), "").settings.keys()
    run = run_of("grid.data=4")
    assert {"graph", "partitioner", "exchange"} < run.settings.keys()
    assert (run.label, run.ranks, run.refusal) == ("sparsity_aware p=4 c=1", 4, None)
    assert kind_of(run.config.executor) is GraphRank


def test_what_is_prepared_is_what_ranks_read(tmp_path: Path) -> None:
    config = config_of("grid.data=4", "exchange.replication=2", f"reports={tmp_path}", "partitioner=metis")
    made = partition_data.Prepared(config, tmp_path / "own")
    held = [RankShard.load(tmp_path / "own" / f"rank-{rank}.npz") for rank in range(4)]
    assert sum(len(own.vertices) for own in held) == 2 * 256
    assert sorted(np.concatenate([own.vertices for own in held[::2]])) == list(range(256))
    assert sum(own.forward.matrix.nnz for own in held) == made.provenance["edges"] + 256  # a loop each
    assert made.metrics["rows_sent"].values[0] == sum(own.forward.sent.sum() for own in held)
    assert made.metrics["max_send"].values[0] == max(own.forward.sent.sum() for own in held)
    assert made.provenance["random"] == ["features", "labels"]
    assert any("random features and labels" in note for note in made.notes)
    assert all(len(ranks) == 4 for ranks in made.memory.values())
    again = partition_data.Prepared(config, tmp_path / "again")
    assert again.partition.cached
    assert again.metrics["partition_time"].note == "kept from before"


def test_a_graph_without_labels_or_anything_to_learn_is_refused(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "edges.txt", [[0, 1], [1, 2]], fmt="%d")
    config = resolve(
        [
            "system=sparsity_aware",
            "graph=edge_list",
            f"graph.source.file={tmp_path / 'edges.txt'}",
            f"reports={tmp_path}",
        ]
    )
    if "features" in graph_settings(config).source.arguments:
        config = config.changed({"graph.source.features": 0, "graph.source.classes": 0})
    with pytest.raises(InvalidRequest, match=r"features|labels|classes"):
        partition_data.Prepared(config, tmp_path / "own")


def test_a_vertex_that_is_asked_for_has_a_label() -> None:
    masks = {name: np.array([name == "train", False, False]) for name in ("train", "validation", "test")}
    matrix = np.zeros((3, 3))
    forward, backward = plans(csr_array(matrix), np.zeros(3, int), Placement(1))
    given = {"features": np.ones((3, 2)), "masks": masks, "classes": 2}
    with pytest.raises(InvalidRequest, match=r"vertex 0 is asked for and has the label -1"):
        list(holdings(forward, backward, labels=np.array([-1, 0, 0]), **given))
    masks["train"][0] = False
    with pytest.raises(InvalidRequest, match="no vertex to train on"):
        list(holdings(forward, backward, labels=np.zeros(3, int), **given))


def one_way(folder: Path) -> Path:
    """Edges from a few vertices to many: what forward products need is not what backward ones do."""
    rng = np.random.default_rng(0)
    np.savetxt(folder / "edges.txt", np.stack([rng.integers(0, 400, 4000), rng.integers(0, 40, 4000)], 1), fmt="%d")
    return folder / "edges.txt"


def test_a_directed_graph_is_partitioned_for_its_forward_product(tmp_path: Path) -> None:
    """That one moves the features; what the record says of the partition is of it, as what is sent is."""
    file = one_way(tmp_path)
    config = resolve(
        [
            "system=sparsity_aware_metis",
            "graph=edge_list",
            f"graph.source.file={file}",
            "grid.data=4",
            f"reports={tmp_path}",
        ]
    )
    made = partition_data.Prepared(config, tmp_path / "own")
    assert not made.provenance["symmetric"]
    for ours, theirs in (("partition_total", "rows_sent"), ("partition_max_send", "max_send")):
        assert made.metrics[ours].values == made.metrics[theirs].values
    _, matrix = partition_data.graph_of(config)
    assert (partition_data.forward_of(config) != matrix.T).nnz == 0


@pytest.mark.parametrize(
    "overrides", [["model.dtype=float64"], ["model.epoch=lean"], ["model.epoch=lean", "model.shape.layers=1"]]
)
def test_what_is_counted_without_ranks_is_what_is_prepared_for_them(tmp_path: Path, overrides: list[str]) -> None:
    config = config_of("grid.data=4", f"reports={tmp_path}", *overrides)
    made = partition_data.Prepared(config, tmp_path / "own")
    counted = config_of("grid.data=4", f"reports={tmp_path}", "executor=volumes", *overrides)
    found = counted.executor.build().run(counted)
    assert found.metrics["planned_bytes"].values == made.metrics["planned_bytes"].values
    assert found.memory["predicted"]["features"] == made.memory["features"]


@pytest.mark.parametrize("seed", ["abc", "1.5", "-1"])
def test_a_seed_is_a_whole_number_for_volumes_too(seed: str) -> None:
    assert f"seed={seed}; rule: " in str(run_of("executor=volumes", f"seed={seed}").refusal)


def test_what_volumes_refuse_is_no_failure(tmp_path: Path) -> None:
    overrides = ["executor=volumes", "partitioner=external", f"partitioner.file={tmp_path / 'none.part'}"]
    run = run_of(*overrides, "grid.data=2", f"reports={tmp_path}")
    record = run_in_process(run, "key", Store(tmp_path))
    assert record.outcome in (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY)
    assert "none.part" in record.reason
    assert "Traceback" not in record.reason
