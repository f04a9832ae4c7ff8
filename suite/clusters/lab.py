"""Decides how a published cluster run is simulated: its plan, its stack, its batch, each run once.

Plans stand in plans.yaml; machine, stacks and systems come from the config. Nothing here reads a published value but
batch sizes and GPU counts, which are settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import yaml

from suite.core.errors import Refused, UnknownName
from suite.core.grid import Grid
from suite.core.protocols import Schedule, WeightPolicy
from suite.core.trace import INSIDE, REDUCE, WAIT
from suite.memory import offloaded
from suite.simulate.machine import Machine
from suite.simulate.plan import Modelled, Plan
from suite.simulate.search import Found, best, plans, run
from suite.simulate.stack import Stack
from suite.simulate.worker import Simulation
from suite.workload import Transformer, flops

PLANS = Path(__file__).with_name("plans.yaml")
SAMO_COUNTS = {  # SAMO Table I: batch, and the GPU counts of the strong scaling
    "gpt3_xl": (512, (64, 128, 256, 512)),
    "gpt3_2_7b": (512, (64, 128, 256, 512)),
    "gpt3_6_7b": (1024, (128, 256, 512, 1024)),
    "gpt3_13b": (2048, (256, 512, 1024, 2048)),
}
AXONN_COUNTS = {"transformer_12b": 48, "transformer_24b": 96, "transformer_50b": 192, "transformer_100b": 384}
WEAK_BATCH = 16384  # AxoNN VI-C
STRONG = ((48, 4096), (96, 8192), (192, 16384), (384, 32768))  # AxoNN VI-C: GPUs and batch of the strong scaling
STUDY_GPUS, STUDY_BATCH = 48, 2048  # AxoNN V


@cache
def published_plans() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(PLANS.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Batch:
    """One simulated batch. seconds: of the whole; pipeline, reduction, step: the phases of its first stage."""

    plan: Plan
    seconds: float
    pipeline: float
    reduction: float
    step: float
    simulation: Simulation

    @property
    def percent_of_peak(self) -> float:
        """By Narayanan's count, recomputation included (AxoNN Equation 3, SAMO V-C), of 125 Tflop/s a GPU."""
        count = flops.equation_3(self.plan.shape, self.plan.batch, self.seconds)
        return 100 * count / (self.plan.grid.size * 125e12)

    @property
    def days(self) -> float:
        """To train on 300 billion tokens (AxoNN Equation 2)."""
        return flops.training_time(self.plan.batch, self.plan.shape.sequence, self.seconds) / 86400


