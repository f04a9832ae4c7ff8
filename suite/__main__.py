"""Decides what `python -m suite` does: makes the run, experiment or sweep that the command line names.

    python -m suite system=axonn model=gpt_tiny grid.inter=2
    python -m suite experiment=axonn_fig10
    python -m suite -m system=axonn,gpipe grid.inter=1,2     # a sweep, by Hydra: each job in a process of its own
    python -m suite experiment=axonn_fig10 --dry-run         # what would be made, or submitted

What it ends with stands in suite/core/exits.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from suite.bench import provenance
from suite.bench.experiment import Run, expand, register
from suite.bench.interrupt import answered, ending_ranks
from suite.bench.measure import measure
from suite.bench.progress import Progress
from suite.bench.store import Store
from suite.core.exits import Exit, exit_code
from suite.core.record import Outcome, Record
from suite.core.units import seconds
from suite.sweep import DRY, asks_hydra, scheduled, sweep, together


def run(overrides: Sequence[str], progress: Progress | None = None) -> list[Record]:
    """Makes the runs of one command line; says a line for each."""
    return made(expand(overrides), progress)


def made(runs: Sequence[Run], progress: Progress | None = None) -> list[Record]:
    """The records of these runs; says a line for each."""
    progress = progress or Progress(float(runs[0].config["experiment"]["seconds"]))
    with ending_ranks():
        records = measure(runs, progress)
    for record in records:
        progress.say(summary(record))
    return records


def summary(record: Record) -> str:
    """One line: label, outcome, median batch time, or how many values a run without batches has, or the reason."""
    head = f"  {record.label:<18} {record.outcome.value:<12}"
    samples = record.metrics["batch_time"].values if "batch_time" in record.metrics else ()
    if record.outcome is Outcome.OK and not samples and record.metrics:
        return f"{head} {len(record.metrics)} values, {record.source}"
    if record.outcome is not Outcome.OK or not samples:
        lines = [line for line in record.reason.splitlines() if any(map(str.isalnum, line))] or ["no samples"]
        reason = lines[0 if "; rule:" in lines[0] else -1]
        return f"{head} {reason}"
    losses = record.series.get("loss")
    change = f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else str(record.source)
    return f"{head} {1e3 * median(samples):8.1f} ms per batch, {change}, {len(samples)} samples"


def planned(runs: Sequence[Run]) -> list[str]:
    """A line for each run: it has a record, is refused, or would be made."""
    lines = []
    for run in runs:
        store, key = Store(Path(run.config["reports"])), provenance.key(run.config)
        standing = store.standing(run.config, key, run.config["rerun"])
        what = f"has a record ({standing.outcome})" if standing else f"refused: {run.refusal}" if run.refusal else ""
        lines.append(f"  {run.label:<18} {what or f'would be made, {run.ranks} ranks'}")
    return lines


def command(arguments: Sequence[str]) -> int:
    register()
    dry, arguments = DRY in arguments, [argument for argument in arguments if argument != DRY]
    if asks_hydra(arguments):
        return sweep(arguments, dry)
    begun = Progress(1.0)
    runs = expand(arguments)
    if runs and runs[0].config["launch"].get("submit"):
        return together(scheduled([arguments], dry))
    if dry:
        print("\n".join(planned(runs)))
        return Exit.OK
    records = made(runs)
    folder = Path(runs[0].config["reports"]) if runs else Path("reports")
    print(f"{len(records)} records in {folder / 'records'}, {seconds(begun.clock() - begun.begin)}")
    print("python -m suite.report makes the page")
    return exit_code(records, runs[0].config["on_error"] if runs else "record")


def main(arguments: Sequence[str]) -> int:
    return answered(command, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
