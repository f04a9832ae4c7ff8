"""Command `suite plan`: find the fastest parallel layouts of a language model on a cluster, by simulation.

    suite plan model=llama3_8b machine=h100 devices=64

It tries tensor, pipeline and data parallelism, pipeline schedules, microbatches, recomputation and sharding, and prints
the fastest layouts that fit. Nothing is trained and no record is written. The error of the simulator on the public
measurements that are nearest to the best layout follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from suite.cli import Arguments, command
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.exit_codes import Exit

if TYPE_CHECKING:
    from suite.simulate.network.machine import Machine
    from suite.simulate.operations.layouts import RankedLayouts
    from suite.simulate.operations.products import Shares
    from suite.simulate.operations.setup import TrainingSetup
    from suite.simulate.operations.step import TrainingStep
    from suite.simulate.validation.calibrate import FittedConstant
    from suite.workload import LanguageModel, Transformer

REQUIRED = {"model": "llama3_8b", "machine": "h100", "devices": "64"}  # and an example of each
FOLDERS = "launch.python_path"
GENERATION = "compiled"
TOP = 5
GIGABYTE = 1e9
WHOLE = re.compile("[1-9][0-9]{0,8}")


def whole(arguments: Arguments, key: str, default: int) -> int:
    """The number of a key. Raises InvalidRequest unless it is a whole number from 1 to 999999999."""
    text = arguments.value(key, str(default))
    if not WHOLE.fullmatch(text):
        raise InvalidRequest(key, text, rule="a whole number from 1 to 999999999", legal=f"{key}={default}")
    return int(text)


def described(model: str, machine: str, folders: str = "[]") -> tuple[LanguageModel | Transformer, Machine]:
    """A language model and the data sheet of a machine from their files in conf/ or in `folders` of one's own.

    Raises UnknownName for a name without a file, and Unsupported for another network or a machine without a family.
    """
    from suite.config.compose import resolve
    from suite.config.executor import SimulatedExecutor
    from suite.workload import LanguageModel, Transformer

    config = resolve([f"{FOLDERS}={folders}", f"model={model}", f"machine={machine}", "executor=simulated"])
    assert isinstance(config.executor, SimulatedExecutor)
    shape, sheet = config.model.shape.build(), config.executor.machine.build()
    if not isinstance(shape, LanguageModel | Transformer):
        rule = "layouts are searched for a LanguageModel or a Transformer"
        raise Unsupported("model", model, rule=rule, legal=f"model={REQUIRED['model']}")
    if not sheet.family:
        rule = "a data sheet that names the family of its devices"
        raise Unsupported("machine", machine, rule=rule, legal=f"machine={REQUIRED['machine']}")
    return shape, sheet


def setup_of(arguments: Arguments, fitted: Shares) -> tuple[TrainingSetup, int]:
    """Setup of one device for the keys of a command, and the number of devices.

    Raises InvalidRequest for a missing key and for a wrong value.
    """
    from suite.simulate.operations.layouts import default_batch, one_device
    from suite.simulate.operations.products import share_of, with_share

    for key, example in REQUIRED.items():
        if not arguments.value(key, ""):
            raise InvalidRequest(f"suite plan without {key}=", rule=f"{key} is required", legal=f"{key}={example}")
    devices = whole(arguments, "devices", int(REQUIRED["devices"]))
    model, machine = described(
        arguments.value("model", ""), arguments.value("machine", ""), arguments.value(FOLDERS, "[]")
    )
    model = replace(model, sequence=whole(arguments, "sequence", model.sequence))
    batch = whole(arguments, "batch", default_batch(model.sequence, devices))
    base = one_device(model, machine, arguments.value("generation", GENERATION), batch)
    return with_share(base, share_of((machine.family, base.generation.name), fitted)), devices


def search(base: TrainingSetup, devices: int, top: int) -> RankedLayouts[TrainingStep]:
    """The fastest layouts. Raises InvalidRequest if none divides the batch, and DoesNotFit if none fits."""
    from suite.simulate.operations.layouts import layouts, ranked

    candidates = list(layouts(base, devices))
    if not candidates:
        rule = f"each of the replicas on devices={devices} has equally many microbatches"
        raise InvalidRequest("batch", base.batch, rule=rule, legal=f"batch={-(-base.batch // devices) * devices}")
    return ranked(candidates, top)


def columns(step: TrainingStep) -> dict[str, object]:
    """A layout with its speed, as a row of the table."""
    from suite.simulate.operations.layouts import named_schedule

    setup, named = step.setup, named_schedule(step.setup)
    return {
        "tp x pp x dp": f"{setup.tensor} x {setup.pipeline} x {setup.data}",
        "sharding": setup.sharding,
        "schedule": named.name,
        "chunks": named.chunks,
        "micro": setup.microbatch,
        "recompute": setup.recompute,
        "s/step": f"{step.seconds:.3f}",
        "tokens/s/device": f"{step.tokens_per_second:,.0f}",
        "% of peak": f"{100 * step.utilization:.1f}",
        "GB": f"{step.peak_memory / GIGABYTE:.1f}",
    }


def share_line(base: TrainingSetup, fitted: Sequence[FittedConstant]) -> str:
    """The rate of large products, as a share of peak and of the device's best published product, and its source."""
    family, generation = base.machine.family, base.generation.name
    share = base.generation.share(family)
    cells = [one.cell for one in fitted if (one.family, one.generation) == (family, generation)]
    source = f"fitted to the cell {cells[0]}" if cells else f"the median of {len(fitted)} fitted constants"
    return (
        f"Large products reach {100 * share * base.machine.sustained:.0f} % of the peak on {family} with {generation}, "
        f"{100 * share:.0f} % of the best published product.\nSource of this rate: {source}."
    )


