"""List of the laws, in the order in which they are checked.

A law that others depend on comes first.
"""

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
from suite.conformance import graphs, mpi_worker, orders, outcomes
from suite.conformance.fixtures import Case, case_of
from suite.conformance.gradients import check_system
from suite.conformance.memory import check_counted, counted
from suite.conformance.replays import check_replayed
from suite.conformance.resuming import check_resumed
from suite.conformance.system_under_test import Subject
from suite.core.errors import Fault, InvalidRequest, SuiteError
from suite.core.grid import Grid
from suite.core.keys import in_config_keys
from suite.core.reasons import headline, is_users, whole

PATIENCE = 60.0  # seconds for what threads do together: a law takes a few
EPOCHS = (6, 4)  # batches from drain to drain: the second begins with state


class LawVerdict(StrEnum):
    KEPT = "kept"
    BROKEN = "BROKEN"
    NOT_ASKED = "does not apply"


class DoesNotApply(Exception):
    """A law that this system has nothing to do with; the message says why."""


@dataclass(frozen=True)
class Law:
    """number: in the order of design and tests/laws; check: what was kept. It raises AssertionError or any other error
    where the law is broken, DoesNotApply where it is not asked. first: whether nothing after it is asked where it is
    broken."""

    number: str
    name: str
    check: Callable[[Subject], str]
    first: bool = False


@dataclass(frozen=True)
class LawResult:
    law: Law
    verdict: LawVerdict
    said: str
    seconds: float


def examine(subject: Subject, chosen: Sequence[str] = ()) -> Iterator[LawResult]:
    """Each law in turn, as it is found out. chosen: names of those that are asked, all where there are none. A
    refusal by name breaks no law.
    """
    broken = ""
    for law in LAWS:
        if chosen and law.name not in chosen:
            continue
        begin = time.monotonic()
        verdict, said = LawVerdict.NOT_ASKED, f"because {broken} is broken"
        if not broken:
            try:
                with in_config_keys():
                    verdict, said = LawVerdict.KEPT, law.check(subject)
            except DoesNotApply as reason:
                said = f"because {reason}"
            except InvalidRequest as error:  # by name, before anything runs
                said = f"because it refuses: {error}"
                if law.name == "composes":
                    verdict, said, broken = LawVerdict.BROKEN, reason_of(error), '"composes"'
            except Exception as error:  # whatever a new system raises is its own fault
                verdict, said = LawVerdict.BROKEN, reason_of(error)
                broken = f'"{law.name}"' if law.first else ""
        yield LawResult(law, verdict, said, time.monotonic() - begin)


def reason_of(error: BaseException) -> str:
    """The error's message; for an unexpected error its type, and its place in the user's file."""
    said = str(error).strip()
    if isinstance(error, Fault):
        return headline(said)
    if is_users(error) and not isinstance(error, SuiteError | AssertionError):
        return headline(whole(error))
    meant = isinstance(error, AssertionError) and said
    return said if meant else f"{type(error).__name__}: {said or 'no reason given'}"


# -- on whom ---------------------------------------------------------------------------------------------------------


def _of_stages(subject: Subject) -> None:
    if subject.graphs:
        raise DoesNotApply("it trains a whole graph: no stages, no microbatches")
    if not subject.ours:
        raise DoesNotApply("its engine is its own: the suite does not see its order and its tensors")


def _case(subject: Subject, config: RunConfig) -> Case:
    """Made once per size of microbatch, so that what is right of it is found once."""
    groups = [group.plain() for group in (config.model, config.batch, config.pruning)]
    key = json.dumps([*groups, config.seed], sort_keys=True)
    if key not in subject._made:
        subject._made[key] = case_of(config, subject.made.makers(config, config.model.shape.build()))
    case: Case = subject._made[key]
    return case


def _epochs(config: RunConfig) -> list[list[Any]]:
    data, shape = config.data.source.build(), config.model.shape.build()
    batches = iter(range(sum(EPOCHS)))
    return [
        [data.batch(next(batches), size=config.batch.size, seed=config.seed, shape=shape) for _ in range(n)]
        for n in EPOCHS
    ]


def _grids(*sizes: tuple[int, int]) -> list[tuple[Grid, str, str]]:
    return [(Grid(inter=i, data=d), f"grid.inter={i}", f"grid.data={d}") for i, d in sizes]


# -- the laws --------------------------------------------------------------------------------------------------------


def _order(subject: Subject) -> str:
    if subject.graphs or not subject.orders:
        _of_stages(subject)
    sizes = orders.check_every_size(subject.schedule, subject.every, serves=subject.serves)
    return f"at {sizes} sizes: stages 1 to 8, microbatches 1 to 32, at equal speeds and at any"


def _versions(subject: Subject) -> str:
    _of_stages(subject)
    sizes = orders.check_versions(subject.policy, subject.schedule, subject.every)
    return f"every pass reads what is kept, at {sizes} sizes"


def _gradients(subject: Subject) -> str:
    _of_stages(subject)
    compared = 0
    unpruned = () if subject.base.system.sparse else ("pruning=none",)
    for grid, *places in _grids((1, 1), (2, 1), (2, 2)):
        config = subject.still(*unpruned, *places)
        case = _case(subject, config)

        def rank(world: Any, config: RunConfig = config, case: Case = case) -> int:
            return check_system(subject.made, config, case, world)

        try:
            compared += sum(threads.run(grid.size, rank, deadline=PATIENCE))
        except Exception as error:
            raise AssertionError(f"{grid}: {reason_of(error)}") from error
    return f"{compared} gradients on 3 grids of threads are those of one process, bit for bit"


