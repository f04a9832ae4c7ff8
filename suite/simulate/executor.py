"""Executor `simulated`: batch time, percent of peak, memory and the dominant costs of a configuration.

The executor simulates the config's model, batch, grid and schedule on its machine, with its efficiency. A plan that
does not fit the machine's devices ends as `oom`, as in the papers' plots. A GPT that drains after every batch is
modelled block by block (suite.simulate.block_model). Every other network, and a pipeline that streams, is modelled
layer by layer (suite.simulate.layer_model). `executor.account` selects one model for runs that are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.errors import DoesNotFit, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.core.trace import (
    BACKWARD,
    BUBBLE,
    COMPRESS,
    COPY,
    EXPAND,
    FORWARD,
    MESSAGE,
    PREDICT,
    RECOMPUTE,
    REDUCE,
    STEP,
    TENSOR_REDUCE,
    TIE,
    TRANSFER,
    WAIT,
    WEIGHT,
    Span,
    Trace,
    breakdown,
)
from suite.memory import mixed
from suite.memory.optimizer_states import states_of
from suite.simulate import layer_model
from suite.simulate.block_model import SimulationPlan, SystemModel, transformer
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.layer_model import LayerPlan
from suite.simulate.network.machine import Machine
from suite.simulate.search import DRIVEN, TRACED, best, check_memory, check_size, no_plan, passes, plans, run
from suite.simulate.simulation import Simulation
from suite.workload import Transformer, flops

LOST = {  # what a batch may lose time to, and the categories of it
    "bubble": (BUBBLE,),
    "transfer": (TRANSFER,),
    "waiting for other stages": (WAIT,),
    "collective": (REDUCE, TIE),
    "tensor-parallel all-reduce": (TENSOR_REDUCE,),
    "optimizer step": (STEP, EXPAND),
    "handling messages": (MESSAGE,),
    "compressing gradients": (COMPRESS,),
    "predicting and copying weights": (PREDICT, COPY),
}
ALWAYS = ("bubble", "transfer", "waiting for other stages", "collective")  # listed even where there are none


class Simulated:
    """Executor `simulated`.

    Args:
        plan: "given" for the config's own grid and microbatch, or the best plan that a search over the same devices
            finds.
        account: "blocks" of a GPT, "layers" of any network, or "auto" for blocks where possible.
        symmetric: Whether one replica stands for all; False simulates every rank.
    """

    def __init__(
        self,
        *,
        machine: Machine,
        efficiency: Efficiency,
        plan: str = "given",
        account: str = "auto",
        symmetric: bool = True,
    ) -> None:
        self.machine, self.efficiency = machine, efficiency
        self.plan, self.account, self.symmetric = plan, account, symmetric

    def reads(self, config: RunConfig) -> Sequence[str]:
        """Layers have the config's memory, weights and update rule; blocks of a GPT those of `system.simulation`."""
        keys = ("batch.size", "grid", "schedule", "model.shape", "update_interval", "system.name")
        each = ("batch.microbatch", "split")
        if by_layers(config, self.account):
            simulated = ("blocking_sends", "device_initiated", "allreduces_per_update")
            rule = (f"optimizer.{name}" for name in ("_target_", "momentum", "nesterov", "direction"))
            simulation = (f"system.simulation.{name}" for name in simulated)
            return (*keys, *each, *simulation, *rule, "weights", "memory.layout", "precision.half")
        pruned = published_sparsity(described(config)) is not None
        return (
            *(*keys, "system.simulation", *(each if self.plan == "given" else ())),
            *(("pruning.ticket._target_", "pruning.sparsity") if pruned else ()),
        )

    def check(self, config: RunConfig) -> None:
        if self.plan == "given":
            check_size(self.planned(config), symmetric=self.symmetric)
        elif next(self.candidates(config), None) is None:
            raise no_plan(config.grid.build().size, config.batch.size)

    def system(self, config: RunConfig) -> SystemModel:
        """The simulated system of the config.

        A pruned system has the config's sparsity; without a mask nothing is compressed. Raises Unsupported for a
        system that cannot be simulated.
        """
        described_system, pruning = described(config), config.pruning
        if published_sparsity(described_system) is None:
            return described_system
        layout = partial(described_system.layout, sparsity=pruning.sparsity) if pruning.ticket else mixed
        return replace(described_system, layout=layout)

    def planned(self, config: RunConfig) -> SimulationPlan | LayerPlan:
        """Plan of a config. Raises InvalidRequest for an illegal plan."""
        return self.of_layers(config) if by_layers(config, self.account) else self.of(config)

    def of_layers(self, config: RunConfig) -> LayerPlan:
        """The config's network layer by layer."""
        batch, grid, shape = config.batch, config.grid.build(), config.network()
        policy = config.weights.build()
        plan = LayerPlan(
            shape,
            self.system(config),
            grid,
            batch.size,
            batch.microbatch,
            config.memory.layout.build(),
            states_of(config.optimizer.target, config.optimizer.arguments, predicts=policy.predicts),
            policy=policy,
            update_interval=config.update_interval,
            half=config.precision.half,
            split=config.split,
        )
        self.machine.peak_of(plan.half or "float32")
        _ = plan.ranges, plan.overheads  # whatever cannot be is refused here
        return plan

    def of(self, config: RunConfig) -> SimulationPlan:
        """Plan of a GPT that drains after every batch. Raises InvalidRequest for an illegal plan."""
        batch, grid, shape = config.batch, config.grid.build(), transformer(config.model.shape.build())
        if config.update_interval is not None:
            raise Unsupported("a stream of a GPT's blocks", rule="layers stream", legal="executor.account=layers")
        software = self.efficiency.generation_of_blocks
        return SimulationPlan(shape, self.system(config), grid, batch.size, batch.microbatch, config.split, software)

    def candidates(self, config: RunConfig) -> Iterator[SimulationPlan]:
        """Every plan for the number of devices of the config's grid, with the config's batch."""
        if by_layers(config, self.account):
            rule = "plans are searched for GPTs that drain after every batch"
            raise Unsupported("executor.plan=search of layers", rule=rule, legal="executor.plan=given")
        shape, devices = transformer(config.model.shape.build()), config.grid.build().size
        software = self.efficiency.generation_of_blocks
        every = plans(shape, self.system(config), devices, config.batch.size, generation=software)
        return (plan for plan in every if passes(plan, symmetric=self.symmetric) <= DRIVEN)

    def run(self, config: RunConfig) -> ExecutorResult:
        """Simulate the config. Raises DoesNotFit for a plan that needs more memory than a device has."""
        notes = []
        if self.plan == "search":
            found = best(self.candidates(config), self.machine, self.efficiency)
            plan: SimulationPlan | LayerPlan = found.steps[0].plan
            notes.append(f"best of {found.fit} plans that fit, of {found.tried}: {plan.grid}, {plan.microbatch} a time")
        else:
            plan = self.planned(config)
        try:
            check_memory(plan, self.machine)
        except DoesNotFit as error:
            error.memory = by_kind(plan)
            raise
        traced = passes(plan, symmetric=self.symmetric) <= TRACED
        where = self.machine, self.efficiency
        if isinstance(plan, LayerPlan):
            found_batch = layer_model.run(plan, *where, symmetric=self.symmetric, traced=traced)
        else:
            found_batch = run(plan, *where, symmetric=self.symmetric, traced=traced)
        parts = breakdown(first_replica(found_batch.trace, plan.grid), plan.grid)
        if parts:
            notes.append(dominating(parts, found_batch.makespan))
        if isinstance(plan, LayerPlan):
            notes.append(
                f"{len(plan.ranges)} stages of layers {', '.join(f'{r.start}-{r.stop - 1}' for r in plan.ranges)}"
            )
        usual = published_sparsity(described(config))
        if plan.system.sparse and published_sparsity(plan.system) != usual:
            notes.append(f"sparse products are as quick as at sparsity {usual}, to which efficiency.sparse belongs")
        notes += [f"efficiency.{name} {reason}" for name, reason in self.efficiency.reasons.items()]
        return ExecutorResult(
            Source.SIMULATED,
            metrics=self.metrics(plan, found_batch) | by_category(parts),
            memory={"predicted": by_kind(plan)},
            trace=found_batch.trace if traced and plan.grid.data == 1 else Trace(),
            notes=tuple(notes),
            calibrated_on=self.efficiency.calibrated_on,
        )

    def metrics(self, plan: SimulationPlan | LayerPlan, found: Simulation) -> dict[str, Metric]:
        """Metrics of a batch. For a stream, the batch time is that of a full pipeline."""
        seconds, dtype, rates = found.makespan, "float16", {}
        if isinstance(plan, LayerPlan):
            seconds, dtype, rates = plan.seconds(found), plan.half or "float32", self.rates(plan, found)
        precision_name = {"float16": "half-precision", "float32": "full-precision"}.get(dtype, dtype)
        word, each = flops.counted_in(plan.shape)
        return {
            "batch_time": Metric("s", "lower", (seconds,), f"simulated with the efficiency {self.efficiency.name}"),
            f"{word}s_per_batch": Metric(word, "", (float(plan.batch * each),)),
            **rates,
            "flops_per_batch": Metric("flop", "", (float(flops.training(plan.shape, plan.batch)),)),
            "flops_per_batch_recompute": Metric(
                "flop", "", (float(flops.training(plan.shape, plan.batch, recompute=True)),)
            ),
            "peak_flops": Metric(
                "flop/s",
                "higher",
                (plan.grid.size * self.machine.peak_of(dtype),),
                f"{plan.grid.size} devices of {self.machine.name}, the vendor's dense {precision_name} figure",
            ),
            "events": Metric("event", "", (float(found.events),)),
        }

    def rates(self, plan: LayerPlan, found: Simulation) -> dict[str, Metric]:
        """Samples per second of a full pipeline; for a stream, also with filling and draining."""
        rates = {"samples_per_second": Metric("sample/s", "higher", (plan.batch / plan.seconds(found),))}
        if plan.update_interval is not None:
            samples = plan.interval.microbatches * plan.microbatch * plan.grid.data
            meaning = f"of {samples} samples from drain to drain"
            rates["samples_per_second_drained"] = Metric("sample/s", "higher", (samples / found.makespan,), meaning)
        return rates


