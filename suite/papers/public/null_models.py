"""Null models: what a forecast without a simulator would say.

Each has one constant per device and precision, which is the median over the cells of all other groups; of the public
cells where a file has one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from suite.papers.public.adapter import scored_setups
from suite.papers.public.cells import PublicCell, load_cells
from suite.simulate.operations.setup import TrainingSetup

BACKWARD_PASSES = 3  # passes of a training step: a forward pass, and a backward pass of twice its flops


def peak_tokens(setup: TrainingSetup) -> float:
    """Tokens per second and device at the peak of the data sheet."""
    per_token = BACKWARD_PASSES * setup.model.flops / setup.model.sequence
    return setup.machine.peak_of(setup.precision) / per_token


def one_utilization(setup: TrainingSetup) -> float:
    """Every step reaches one share of the peak."""
    return peak_tokens(setup)


def bubble_only(setup: TrainingSetup) -> float:
    """Every stage reaches one share of the peak, and a pipeline is idle while it fills and drains: m / (m + p - 1)."""
    microbatches = setup.microbatches
    return peak_tokens(setup) * microbatches / (microbatches + setup.pipeline - 1)


NULL_MODELS: Mapping[str, Callable[[TrainingSetup], float]] = {
    "one share of peak per device": one_utilization,
    "m/(m+p-1) times one constant": bubble_only,
}


def null_errors(cells: Sequence[PublicCell], model: Callable[[TrainingSetup], float]) -> dict[str, float]:
    """Relative error of throughput on each scored cell that the simulator does not refuse, by id."""
    scored = _shares(cells, model)
    known = scored if len({cell.group for cell, *_ in scored}) > 1 else _shares(load_cells(), model)
    errors = {}
    for cell, device, share in scored:
        others = [(d, s) for other, d, s in known if other.group != cell.group]
        alike = [s for d, s in others if d == device]
        errors[cell.id] = median(alike or [s for _, s in others]) / share - 1
    return errors


def _shares(
    cells: Sequence[PublicCell], model: Callable[[TrainingSetup], float]
) -> list[tuple[PublicCell, tuple[str, str], float]]:
    """Each scored cell with its device and precision, and with its measured throughput over the model's."""
    return [
        (cell, (setup.machine.name, setup.precision), (cell.tokens_per_second or 0.0) / model(setup))
        for cell, setup in scored_setups(cells)
    ]
