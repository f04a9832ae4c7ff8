"""The checkers against mutated orders: each broken law is named, and each mutation that stays legal passes.

A brute-force run over texts decides which mutations are legal. It shares no code with the checkers: it knows ops as
texts, moves every rank as far as it goes, and reports the laws that the ranks then break.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from baselines.gpipe import GPipe
from suite.core.errors import IllegalSchedule
from suite.core.op import FlushInterval, Op, Place, Program
from suite.schedule import MessageDriven
from suite.schedule.check import check, check_message_order
from tests.support.drawn import drawn, generator
from tests.support.schedules import SCHEDULES, serves

EVERY = {"gpipe": GPipe(), "message_driven": MessageDriven(), **SCHEDULES}
SIZES = ((1, 3), (2, 4), (3, 7), (4, 9))  # ranks, microbatches
MUTATIONS = 25  # of each schedule and size
Rows = list[list[str]]
_OP = re.compile(r"(\d+)([A-Z_]+?)(\d+)")


def parts(text: str) -> tuple[int, str, int]:
    match = _OP.fullmatch(text)
    assert match
    return int(match[1]), match[2], int(match[3])


@dataclass(frozen=True)
class Script:
    """Schedule of fixed texts on a table of stages, with a bound on activations per rank."""

    rows: tuple[tuple[str, ...], ...]
    homes: tuple[int, ...]
    bounds: tuple[int, ...]
    split: bool = True

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for text in self.rows[place.rank]:
            yield (Op.parse(text),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.bounds[place.rank]


@cache
def legal_orders(name: str, ranks: int, microbatches: int) -> tuple[Rows, tuple[int, ...]]:
    timeline = check(EVERY[name], ranks, FlushInterval(0, microbatches, None, 0))
    rows = [[str(op) for op in timeline.order(rank)] for rank in range(ranks)]
    return rows, tuple(timeline.places[0].rank_of(stage) for stage in range(timeline.stages))


# -- the oracle ------------------------------------------------------------------------------------------------------


class Brute:
    """All ranks moved as far as they go. A rank stops for good at an op that breaks a law of its own row."""

    def __init__(self, rows: Rows, homes: Sequence[int], microbatches: int, bounds: Sequence[int]) -> None:
        self.rows, self.homes, self.count, self.bounds = rows, homes, microbatches, bounds
        self.at = [0] * len(rows)
        self.values: set[tuple[int, str, int]] = set()  # outputs of F, gradients under the name B
        self.faults: set[str] = set()
        self.broken: set[int] = set()
        moved = True
        while moved:
            moved = False
            for rank in range(len(rows)):
                moved = self._move(rank) or moved
        waiting = {rank: rows[rank][self.at[rank]] for rank in range(len(rows)) if self._left(rank)}
        self.waits = {f"stage {homes.index(rank)} waits for {self._need(op)}" for rank, op in waiting.items()}
        self.legal = not self.faults and not waiting

    def _left(self, rank: int) -> bool:
        return rank not in self.broken and self.at[rank] < len(self.rows[rank])

    def _need(self, text: str) -> str:
        stage, kind, index = parts(text)
        if kind == "F" and stage > 0:
            return f"{stage - 1}F{index}"
        if kind in "BI" and stage + 1 < len(self.homes):
            return f"{stage + 1}B{index}"
        return ""

    def _move(self, rank: int) -> bool:
        if not self._left(rank):
            return False
        row, at = self.rows[rank], self.at[rank]
        text = row[at]
        need = self._need(text)
        stage, kind, index = parts(text)
        held = stage < len(self.homes) and self.homes[stage] == rank
        if held and need and parts(need) not in self.values:
            return False
        if fault := self._fault(rank, row[:at], text, held):
            self.faults.add(fault)
            self.broken.add(rank)
            return True
        if kind in "FBI":
            self.values.add((stage, "B" if kind == "I" else kind, index))
        self.at[rank] += 1
        if self.at[rank] == len(row) and (fault := self._end(rank)):
            self.faults.add(fault)
            self.broken.add(rank)
        return True

    def _fault(self, rank: int, ran: Sequence[str], text: str, held: bool) -> str:
        stage, kind, index = parts(text)
        earlier = {each for each in "FBIW" if f"{stage}{each}{index}" in ran}
        if not held:
            return f"{text} belongs to stage {stage}, not "
        if text in ran:
            return f"{text} runs twice"
        if kind == "U":
            if stage != self.homes.index(rank) or index != 0:
                return f"{text} is out of turn"
            for number in range(self.count):
                for mine in self._stages(rank):
                    if not self._complete(ran, mine, number):
                        return f"{text} comes before the "
            return ""
        if index >= self.count:
            return f"{text} is outside the work"
        if kind in "BI":
            if earlier & {"B", "I"}:
                return f"{text} follows another backward pass"
            return "" if "F" in earlier else f"{text} comes before its forward"
        if kind == "W":
            return "" if "I" in earlier else f"{text} comes before its input gradient"
        activations = sum(parts(each)[1] == "F" for each in ran) - sum(parts(each)[1] in "BW" for each in ran)
        return f"{text} would be forward number" if activations + 1 > self.bounds[rank] else ""

    def _end(self, rank: int) -> str:
        row = self.rows[rank]
        complete = all(self._complete(row, s, m) for s in self._stages(rank) for m in range(self.count))
        name = f"stage {self.homes.index(rank)}: "
        return "" if complete and f"{self.homes.index(rank)}U0" in row else name

    def _stages(self, rank: int) -> list[int]:
        return [stage for stage, home in enumerate(self.homes) if home == rank]

    @staticmethod
    def _complete(ran: Sequence[str], stage: int, index: int) -> bool:
        return f"{stage}B{index}" in ran or f"{stage}W{index}" in ran


def one_order(rows: Rows, homes: Sequence[int]) -> bool:
    """Whether neighbouring stages run their passes of one direction in one order."""
    for kinds in ("F", "BI"):
        orders = [
            [parts(text)[2] for text in rows[home] if parts(text)[0] == stage and parts(text)[1] in kinds]
            for stage, home in enumerate(homes)
        ]
        if any(order != orders[0] for order in orders):
            return False
    return True


# -- mutations -------------------------------------------------------------------------------------------------------


def drop(rows: Rows, pick: random.Random) -> None:
    row = pick.choice(rows)
    del row[pick.randrange(len(row))]


def double(rows: Rows, pick: random.Random) -> None:
    row = pick.choice(rows)
    row.insert(pick.randrange(len(row) + 1), pick.choice(row))


def swap(rows: Rows, pick: random.Random) -> None:
    """Of neighbours or of any two ops."""
    row = pick.choice(rows)
    first = pick.randrange(len(row) - 1)
    second = pick.choice((first + 1, first + 1, pick.randrange(len(row))))
    row[first], row[second] = row[second], row[first]


def move(rows: Rows, pick: random.Random) -> None:
    row = pick.choice(rows)
    op = row.pop(pick.randrange(len(row)))
    row.insert(pick.randrange(len(row) + 1), op)


def other_rank(rows: Rows, pick: random.Random) -> None:
    source, target = pick.choice(rows), pick.choice(rows)
    target.insert(pick.randrange(len(target)), source.pop(pick.randrange(len(source) - 1)))


def rename(rows: Rows, pick: random.Random) -> None:
    """Another stage or another microbatch."""
    row = pick.choice(rows)
    at = pick.randrange(len(row))
    stage, kind, index = parts(row[at])
    if pick.random() < 0.5:
        stage = pick.choice([stage + 1, max(0, stage - 1), 99])
    else:
        index = pick.choice([index + 1, max(0, index - 1), 77])
    row[at] = f"{stage}{kind}{index}"


def other_backward(rows: Rows, pick: random.Random) -> None:
    """A whole backward pass in place of or after an input gradient, or the other way round."""
    row = pick.choice(rows)
    at = pick.choice([at for at, text in enumerate(row) if parts(text)[1] in "BI"])
    row.insert(at + 1, row[at].translate(str.maketrans("BI", "IB")))
    if pick.random() < 0.5:
        del row[at]


MUTATE = (drop, double, swap, swap, move, move, rename, rename, other_rank, other_backward)


def mutants(name: str, ranks: int, microbatches: int, seeds: Sequence[int]) -> Iterator[tuple[Rows, tuple[int, ...]]]:
    rows, homes = legal_orders(name, ranks, microbatches)
    for seed in seeds:
        pick = random.Random(seed)
        mutant = [list(row) for row in rows]
        for _ in range(pick.choice((1, 1, 2))):
            MUTATE[seed % len(MUTATE)](mutant, pick)
        if all(mutant):
            yield mutant, homes


def peaks(rows: Rows) -> tuple[int, ...]:
    found = []
    for row in rows:
        steps = [{"F": 1, "B": -1, "W": -1}.get(parts(text)[1], 0) for text in row]
        found.append(max(sum(steps[: end + 1]) for end in range(len(steps))))
    return tuple(found)


# -- the laws --------------------------------------------------------------------------------------------------------


def refusal(run: Callable[[], object]) -> str | None:
    """First line of the error; None for a legal order."""
    try:
        run()
    except IllegalSchedule as error:
        return str(error).partition("\n")[0]
    return None


def assert_agrees(rows: Rows, homes: tuple[int, ...], microbatches: int, bounds: tuple[int, ...]) -> bool:
    """Compare the checker with the oracle. Returns whether the order is legal."""
    oracle = Brute(rows, homes, microbatches, bounds)
    script = Script(tuple(map(tuple, rows)), homes, bounds)
    interval = FlushInterval(0, microbatches, None, 0)
    law = refusal(lambda: check(script, len(rows), interval))
    if law is None:
        assert oracle.legal, f"passed, and breaks {oracle.faults or oracle.waits}\n{rows}"
        channel = refusal(lambda: check_message_order(check(script, len(rows), interval)))
        assert (channel is None) == one_order(rows, homes)
        assert channel is None or re.match(r"\d+[FB]\d+ would receive the message of \d+[FB]\d+", channel)
        return True
    assert not oracle.legal, f"refused, and legal: {law}\n{rows}"
    if oracle.faults:
        assert any(law.startswith(fault) for fault in oracle.faults), (law, oracle.faults)
    else:
        assert set(law.removeprefix("deadlock: ").split("; ")) == oracle.waits
    return False


@pytest.mark.parametrize("name", drawn(EVERY, n=3))
def test_mutations_are_named_or_stay_legal(name: str) -> None:
    verdicts = []
    for ranks, microbatches in (size for size in SIZES if serves(EVERY[name], *size)):
        rows, _ = legal_orders(name, ranks, microbatches)
        seeds = generator(name, ranks).sample(range(10**6), MUTATIONS)
        for mutant, homes in mutants(name, ranks, microbatches, seeds):
            for bounds in ((10**9,) * ranks, peaks(rows)):
                verdicts.append(assert_agrees(mutant, homes, microbatches, bounds))
    assert verdicts.count(False) >= 40, "few mutations break a law"
    assert verdicts.count(True) >= 1, "no mutation stays legal"