@command(
    "Find the fastest parallel layouts of a language model on N devices of a cluster, by simulation.",
    "model=llama3_8b machine=h100 devices=64",
    keys={
        "model": "NAME         language model of conf/model (required)",
        "machine": "NAME       data sheet of conf/machine (required)",
        "devices": "N          devices of the cluster (required)",
        "batch": "N            sequences per step (default: four million tokens, rounded to a power of two)",
        "generation": f"NAME    software: its kernels and overlaps (default: {GENERATION})",
        "sequence": "N         tokens of a sequence (default: of the model)",
        "top": f"N              layouts to print (default: {TOP})",
        FOLDERS: "[FOLDER]  your own model/NAME.yaml, machine/NAME.yaml and modules",
    },
)
def main(arguments: Arguments) -> int:
    import pandas as pd

    from suite.simulate.validation.calibrate import constants, shares
    from suite.simulate.validation.cells import load_cells
    from suite.simulate.validation.nearest import nearest_answers

    fitted, top = constants(), whole(arguments, "top", TOP)
    base, devices = setup_of(arguments, shares(fitted))
    found = search(base, devices, top)
    left_out = [one.cell for one in fitted]  # their errors are zero by construction
    answers = nearest_answers(found.steps[0].setup, load_cells(), shares(fitted), left_out)
    layouts = pd.DataFrame([columns(step) for step in found.steps], index=range(1, 1 + len(found.steps)))
    memory = pd.DataFrame([dict(step.memory) for step in found.steps], index=layouts.index) / GIGABYTE
    lines = [
        f"model={arguments.value('model', '')} on {devices} devices of {base.machine.name}, {base.generation.name}: "
        f"batches of {base.batch} sequences of {base.model.sequence} tokens, {base.precision}",
        f"{found.tried} layouts tried; {found.fit} fit the {base.machine.memory / GIGABYTE:.1f} GB of a device",
        f"\n{layouts.to_string()}",
        f"\nGB of the fullest device\n{memory.to_string(float_format='{:.1f}'.format)}",
        f"\n{share_line(base, fitted)}",
        f"Mean absolute error of the simulated throughput on the {len(answers)} public cells nearest to plan 1: "
        f"{100 * fmean(abs(one.error) for one in answers):.1f} %",
    ]
    for one in answers:
        cell = one.cell
        lines.append(f"  {100 * one.error:>+6.1f} %  {cell.id}, {cell.gpus} {cell.machine.gpu}, {cell.generation}")
    print("\n".join(lines))
    return Exit.OK
