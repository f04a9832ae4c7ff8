"""Probes for the paper's claims on the parts of a training, on threads and in ordinary runs.

A run is prepared from the suite's configuration by its parent, as the command line does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.config.locate import locate
from suite.core.errors import InvalidRequest
from suite.core.protocols import Missing, Ready
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.gnn.partition import Partitioner
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans, build_shards
from suite.papers.common.answer import Cases, Question
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.probes_watch import DEADLINE, watched
from suite.workload.gcn import GCN

# -- a whole training --------------------------------------------------------------------------------------------------


@contextmanager
def on_one_core() -> Iterator[None]:
    """Torch computes on one core meanwhile: on a machine that others use, more wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trainer(lab: GraphLab, graph: Any, world: Any, shape: GCN, classes: int, dtype: str = "float64") -> Any:
    """With the sparsity-aware exchange, on parts in a random order, one for each rank."""
    from suite.engine.optim.optimizer import Adam
    from suite.gnn.train import Trainer

    matrix = operator(graph)
    forward, back = build_plans(matrix, Random().parts(matrix, world.size, 0), Placement(world.size))
    masks = {"train": graph.train, "validation": graph.validation, "test": graph.test}
    arguments = list(
        build_shards(
            forward, back, features=graph.features, labels=graph.labels, masks=masks, classes=classes, dtype=dtype
        )
    )
    kind = locate(lab.exchanges["sparsity_aware"])
    return Trainer(arguments[world.rank], world, exchange=kind, optimizer=Adam(0.01), shape=shape, dtype=dtype)


