"""Weight versions follow the policy, and invalid reads are rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.engine.optim.optimizer import SGD, predicted
from suite.engine.stage import Stage
from suite.engine.states.state import ModelState
from suite.engine.versions import WeightVersions
from suite.memory import resident
from tests.support.refusals import refused

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
