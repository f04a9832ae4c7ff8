"""Command `suite plan`: find the fastest parallel layouts of a language model on a cluster, by simulation.

    suite plan model=llama3_8b machine=h100 devices=64

It tries tensor, pipeline and data parallelism, pipeline schedules, microbatches, recomputation and sharding, and prints
the fastest layouts that fit. Nothing is trained and no record is written. The error of the simulator on the public
measurements that are nearest to the best layout follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log2
from statistics import fmean
from typing import TYPE_CHECKING

from suite.cli import Arguments, command
from suite.core.errors import DoesNotFit, InvalidRequest, Unsupported
from suite.core.exit_codes import Exit

if TYPE_CHECKING:
    from suite.papers.public.calibrate import FittedConstant, Shares
    from suite.papers.public.score import CellAnswer
    from suite.simulate.network.machine import Machine
    from suite.simulate.operations.layouts import RankedLayouts
    from suite.simulate.operations.setup import TrainingSetup
    from suite.simulate.operations.step import TrainingStep
    from suite.workload.language_model import LanguageModel

REQUIRED = {"model": "llama3_8b", "machine": "h100", "devices": "64"}  # and an example of each
FOLDERS = "launch.python_path"
GENERATION = "compiled"
TOP = 5
BATCH_TOKENS = 4e6  # of the default batch
GIGABYTE = 1e9
WHOLE = re.compile("[1-9][0-9]{0,8}")
DOUBLINGS = 10  # of the devices, in search of a number on which a model fits


def whole(arguments: Arguments, key: str, default: int) -> int:
    """The number of a key. Raises InvalidRequest unless it is a whole number from 1 to 999999999."""
    text = arguments.value(key, str(default))
    if not WHOLE.fullmatch(text):
        raise InvalidRequest(key, text, rule="a whole number from 1 to 999999999", legal=f"{key}={default}")
    return int(text)


def default_batch(sequence: int, devices: int) -> int:
    """Sequences of about four million tokens: a power of two, or the number of devices if that is larger."""
    return max(devices, 1 << max(0, round(log2(BATCH_TOKENS / sequence))))


def described(model: str, machine: str, folders: str = "[]") -> tuple[LanguageModel, Machine]:
    """A language model and the data sheet of a machine from their files in conf/ or in `folders` of one's own.

    Raises UnknownName for a name without a file, and Unsupported for another network or a machine without a family.
    """
    from suite.config import checks
    from suite.config.compose import composed
    from suite.workload import LanguageModel, Transformer

    data = composed([f"{FOLDERS}={folders}", f"model={model}", f"machine={machine}", "executor=simulated"])
    shape, sheet = checks.checked_run(data).model.shape.build(), checks.checked(checks.Profiling, data).machine.build()
    if isinstance(shape, Transformer):
        shape = LanguageModel.of(shape)
    if not isinstance(shape, LanguageModel):
        rule = "layouts are searched for a LanguageModel or a Transformer"
        raise Unsupported(
            "model",
            model,
            what=f"model={model} of {type(shape).__name__}",
            rule=rule,
            legal=f"model={REQUIRED['model']}",
        )
    if not sheet.family:
        rule = "a data sheet that names the family of its devices"
        raise Unsupported("machine", machine, rule=rule, legal=f"machine={REQUIRED['machine']}")
    return shape, sheet


def setup_of(arguments: Arguments, fitted: Shares) -> tuple[TrainingSetup, int]:
    """Setup of one device for the keys of a command, and the number of devices.

    Raises InvalidRequest for a missing key and for a wrong value.
    """
    from suite.papers.public.calibrate import share_of, with_share
    from suite.simulate.operations.layouts import one_device

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


def search(base: TrainingSetup, devices: int, top: int) -> RankedLayouts:
    """The fastest layouts. Raises InvalidRequest if none divides the batch, and DoesNotFit if none fits."""
    from suite.simulate.operations.layouts import layouts, ranked
    from suite.simulate.operations.states import fullest_device

    candidates = list(layouts(base, devices))
    if not candidates:
        raise InvalidRequest(
            "batch",
            base.batch,
            what=f"batch={base.batch} with devices={devices}",
            rule="every replica of a layout has equally many microbatches",
            legal=f"batch={-(-base.batch // devices) * devices}",
        )
    try:
        return ranked(candidates, top)
    except DoesNotFit as error:
        memory = base.machine.memory
        for more in (devices << doubling for doubling in range(1, 1 + DOUBLINGS)):
            if any(sum(fullest_device(setup).values()) <= memory for setup in layouts(base, more)):
                what = str(error).partition("; ")[0]
                raise DoesNotFit("devices", devices, what=what, rule=error.rule, legal=f"devices={more}") from error
        raise


def percent_of_peak(step: TrainingStep) -> float:
    """Model flops of a step over the dense peak of all devices, in percent."""
    from suite.workload.flops import per_trained_token

    setup = step.setup
    return 100 * step.tokens_per_second * per_trained_token(setup.model) / setup.machine.peak_of(setup.precision)


HEADER = (
    f"{'':>2}  {'tp x pp x dp':<13} {'sharding':<10} {'schedule':<11} {'chunks':>6} {'micro':>5} {'recompute':<9} "
    f"{'s/step':>8} {'tokens/s/device':>15} {'% of peak':>9} {'GB':>6}"
)


def plan_lines(number: int, step: TrainingStep) -> Iterator[str]:
    """Two lines of a plan: its layout with its speed, and the memory of its fullest device by kind."""
    from suite.simulate.operations.layouts import named_schedule

    setup, named = step.setup, named_schedule(step.setup)
    yield (
        f"{number:>2}  {f'{setup.tensor} x {setup.pipeline} x {setup.data}':<13} {setup.sharding:<10} "
        f"{named.name:<11} {named.chunks:>6} {setup.microbatch:>5} {setup.recompute:<9} {step.seconds:>8.3f} "
        f"{step.tokens_per_second:>15,.0f} {percent_of_peak(step):>9.1f} {step.peak_memory / GIGABYTE:>6.1f}"
    )
    kinds = ", ".join(f"{kind} {size / GIGABYTE:.1f}" for kind, size in step.memory.items())
    yield f"    GB per device: {kinds}"


def share_lines(base: TrainingSetup, fitted: Sequence[FittedConstant]) -> tuple[str, str]:
    """The rate of large products, as a share of peak and of the device's best published product, and its source."""
    family, generation = base.machine.family, base.generation.name
    share = base.generation.share(family)
    own = next((one for one in fitted if (one.family, one.generation) == (family, generation)), None)
    source = (
        f"fitted to the cell {own.cell}"
        if own
        else f"the median of the constants that are fitted, {len(fitted)} in all"
    )
    return (
        f"Large products reach {100 * share * base.machine.sustained:.0f} % of the peak on {family} with {generation}, "
        f"{100 * share:.0f} % of the best published product.",
        f"Source of this rate: {source}.",
    )


