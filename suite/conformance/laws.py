"""Laws in the order in which they are checked: a law that others depend on comes first."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from suite.comm.p2p import threads
from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
from suite.config.run import RunConfig
from suite.conformance import graphs, orders, outcomes
from suite.conformance.fixtures import Case, case_of, epochs_of, reason_of
from suite.conformance.gradients import check_system
from suite.conformance.memory import check_memory, count_memory
from suite.conformance.replays import check_replayed
from suite.conformance.resuming import check_resumed
from suite.conformance.system_under_test import SystemUnderTest
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.keys import in_config_keys


class LawVerdict(StrEnum):
    """Whether a system keeps a law."""

    KEPT = "kept"
    BROKEN = "BROKEN"
    NOT_APPLICABLE = "does not apply"


class DoesNotApply(Exception):
    """A law does not apply to this system; the message holds the reason."""


@dataclass(frozen=True)
class Law:
    """A law.

    Attributes:
        number: Number in the order of design and tests/laws.
        name: Name on the command line.
        check: Returns a text on the checked cases. Raises DoesNotApply, or any other error if the law is broken.
        first: Whether later laws are skipped if this one is broken.
        engine: Whether it applies to systems on the suite's engine alone.
    """

    number: str
    name: str
    check: Callable[[SystemUnderTest], str]
    first: bool = False
    engine: bool = True


@dataclass(frozen=True)
class LawResult:
    """Verdict on a law, with its reason and duration."""

    law: Law
    verdict: LawVerdict
    reason: str
    seconds: float


def examine(system: SystemUnderTest, names: Sequence[str] = ()) -> Iterator[LawResult]:
    """Check the laws of these names, by default all, and yield each result.

    A configuration that the system refuses by name breaks no law except "composes".
    """
    broken = ""
    for law in LAWS:
        if names and law.name not in names:
            continue
        begin = time.monotonic()
        verdict, reason = LawVerdict.NOT_APPLICABLE, f"because {broken} is broken"
        if not broken:
            try:
                with in_config_keys():
                    if law.engine:
                        _require_engine(system)
                    verdict, reason = LawVerdict.KEPT, law.check(system)
            except DoesNotApply as error:
                reason = f"because {error}"
            except InvalidRequest as error:  # before anything runs
                reason = f"because it refuses: {error}"
                if law.name == "composes":
                    verdict, reason, broken = LawVerdict.BROKEN, reason_of(error), '"composes"'
            except Exception as error:  # a new system may raise anything
                verdict, reason = LawVerdict.BROKEN, reason_of(error)
                broken = f'"{law.name}"' if law.first else ""
        yield LawResult(law, verdict, reason, time.monotonic() - begin)


def _require_engine(system: SystemUnderTest) -> None:
    if system.trains_graphs:
        raise DoesNotApply("it trains a whole graph: no stages, no microbatches")
    if not system.on_engine:
        raise DoesNotApply("its engine is its own: its order and its tensors are not visible to the suite")


def _case(system: SystemUnderTest, config: RunConfig) -> Case:
    """The model of a config, made once per microbatch size."""
    groups = [group.plain() for group in (config.model, config.batch, config.pruning)]
    key = json.dumps([*groups, config.seed], sort_keys=True)
    if key not in system.cases:
        system.cases[key] = case_of(config, system.system_class.layer_makers(config, config.model.shape.build()))
    return system.cases[key]


def _on_threads(grid: Grid, check: Callable[[Any], int]) -> int:
    """Run a check on every rank of a grid of threads. Returns the number of compared tensors."""
    try:
        return sum(threads.run(grid.size, check))
    except Exception as error:
        raise AssertionError(f"{grid}: {reason_of(error)}") from error


def _grids(*sizes: tuple[int, int]) -> list[tuple[Grid, str, str]]:
    return [(Grid(inter=i, data=d), f"grid.inter={i}", f"grid.data={d}") for i, d in sizes]


def _several_microbatches(system: SystemUnderTest) -> tuple[str, ...]:
    """Several microbatches per batch of a flush; an asynchronous system has its own rule for their number."""
    return ("batch.microbatch=1",) if system.update_interval is None else ()


def _unpruned(system: SystemUnderTest) -> tuple[str, ...]:
    return () if system.base.system.sparse else ("pruning=none",)


# Checks of the laws


def _check_order(system: SystemUnderTest) -> str:
    if system.trains_graphs or not system.runs_config_schedule:
        _require_engine(system)
    sizes = orders.check_every_size(system.schedule, system.update_interval, system.base.system.processes)
    return f"at {sizes} sizes: stages 1 to 8, microbatches 1 to 32, at equal speeds and at any"


def _check_versions(system: SystemUnderTest) -> str:
    sizes = orders.check_versions(system.policy, system.schedule, system.update_interval)
    return f"every pass reads a stored version, at {sizes} sizes"


def _check_gradients(system: SystemUnderTest) -> str:
    compared = 0
    for grid, *places in _grids((1, 1), (2, 1), (2, 2)):
        config = system.zero_rate_config(*_unpruned(system), *places)
        case = _case(system, config)

        def check(world: Any, config: RunConfig = config, case: Case = case) -> int:
            return check_system(system.system_class, config, case, world)

        compared += _on_threads(grid, check)
    return f"{compared} gradients on 3 grids of threads equal one process, bit for bit"


def _check_replay(system: SystemUnderTest) -> str:
    compared = 0
    for grid, *places in _grids((4, 1), (2, 2)):
        config = system.trained_config(*places, microbatch=_several_microbatches(system))
        epochs = epochs_of(config)

        def check(world: Any, config: RunConfig = config, epochs: Any = epochs) -> int:
            return check_replayed(system.system_class, config, epochs, world)

        compared += _on_threads(grid, check)
    return f"{compared} weights on 2 grids of threads equal the replay, bit for bit"


def _check_bytes(system: SystemUnderTest) -> str:
    if not system.base.system.has_memory_model:
        raise DoesNotApply("system.has_memory_model is not true: its bytes are not predicted")
    config = system.full_size_config("batch.size=8", "grid.inter=1", "grid.data=1")
    counts = count_memory(threads.LoopbackWorld(threads.Hub(1), 0), config, system.system_class)
    return f"states to the byte; the peak of one rank is predicted within {check_memory(config, [counts], 'alone'):.1%}"


def _check_closed_form(system: SystemUnderTest) -> str:
    formula = system.base.system.bubble
    if formula is None:
        raise DoesNotApply("it claims none: system.bubble, a formula in stages and microbatches")
    return f"{formula} at {orders.check_claimed_bubble(system.schedule, str(formula))} sizes"


def _check_clocks(system: SystemUnderTest) -> str:
    sizes = orders.check_clocks(system.schedule, system.update_interval)
    return f"the simulator takes as long as the checker's ticks, at {sizes} sizes"


def _check_resume(system: SystemUnderTest) -> str:
    if not system.base.system.supports_checkpoints:
        raise DoesNotApply("system.supports_checkpoints is not true: it has no checkpoints")
    config = system.trained_config("grid.inter=2", microbatch=_several_microbatches(system))
    batches = [batch for epoch in epochs_of(config) for batch in epoch][:4]
    with tempfile.TemporaryDirectory() as folder:

        def check(world: Any) -> int:
            return check_resumed(system.system_class, config, batches, Path(folder), world, where=system.name)

        tensors = sum(threads.run(2, check))
    return f"{tensors} tensors of two stages equal an uninterrupted run"


def _check_ranks(system: SystemUnderTest) -> str:
    if find_mpiexec(system.base.launch.mpiexec) is None:
        raise DoesNotApply("there is no mpiexec")
    microbatch = _several_microbatches(system)
    size = system.trained_config("grid.inter=2", microbatch=microbatch).batch.size
    overrides = system.small_overrides(f"batch.size={size}", *microbatch, "grid.inter=2")
    replay = [*overrides, "executor=replay", "executor.memory=true"]  # memory is counted over one more batch
    with tempfile.TemporaryDirectory() as folder:
        record, _ = outcomes.check_losses(overrides, replay, Path(folder), 0.0)
    return f"{len(record.series['loss'])} losses of two ranks over {record.provenance['carrier']} equal the replay"


def _check_graph(system: SystemUnderTest) -> str:
    if not system.trains_graphs:
        raise DoesNotApply("it trains no whole graph")
    overrides = list(system.overrides)
    with tempfile.TemporaryDirectory() as folder:
        expected = graphs.train_losses(overrides, 1, 1, Path(folder))
        for processes, replication in ((2, 1), (4, 2)):
            graphs.check_losses(overrides, processes, replication, expected, Path(folder))
    return "losses on 2 processes, and on 4 in pairs, equal one process; bytes equal the plan"


def _check_losses(system: SystemUnderTest) -> str:
    if system.trains_graphs or system.on_engine:
        raise DoesNotApply("its gradients are compared, which is a stronger check")
    overrides = system.small_overrides("batch.size=8", "batch.microbatch=1", "grid.inter=2")
    plain = [o for o in overrides if not o.startswith(("system", "grid.", "+system"))] + ["system=pytorch"]
    with tempfile.TemporaryDirectory() as folder:
        _, difference = outcomes.check_losses(overrides, plain, Path(folder))
    return f"two ranks have the losses of plain PyTorch within {max(difference, 1e-9):.0e}"


LAWS = (
    Law("9", "composes", SystemUnderTest.check_composes, first=True, engine=False),
    Law("1", "order", _check_order, first=True, engine=False),
    Law("1", "versions", _check_versions, first=True),
    Law("2", "gradients", _check_gradients),
    Law("2", "graph", _check_graph, engine=False),
    Law("2", "losses", _check_losses, engine=False),
    Law("3", "replay", _check_replay),
    Law("4", "bytes", _check_bytes),
    Law("5", "bubble", _check_closed_form),
    Law("6", "clocks", _check_clocks),
    Law("8", "resume", _check_resume),
    Law("2,3", "ranks", _check_ranks),
)
