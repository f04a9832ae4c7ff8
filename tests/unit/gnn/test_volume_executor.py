"""Volume executor: rows, bytes and seconds follow from the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config.compose import composed
from suite.config.run import RunConfig
from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.protocols import ExecutorResult
from suite.core.record import Source
from suite.gnn import partition_data
from suite.gnn.plan import Placement, count_volumes
from suite.runner.runs import freeze

SMALL = ["graph=planted", "graph.source.vertices=512", "graph.source.blocks=16"]


def config(*overrides: str, reports: Path) -> RunConfig:
    run = freeze(composed(["executor=volumes", *SMALL, *overrides, f"reports={reports}"]), "")
    assert run.refusal is None, run.refusal
    return run.config


def run_volumes(*overrides: str, reports: Path) -> ExecutorResult:
    run_config = config(*overrides, reports=reports)
    return run_config.executor.build().run(run_config)


def metric(executed: ExecutorResult, name: str) -> float:
    return executed.metrics[name].values[0]


@pytest.mark.parametrize(("processes", "c"), [(4, 1), (8, 2)])
def test_metrics_equal_volumes_of_plan(processes: int, c: int, tmp_path: Path) -> None:
    overrides = ["system=sparsity_aware", f"grid.data={processes}", f"exchange.replication={c}"]
    executed = run_volumes(*overrides, reports=tmp_path)
    run_config = config(*overrides, reports=tmp_path)
    _, matrix, _ = partition_data.graph_of(run_config)
    k = processes // c
    parts = partition_data.partition_of(run_config, k).parts
    volumes = count_volumes(matrix, parts, k, Placement(k, c))
    assert metric(executed, "rows_sent") == volumes.total
    assert metric(executed, "max_send") == volumes.send.max()
    assert metric(executed, "mean_send") == pytest.approx(volumes.send.mean())
    assert metric(executed, "max_receive") == metric(executed, "halo_rows") == volumes.receive.max()
    assert metric(executed, "max_pair") == volumes.max_pair
    # 32 features, 16 hidden, 8 classes: 32 + 16 + 16 columns forward, 8 + 16 + 16 backward
    assert metric(executed, "planned_bytes") == 4 * 104 * volumes.total
    assert metric(executed, "local_rows") == -(-512 // k)
    assert metric(executed, "row_sums") == (4 * 104 * (512 // k) if c > 1 else 0)
    phases = sum(metric(executed, f"epoch_{p}") for p in ("exchange", "sums", "weights", "products", "dense"))
    assert metric(executed, "epoch_time") == pytest.approx(phases)
    assert executed.source is Source.ANALYTIC


def test_epochs_to_repay_is_partition_time_over_saved_time(tmp_path: Path) -> None:
    options = ["grid.data=8", "graph.source.outside=0.1", "graph.source.features=2048"]
    metis = run_volumes("system=sparsity_aware", "partitioner=metis", *options, reports=tmp_path)
    random = run_volumes("system=sparsity_aware", *options, reports=tmp_path)
    saved = metric(random, "epoch_time") - metric(metis, "epoch_time")
    assert saved > 0
    assert metric(metis, "epochs_to_repay") == pytest.approx(metric(metis, "partition_time") / saved)
    assert "epochs_to_repay" not in random.metrics
    kinds = metis.memory["predicted"]
    assert metric(metis, "memory_per_process") == max(sum(rank) for rank in zip(*kinds.values(), strict=True))


def test_too_small_device_or_wrong_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit):
        run_volumes("system=sparsity_aware", "grid.data=4", "executor.machine.memory=1.0e+4", reports=tmp_path)
    run = freeze(composed(["executor=volumes", "system=axonn", f"reports={tmp_path}"]), "")
    assert isinstance(run.refusal, InvalidRequest)
