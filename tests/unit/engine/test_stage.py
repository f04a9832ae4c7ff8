"""Stage, weight versions and worker: values, gradients and recomputation; reads of a policy; the preferred ready op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Program
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.core.trace import EVALUATE, Trace
from suite.engine.optim.optimizer import SGD, predicted
from suite.engine.random_state import drawing
from suite.engine.stage import Stage
from suite.engine.states.state import ModelState
from suite.engine.versions import WeightVersions
from suite.engine.worker import run_program, run_to_end
from suite.memory import resident
from tests.support.cases import TwoFloats
from tests.support.drawn import cells
from tests.support.refusals import refused

KEEP, RECOMPUTE = Read(0, 0, "keep"), Read(0, 0, "recompute")
DOUBLE = torch.float64


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def make_stage(*kinds: Callable[[], nn.Module], **more: Any) -> Stage:
    layers = []
    for number, kind in enumerate(kinds):
        with drawing(1, number, 0):
            layers.append(kind().to(DOUBLE))
    return Stage(layers, seed=1, **more)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: torch.Tensor) -> Any:
        return self.function(*values)


def test_gradients_of_unused_inputs_and_constant_outputs() -> None:
    ones = torch.ones(2, 3, dtype=DOUBLE)
    stage = make_stage(lambda: Function(lambda used, unused, count: used * 3))
    stage.forward(0, (noise(2, 3), noise(5), torch.arange(4)), sample=0, read=KEEP)
    used, unused = stage.backward(0, (ones,))
    assert torch.equal(used, 3 * ones)
    assert torch.equal(unused, torch.zeros(5, dtype=DOUBLE))

    stage = make_stage(lambda: Function(lambda x: (x * 2, torch.ones(3, dtype=DOUBLE))))
    stage.forward(0, (noise(2, 3),), sample=0, read=KEEP)
    (gradient,) = stage.backward(0, (ones, torch.full((3,), 9.0, dtype=DOUBLE)))
    assert torch.equal(gradient, 2 * ones)

    stage = make_stage(TwoFloats)
    stage.forward(0, (noise(2, 3),), sample=0, read=KEEP)
    with pytest.raises(ValueError, match="shorter"):
        stage.backward(0, (noise(2, 3),))


# -- activation checkpoints ------------------------------------------------------------------------------------------


class End(nn.Linear):
    """Layer that is not recomputed."""

    checkpointed = False


def chain(interval: int | None, *, last: bool = False) -> Stage:
    kinds: list[Callable[[], nn.Module]] = [
        lambda: End(5, 6),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4)),
        lambda: nn.BatchNorm1d(6),
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)),
        nn.Tanh,
        lambda: End(6, 2),
    ]
    return make_stage(*kinds, loss=F.cross_entropy if last else None, checkpoint_interval=interval)


@pytest.mark.parametrize(("interval", "read", "last"), cells([1, 2, 4], [KEEP, RECOMPUTE], [False, True], n=5))
def test_activation_checkpointing_is_bit_identical(interval: int, read: Read, last: bool) -> None:
    """Two microbatches in flight, with backward passes in reverse order, dropout, statistics and an in-place layer."""
    targets = (torch.tensor([0, 1, 1, 0]),) if last else ()

    def run(stage: Stage, read: Read) -> list[torch.Tensor]:
        outputs = [stage.forward(i, (noise(4, 5, seed=i),), targets=targets, sample=i, read=read)[0] for i in (0, 1)]
        statistics = [b.clone() for b in stage.layers.buffers()]
        into = [stage.backward(i, () if last else (noise(4, 2, seed=9 + i),))[0] for i in (1, 0)]
        assert all(torch.equal(a, b) for a, b in zip(stage.layers.buffers(), statistics, strict=True))
        assert not stage.open
        return [*outputs, *into, *(p.grad for p in stage.layers.parameters()), *statistics]

    plain, checkpointed = run(chain(None, last=last), KEEP), run(chain(interval, last=last), read)
    assert len(plain) == len(checkpointed)
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))


F0, F1 = Op(0, Kind.FORWARD, 0), Op(0, Kind.FORWARD, 1)
B0, U0 = Op(0, Kind.BACKWARD, 0), Op(0, Kind.UPDATE, 0)


class Policy(WeightPolicy):
    def __init__(self, decide: Callable[[Op, StageVersions], Read]) -> None:
        self.decide = decide

    def read(self, op: Op, versions: StageVersions) -> Read:
        return self.decide(op, versions)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset(range(versions.updates))


def store_of(policy: WeightPolicy, updates: int = 0) -> WeightVersions:
    store = WeightVersions(policy, 2)
    store.attach(ModelState([], (), resident), SGD(0.1))
    store.begin(FlushInterval(updates, 4, 1, updates))
    return store


def attached(policy: WeightPolicy, layers: Sequence[nn.Module], rule: SGD) -> tuple[WeightVersions, Stage, ModelState]:
    store, stage = store_of(policy), Stage(layers, first_layer=0, seed=0)
    state = ModelState(list(stage.layers.parameters()), rule.states, resident)
    store.attach(state, rule)
    return store, stage, state


def test_versions_that_are_not_stored_cannot_be_read() -> None:
    with refused(InvalidRequest, subject="0F0 reads version 0+-1", rule="predictions are for later versions"):
        store_of(Policy(lambda op, versions: Read(0, predict_steps=-1))).run(F0)
    store = store_of(Policy(lambda op, versions: Read(0, predict_steps=versions.updates)))
    for op in (F0, B0, U0):
        store.run(op)
    with refused(InvalidRequest, subject="0F1 reads version 0+1"):
        store.run(F1)


def test_swap_backward_reads_weights_of_backward_time() -> None:
    """As in PipeOptim's public code: weight gradients use activations of the forward pass, computed with predicted
    weights. Input gradients use the live weights at the backward pass."""
    first, last = nn.Linear(3, 4, bias=False).double(), nn.Linear(4, 2, bias=False).double()
    rule, policy = SGD(0.5), Policy(lambda op, versions: Read(versions.updates, 2 * (op.kind is Kind.FORWARD), "swap"))
    store, stage, state = attached(policy, [first, nn.Tanh(), last], rule)
    generator = torch.Generator().manual_seed(0)
    state.rule.moments["velocity"].copy_(torch.randn(20, generator=generator))
    state.rule.updates = 1
    live = [p.detach().clone() for p in state.parameters]
    ahead = state.rule.views(predicted(rule, state.rule, 2))
    x, g = torch.randn(5, 3, generator=generator).double(), torch.randn(5, 2, generator=generator).double()
    with store.swapped_in(F0, read := store.run(F0)):
        (output,) = stage.forward(0, (x,), sample=0, read=read)
    hidden = torch.tanh(x @ ahead[0].T)
    torch.testing.assert_close(output, hidden @ ahead[1].T)
    assert all(torch.equal(a, b) for a, b in zip(live, state.parameters, strict=True))
    with store.swapped_in(B0, store.run(B0)):
        (entering,) = stage.backward(0, (g,))
    inner = (g @ live[1]) * (1 - hidden**2)
    torch.testing.assert_close(last.weight.grad, g.T @ hidden)
    torch.testing.assert_close(first.weight.grad, inner.T @ x)
    torch.testing.assert_close(entering, inner @ live[0])
    assert not torch.allclose(entering, inner @ ahead[0])


def ops(*texts: str) -> tuple[Op, ...]:
    return tuple(Op.parse(text) for text in texts)


class Scripted:
    """A transport with scripted values, which records its requests.

    `later` holds values that arrive only during a wait, one per wait, in order.
    """

    any_order = True

    def __init__(self, here: Sequence[str] = (), later: Sequence[str] = ()) -> None:
        self.here, self.later = list(ops(*here)), list(ops(*later))
        self.requests: list[tuple[tuple[str, ...], float | None]] = []
        self.sent: list[tuple[str, int]] = []

    def send(self, op: Op, value: tuple[torch.Tensor, ...]) -> None:
        self.sent.append((str(op), len(value)))

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, tuple[torch.Tensor, ...]] | None:
        self.requests.append((tuple(map(str, ops)), timeout))
        if timeout is None and not any(op in self.here for op in ops):
            self.here.append(self.later.pop(0))
        for op in ops:
            if op in self.here:
                self.here.remove(op)
                return op, (torch.full((2,), float(op.index)),)
        return None

    def progress(self) -> None: ...

    def close(self) -> None: ...


def program(*steps: tuple[Op, ...], ran: list[str]) -> Program:
    for step in steps:
        ran.append(str((yield step)))


def driven(
    transport: Scripted, *steps: tuple[Op, ...], stages: int = 3, bound: int = 9
) -> tuple[list[str], list[tuple[str, list[float]]], Trace, int]:
    """Ops sent to the program, executed ops with their inputs, spans, and the peak."""
    ran: list[str] = []
    executed: list[tuple[str, list[float]]] = []
    trace = Trace()

    def execute(op: Op, value: Any) -> Any:
        executed.append((str(op), [float(tensor[0]) for tensor in value]))
        return (torch.zeros(3), torch.zeros(2, dtype=torch.int64))

    homes = range(3, 3 + stages)
    options: Any = {"rank": 4, "homes": homes, "bound": bound, "trace": trace, "clock": perf_counter}
    peak = run_to_end(run_program(program(*steps, ran=ran), execute, transport, **options))
    return ran, executed, trace, peak


@pytest.mark.parametrize(
    ("accepted", "here", "later", "executed", "requests"),
    [
        # the first op whose message is here runs, with the value that it needs
        ("1B5 1F0 1B1", "0F0 2B1 0F2", "", ("1F0", [0.0]), [(("2B5", "0F0", "2B1"), None)]),
        # program order is preference order
        ("1B0 1F0", "0F0 2B0", "", ("1B0", [0.0]), [(("2B0", "0F0"), None)]),
        ("1F0 1B0", "0F0 2B0", "", ("1F0", [0.0]), [(("0F0", "2B0"), None)]),
        # the last stage's backward is free and comes first, so no message is requested for a later forward
        ("2B0 2F1", "1F1", "", ("2B0", []), []),
        # a preferred op is polled before a free one
        ("0B0 0F1 0B1", "1B1", "", ("0F1", []), [(("1B0",), 0)]),
        ("0B0 0F1 0B1", "1B0", "", ("0B0", [0.0]), [(("1B0",), 0)]),
        # the worker waits only without a ready op
        ("1F0 1B0", "", "2B0", ("1B0", [0.0]), [(("0F0", "2B0"), None)]),
    ],
)
def test_preferred_ready_op_runs(accepted: str, here: str, later: str, executed: Any, requests: Any) -> None:
    transport = Scripted(here.split(), later.split())
    ran, actual, _, _ = driven(transport, ops(*accepted.split()))
    assert ran == [executed[0]]
    assert actual == [executed]
    assert transport.requests == requests


def test_in_flight_bound_is_enforced_and_peak_returned() -> None:
    steps = [ops(op) for op in ("0F0", "0F1", "0B0", "0F2", "0B1", "0B2")]
    here = ["1B0", "1B1", "1B2"]
    assert driven(Scripted(here), *steps, bound=2)[3] == 2
    with pytest.raises(IllegalSchedule, match="0F1 would be forward number 2 in flight, 1 were promised"):
        driven(Scripted(here), *steps, bound=1)
    ran, _, trace, peak = driven(Scripted(), ops("0E0"), ops("0E1"), bound=0)  # evaluation opens no forward pass
    assert (ran, peak) == (["0E0", "0E1"], 0)
    assert [span.category for span in trace] == [EVALUATE, EVALUATE]
    assert driven(Scripted())[0] == []
