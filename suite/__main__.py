"""Decides what `python -m suite` does: makes the run, experiment or sweep that the command line names.

    python -m suite system=axonn model=gpt_tiny grid.inter=2
    python -m suite experiment=axonn_fig10
    python -m suite -m system=axonn,gpipe grid.inter=1,2     # a sweep, by Hydra

Ends with 0 when every run went well, 1 when some did not (each left a record), 2 when nothing could be measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from suite.bench.experiment import CONF, check_names, expand, register, searched
from suite.bench.interrupt import ending_ranks
from suite.bench.measure import measure
from suite.bench.progress import Progress
from suite.core.errors import SuiteError
from suite.core.record import Outcome, Record
from suite.core.units import seconds

# Hydra's own flags: with any of them the command line is Hydra's to read
_HYDRA = ("-m", "--multirun", "-c", "--cfg", "--info", "-h", "--help", "--hydra-help", "-p", "--package", "--resolve")


def run(overrides: Sequence[str], progress: Progress | None = None) -> list[Record]:
    """Makes the runs of one command line; says a line for each."""
    runs = expand(overrides)
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
        lines = record.reason.strip().splitlines() or ["no samples"]
        reason = lines[0 if "; rule:" in lines[0] else -1]
        return f"{head} {reason}"
    losses = record.series.get("loss")
    change = f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else str(record.source)
    return f"{head} {1e3 * median(samples):8.1f} ms per batch, {change}, {len(samples)} samples"


def exit_code(records: Sequence[Record]) -> int:
    if not any(record.outcome is Outcome.OK for record in records):
        return 2
    return 0 if all(record.outcome is Outcome.OK for record in records) else 1


def sweep(arguments: Sequence[str]) -> int:
    """Hydra reads the command line and calls back once per job; no job ends the others. The worst exit code."""
    codes = [0]

    def job(config: DictConfig) -> None:
        try:
            codes.append(exit_code(run(list(HydraConfig.get().overrides.task))))
        except SuiteError as error:
            print(f"refused: {error}", file=sys.stderr)
            codes.append(2)

    sys.argv[1:] = [*arguments, *searched(arguments)]
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    return 1 if max(codes) and min(codes[1:], default=0) < 2 else max(codes)


def main(arguments: Sequence[str]) -> int:
    register()
    try:
        if any(argument in _HYDRA for argument in arguments):
            check_names([argument for argument in arguments if "=" in argument])
            return sweep(arguments)
        begun = Progress(1.0)
        records = run(arguments)
        folder = Path(records[0].config["reports"]) if records else Path("reports")
        print(f"{len(records)} records in {folder / 'records'}, {seconds(begun.clock() - begun.begin)}")
        print("python -m suite.report makes the page")
        return exit_code(records)
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