@dataclass(frozen=True, eq=False)
class Lab:
    """Where the published runs are simulated: `machine`, the papers' `stacks`, `systems` and model `shapes` by name.

    orders, policies: schedules and weight policies that are compared without a machine, by name"""

    machine: Machine
    stacks: Mapping[str, Stack]
    systems: Mapping[str, Modelled]
    shapes: Mapping[str, Transformer]
    orders: Mapping[str, Schedule] = field(default_factory=dict)
    policies: Mapping[str, WeightPolicy] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[tuple[Plan, str, bool], Batch]:
        return {}

    @cached_property
    def _tuned(self) -> dict[tuple[str, str, int, int], Found]:
        return {}

    def batch(self, plan: Plan, paper: str, *, traced: bool = False) -> Batch:
        """`plan` on the paper's stack."""
        key = (plan, paper, traced)
        if key not in self._known:
            found = run(plan, self.machine, self.stacks[paper], traced=traced)
            self._known[key] = Batch(
                plan,
                found.makespan,
                found.drained[0],
                found.reduced[0] - found.drained[0],
                max(found.finished[0] - found.reduced[0], 0.0),
                found,
            )
        return self._known[key]

    def system(self, name: str) -> Modelled:
        if name not in self.systems:
            raise UnknownName("modelled system", name, self.systems)
        return self.systems[name]

    # -- SAMO --------------------------------------------------------------------------------------------------------

    def samo_plan(self, model: str, system: str, gpus: int) -> Plan:
        """Strong scaling: the batch of SAMO's Table I."""
        entry = _entry("samo", system, model)
        return self._plan(entry, self.shapes[model], system, gpus, SAMO_COUNTS[model][0])

    def samo(self, model: str, system: str, gpus: int, *, traced: bool = False) -> Batch:
        return self.batch(self.samo_plan(model, system, gpus), "samo", traced=traced)

    def saved(self, model: str, gpus: int, *, over: str) -> float:
        """Percent of the batch time of `over` that AxoNN+SAMO saves (X1)."""
        ours, theirs = self.samo(model, "axonn_samo", gpus).seconds, self.samo(model, over, gpus).seconds
        return 100 * (1 - ours / theirs)

    # -- AxoNN -------------------------------------------------------------------------------------------------------

    def weak_plan(self, model: str, system: str) -> Plan:
        """Weak scaling: Table II's plan."""
        entry = _entry("axonn", system, model)
        return self._plan(entry, self.shapes[model], system, AXONN_COUNTS[model], WEAK_BATCH)

    def weak(self, model: str, system: str) -> Batch:
        return self.batch(self.weak_plan(model, system), "axonn")

    def strong(self, system: str, gpus: int, batch: int) -> Batch:
        """Strong scaling of the 12B model: Table II's plan, G_data grows (VII-C)."""
        entry = _entry("axonn", system, "transformer_12b")
        return self.batch(self._plan(entry, self.shapes["transformer_12b"], system, gpus, batch), "axonn")

    def tuned(self, model: str, system: str, *, gpus: int | None = None, batch: int = WEAK_BATCH) -> Found:
        """The best plan that the search finds, as the authors tuned theirs for Table II."""
        key = (model, system, gpus or AXONN_COUNTS[model], batch)
        if key not in self._tuned:
            candidates = plans(self.shapes[model], self.system(system), key[2], batch)
            self._tuned[key] = best(candidates, self.machine, self.stacks["axonn"])
        return self._tuned[key]

    def study(self, when: str, *, batch: int = STUDY_BATCH, inter: int | None = None, **changes: Any) -> Batch:
        """Section V: 12B on 48 GPUs, `before` and `after` the memory optimisation, phases timed one by one.

        changes: of the modelled system, for example coarsening=1"""
        entry = dict(published_plans()["axonn"]["study"][when])
        system = replace(self.system(entry.pop("system")), **{"apart": True, "bucket": 0, "coarsening": 0, **changes})
        if bucket := entry.pop("bucket", 0):
            system = replace(system, layout=partial(offloaded, bucket=bucket))
        if inter:
            entry["inter"] = inter
        plan = self._plan(entry, self.shapes["transformer_12b"], system, STUDY_GPUS, batch)
        return self.batch(plan, "axonn")

    def _plan(
        self, entry: Mapping[str, Any], shape: Transformer, system: str | Modelled, gpus: int, batch: int
    ) -> Plan:
        inter, tensor = int(entry["inter"]), int(entry.get("tensor", 1))
        if gpus % (inter * tensor):
            raise Refused(f"{gpus} GPUs on {inter} x {tensor}", rule="G_inter G_intra divides the GPUs")
        modelled = self.system(system) if isinstance(system, str) else system
        grid = Grid(data=gpus // (inter * tensor), inter=inter, tensor=tensor)
        return Plan(shape, modelled, grid, batch, int(entry.get("microbatch", 1)), entry.get("split", "even"))


def _entry(paper: str, system: str, model: str) -> Mapping[str, Any]:
    table = published_plans()[paper]["scaling"]
    if system not in table:
        raise UnknownName(f"system with a plan of {paper}", system, table)
    if model not in table[system]:
        raise UnknownName(f"model with a plan of {paper}", model, table[system])
    found: Mapping[str, Any] = table[system][model]
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """One batch as SAMO's Figure 8 divides it, seconds of the first stage.

    The authors' profiler counts the first wait of the first stage as bubble and every other wait as point-to-point
    time, so the rest of a slower neighbour's pass is in it; categories here are theirs, not those of core.trace."""

    point_to_point: float
    bubble: float
    collective: float
    compute: float
    total: float

    @classmethod
    def of(cls, batch: Batch) -> Phases:
        own = sorted((span for span in batch.simulation.trace if span.rank == 0), key=lambda span: span.start)
        waits = [span.seconds for span in own if span.category == WAIT]
        bubble = waits[0] if waits else 0.0
        collective = sum(span.seconds for span in own if span.category == REDUCE)
        rest = sum(span.seconds for span in own if span.category not in (WAIT, REDUCE, *INSIDE))
        return cls(sum(waits) - bubble, bubble, collective, rest, batch.seconds)
