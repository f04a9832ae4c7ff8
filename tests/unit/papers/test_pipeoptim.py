"""Simulated throughput of PipeOptim, and its errors."""

from __future__ import annotations

from functools import partial

import pytest

from suite.claims import trace
from suite.claims.plans import pipeoptim_run
from suite.core.errors import UnknownName
from suite.papers.pipeoptim import figures as pipeoptim
from suite.papers.pipeoptim import memory_account as pipeoptim_memory
from suite.papers.pipeoptim.figures import plan, rate_at
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.workload.split import divide
from tests.support.published_runs import lab as lab_of
from tests.support.refusals import refused

TABLE_5 = "pipeoptim.table5"
lab = partial(lab_of, "pipeoptim_clusters")


def test_answers_note_the_plan_that_they_read() -> None:
    with trace.record_reads() as reads:
        pipeoptim.network(lab(), "resnet_101")
    assert "plan.pipeoptim.stream" in reads


def test_systems_share_stage_boundaries_and_keep_their_policy() -> None:
    """Parameters of the stages equal the public code's, except for heads of 200 classes instead of 1000."""
    resnet = plan(lab(), "resnet_101", "gpipe", 64)
    head = 800 * 2048 + 800
    millions = [resnet.entries(stage) / 1e6 for stage in range(3)] + [(resnet.entries(3) + head) / 1e6]
    assert millions == pytest.approx([0.2, 5.0, 11.2, 28.2], abs=0.05)
    inception = plan(lab(), "inception_v3", "gpipe", 64)
    millions = [inception.entries(stage) / 1e6 for stage in range(3)] + [(inception.entries(3) + head) / 1e6]
    assert millions == pytest.approx([0.17, 2.0, 4.7, 17.0], abs=0.05)
    for model in ("resnet_101", "inception_v3", "gnmt_8", "gnmt_16"):
        assert {plan(lab(), model, system, 64).ranges for system in ("gpipe", *ASYNCHRONOUS)} == {
            plan(lab(), model, "gpipe", 8).ranges
        }
    assert (resnet.batch, resnet.microbatches, resnet.update_interval) == (256, 4, None)
    assert [plan(lab(), "gnmt_8", s, 64).update_interval for s in ASYNCHRONOUS] == [1, 4, 1, 1]
    assert all(
        one.recomputes for system in ("gpipe", *ASYNCHRONOUS) for one in plan(lab(), "gnmt_8", system, 64).overheads
    )


def test_own_partition_equals_public_code() -> None:
    for model in ("inception_v3", "gnmt_16"):
        starts = [stage.start for stage in divide(pipeoptim.network(lab(), model), 4, "pipedream")]
        assert starts[1:] == pipeoptim_run()["cuts"][model]


def test_batch_time_of_last_stage_by_hand() -> None:
    """ResNet-101's last stage, 5.99 Gflop and 26.55 million weights: four forwards, and a step of 20 bytes a weight."""
    run_plan = plan(lab(), "resnet_101", "pipedream", 64)
    layers = [run_plan.shapes[index] for index in run_plan.ranges[3]]
    flops, moved = sum(layer.flops for layer in layers), sum(2 * (layer.saved + layer.output) for layer in layers)
    forward = 64 * flops / (0.3044 * 9.3e12) + 64 * moved / (0.8 * 732e9)
    step = 20 * run_plan.entries(3) / (0.04358 * 732e9)
    assert rate_at(lab(), "resnet_101", "pipedream", "same") == pytest.approx(64 / (4 * forward + step), rel=1e-6)


def test_largest_batch_is_last_that_fits() -> None:
    """Kept activations fit 90 images of ResNet-101 where 86 are printed, computed again three times as many."""
    assert [pipeoptim_memory.largest(lab(), "resnet_101", "pipeoptim", graph) for graph in ("keep", "recompute")] == [
        90,
        310,
    ]
    for batch, fits in ((90, True), (91, False)):
        run_plan = plan(lab(), "resnet_101", "pipeoptim", batch, "keep")
        assert (run_plan.peak <= lab().machine.memory) is fits


def test_unknown_policy_is_refused() -> None:
    with refused(UnknownName, "weight policy of PipeOptim's systems", "pipemare"):
        pipeoptim.policy("pipemare")