def _replay(subject: Subject) -> str:
    _of_stages(subject)
    compared = 0
    for grid, *places in _grids((4, 1), (2, 2)):
        config = subject.config("batch.size=4", *_few(subject), *places)
        epochs = _epochs(config)

        def rank(world: Any, config: RunConfig = config, epochs: Any = epochs) -> int:
            return check_replayed(subject.made, config, epochs, world)

        try:
            compared += sum(threads.run(grid.size, rank, deadline=PATIENCE))
        except Exception as error:
            raise AssertionError(f"{grid}: {reason_of(error)}") from error
    return f"{compared} weights on 2 grids of threads are those of the replay, bit for bit"


def _few(subject: Subject) -> tuple[str, ...]:
    """Of a flush several microbatches per batch; an asynchronous system has its own rule for them."""
    return ("batch.microbatch=1",) if subject.every is None else ()


def _bytes(subject: Subject) -> str:
    _of_stages(subject)
    if not subject.base.system.has_memory_model:
        raise DoesNotApply("system.has_memory_model is not true: its bytes are not predicted")
    config = subject.whole("batch.size=8", "grid.inter=1", "grid.data=1")
    off = check_counted(config, [counted(threads.LoopbackWorld(threads.Hub(1), 0), config, subject.made)], "alone")
    return f"states to the byte; the peak of one rank was predicted within {off:.1%}"


def _closed_form(subject: Subject) -> str:
    _of_stages(subject)
    formula = subject.base.system.bubble
    if formula is None:
        raise DoesNotApply("it claims none: system.bubble, a formula in stages and microbatches")
    return f"{formula} at {orders.check_claimed_bubble(subject.schedule, str(formula))} sizes"


def _clocks(subject: Subject) -> str:
    _of_stages(subject)
    sizes = orders.check_clocks(subject.schedule, subject.every)
    return f"the simulator takes as long as the checker's ticks, at {sizes} sizes"


def _resume(subject: Subject) -> str:
    _of_stages(subject)
    if not subject.base.system.can_resume:
        raise DoesNotApply("system.supports_checkpoints is not true: it has no checkpoints")
    config = subject.config("batch.size=4", *_few(subject), "grid.inter=2")
    batches = [batch for epoch in _epochs(config) for batch in epoch][:4]
    with tempfile.TemporaryDirectory() as folder:

        def rank(world: Any) -> int:
            return check_resumed(subject.made, config, batches, Path(folder), world, where=subject.name)

        tensors = sum(threads.run(2, rank, deadline=PATIENCE))
    return f"{tensors} tensors of two stages are those of a run that was not interrupted"


def _mpi(subject: Subject) -> str:
    _of_stages(subject)
    if find_mpiexec(subject.base.launch.mpiexec) is None:
        raise DoesNotApply("mpiexec is not here")
    unpruned = () if subject.base.system.sparse else ("pruning=none",)
    jobs = {
        "gradients": subject.still(*unpruned, "grid.inter=2"),
        "replay": subject.config("batch.size=4", *_few(subject), "grid.inter=2"),
    }
    return mpi_worker.check_ranks(2, jobs)


def _graph(subject: Subject) -> str:
    if not subject.graphs:
        raise DoesNotApply("it trains no whole graph")
    overrides = list(subject.overrides)
    with tempfile.TemporaryDirectory() as folder:
        alone = graphs.losses(overrides, 1, 1, Path(folder))
        for processes, replication in ((2, 1), (4, 2)):
            graphs.check_losses(overrides, processes, replication, alone, Path(folder))
    return "losses on 2 processes, and on 4 in pairs, are those of one; bytes are the plan's"


def _losses(subject: Subject) -> str:
    if subject.graphs or subject.ours:
        raise DoesNotApply("its gradients are compared, which says more")
    overrides = subject.asked("batch.size=8", "batch.microbatch=1", "grid.inter=2")
    plain = [o for o in overrides if not o.startswith(("system", "grid.", "+system"))] + ["system=pytorch"]
    with tempfile.TemporaryDirectory() as folder:
        _, off = outcomes.check_losses(overrides, plain, Path(folder))
    return f"two ranks have the losses of plain PyTorch within {max(off, 1e-9):.0e}"


def _killed(subject: Subject) -> str:
    ranks = "grid.data=2" if subject.graphs else "grid.inter=2"
    with tempfile.TemporaryDirectory() as folder:
        said = outcomes.check_killed(subject.asked(ranks), Path(folder))
    return f"its record says: {said}; no process is left"


LAWS = (
    Law("9", "composes", Subject.composes, first=True),
    Law("1", "order", _order, first=True),
    Law("1", "versions", _versions, first=True),
    Law("2", "gradients", _gradients),
    Law("2", "graph", _graph),
    Law("2", "losses", _losses),
    Law("3", "replay", _replay),
    Law("4", "bytes", _bytes),
    Law("5", "bubble", _closed_form),
    Law("6", "clocks", _clocks),
    Law("8", "resume", _resume),
    Law("2,3", "mpi", _mpi),
    Law("-", "killed", _killed),
)
