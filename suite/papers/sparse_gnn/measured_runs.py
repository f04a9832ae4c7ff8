"""Probes for the paper's claims on parts of training, on threads and in ordinary runs.

A run is prepared by the parent process from its configuration, as on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.claims.answer import Cases, Question
from suite.config.locate import locate
from suite.core.errors import InvalidRequest
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.gnn.partition import Partitioner
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans, build_shards
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.measured_watch import watch_groups
from suite.workload.gcn import GCN

# -- training on threads -----------------------------------------------------------------------------------------------


def _trainer(lab: GraphLab, graph: Any, world: Any, shape: GCN, classes: int, dtype: str = "float64") -> Any:
    """Trainer with the sparsity-aware exchange on a random partition, one part per rank."""
    from suite.engine.optim.optimizer import Adam
    from suite.gnn.train import Trainer

    matrix = operator(graph)
    forward, back = build_plans(matrix, Random().parts(matrix, world.size, 0), Placement(world.size))
    shards = list(build_shards(forward, back, replace(graph, classes=classes), dtype))
    exchange = locate(lab.exchanges["sparsity_aware"])
    return Trainer(shards[world.rank], world, exchange=exchange, optimizer=Adam(0.01), shape=shape, dtype=dtype)


def weight_gradient(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Words that a rank contributes to the all-reduce of the gradient in one epoch of a single square layer."""
    from suite.comm.p2p.threads import run

    values = []
    for p in question.integer_points():
        graph = Planted(vertices=192, blocks=8, classes=4, features=p["f"]).load(0)

        def main(world: Any, graph: Any = graph, width: int = p["f"]) -> int:
            traffic = watch_groups(world)
            trainer = _trainer(lab, graph, world, GCN(1, width), width)
            trainer.epoch()
            gradient = trainer.state.gradient.data_ptr()
            return sum(words for _, words, pointer in traffic.sums if pointer == gradient)

        word_counts = set(run(3, main))
        values.append(word_counts.pop() if len(word_counts) == 1 else np.nan)
    return [values], "words of the gradient that each of three threads sums in one epoch of one layer"


def stored_entries(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Entries of the matrix and of the layer inputs H^0 to H^(L-1), over all ranks.

    Raises:
        InvalidRequest: The graph has another number of entries than the point of the formula.
    """
    from suite.comm.p2p.threads import run

    values = []
    for p in question.integer_points():
        graph = Planted(vertices=p["n"], blocks=8, classes=4, features=p["f"]).load(0)
        entries = operator(graph).nnz
        if entries != p["nnz"]:
            raise InvalidRequest(f"a graph of {entries} entries", rule=f"nnz={p['nnz']} of the claim's point")

        def main(world: Any, p: Any = p, graph: Any = graph) -> int:
            trainer = _trainer(lab, graph, world, GCN(p["L"], p["f"]), 4)
            words = [0]
            for layer in trainer.layers:
                layer.register_forward_pre_hook(lambda _, inputs: words.append(inputs[0].numel()))
            trainer.epoch()
            matrices = sum(m.values().numel() for m in trainer.forward.matrices.values() if m is not None)
            return int(matrices + sum(words))

        values.append(sum(run(3, main)))
    return [values], "entries of A and of H^0 to H^(L-1) on three threads in an epoch of training"


def phases(
    question: Question, lab: GraphLab, *, graphs: Sequence[str], vertices: int, epochs: int = 5
) -> tuple[Cases, str]:
    """Median seconds of an epoch on one rank: sparse products, dense products and the rest."""
    from dataclasses import replace
    from time import perf_counter

    from suite.comm.p2p.threads import run
    from suite.core.trace import GEMM, PRODUCT
    from suite.papers.measured import one_thread

    cases = []
    for name in graphs:
        graph = replace(lab.source(name), vertices=vertices).load(0)

        def main(world: Any, graph: Any = graph) -> list[tuple[float, float, float]]:
            trainer = _trainer(lab, graph, world, GCN(), int(graph.classes), "float32")
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
        cases.append([median(column) for column in zip(*times, strict=True)])
    return cases, f"one thread, median of {epochs} epochs; {', '.join(graphs)} of {vertices} vertices"


def epochs_to_converge(
    question: Question, lab: GraphLab, *, graph_options: Sequence[str], epochs: int, within: float
) -> tuple[Cases, str]:
    """First epoch whose validation accuracy is within a share of the run's best, with the configured optimizer.

    `graph_options` are overrides of the configuration.
    """
    from suite.comm.p2p.threads import run
    from suite.config.compose import resolve
    from suite.config.plugins import build
    from suite.gnn.partition_data import partitioner_of
    from suite.gnn.settings import graph_settings
    from suite.gnn.train import Trainer
    from suite.papers.measured import one_thread

    config = resolve(["executor=full_graph", "system=sparsity_aware", "partitioner=random", *graph_options])
    graph: Any = build(graph_settings(config).source.data()).load(config.seed)
    matrix = operator(graph)
    forward, back = build_plans(matrix, partitioner_of(config).parts(matrix, 1, 0), Placement(1))
    (shard,) = build_shards(forward, back, graph)

    def main(world: Any) -> list[float]:
        trainer = Trainer(
            shard,
            world,
            exchange=locate(lab.exchanges["sparsity_aware"]),
            optimizer=config.optimizer.build(),
            shape=GCN(),
        )
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
    from suite.config.compose import resolve
    from suite.gnn.partition_data import Prepared

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


def partitioner_calls(question: Question, lab: GraphLab, *, epochs: int = 5) -> tuple[Cases, str]:
    """Partitioner calls of a run that its parent process prepares and its ranks train from their files."""
    from suite.comm.p2p.threads import run
    from suite.gnn.settings import graph_settings
    from suite.gnn.train import GraphSystem

    cases = []
    for processes, c in ((4, 1), (4, 2)):
        with TemporaryDirectory() as folder:
            config, _ = prepare_run(processes, c, Path(folder))
            graph = graph_settings(config).model_copy(update={"holdings": str(Path(folder) / "shards")})
            rank_config = config.model_copy(update={"graph": graph})

            def main(world: Any, config: Any = rank_config) -> None:
                system = GraphSystem(world, config)
                for _ in range(epochs):
                    system.train_batch(())

            run(processes, main)
            cases.append([len(REQUESTED_PARTS)])
    return cases, f"a run prepared from its configuration, {epochs} epochs on four threads, 1D and 1.5D"


def partitions(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        with TemporaryDirectory() as folder:
            _, requested = prepare_run(p["P"], p["c"], Path(folder), vertices=512)
        values.append(requested[0] if len(requested) == 1 else np.nan)
    return [values], "parts requested by an ordinary run, prepared from its configuration"
