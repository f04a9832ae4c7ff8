"""Decides what `python -m suite.draw` does: prints the schedule of a config as a text grid.

python -m suite.draw system=gpipe grid.inter=4 draw.microbatches=4
python -m suite.draw system=axonn grid.inter=3 draw.microbatches=5 schedule.prefer=forward
python -m suite.draw system=pipeoptim grid.inter=4
python -m suite.draw system=sparsity_aware_metis graph=amazon_like grid.data=4 draw.plan=plan.npz

A system that updates without draining also shows which version of its weights each pass reads, `2+3` for version 2
predicted 3 updates ahead, and PipeOptim's Table II at this depth, all from the ledgers that a run keeps. A system that
trains a whole graph shows its plan instead: which rows each process needs. `draw.plan` keeps it in a file, or reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.bench.checked import check_size
from suite.bench.experiment import resolve, well_formed
from suite.bench.kinds import DRAWN
from suite.core.build import build
from suite.core.errors import SuiteError
from suite.core.op import Kind, Op, Work
from suite.core.protocols import WeightPolicy
from suite.gnn import prepare
from suite.gnn.draw import chart as chart_of
from suite.gnn.draw import tables
from suite.gnn.holding import plans
from suite.gnn.plan import Plan
from suite.schedule.check import Timeline, check
from suite.schedule.draw import chart, columns
from suite.weights import Ledger
from suite.weights.account import PASSES, ahead, entries, follow, staleness

DEEPEST = 32  # stages of Table II: its time grows with their cube, and is seconds here
TABLE_2 = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")


def draw(overrides: Sequence[str]) -> str:
    """The grid, its makespan and idle times, and what each stage holds at most."""
    config = well_formed(overrides, DRAWN)
    if config["system"].get("graphs"):
        return graph(config)
    plan = config["draw"]
    ticks = {Kind.FORWARD: plan["forward"], Kind.BACKWARD: plan["backward"]}

    def cost(op: Op) -> float:
        return float(ticks.get(op.kind, 0))

    stages, every = config["grid"]["inter"], config["update"]["every"]
    check_size(plan["microbatches"], stages)
    work = Work(0, plan["microbatches"], every, 0)
    policy = build(config["weights"])
    if hasattr(policy, "check"):
        policy.check(stages, every)
    timeline = check(build(config["schedule"]), stages, work, cost=cost)
    peaks = ", ".join(map(str, timeline.peak))
    told = f"{chart(timeline.slots, stages)}\nactivations alive per stage at most {peaks}"
    if every is None:
        return told
    table = table_2(config) if stages <= DEEPEST else f"Table II is told of at most {DEEPEST} stages"
    return f"{told}\n\n{versions(account(policy, timeline, work))}\n\n{table}"


def graph(config: Mapping[str, Any]) -> str:
    """The plan of a full-graph system's forward product: its needs as a picture, and its volumes."""
    file = Path(config["draw"]["plan"]) if config["draw"]["plan"] else None
    if file is not None and file.exists():
        plan = Plan.load(file)
    else:
        prepare.check(config)
        _, matrix = prepare.graph_of(config)
        placement = prepare.placement_of(config)
        parts = prepare.partition_of(config, placement.parts).parts
        plan, _ = plans(matrix, parts, placement)
        if file is not None:
            plan.save(file)
    return f"{chart_of(plan, config['draw']['width'])}\n\n{tables(plan)}"


def account(policy: WeightPolicy, timeline: Timeline, work: Work) -> list[Ledger]:
    return follow(policy, [timeline.order(stage) for stage in range(timeline.stages)], work)


def versions(ledgers: Sequence[Ledger]) -> str:
    """What each pass reads, a column per microbatch, and the copies of the weights that a stage holds at most."""
    count = ledgers[0].work.microbatches
    rows = [["weights read by microbatch", *(str(index) for index in range(count)), "copies"]]
    for stage, ledger in enumerate(ledgers):
        for kind in PASSES:
            read = {e.op.index: _told(e.read.version, e.read.ahead) for e in entries(ledger, kind, steady=False)}
            held = str(ledger.peak) if kind is Kind.FORWARD else ""
            rows.append([f"stage {stage} {kind.name.lower()}", *(read.get(i, "kept") for i in range(count)), held])
    return columns(rows)


def _told(version: int, further: int) -> str:
    return f"{version}+{further}" if further else str(version)


def table_2(config: Mapping[str, Any]) -> str:
    """PipeOptim Table II at this depth: of steady mini-batches, stage by stage."""
    stages = config["grid"]["inter"]
    name = config["system"]["name"]
    rows = [["Table II, by stage", "F lacks", "B lacks", "F ahead", "B ahead", "copies"]]
    for system in (*TABLE_2, *([] if name in TABLE_2 else [name])):
        own = config
        if system != name:
            own = resolve([f"system={system}", f"grid.inter={stages}"])
        every = own["update"]["every"]
        work = Work(0, (stages + 2) * 2 * every, every, 0)
        found = account(build(own["weights"]), check(build(own["schedule"]), stages, work), work)
        lacks = [[f"{staleness(each, kind):g}" for each in found] for kind in PASSES]
        further = [[f"{ahead(each, kind):g}" for each in found] for kind in PASSES]
        rows.append([system, *(" ".join(part) for part in (*lacks, *further, [str(each.peak) for each in found]))])
    return columns(rows)


def main(overrides: Sequence[str]) -> int:
    try:
        print(draw(overrides))
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