def by_layers(config: RunConfig, account: str) -> bool:
    """Whether a config's network is modelled layer by layer under an account."""
    if account == "auto":
        shape = config.network()
        return not isinstance(shape, Transformer) or config.update_interval is not None
    return account == "layers"


def described(config: RunConfig) -> SystemModel:
    """The config's system from its block `simulation`, with the config's schedule."""
    system: SystemModel = build(config.system.modelled(config.schedule.data()))
    return system


def published_sparsity(system: SystemModel) -> float | None:
    """Pruned share of entries if the system's layout is pruned: the papers' sparsity in conf/system."""
    layout_arguments = system.layout.keywords if isinstance(system.layout, partial) else {}
    return layout_arguments.get("sparsity")


def first_replica(trace: Iterable[Span], grid: Grid) -> list[Span]:
    """Trace of the first replica.

    All replicas run the same ops, and a breakdown reads the whole trace once per rank.
    """
    return [span for span in trace if grid.position(span.rank).data == 0]


def by_kind(plan: SimulationPlan | LayerPlan) -> dict[str, list[int]]:
    """Predicted bytes by kind, one value per pipeline rank of a replica."""
    kinds = [plan.budget(rank).by_kind() for rank in range(plan.grid.inter)]
    names = list(dict.fromkeys(name for rank in kinds for name in rank))
    return {name: [rank.get(name, 0) for rank in kinds] for name in names}


def dominating(parts: Mapping[str, float], makespan: float) -> str:
    """Shares of the batch time: computation, and each kind of loss."""
    lost = {name: sum(parts.get(category, 0.0) for category in group) for name, group in LOST.items()}
    if not any(lost.values()):
        return "nothing is lost"
    first = max(lost, key=lambda name: lost[name])

    def percent(seconds: float) -> str:
        return f"{100 * seconds / makespan:.0f} percent"

    again = parts.get(RECOMPUTE, 0.0)
    computing = percent(sum(parts.get(category, 0.0) for category in (FORWARD, BACKWARD, WEIGHT, RECOMPUTE)))
    repeated = f" ({percent(again)} is recomputation)" if again else ""
    shares = ", ".join(f"{name} {percent(value)}" for name, value in lost.items() if value or name in ALWAYS)
    return f"of {makespan:.3g} s {computing} is computing{repeated}; most is lost to {first}: {shares}"


def by_category(parts: Mapping[str, float]) -> dict[str, Metric]:
    """Seconds of the simulated interval by category, as means over the stages (suite.runner.batch_metrics)."""
    return {f"time_{name}": Metric("s", "lower", (parts[name],)) for name in sorted(parts)}
