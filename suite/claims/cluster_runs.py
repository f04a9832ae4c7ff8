"""Simulation of the published cluster runs.

Plans come from plans.yaml; machine, efficiency constants and systems come from the config. Each run is simulated once.
The only published values read here are settings: batch sizes and GPU counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from suite.claims import load
from suite.claims.lab import BaseLab, cached
from suite.claims.plans import Placing, chosen_by, scaling_plan, study_plan
from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName
from suite.core.grid import Grid
from suite.core.trace import INSIDE, REDUCE, WAIT
from suite.memory import offloaded
from suite.papers.closed_forms import equation_3, training_time
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.operations.layouts import RankedLayouts
from suite.simulate.search import PlanTime, best, plans, run
from suite.simulate.worker import Simulation
from suite.workload import Transformer

SAMO_COUNTS = {  # batch size, and GPU counts of the strong scaling (SAMO Table I)
    "gpt3_xl": (512, (64, 128, 256, 512)),
    "gpt3_2_7b": (512, (64, 128, 256, 512)),
    "gpt3_6_7b": (1024, (128, 256, 512, 1024)),
    "gpt3_13b": (2048, (256, 512, 1024, 2048)),
}
AXONN_COUNTS = {"transformer_12b": 48, "transformer_24b": 96, "transformer_50b": 192, "transformer_100b": 384}
WEAK_BATCH = 16384  # batch size of the weak scaling (AxoNN VI-C)
STRONG = ((48, 4096), (96, 8192), (192, 16384), (384, 32768))  # GPUs and batch size of the strong scaling (AxoNN VI-C)
STUDY_GPUS, STUDY_BATCH = 48, 2048  # AxoNN V
OWN = {"axonn": "axonn", "samo": "axonn_samo"}  # the system that each paper proposes
SAMO_MODELLED = {"axonn": "axonn_no_memopt"}  # SAMO's AxoNN keeps model states on the GPU (X2)


@cache
def printed_peak() -> float:
    """Half-precision flop/s of a GPU of Summit, as both papers print it."""
    (machine,) = (row for row in load.settings()["machines"] if row["id"] == "summit")
    return 1e12 * float(machine["peak_half_tflop_per_second"])


@dataclass(frozen=True)
class ClusterBatch:
    """One simulated batch.

    Attributes:
        plan: Plan of the run.
        seconds: Batch time.
        pipeline: Seconds of the first stage's pipeline phase.
        reduction: Seconds of the first stage's data-parallel reduction.
        step: Seconds of the first stage's optimizer step after the reduction.
        simulation: Simulation with its trace, if traced.
    """

    plan: SimulationPlan
    seconds: float
    pipeline: float
    reduction: float
    step: float
    simulation: Simulation

    @property
    def percent_of_peak(self) -> float:
        """Percent of the printed peak, with recomputation counted as flops (AxoNN Equation 3, SAMO V-C)."""
        count = equation_3(self.plan.shape, self.plan.batch, self.seconds)
        return 100 * count / (self.plan.grid.size * printed_peak())

    @property
    def days(self) -> float:
        """Days to train on 300 billion tokens (AxoNN Equation 2)."""
        return training_time(self.plan.batch, self.plan.shape.sequence, self.seconds) / 86400


@dataclass(frozen=True, eq=False)
class Lab(BaseLab):
    """Simulated cluster on which the published runs are repeated.

    Attributes:
        systems: Modelled systems by name.
        shapes: GPT shapes by name.
    """

    software = "summit"  # the efficiency of AxoNN and SAMO

    systems: Mapping[str, SystemModel]
    shapes: Mapping[str, Transformer]

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """Ids of the claims to which a traced constant or plan was fitted or by which it was chosen."""
        kind, owner, *rest = name.split(".")
        return chosen_by(owner, *rest[:2]) if kind == "plan" else super().fitted_to(name)

    @cached
    def batch(self, plan: SimulationPlan, *, traced: bool = False) -> ClusterBatch:
        """Simulate one batch of `plan` on Summit."""
        simulation = run(plan, self.machine, self.efficiency(), traced=traced)
        return ClusterBatch(
            plan,
            simulation.makespan,
            simulation.drained[0],
            simulation.reduced[0] - simulation.drained[0],
            max(simulation.finished[0] - simulation.reduced[0], 0.0),
            simulation,
        )

    def system(self, name: str) -> SystemModel:
        if name not in self.systems:
            raise UnknownName("modelled system", name, self.systems)
        return self.systems[name]

    # -- SAMO --------------------------------------------------------------------------------------------------------

    def samo_plan(self, model: str, system: str, gpus: int) -> SimulationPlan:
        """Plan of SAMO's strong scaling, with the batch size of Table I, for a system by its name in the paper."""
        system = SAMO_MODELLED.get(system, system)
        name, batch = f"plan.samo.{system}.{model}.", SAMO_COUNTS[model][0]
        changed = {key.removeprefix(name): value for key, value in self.changes.items() if key.startswith(name)}
        entry: Any = {**scaling_plan("samo", system, model), **changed}
        return self._own_best("samo", model, self._plan(entry, self.shapes[model], system, gpus, batch))

    def samo(self, model: str, system: str, gpus: int, *, traced: bool = False) -> ClusterBatch:
        return self.batch(self.samo_plan(model, system, gpus), traced=traced)

    def saved(self, model: str, gpus: int, *, over: str) -> float:
        """Percent of the batch time of system `over` that AxoNN+SAMO saves (X1)."""
        ours, theirs = self.samo(model, "axonn_samo", gpus).seconds, self.samo(model, over, gpus).seconds
        return 100 * (1 - ours / theirs)

    # -- AxoNN -------------------------------------------------------------------------------------------------------

    def weak_plan(self, model: str, system: str) -> SimulationPlan:
        """Plan of AxoNN's weak scaling (Table II)."""
        entry = scaling_plan("axonn", system, model)
        plan = self._plan(entry, self.shapes[model], system, AXONN_COUNTS[model], WEAK_BATCH)
        return self._own_best("axonn", model, plan)

    def weak(self, model: str, system: str) -> ClusterBatch:
        return self.batch(self.weak_plan(model, system))

    def strong(self, system: str, gpus: int, batch: int) -> ClusterBatch:
        """One batch of the 12B model in AxoNN's strong scaling: G_data grows, Table II gives the rest (VII-C)."""
        entry = scaling_plan("axonn", system, "transformer_12b")
        plan = self._plan(entry, self.shapes["transformer_12b"], system, gpus, batch)
        return self.batch(self._own_best("axonn", "transformer_12b", plan))

    @cached
    def tuned(
        self, model: str, system: str, *, gpus: int | None = None, batch: int = WEAK_BATCH
    ) -> RankedLayouts[PlanTime]:
        """Fastest plan that the search finds, as the authors tuned their plans for Table II.

        Raises:
            DoesNotFit: No plan fits.
        """
        candidates = plans(self.shapes[model], self.system(system), gpus or AXONN_COUNTS[model], batch)
        return best(candidates, self.machine, self.efficiency())

    def study(self, when: str, **options: Any) -> ClusterBatch:
        """One batch of `study_plan`."""
        return self.batch(self.study_plan(when, **options))

    def study_plan(
        self, when: str, *, batch: int = STUDY_BATCH, inter: int | None = None, **changes: Any
    ) -> SimulationPlan:
        """Plan of 12B on 48 GPUs with separate phases (AxoNN V).

        Args:
            when: "before" or "after" the memory optimization.
            batch: Sequences per batch.
            inter: G_inter, by default the printed value.
            changes: Fields of the modelled system, for example buckets_per_reduction=1.
        """
        entry = study_plan(when)
        system = replace(
            self.system(entry["system"]),
            **{"sync_before_update": True, "bucket_numel": 0, "buckets_per_reduction": 0, **changes},
        )
        if bucket := entry.get("bucket", 0):
            system = replace(system, layout=partial(offloaded, bucket=bucket))
        if inter:
            entry = {**entry, "inter": inter}
        return self._plan(entry, self.shapes["transformer_12b"], system, STUDY_GPUS, batch)

    def _own_best(self, paper: str, model: str, plan: SimulationPlan) -> SimulationPlan:
        """`plan`, or the fastest plan that fits if plan.PAPER.own_best is varied to include the system."""
        choice, system = self.choice(f"plan.{paper}.own_best", "none"), plan.system.name
        if choice == "none" or (choice == "rivals" and system == OWN[paper]):
            return plan
        try:
            return self.tuned(model, system, gpus=plan.grid.size, batch=plan.batch).steps[0].plan
        except DoesNotFit:
            return plan

    def _plan(
        self, entry: Placing, shape: Transformer, system: str | SystemModel, gpus: int, batch: int
    ) -> SimulationPlan:
        inter, tensor = entry["inter"], entry.get("tensor", 1)
        if gpus % (inter * tensor):
            raise InvalidRequest(
                f"{gpus} GPUs do not divide into {inter} x {tensor}", rule="G_inter G_intra divides the GPUs"
            )
        modelled = self.system(system) if isinstance(system, str) else system
        grid = Grid(data=gpus // (inter * tensor), inter=inter, tensor=tensor)
        return SimulationPlan(shape, modelled, grid, batch, entry.get("microbatch", 1), entry.get("split", "even"))


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of one batch in seconds of the first stage, divided as in SAMO's Figure 8.

    The first wait of the first stage counts as bubble and every other wait as point-to-point time, our reading of the
    authors' profiler. Point-to-point time therefore includes passes of a slower neighbour. The categories differ from
    those of core.trace."""

    point_to_point: float
    bubble: float
    collective: float
    compute: float
    total: float

    @classmethod
    def of(cls, batch: ClusterBatch) -> Phases:
        spans = sorted((span for span in batch.simulation.trace if span.rank == 0), key=lambda span: span.start)
        waits = [span.seconds for span in spans if span.category == WAIT]
        bubble = waits[0] if waits else 0.0
        collective = sum(span.seconds for span in spans if span.category == REDUCE)
        compute = sum(span.seconds for span in spans if span.category not in (WAIT, REDUCE, *INSIDE))
        return cls(sum(waits) - bubble, bubble, collective, compute, batch.seconds)
