"""Plans of the published cluster runs, read from each paper's plans.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Required, TypedDict

import yaml

from suite.core.claim import Scalar
from suite.core.errors import UnknownName
from suite.papers.common import trace
from suite.papers.common.claims import PAPERS


class Placing(TypedDict, total=False):
    """How a run was laid out.

    Attributes:
        inter, tensor: G_inter and G_intra.
        bucket: Parameters per step on the host.
    """

    system: str
    inter: Required[int]
    tensor: int
    microbatch: int
    split: str
    bucket: int


class PipeOptimRun(TypedDict):
    """PipeOptim's runs.

    Attributes:
        microbatches: Of GPipe's mini-batch.
        sentence: Tokens of a sentence on either side.
        cuts: Layers that begin a stage, by model.
        batches: Samples per GPU by model and system.
    """

    stages: int
    microbatches: int
    sentence: int
    classes: int
    cuts: Mapping[str, Sequence[int]]
    batches: Mapping[str, Mapping[str, int]]


@cache
def published_plans() -> Mapping[str, Any]:
    """The plans by paper."""
    files = {paper: Path(__file__).parents[1] / paper / "plans.yaml" for paper in PAPERS}
    return {paper: yaml.safe_load(file.read_text(encoding="utf-8")) for paper, file in files.items()}


def scaling_plan(paper: str, system: str, model: str) -> Placing:
    """The plan of a scaling run. Raises UnknownName for a system or a model without one."""
    table = published_plans()[paper]["scaling"]
    if system not in table:
        raise UnknownName(f"system with a plan of {paper}", system, table)
    if model not in table[system]:
        raise UnknownName(f"model with a plan of {paper}", model, table[system])
    trace.read(f"plan.{paper}.{system}.{model}")
    placing: Placing = table[system][model]
    return placing


def chosen_by(paper: str, run: str) -> tuple[str, ...]:
    """The claims by which the plans of a paper were chosen. run: 'study', or the system of a scaling run."""
    group = published_plans()[paper].get("study" if run == "study" else "scaling", {})
    return tuple(group.get("chosen", ()))


def open_choices(paper: str) -> dict[str, tuple[Scalar, ...]]:
    """Alternative values of settings that the paper does not print, by the name under which answers read them.
    `reason` in the file says why these.
    """
    groups = published_plans()[paper].get("ranges", ())
    return {name: tuple(values) for group in groups for name, values in group["values"].items()}


def study_plan(when: str) -> Placing:
    """The plan of AxoNN's Section V, `before` or `after` the memory optimisation."""
    trace.read(f"plan.axonn.study.{when}")
    placing: Placing = published_plans()["axonn"]["study"][when]
    return placing


def pipeoptim_run() -> PipeOptimRun:
    """The plan of PipeOptim's runs."""
    trace.read("plan.pipeoptim.stream")
    run: PipeOptimRun = published_plans()["pipeoptim"]["scaling"]
    return run