def error_lines(answers: Sequence[CellAnswer]) -> Iterator[str]:
    """Mean absolute error of the simulator on public cells, and the signed error of each."""
    if not answers:
        yield "No public cell is scored, so that the error of the simulator is unknown."
        return
    mean = fmean(abs(one.error) for one in answers)
    yield (
        f"Mean absolute error of the simulated throughput on the {len(answers)} public cells nearest to plan 1: "
        f"{100 * mean:.1f} %"
    )
    for one in answers:
        cell = one.cell
        yield f"  {100 * one.error:>+6.1f} %  {cell.id}, {cell.gpus} {cell.machine.gpu}, {cell.generation}"


def report(
    title: str,
    base: TrainingSetup,
    found: RankedLayouts,
    answers: Sequence[CellAnswer],
    fitted: Sequence[FittedConstant],
) -> Iterator[str]:
    """All lines of the command."""
    model, machine = base.model, base.machine
    yield f"{title}: batches of {base.batch} sequences of {model.sequence} tokens, {base.precision}"
    yield f"{found.tried} layouts tried; {found.fit} fit the {machine.memory / GIGABYTE:.1f} GB of a device"
    yield ""
    yield HEADER
    for number, step in enumerate(found.steps, 1):
        yield from plan_lines(number, step)
    yield ""
    yield (
        f"Percent of peak: 6 N + 12 l h s flops per token (N = {model.parameters / 1e9:.2f}e9 with all embeddings, "
        "attention in full),"
    )
    yield f"over the dense {base.precision} peak of {machine.peak_of(base.precision) / 1e12:,.0f} Tflop/s per device."
    yield from share_lines(base, fitted)
    yield from error_lines(answers)


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
    from suite.papers.public.calibrate import shares
    from suite.papers.public.cells import load_cells
    from suite.papers.public.league import constants
    from suite.papers.public.nearest import nearest_answers

    fitted, top = constants(), whole(arguments, "top", TOP)
    base, devices = setup_of(arguments, shares(fitted))
    found = search(base, devices, top)
    left_out = [one.cell for one in fitted]  # their errors are zero by construction
    answers = nearest_answers(found.steps[0].setup, load_cells(), shares(fitted), left_out)
    title = f"model={arguments.value('model', '')} on {devices} devices of {base.machine.name}, {base.generation.name}"
    print("\n".join(report(title, base, found, answers, fitted)))
    return Exit.OK
