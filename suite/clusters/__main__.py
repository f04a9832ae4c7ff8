"""Decides what `python -m suite.clusters` says: the constants of both stacks, fitted anew beside those of conf."""

from __future__ import annotations

from suite import claims
from suite.bench.experiment import resolve
from suite.clusters.calibrate import constants
from suite.clusters.published import Published
from suite.clusters.variants import VARIANTS, anchors, refitted
from suite.core.build import build


def main() -> None:
    executor: Published = build(resolve(["experiment=samo_clusters"])["executor"])
    fitted = refitted(executor.lab, VARIANTS[0], anchors({claim.id: claim for claim in claims.load()}))
    for paper, stack in fitted.stacks.items():
        for name, value in constants(stack).items():
            print(f"{paper:<6} {name:<10} {value}   in conf/stack: {getattr(executor.lab.stacks[paper], name)}")


if __name__ == "__main__":
    main()
