"""Small record stores for tests of the report, made by hand, with traces of checked schedules."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, needs
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import CATEGORY, REDUCE, STEP, WAIT, Trace
from suite.report.load import ReportStore, StoredRecord
from suite.report.tables.record_tables import Table
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check

EXPECT = [
    {"what": "two stages are quicker", "kind": "ratio", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.8},
    {"what": "same losses", "kind": "loss", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 1e-5},
    {"what": "scales on", "kind": "ratio", "system": "axonn 4x1", "versus": "pytorch 1x1", "at_most": 0.5},
]


def make(
    label: str, /, times: Sequence[float] = (0.11, 0.1, 0.12), loss: Sequence[float] = (), **changes: Any
) -> Record:
    """A measured record of experiment `demo`; `changes` replace its fields."""
    system, _, shape = label.partition(" ")
    inter, _, data = (shape or "1x1").partition("x")
    base = Record(
        key=label.replace(" ", "-"),
        experiment="demo",
        system=system,
        label=label,
        outcome=Outcome.OK,
        source=Source.MEASURED,
        config={
            "system": {"name": system, "paper": "AxoNN", "description": "message-driven pipeline"},
            "experiment": {
                "name": "demo",
                "title": "A pipeline of two stages",
                "question": "Is a message-driven pipeline quicker than one process, with the same losses?",
                "paper": "AxoNN",
                "paper_ref": "Figure 6",
                "reference": "pytorch 1x1",
                "expect": EXPECT,
            },
            "grid": {"data": int(data), "inter": int(inter), "tensor": 1},
            "measure": {"rounds": len(times)},
        },
        metrics={
            "batch_time": Metric("s", "lower", tuple(times)),
            "tokens_per_batch": Metric("token", "", (1024.0,)),
            "flops_per_batch": Metric("flop", "", (2e9,)),
            "flops_per_batch_recompute": Metric("flop", "", (2.6e9,)),
            "peak_flops": Metric("flop/s", "higher", (4e10,), "float32 product of 1024 x 1024 matrices, 2 threads"),
        },
        series={"loss": list(loss)},
        provenance={
            "machine": {"name": "laptop", "cores": 2, "cpu": "a quiet processor"},
            "versions": {"python": "3.11.9", "torch": "2.11.0", "suite": "0.1.0"},
            "commit": "0123456789ab",
            "command": f"suite run experiment=demo system={system} grid.inter={inter} grid.data={data}",
            "started": "2025-03-01T10:00:00+00:00",
            "seconds": 12.5,
        },
    )
    return replace(base, **changes)


def store(folder: Path, saved_record: Record, name: str = "") -> Path:
    """Write a record below `folder`, to a file of its key where no name is given."""
    path = folder / "records" / (name or f"{saved_record.key}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(saved_record.to_json(), encoding="utf-8")
    return path


def in_store(*records: Record) -> ReportStore:
    """A store with these records, as if they were read from files that are numbered in their order."""
    return ReportStore(Path("nowhere"), tuple(StoredRecord(each, f"{n}.json") for n, each in enumerate(records)))


def texts(table: Table | None) -> list[list[str]]:
    """Text of each cell, row by row."""
    assert table is not None
    return [[cell.text for cell in row] for row in table.rows]


def store_trace(folder: Path, name: str, trace: Trace, grid: Grid) -> str:
    """Write a trace where the engine would; returns the path for the record."""
    path = folder / "traces" / f"{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = {"data": grid.data, "inter": grid.inter, "tensor": grid.tensor}
    path.write_bytes(gzip.compress(json.dumps({"grid": axes, "spans": [span.row() for span in trace]}).encode()))
    return f"traces/{name}.json.gz"


def pipeline_trace(
    grid: Grid, microbatches: int, *, noise: float = 0.0, message: float = 0.0, driven: bool = True
) -> Trace:
    """One batch of a checked schedule, forward 10 ms and backward 20 ms shared by the stages, then reduce and step."""
    rng = random.Random(grid.size * 100 + microbatches)
    schedule = MessageDriven(pipeline_limit=grid.inter) if driven else OneFOneB()
    ticks = {Kind.FORWARD: 0.010, Kind.BACKWARD: 0.020, Kind.UPDATE: 0.004}
    trace = Trace()
    for replica in range(grid.data):
        costs: dict[Op, float] = {}

        def cost(op: Op, costs: dict[Op, float] = costs) -> float:
            sent = message if needs(op, grid.inter) is not None else 0.0
            return costs.setdefault(op, ticks[op.kind] / grid.inter * (1 + noise * rng.random()) + sent)

        timeline = check(schedule, grid.inter, FlushInterval(0, microbatches, None, 0), cost=cost, replica=replica)
        free = dict.fromkeys(range(grid.inter), 0.0)
        for slot in sorted(timeline.slots, key=lambda slot: slot.start):
            rank = grid.rank(data=replica, inter=slot.op.stage)
            begin = slot.start + (message if needs(slot.op, grid.inter) is not None else 0.0)
            if begin > free[slot.op.stage]:
                trace.add(rank, WAIT, free[slot.op.stage], begin, slot.op)
            if slot.op.kind is Kind.UPDATE:
                middle = (begin + slot.end) / 2
                if grid.data > 1:
                    trace.add(rank, REDUCE, begin, middle, slot.op, 40_000)
                trace.add(rank, STEP, middle if grid.data > 1 else begin, slot.end, slot.op)
            else:
                trace.add(rank, CATEGORY[slot.op.kind], begin, slot.end, slot.op, 65_536)
            free[slot.op.stage] = slot.end
    return trace


def fill(folder: Path) -> None:
    """Several systems, one failed, one late, one with more ranks than cores, a simulated experiment, a bad file."""
    rng = random.Random(7)
    loss = [5.2 * 0.93**i + 0.8 + 0.05 * rng.random() for i in range(24)]
    kinds = {"weights": 9e6, "gradients": 9e6, "moments": 36e6, "activations": 14e6, "scratch": 1.5e6}
    shapes = {"pytorch 1x1": 0.21, "axonn 2x1": 0.142, "axonn 1x2": 0.151, "gpipe 2x1": 0.163, "axonn 4x1": 0.19}
    for label, middle in shapes.items():
        inter, data = (int(part) for part in label.split()[1].split("x"))
        grid = Grid(data=data, inter=inter)
        trace = pipeline_trace(grid, 8, noise=0.3, message=0.0004, driven=label.startswith("axonn"))
        wide = grid.size > 2
        note = "oversubscribed: 4 ranks on 2 cores" if wide else ""
        bytes_held = {kind: [int(size / inter)] * grid.size for kind, size in kinds.items()}
        seen = {kind: [int(size * (1 + 0.04 * rng.random())) for size in sizes] for kind, sizes in bytes_held.items()}
        base = make(label, loss=[x * (1 + 1e-7 * rng.random()) for x in loss])
        panels = [{"title": "A batch over its ranks", "unit": "s", "key": "ranks", "metric": "batch_time"}]
        base.config["experiment"]["panels"] = panels
        times = tuple(middle * (1 + 0.12 * rng.random() ** 2) for _ in range(20))
        store(
            folder,
            replace(
                base,
                metrics=base.metrics | {"batch_time": Metric("s", "lower", times, note)},
                series=base.series | {"validation_loss": [loss[i] + 0.2 for i in (5, 11, 17, 23)]},
                memory={"predicted": bytes_held, "measured": seen},
                trace=store_trace(folder, base.key, trace, grid),
                notes=("more ranks than cores: times are not comparable",) if wide else (),
            ),
        )
    reason = (
        'Traceback (most recent call last):\n  File "worker.py", line 41, in run\nRuntimeError: rank 1: <bad shape>'
    )
    store(folder, make("pipeoptim 2x1", (), outcome=Outcome.FAILED, reason=reason))
    store(folder, make("pipedream 2x1", (0.2,), loss[:4], outcome=Outcome.TIMEOUT, reason="rank 1 not done after 60 s"))
    for label, time in (("axonn 48x2", 3.1), ("deepspeed_3d 48x2", 3.9)):
        grid = Grid(data=2, inter=8)
        base = make(label, (time,), experiment="scaling", source=Source.SIMULATED)
        config = base.config | {"experiment": {"title": "Weak scaling, simulated", "reference": "deepspeed_3d 48x2"}}
        name = store_trace(folder, base.key, pipeline_trace(grid, 16, noise=0.1, message=0.0002), grid)
        store(folder, replace(base, config=config, trace=name))
    (folder / "records" / "cut.json").write_text('{"schema_version": 1, "key": ', encoding="utf-8")
    (folder / "records" / "old.json").write_text('{"schema_version": 0}', encoding="utf-8")
