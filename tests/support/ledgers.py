"""Weight versions of a pipeline without ranks: the checker's order and a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, Schedule, WeightPolicy
from suite.schedule import OneFOneB
from suite.schedule.check import check
from suite.weights import Ledger
from suite.weights.ledger import LedgerEntry

DEPTHS = range(1, 9)


Passes = tuple[tuple[Op, Read | None], ...]


def follow(
    policy: WeightPolicy, stages: int, interval: FlushInterval, *, schedule: Schedule | None = None, exact: bool = False
) -> list[Ledger]:
    """A ledger per stage after the whole work. exact: `compare` holds after every op."""
    timeline = check(schedule or OneFOneB(), stages, interval)
    ledgers = [Ledger(policy, interval, stages) for _ in range(stages)]
    for stage, ledger in enumerate(ledgers):
        order = timeline.order(stage)
        if exact:
            compare(ledger, order)
        else:
            for op in order:
                ledger.run(op)
    return ledgers


def open_reads(ledger: Ledger) -> list[Read]:
    """Reads of the forward passes in flight."""
    return [read for reads in ledger.reads.values() for read in reads.open.values()]


def compare(ledger: Ledger, order: Iterable[Op]) -> Passes:
    """Runs `order`, whose later reads are all known here: asserts that the versions which are held after each op are
    the newest and those that a later op reads. Returns what each op read."""
    passes: list[tuple[Op, Read | None]] = []
    entries_held = []
    for op in order:
        passes.append((op, ledger.run(op)))
        entries_held.append((set(ledger.stored), ledger.alive, ledger.updates, open_reads(ledger)))
    later: set[int] = set()
    for (op, read), (stored, alive, newest, opened) in zip(reversed(passes), reversed(entries_held), strict=True):
        versions = {newest} | {version for version in later if version <= newest}
        assert stored == versions, f"{ledger.policy}: {sorted(stored)} after {op}, and {sorted(versions)} are read"
        saved = {(one.version, one.predict_steps) for one in opened if one.backward_mode == "keep"}
        assert alive == saved | {(version, 0) for version in versions}
        if read is not None:
            later.add(read.version)
    return tuple(passes)


def entries(ledger: Ledger, kind: Kind) -> list[LedgerEntry]:
    return [entry for entry in ledger.entries if entry.op.kind is kind]


def epochs(microbatches: int, update_interval: int) -> Iterator[FlushInterval]:
    """Two works, the second counted on from the first."""
    first = FlushInterval(0, microbatches, update_interval, 0)
    yield first
    yield FlushInterval(first.end, microbatches, update_interval, first.updates)
