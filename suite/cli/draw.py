"""Command `suite draw`: print the schedule of a configuration as a text grid.

suite draw system=gpipe grid.inter=4 draw.microbatches=4
suite draw system=axonn grid.inter=3 draw.microbatches=5 schedule.prefer=forward
suite draw system=pipeoptim grid.inter=4
suite draw schedule=zbv grid.inter=4 draw.csv=zbv.csv       # writes the schedule as a file of PyTorch
suite draw zbv.csv                                          # draws such a file

Systems with a fixed order (PyTorch's pipelines, DeepSpeed, Megatron-LM) are drawn in this order. An override that does
not change the drawing is refused.

For a pipeline that does not drain, a table below the grid lists the weight version that each pass reads. `2+3` means
version 2 with 3 predicted updates. An asynchronous system has a second table, with the quantities of PipeOptim's Table
II for this number of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, command
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.exit_codes import Exit
from suite.core.files import check_file
from suite.core.keys import in_config_keys
from suite.core.op import FlushInterval, Kind
from suite.core.protocols import WeightPolicy
from suite.schedule.check import SHORT, Timeline, check, check_one_version, check_size, op_costs
from suite.schedule.draw import chart, columns
from suite.schedule.placement import check_policy, is_plain, places
from suite.schedule.torch_csv import write
from suite.weights import Ledger
from suite.weights.version_table import PASSES, entries, run_ledgers, staleness, steps_ahead

if TYPE_CHECKING:
    from suite.config.run import RunConfig

# keys that a drawing reads; a name stands for all keys below it
ALWAYS = ("launch.python_path", "system._target_", "system.name")
PIPELINE = (
    *("grid", "schedule", "update_interval", "system.supports_schedules", "system.order", "system.processes"),
    *("system.requires_full_pipeline", "system.schedule", "system.supports_streaming", "system.tensor"),
    *("system.microbatches", "draw.microbatches", "draw.forward", "draw.backward", "draw.weight", "draw.csv"),
    "draw.csv_format",
)
DEEPEST = 32  # most stages of a Table II; its computation takes time cubic in the stages, seconds for 32
TABLE_2 = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")


@in_config_keys()
def draw(overrides: Sequence[str]) -> str:
    """The schedule as a text grid, with the maximum number of live activations per stage."""
    from suite.config import checks
    from suite.config.compose import composed
    from suite.config.rules import check_streams, check_tensor, schedule_of
    from suite.runner.executors.check_executor import check_ticks

    data = composed(overrides)
    config, plan = checks.checked_run(data), checks.checked(checks.Drawing, data).draw
    name, grid, every = config.system.name, config.grid.build(), config.update_interval
    if config.system.graphs:
        legal = f"suite run system={name} executor=volumes"
        raise Unsupported("system", name, rule="a system with a schedule of passes", legal=legal)
    microbatches = config.system.microbatches or plan.microbatches
    if plan.microbatches != microbatches:
        what = f"draw.microbatches={plan.microbatches} of system={name}"
        rule = f"a batch of this system has {microbatches} microbatches per replica"
        raise InvalidRequest(what, rule=rule, legal=f"draw.microbatches={microbatches}")
    check_tensor(config)
    check_streams(config)
    policy = config.weights.build()
    check_policy(policy, config.schedule.build())
    policy.check(grid.inter, every)
    schedule = schedule_of(config, microbatches=microbatches)
    check_read(overrides, name, (*ALWAYS, *PIPELINE, *(("weights",) if every is not None else ())))
    check_ticks(schedule, "draw.weight", plan.backward, plan.weight)
    place = places(schedule, grid.inter)[0]
    check_size(plan.microbatches, place.stages, SHORT)
    interval = FlushInterval(0, plan.microbatches, every, 0)
    file = Path(plan.csv) if plan.csv else None
    if file is not None and every is not None:
        rule = "a schedule file has no updates, so it holds one flush"
        raise InvalidRequest("draw.csv", plan.csv, rule=rule, legal="update_interval=null")
    cost = op_costs(plan.forward, plan.backward, plan.weight)
    timeline = check(schedule, grid.inter, interval, cost=cost)
    check_one_version(schedule, timeline, every)
    row = "stage" if place.stages == grid.inter else "rank"
    peaks = ", ".join(map(str, timeline.peak))
    text = f"{chart(timeline.slots, grid.inter, place=place)}\nactivations alive per {row} at most {peaks}"
    if any(timeline.owed):
        text += f"\nweight gradients owed per {row} at most {', '.join(map(str, timeline.owed))}"
    if grid.size > grid.inter:
        text += f"\none of {grid.size // grid.inter} ranks per {row} ({grid}), which all run this order"
    if file is not None:
        orders = [timeline.order(rank) for rank in range(grid.inter)]
        check_file(file, "draw.csv").write_text(write(orders, plan.csv_format), encoding="utf-8")
    if every is None:
        return text
    text = f"{text}\n\n{versions(account(policy, timeline, interval))}"
    if not is_plain(schedule):
        return text  # Table II is of asynchronous pipelines
    table = table_2(config) if grid.inter <= DEEPEST else f"Table II is printed for at most {DEEPEST} stages"
    return f"{text}\n\n{table}"


def check_read(overrides: Sequence[str], name: str, read: Sequence[str]) -> None:
    """Raises InvalidRequest for the first override that changes neither the drawing nor a bookkeeping key."""
    from suite.config.compose import key_of
    from suite.runner.keys_read import BOOKKEEPING, below, overlaps

    for override in overrides:
        key = key_of(override).partition("@")[0]
        if not below(key, BOOKKEEPING) and not overlaps(key, read):
            keys = sorted({one for one in read if not one.startswith("system.")})
            rule = f"a key that a drawing of system={name} depends on"
            raise InvalidRequest(override, rule=rule, legal=f"system, {', '.join(keys)}")


def account(policy: WeightPolicy, timeline: Timeline, interval: FlushInterval) -> list[Ledger]:
    return run_ledgers(policy, timeline.stage_orders(), interval)


def versions(ledgers: Sequence[Ledger]) -> str:
    """The versions that each pass reads, a column per microbatch, and the maximum number of weight copies on each
    stage.
    """
    count = ledgers[0].interval.microbatches
    rows = [["weights read by microbatch", *(str(index) for index in range(count)), "copies"]]
    for stage, ledger in enumerate(ledgers):
        for kind in PASSES:
            read = {
                e.op.index: _told(e.read.version, e.read.predict_steps) for e in entries(ledger, kind, steady=False)
            }
            peak = str(ledger.peak) if kind is Kind.FORWARD else ""
            rows.append([f"stage {stage} {kind.name.lower()}", *(read.get(i, "kept") for i in range(count)), peak])
    return columns(rows)


def _told(version: int, further: int) -> str:
    return f"{version}+{further}" if further else str(version)


def table_2(config: RunConfig) -> str:
    """PipeOptim Table II for this number of stages: mini-batches in the steady state, one row per stage."""
    from suite.config.compose import resolve

    stages = config.grid.inter
    name = config.system.name
    rows = [["Table II, by stage", "F lacks", "B lacks", "F ahead", "B ahead", "copies"]]
    for system in (*TABLE_2, *([] if name in TABLE_2 else [name])):
        resolved = config
        if system != name:
            resolved = resolve([f"system={system}", f"grid.inter={stages}"])
        every = resolved.update_interval or 1
        interval = FlushInterval(0, (stages + 2) * 2 * every, every, 0)
        stage_accounts = account(resolved.weights.build(), check(resolved.schedule.build(), stages, interval), interval)
        lacks = [[f"{staleness(each, kind):g}" for each in stage_accounts] for kind in PASSES]
        further = [[f"{steps_ahead(each, kind):g}" for each in stage_accounts] for kind in PASSES]
        rows.append(
            [system, *(" ".join(part) for part in (*lacks, *further, [str(each.peak) for each in stage_accounts]))]
        )
    return columns(rows)


@command(
    "Draw a schedule or a schedule file as a text grid.",
    "system=axonn grid.inter=3 draw.microbatches=5",
    keys={
        "draw.microbatches": "N   microbatches (default: 8)",
        "draw.forward": "N        ticks of a forward pass (default: 1)",
        "draw.backward": "N       ticks of a whole backward pass (default: 2)",
        "draw.weight": "N         ticks of its weight gradient, where the schedule splits it (default: 1)",
        "draw.csv": "FILE         schedule file of PyTorch to write (default: none)",
        "draw.csv_format": "FORM  compute_only (default) or compute_comms, with messages",
    },
    config=True,
    file=".csv",
)
def main(arguments: Arguments) -> int:
    if arguments.file:
        from suite.cli.schedule_file import drawing

        print(drawing(arguments))
        return Exit.OK
    print(draw(arguments.words))
    return Exit.OK
