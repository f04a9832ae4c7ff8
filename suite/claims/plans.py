"""Plans of the published cluster runs, from the plans.yaml of each paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Required, TypedDict

import yaml

from suite.claims import load, trace
from suite.claims.claim import Scalar
from suite.core.errors import UnknownName


class Placing(TypedDict, total=False):
    """Plan of a run.

    Attributes:
        system: Name of the system.
        inter: G_inter, pipeline stages.
        tensor: G_intra, tensor-parallel GPUs per stage.
        microbatch: Samples per microbatch.
        split: Split of the layers over stages, "even" or "share".
        bucket: Parameters per bucket of the offloaded optimizer step.
    """

    system: str
    inter: Required[int]
    tensor: int
    microbatch: int
    split: str
    bucket: int


class PipeOptimRun(TypedDict):
    """Settings of PipeOptim's runs.

    Attributes:
        stages: Pipeline stages.
        microbatches: Microbatches in a mini-batch of GPipe.
        sentence: Tokens of a sentence in either language.
        classes: Classes of the image data set.
        cuts: First layer of each stage but the first, by model.
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
    """Plans by paper."""
    files = load.FOLDER.glob("*/plans.yaml")
    return {file.parent.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def scaling_plan(paper: str, system: str, model: str) -> Placing:
    """Plan of a scaling run. Raises UnknownName for a system or a model without a plan."""
    table = published_plans()[paper]["scaling"]
    if system not in table:
        raise UnknownName(f"system with a plan of {paper}", system, table)
    if model not in table[system]:
        raise UnknownName(f"model with a plan of {paper}", model, table[system])
    trace.read(f"plan.{paper}.{system}.{model}")
    placing: Placing = table[system][model]
    return placing


def chosen_by(paper: str, run: str, model: str = "") -> tuple[str, ...]:
    """Ids of the claims by which a plan was chosen.

    Args:
        run: "study", or the system of a scaling run.
        model: Model of a scaling run.
    """
    plans = published_plans()[paper]
    if run == "study":
        return tuple(plans.get("study", {}).get("chosen", ()))
    return tuple(plans.get("scaling", {}).get("chosen", {}).get(f"{run}.{model}", ()))


def open_choices(paper: str) -> dict[str, tuple[Scalar, ...]]:
    """Alternative values of settings that the paper does not print, by traced name.

    The file gives a `reason` for each group.
    """
    groups = published_plans().get(paper, {}).get("ranges", ())
    return {name: tuple(values) for group in groups for name, values in group["values"].items()}


def study_plan(when: str) -> Placing:
    """Plan of AxoNN's Section V, "before" or "after" the memory optimization."""
    trace.read(f"plan.axonn.study.{when}")
    placing: Placing = published_plans()["axonn"]["study"][when]
    return placing


def pipeoptim_run() -> PipeOptimRun:
    """Settings of PipeOptim's runs."""
    trace.read("plan.pipeoptim.stream")
    run: PipeOptimRun = published_plans()["pipeoptim"]["scaling"]
    return run