def weight_gradient(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Words that a rank brings to the sum of the gradient in one epoch of a single square layer."""
    from suite.comm.p2p.threads import run

    values = []
    for p in question.integer_points():
        graph = Planted(vertices=192, blocks=8, classes=4, features=p["f"]).load(0)

        def main(world: Any, graph: Any = graph, width: int = p["f"]) -> int:
            wire = watched(world)
            trainer = _trainer(lab, graph, world, GCN(1, width), width)
            trainer.epoch()
            at = trainer.state.gradient.data_ptr()
            return sum(words for _, words, place in wire.sums if place == at)

        each = set(run(3, main, deadline=DEADLINE))
        values.append(each.pop() if len(each) == 1 else np.nan)
    return [values], "words of the gradient that each of three threads hands to the sum, one epoch of one layer"


def held(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Entries of the matrix that ranks hold, and of the inputs H^0 to H^(L-1) of the layers, over all ranks."""
    from suite.comm.p2p.threads import run

    values = []
    for p in question.integer_points():
        graph = Planted(vertices=p["n"], blocks=8, classes=4, features=p["f"]).load(0)
        entries = operator(graph).nnz
        if entries != p["nnz"]:
            raise InvalidRequest(f"a graph of {entries} entries", rule=f"the point says {p['nnz']}")

        def main(world: Any, p: Any = p, graph: Any = graph) -> int:
            trainer = _trainer(lab, graph, world, GCN(p["L"], p["f"]), 4)
            words = [0]
            for layer in trainer.layers:
                layer.register_forward_pre_hook(lambda _, given: words.append(given[0].numel()))
            trainer.epoch()
            matrices = sum(matrix.values().numel() for matrix in trainer.forward.matrices if matrix is not None)
            return int(matrices + sum(words))

        values.append(sum(run(3, main, deadline=DEADLINE)))
    return [values], "entries of A and of H^0 to H^(L-1) that three threads hold in an epoch of training"


def phases(
    question: Question, lab: GraphLab, *, graphs: Sequence[str], vertices: int, epochs: int = 5
) -> tuple[Cases, str]:
    """Seconds of sparse products, of dense ones and of all else in an epoch on one rank, the median of several."""
    from dataclasses import replace
    from time import perf_counter

    from suite.comm.p2p.threads import run
    from suite.core.trace import GEMM, PRODUCT

    cases = []
    for name in graphs:
        graph = replace(lab.source(name), vertices=vertices).load(0)

        def main(world: Any, graph: Any = graph) -> list[tuple[float, float, float]]:
            trainer = _trainer(lab, graph, world, GCN(), int(graph.classes), "float32")
            phase_times = []
            for _ in range(epochs + 1):
                begin = perf_counter()
                trainer.epoch()
                whole = perf_counter() - begin
                spans = {PRODUCT: 0.0, GEMM: 0.0}
                for span in trainer.recorder.trace:
                    if span.category in spans:
                        spans[span.category] += span.end - span.start
                phase_times.append((spans[PRODUCT], spans[GEMM], whole - sum(spans.values())))
            return phase_times[1:]

        with on_one_core():
            (times,) = run(1, main, deadline=DEADLINE)
        cases.append([median(column) for column in zip(*times, strict=True)])
    return cases, f"one thread, median of {epochs} epochs; {', '.join(graphs)} of {vertices} vertices"


def to_converge(
    question: Question, lab: GraphLab, *, graph_options: Sequence[str], epochs: int, within: float
) -> tuple[Cases, str]:
    """The first epoch whose validation accuracy is within a share of the best of the run, with the optimizer and the
    rate that the suite's configuration gives. graph_options: overrides of that configuration"""
    from suite.comm.p2p.threads import run
    from suite.config.compose import resolve
    from suite.config.plugins import build
    from suite.gnn.partition_data import partitioner_of
    from suite.gnn.settings import graph_settings
    from suite.gnn.train import Trainer

    config = resolve(["executor=full_graph", "system=sparsity_aware", "partitioner=random", *graph_options])
    graph: Any = build(graph_settings(config).source.data()).load(config.seed)
    matrix = operator(graph)
    forward, back = build_plans(matrix, partitioner_of(config).parts(matrix, 1, 0), Placement(1))
    masks = {"train": graph.train, "validation": graph.validation, "test": graph.test}
    (shard,) = build_shards(
        forward, back, features=graph.features, labels=graph.labels, masks=masks, classes=graph.classes
    )

    def main(world: Any) -> list[float]:
        trainer = Trainer(
            shard,
            world,
            exchange=locate(lab.exchanges["sparsity_aware"]),
            optimizer=config.optimizer.build(),
            shape=GCN(),
        )
        losses = []
        for _ in range(epochs):
            trainer.epoch()
            losses.append(trainer.score("validation")["top_1"])
        return losses

    with on_one_core():
        (right,) = run(1, main, deadline=DEADLINE)
    best = max(right)
    first = next(at for at, each in enumerate(right, 1) if each >= (1 - within) * best)
    rule = f"{config.optimizer.target} at {config.optimizer.arguments['lr']}"
    return [[first]], f"best accuracy {best:.1f} percent in {epochs} epochs, {rule}"


# -- an ordinary run ---------------------------------------------------------------------------------------------------


@dataclass
class WatchedOrder(Partitioner):
    """A random order that records its calls."""

    objective = "none"
    seedable = True
    packages = ()

    def probe(self) -> Ready | Missing:
        return Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> Any:
        ASKED.append(k)
        return Random().parts(matrix, k, seed)


ASKED: list[int] = []  # the parts that were asked for, since it was last emptied


def prepared(processes: int, c: int, folder: Path, vertices: int = 128) -> tuple[Any, list[int]]:
    """Products of the parent of an ordinary run, from its configuration: the config, and the recorded calls."""
    from suite.config.compose import resolve
    from suite.gnn.partition_data import Prepared

    config = resolve(
        [
            *("executor=full_graph", "system=sparsity_aware", "graph=planted", "partitioner=random"),
            *(f"graph.source.vertices={vertices}", "graph.source.blocks=8", f"reports={folder}"),
            *(f"grid.data={processes}", f"exchange.replication={c}"),
            f"partitioner._target_={__name__}.{WatchedOrder.__name__}",
        ]
    )
    ASKED.clear()
    Prepared(config, folder / "holdings")
    return config, list(ASKED)


def once(question: Question, lab: GraphLab, *, epochs: int = 5) -> tuple[Cases, str]:
    """Of a run as its parent prepares it and its ranks, which read their files, train it."""
    from suite.comm.p2p.threads import run
    from suite.gnn.settings import graph_settings
    from suite.gnn.train import GraphSystem

    cases = []
    for processes, c in ((4, 1), (4, 2)):
        with TemporaryDirectory() as folder:
            config, _ = prepared(processes, c, Path(folder))
            graph = graph_settings(config).model_copy(update={"holdings": str(Path(folder) / "holdings")})
            graph_config = config.model_copy(update={"graph": graph})

            def main(world: Any, config: Any = graph_config) -> None:
                system = GraphSystem(world, config)
                for _ in range(epochs):
                    system.train_batch(())

            run(processes, main, deadline=DEADLINE)
            cases.append([len(ASKED)])
    return cases, f"a run prepared from its configuration, {epochs} epochs on four threads, 1D and 1.5D"


def partitions(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        with TemporaryDirectory() as folder:
            _, prepared_shards = prepared(p["P"], p["c"], Path(folder), vertices=512)
        values.append(prepared_shards[0] if len(prepared_shards) == 1 else np.nan)
    return [values], "what an ordinary run asks its partitioner for, prepared from its configuration"
