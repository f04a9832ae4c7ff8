"""Decides what `python -m suite.clusters` says: the constants of four stacks, fitted anew beside those of conf."""

from __future__ import annotations

from suite import claims
from suite.bench.experiment import resolve
from suite.clusters import pipeoptim, sparse_gnn_fitted
from suite.clusters.calibrate import constants
from suite.clusters.lab import Lab
from suite.clusters.published import Published
from suite.clusters.variants import VARIANTS, anchors, refitted
from suite.core.build import build


def main() -> None:
    labs = [_lab("samo_clusters"), _lab("pipeoptim_clusters")]
    printed = anchors({claim.id: claim for claim in claims.load()})
    fitted = {**refitted(labs[0], VARIANTS[0], printed).stacks, "pipeoptim": pipeoptim.fitted(labs[1], printed)}
    graphs = build(resolve(["experiment=gnn_clusters"])["executor"]).lab
    fitted["gnn"] = sparse_gnn_fitted.fitted(graphs, printed)
    known = {**labs[0].stacks, **graphs.stacks}
    for paper, stack in fitted.items():
        for name, value in constants(stack).items():
            print(f"{paper:<9} {name:<10} {value}   in conf/stack: {getattr(known[paper], name)}")


def _lab(experiment: str) -> Lab:
    executor: Published = build(resolve([f"experiment={experiment}"])["executor"])
    return executor.lab


if __name__ == "__main__":
    main()
