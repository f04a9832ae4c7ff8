"""Probes for the paper's claims on parts of training, on threads and in ordinary runs.

A run is prepared by the parent process from its configuration, as on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.claims.answer import Cases, Question
from suite.comm.p2p.threads import run
from suite.config.compose import resolve
from suite.config.locate import locate
from suite.config.plugins import build
from suite.core.errors import InvalidRequest
from suite.core.trace import GEMM, PRODUCT
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.engine.optim.optimizer import Adam
from suite.gnn.partition import Partitioner
from suite.gnn.partition.simple import Random
from suite.gnn.partition_data import Prepared, partitioner_of
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import RankShard
from suite.gnn.settings import required
from suite.gnn.train import GraphSystem, Trainer
from suite.papers.measured import one_thread
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.measured import shards_of
from suite.papers.sparse_gnn.measured_watch import watch_groups
from suite.workload.gcn import GCN

# -- training on threads -----------------------------------------------------------------------------------------------


def _trainer(
    lab: GraphLab, shards: Sequence[RankShard], world: Any, shape: GCN, dtype: str = "float64", rule: Any = None
) -> Trainer:
    """Trainer with the sparsity-aware exchange."""
    exchange, rule = locate(lab.exchanges["sparsity_aware"]), rule or Adam(0.01)
    return Trainer(shards[world.rank], world, exchange=exchange, optimizer=rule, shape=shape, dtype=dtype)


def weight_gradient(question: Question, lab: GraphLab) -> Cases:
    """Words of the gradient that each of three threads sums in one epoch of one square layer."""

    def words(width: int) -> float:
        graph = Planted(vertices=192, blocks=8, classes=4, features=width).load(0)
        _, shards = shards_of(graph, Placement(3), classes=width)

        def main(world: Any) -> int:
            traffic = watch_groups(world)
            trainer = _trainer(lab, shards, world, GCN(1, width))
            trainer.epoch()
            gradient = trainer.state.gradient.data_ptr()
            return sum(words for _, words, pointer in traffic.sums if pointer == gradient)

        word_counts = set(run(3, main))
        return word_counts.pop() if len(word_counts) == 1 else np.nan

    return [[words(p["f"]) for p in question.integer_points()]]


def stored_entries(question: Question, lab: GraphLab) -> Cases:
    """Entries of A and of the layer inputs H^0 to H^(L-1) on three threads in an epoch of training.

    Raises:
        InvalidRequest: The graph has another number of entries than the point of the formula.
    """

    def stored(vertices: int, width: int, layers: int, entries: int) -> int:
        graph = Planted(vertices=vertices, blocks=8, classes=4, features=width).load(0)
        if (found := operator(graph).nnz) != entries:
            raise InvalidRequest(f"a graph of {found} entries", rule=f"nnz={entries} of the claim's point")
        _, shards = shards_of(graph, Placement(3))

        def main(world: Any) -> int:
            trainer = _trainer(lab, shards, world, GCN(layers, width))
            words = [0]
            for layer in trainer.layers:
                layer.register_forward_pre_hook(lambda _, inputs: words.append(inputs[0].numel()))
            trainer.epoch()
            matrices = sum(m.values().numel() for m in trainer.forward.matrices.values() if m is not None)
            return int(matrices + sum(words))

        return sum(run(3, main))

    return [[stored(p["n"], p["f"], p["L"], p["nnz"]) for p in question.integer_points()]]


def phases(
    question: Question, lab: GraphLab, *, graphs: Sequence[str], vertices: int, epochs: int = 5
) -> tuple[Cases, str]:
    """Median seconds of an epoch on one rank: sparse products, dense products and the rest."""

    def of_graph(name: str) -> list[float]:
        _, shards = shards_of(replace(lab.source(name), vertices=vertices).load(0), Placement(1), dtype="float32")

        def main(world: Any) -> list[tuple[float, float, float]]:
            trainer = _trainer(lab, shards, world, GCN(), "float32")
            phase_times = []
            for _ in range(epochs + 1):
                begin = perf_counter()
                trainer.epoch()
                total = perf_counter() - begin
                spans = {PRODUCT: 0.0, GEMM: 0.0}
                for span in trainer.recorder.trace:
                    if span.category in spans:
                        spans[span.category] += span.end - span.start
                phase_times.append((spans[PRODUCT], spans[GEMM], total - sum(spans.values())))
            return phase_times[1:]

        with one_thread():
            (times,) = run(1, main)
        return [median(column) for column in zip(*times, strict=True)]

    note = f"one thread, median of {epochs} epochs; {', '.join(graphs)} of {vertices} vertices"
    return [of_graph(name) for name in graphs], note


def epochs_to_converge(
    question: Question, lab: GraphLab, *, graph_options: Sequence[str], epochs: int, within: float
) -> tuple[Cases, str]:
    """First epoch whose validation accuracy is within a share of the run's best, with the configured optimizer.

    `graph_options` are overrides of the configuration.
    """
    config = resolve(["executor=full_graph", "system=sparsity_aware", "partitioner=random", *graph_options])
    graph: Any = build(required(config.graph).source.data()).load(config.seed)
    _, shards = shards_of(graph, Placement(1), dtype="float32", partitioner=partitioner_of(config))

    def main(world: Any) -> list[float]:
        trainer = _trainer(lab, shards, world, GCN(), "float32", config.optimizer.build())
        accuracies = []
        for _ in range(epochs):
            trainer.epoch()
            accuracies.append(trainer.score("validation")["top_1"])
        return accuracies

    with one_thread():
        (accuracies,) = run(1, main)
    best = max(accuracies)
    first = next(epoch for epoch, accuracy in enumerate(accuracies, 1) if accuracy >= (1 - within) * best)
    rule = f"{config.optimizer.target} at {config.optimizer.arguments['lr']}"
    return [[first]], f"best accuracy {best:.1f} percent in {epochs} epochs, {rule}"


# -- an ordinary run ---------------------------------------------------------------------------------------------------


@dataclass
class RecordingPartitioner(Partitioner):
    """Random partitioner that appends the number of parts of each call to REQUESTED_PARTS."""

    def parts(self, matrix: csr_array, k: int, seed: int) -> Any:
        REQUESTED_PARTS.append(k)
        return Random().parts(matrix, k, seed)


REQUESTED_PARTS: list[int] = []  # by RecordingPartitioner, since the last call of `prepare_run`


def prepare_run(processes: int, c: int, folder: Path, vertices: int = 128) -> tuple[Any, list[int]]:
    """Prepare an ordinary run in `folder` as its parent process does; its config, and the requested parts."""
    config = resolve(
        [
            *("executor=full_graph", "system=sparsity_aware", "graph=planted", "partitioner=random"),
            *(f"graph.source.vertices={vertices}", "graph.source.blocks=8", f"reports={folder}"),
            *(f"grid.data={processes}", f"exchange.replication={c}"),
            f"partitioner._target_={__name__}.{RecordingPartitioner.__name__}",
        ]
    )
    REQUESTED_PARTS.clear()
    Prepared(config, folder / "shards")
    return config, list(REQUESTED_PARTS)


def partitioner_calls(question: Question, lab: GraphLab, *, epochs: int = 5) -> Cases:
    """Partitioner calls of a run on four threads that its parent prepares from a configuration, 1D and 1.5D."""

    def calls(processes: int, c: int) -> int:
        with TemporaryDirectory() as folder:
            config, _ = prepare_run(processes, c, Path(folder))
            graph = required(config.graph).model_copy(update={"holdings": str(Path(folder) / "shards")})
            rank_config = config.model_copy(update={"graph": graph})

            def main(world: Any) -> None:
                system = GraphSystem(world, rank_config)
                for _ in range(epochs):
                    system.train_batch(())

            run(processes, main)
            return len(REQUESTED_PARTS)

    return [[calls(4, c)] for c in (1, 2)]


def partitions(processes: int, c: int) -> float:
    """Parts requested by an ordinary run, prepared from its configuration."""
    with TemporaryDirectory() as folder:
        _, requested = prepare_run(processes, c, Path(folder), vertices=512)
    return requested[0] if len(requested) == 1 else np.nan
