"""Decides whether the store obeys a policy that it can obey, and refuses by name one that it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import gpt_case

from suite.comm import loopback
from suite.core.errors import Unsupported
from suite.core.grid import Grid
from suite.core.op import Kind, Op, Work
from suite.core.protocols import Clock, Read
from suite.engine.optimizer import SGD
from suite.engine.store import Store
from suite.engine.train import Engine
from suite.weights import Latest

F0, F1 = Op(0, Kind.FORWARD, 0), Op(0, Kind.FORWARD, 1)
B0, U0 = Op(0, Kind.BACKWARD, 0), Op(0, Kind.UPDATE, 0)


class Policy:
    def __init__(self, decide: Callable[[Op, Clock], Read]) -> None:
        self.decide = decide

    def read(self, op: Op, clock: Clock) -> Read:
        return self.decide(op, clock)

    def oldest(self, clock: Clock) -> int:
        return 0


def store_of(policy: object, updates: int = 0) -> Store:
    store = Store(policy, 2)  # type: ignore[arg-type]
    store.begin(Work(updates, 4, 1, updates))
    return store


def test_the_newest_version_is_read() -> None:
    store = store_of(Latest())
    assert store.run(F0) == Read(0)
    assert store.run(B0) is None  # the forward's graph is kept: nobody is asked
    assert store.run(U0) is None
    assert store.run(F1) == Read(1)


def test_recomputation_asks_for_the_backward_too() -> None:
    store = store_of(Latest("recompute"))
    assert store.run(F0) == store.run(B0) == Read(0, graph="recompute")


def test_a_later_work_counts_on() -> None:
    store = store_of(Latest(), updates=7)
    assert store.run(Op(0, Kind.FORWARD, 7)) == Read(7)


@pytest.mark.parametrize(
    ("decide", "says"),
    [
        (lambda op, clock: Read(clock.updates - 1), r"0F1 reads version 0\+0 of 1"),
        (lambda op, clock: Read(clock.updates, ahead=clock.updates), r"0F1 reads version 1\+1 of 1"),
        (lambda op, clock: Read(clock.updates, graph="swap" if clock.updates else "keep"), "a backward by swap"),
    ],
    ids=["older", "ahead", "swap"],
)
def test_what_the_store_does_not_hold_is_refused_by_name(decide: Callable[[Op, Clock], Read], says: str) -> None:
    store = store_of(Policy(lambda op, clock: decide(op, clock) if clock.updates else Read(0)))
    for op in (F0, B0, U0):
        store.run(op)
    with pytest.raises(Unsupported, match=f"{says}; rule: .*; legal: weights"):
        store.run(F1)


def test_a_backward_at_an_older_version_is_refused() -> None:
    """PipeDream's stash: the backward made again at the weights of its forward, one update later."""
    store = store_of(Policy(lambda op, clock: Read(0, graph="recompute")))
    store.run(F0)
    store.run(U0)
    with pytest.raises(Unsupported, match=r"0B0 reads version 0\+0 of 1"):
        store.run(B0)


@pytest.mark.parametrize(
    "policy", [Latest("swap"), Policy(lambda op, clock: Read(clock.updates, ahead=1))], ids=["swap", "ahead"]
)
def test_an_engine_passes_the_refusal_on(policy: object) -> None:
    case = gpt_case("untied", "float32", tied=False)
    engine = Engine(
        case.layers,
        loss=case.loss,
        optimizer=SGD(0.1),
        microbatch=case.microbatch,
        grid=Grid(),
        weights=policy,  # type: ignore[arg-type]
        world=loopback.LoopbackWorld(loopback.Hub(1), 0),
    )
    before = [p.detach().clone() for p in engine.state.parameters]
    with pytest.raises(Unsupported):
        engine.train_batch(case.batch(0, 2, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, engine.state.parameters, strict=True))
