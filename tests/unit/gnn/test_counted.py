"""Volume executor: rows, bytes and seconds of the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.config.compose import composed
from suite.config.run import RunConfig
from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.protocols import ExecutorResult
from suite.core.record import Source
from suite.data.graphs import Graph, operator
from suite.gnn import partition_data
from suite.gnn.plan import Placement, volumes
from suite.gnn.volume_executor import VolumeExecutor
from suite.runner.runs import freeze

SMALL = ["graph=planted", "graph.source.vertices=512", "graph.source.blocks=16"]


def config(*overrides: str, reports: Path) -> RunConfig:
    run = freeze(composed(["executor=volumes", *SMALL, *overrides, f"reports={reports}"]), "")
    assert run.refusal is None, run.refusal
    return run.config


def carried(*overrides: str, reports: Path) -> ExecutorResult:
    found = config(*overrides, reports=reports)
    return found.executor.build().run(found)


def value(found: ExecutorResult, name: str) -> float:
    return found.metrics[name].values[0]


@pytest.mark.parametrize(("processes", "c"), [(4, 1), (8, 2), (1, 1)])
def test_rows_are_those_of_the_plan(processes: int, c: int, tmp_path: Path) -> None:
    asked = ["system=sparsity_aware", f"grid.data={processes}", f"exchange.replication={c}"]
    found = carried(*asked, reports=tmp_path)
    settings = config(*asked, reports=tmp_path)
    _, matrix = partition_data.graph_of(settings)
    k = processes // c
    parts = partition_data.partition_of(settings, k).parts
    plan = volumes(matrix, parts, k, Placement(k, c))
    assert value(found, "rows_sent") == plan.total
    assert value(found, "max_send") == plan.send.max()
    assert value(found, "mean_send") == pytest.approx(plan.send.mean())
    assert value(found, "max_receive") == value(found, "halo_rows") == plan.receive.max()
    assert value(found, "max_pair") == plan.pair
    # 32 features, 16 hidden, 8 classes: 32 + 16 + 16 columns forward, 8 + 16 + 16 backward
    assert value(found, "planned_bytes") == 4 * 104 * plan.total
    assert value(found, "local_rows") == -(-512 // k)
    assert value(found, "row_sums") == (4 * 104 * (512 // k) if c > 1 else 0)
    phases = sum(value(found, f"epoch_{p}") for p in ("exchange", "sums", "weights", "products", "dense"))
    assert value(found, "epoch_time") == pytest.approx(phases)
    assert found.source is Source.ANALYTIC


def test_oblivious_systems_send_everything(tmp_path: Path) -> None:
    found = carried("system=cagnet", "grid.data=4", reports=tmp_path)
    assert value(found, "rows_sent") == 512 * 3
    assert value(found, "halo_rows") == 128  # a part's rows at a time


def test_a_process_holds_its_rows_and_its_halo_and_not_the_graph(tmp_path: Path) -> None:
    """Four times the vertices on four times the processes: a process of a partitioned graph holds about what it did."""
    asked = ["system=sparsity_aware_metis", "graph.source.outside=0.1"]
    few = carried(*asked, "grid.data=4", reports=tmp_path)
    many = carried(*asked, "grid.data=16", "graph.source.vertices=2048", "graph.source.blocks=64", reports=tmp_path)
    assert value(many, "memory_per_process") == pytest.approx(value(few, "memory_per_process"), rel=0.15)
    kinds = few.memory["predicted"]
    assert value(few, "memory_per_process") == max(sum(each) for each in zip(*kinds.values(), strict=True))


def test_a_partition_that_saves_time_is_repaid(tmp_path: Path) -> None:
    asked = ["system=sparsity_aware_metis", "grid.data=8", "graph.source.outside=0.1", "graph.source.features=2048"]
    settings = config(*asked, reports=tmp_path)
    metis = settings.executor.build().run(settings)
    random = carried("system=sparsity_aware", *asked[1:], reports=tmp_path)
    saved = value(random, "epoch_time") - value(metis, "epoch_time")
    assert saved > 0
    assert value(metis, "epochs_to_repay") == pytest.approx(value(metis, "partition_time") / saved)
    assert "epochs_to_repay" not in random.metrics


def test_a_directed_graph_has_two_plans(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.of("d", rng.integers(0, 60, 300), rng.integers(0, 60, 300) // 2, 60)
    graph = replace(graph, features=np.ones((60, 5), np.float32), labels=np.zeros(60, np.int64), classes=2)
    settings = config("system=sparsity_aware", "grid.data=3", reports=tmp_path)
    executor = settings.executor.build()
    assert isinstance(executor, VolumeExecutor)
    matrix, parts = operator(graph), np.arange(60) % 3
    one = executor.full_graph(settings, graph, matrix, parts)
    turned = matrix.T.tocsr()
    assert (one.volumes.needed == volumes(turned, parts, 3).needed).all()
    assert one.back is not None
    assert (one.back.needed == volumes(matrix, parts, 3).needed).all()


def test_this_machine_is_modelled_where_it_is_measured(tmp_path: Path) -> None:
    asked = ["system=sparsity_aware", "grid.data=4"]
    assert "epoch_time_here" not in carried(*asked, reports=tmp_path).metrics
    link = {"latency": 1e-3, "bandwidth": 1e9}
    here: dict[str, Any] = {
        "devices_per_node": 2,
        "memory": 1e9,
        "peak": {"float32": 1e11},
        "memory_bandwidth": 1e10,
        "adapters": 1,
        **dict.fromkeys(("within", "between", "host"), link),
    }
    (tmp_path / "machine.json").write_text(json.dumps(here))
    slow = value(carried(*asked, reports=tmp_path), "epoch_time_here")
    here["backends"] = {"point_to_point": {"suite over gloo": {"latency": 1e-6, "bandwidth": 1e10}}}
    (tmp_path / "machine.json").write_text(json.dumps(here))
    quick = value(carried(*asked, reports=tmp_path), "epoch_time_here")
    # six exchanges of three messages each, and three sums of weights over a ring of four: latencies alone
    assert slow - quick == pytest.approx((6 * 3 + 3 * 6) * 1e-3, rel=0.1)


def test_what_cannot_be_is_refused_or_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="of 4 processes"):
        carried("system=sparsity_aware", "grid.data=4", "executor.machine.memory=1.0e+4", reports=tmp_path)
    run = freeze(composed(["executor=volumes", "system=axonn", f"reports={tmp_path}"]), "")
    assert isinstance(run.refusal, InvalidRequest)
