"""Command `suite draw`: print the schedule that `suite check` checks as a text grid.

suite draw system=gpipe grid.inter=4 batch.size=8
suite draw system=axonn grid.inter=3 batch.size=10 schedule.prefer=forward
suite draw system=pipeoptim grid.inter=4 executor.ticks.backward=3
suite draw schedule=zbv grid.inter=4 --csv zbv.csv          # writes the schedule as a file of PyTorch
suite draw zbv.csv                                          # draws such a file

A batch has batch.size / (batch.microbatch * grid.data) microbatches: batch.size=10 gives five of two samples. Systems
with a fixed order, such as PyTorch's pipelines and DeepSpeed, are drawn in this order. An override that does not change
the drawing is refused.

Of a pipeline that does not drain, a batch and at least twice as many microbatches as ranks are drawn. A table below the
grid lists the weight version that each pass reads. `2+3` means version 2 with 3 predicted updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, argument, command
from suite.cli.check import EXECUTOR
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.exit_codes import Exit
from suite.core.files import check_file
from suite.core.op import FlushInterval, Kind
from suite.schedule.check import check, check_one_version, op_costs
from suite.schedule.draw import chart, columns
from suite.schedule.torch_csv import write
from suite.weights import Ledger
from suite.weights.version_table import PASSES, entries, run_ledgers

if TYPE_CHECKING:
    from suite.runner.runs import Run


def draw(overrides: Sequence[str], csv: Path | None = None) -> str:
    """The schedule of each run of a command line as a text grid. Raises InvalidRequest for a run that cannot run.

    Args:
        overrides: Words of the command line.
        csv: Schedule file to write.
    """
    from suite.runner.runs import expand

    return "\n\n".join(drawing(run, csv) for run in expand([EXECUTOR, *overrides]))


def drawing(run: Run, csv: Path | None) -> str:
    """The text grid of a run, with the largest number of live activations per stage."""
    from suite.config.executor import CheckExecutor

    if run.refusal is not None:
        raise run.refusal
    config, executor = run.config, run.config.executor
    if not isinstance(executor, CheckExecutor):
        raise Unsupported("executor", executor.kind, rule="a drawing checks the schedule", legal=EXECUTOR)
    grid, every, ticks = run.grid, config.update_interval, executor.ticks
    count = config.microbatches if every is None else max(config.microbatches, 2 * grid.inter)
    schedule, interval = config.schedule.build(), FlushInterval(0, count, every, 0)
    timeline = check(schedule, grid.inter, interval, cost=op_costs(ticks.forward, ticks.backward, ticks.weight))
    check_one_version(schedule, timeline, every)
    row = "stage" if timeline.stages == grid.inter else "rank"
    peaks = ", ".join(map(str, timeline.peak))
    text = f"{chart(timeline.slots, grid.inter, place=timeline.places[0])}\nactivations alive per {row} at most {peaks}"
    if any(timeline.owed):
        text += f"\nweight gradients owed per {row} at most {', '.join(map(str, timeline.owed))}"
    if grid.size > grid.inter:
        text += f"\none of {grid.size // grid.inter} ranks per {row} ({grid}), which all run this order"
    if csv is not None:
        if every is not None:
            rule = "a schedule file has no updates, so it holds one flush"
            raise InvalidRequest(f"--csv with update_interval={every}", rule=rule, legal="update_interval=null")
        orders = [timeline.order(rank) for rank in range(grid.inter)]
        check_file(csv, "--csv").write_text(write(orders), encoding="utf-8")
    if every is None:
        return text
    return f"{text}\n\n{versions(run_ledgers(config.weights.build(), timeline.stage_orders(), interval))}"


def versions(ledgers: Sequence[Ledger]) -> str:
    """The versions that each pass reads, a column per microbatch, and the maximum number of weight copies on each
    stage.
    """
    count = ledgers[0].interval.microbatches
    rows = [["weights read by microbatch", *(str(index) for index in range(count)), "copies"]]
    for stage, ledger in enumerate(ledgers):
        for kind in PASSES:
            read = {}
            for entry in entries(ledger, kind, steady=False):
                ahead = entry.read.predict_steps
                read[entry.op.index] = f"{entry.read.version}+{ahead}" if ahead else str(entry.read.version)
            peak = str(ledger.peak) if kind is Kind.FORWARD else ""
            rows.append([f"stage {stage} {kind.name.lower()}", *(read.get(i, "kept") for i in range(count)), peak])
    return columns(rows)


@command(
    "Draw a schedule or a schedule file as a text grid.",
    "system=axonn grid.inter=3 batch.size=10",
    argument("--csv", type=Path, metavar="FILE", help="schedule file of PyTorch to write"),
    config=True,
    file=".csv",
)
def main(arguments: Arguments) -> int:
    if arguments.file:
        from suite.cli.schedule_file import describe

        print(describe(arguments, draw=True))
    else:
        print(draw(arguments.words, arguments.csv))
    return Exit.OK
