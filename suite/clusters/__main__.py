"""Command that fits the constants of four stacks anew and prints them next to those of conf/stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.exits import Exit

if TYPE_CHECKING:
    from suite.clusters.graph_lab import GraphLab
    from suite.clusters.lab import Lab


def clusters(arguments: Arguments) -> int:
    from suite import claims
    from suite.clusters import pipeoptim, sparse_gnn_fitted
    from suite.clusters.calibrate import constants
    from suite.clusters.variants import VARIANTS, anchors, refitted

    labs = [_lab("samo_clusters"), _lab("pipeoptim_clusters")]
    printed = anchors({claim.id: claim for claim in claims.load()})
    fitted = {**refitted(labs[0], VARIANTS[0], printed).stacks, "pipeoptim": pipeoptim.fitted(labs[1], printed)}
    graphs = _graph_lab()
    fitted["gnn"] = sparse_gnn_fitted.fitted(graphs, printed)
    known = {**labs[0].stacks, **graphs.stacks}
    for paper, stack in fitted.items():
        for name, value in constants(stack).items():
            print(f"{paper:<9} {name:<10} {value}   in conf/stack: {getattr(known[paper], name)}")
    return Exit.OK


def _lab(experiment: str) -> Lab:
    from suite.clusters.published import Published
    from suite.config.compose import resolve

    executor = resolve([f"experiment={experiment}"]).executor.build()
    assert isinstance(executor, Published)
    return executor.lab


def _graph_lab() -> GraphLab:
    from suite.clusters.graph_figures import GraphFigures
    from suite.config.compose import resolve

    executor = resolve(["experiment=gnn_clusters"]).executor.build()
    assert isinstance(executor, GraphFigures)
    return executor.lab


COMMAND = Command(
    "clusters",
    "Fit the constants of the simulated stacks anew, and print them next to those of conf/stack.",
    clusters,
    "",
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
