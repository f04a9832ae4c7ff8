"""Reference of an asynchronous pipeline: one process that keeps every weight version.

It shares no code with the engine. The 1F1B order is written out, passes are functional calls on the version of the
system's definition, gradients come from torch.autograd.grad, and rules and predictions are the papers' formulas in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.func import functional_call

from suite.conformance.reference import SEED, as_tuple
from suite.engine.random_state import drawing, initial
from suite.workload import evenly
from tests.support.cases import Case

Weights = list[torch.Tensor]


@dataclass
class Rule:
    """SGD with momentum, Adam or AdamW in textbook form (`kind`: sgd, adam or adamw).

    `next_velocity` and `with_decay` are options of the prediction.
    """

    kind: str
    lr: float
    momentum: float = 0.9
    decay: float = 0.0
    next_velocity: bool = False
    with_decay: bool = False

    def start(self, weights: Weights) -> dict[str, Any]:
        zeros = [torch.zeros_like(w) for w in weights]
        return {"t": 0, "m": zeros, "v": zeros, "g": zeros}

    def step(self, weights: Weights, grads: Weights, state: dict[str, Any]) -> tuple[Weights, dict[str, Any]]:
        t = state["t"] + 1
        if self.kind != "adamw":
            grads = [g + self.decay * w for g, w in zip(grads, weights, strict=True)]
        if self.kind == "sgd":
            m = [self.momentum * m + g for m, g in zip(state["m"], grads, strict=True)] if t > 1 else list(grads)
            new = {"t": t, "m": m, "v": state["v"], "g": grads}
            return [w - self.lr * velocity for w, velocity in zip(weights, m, strict=True)], new
        m = [0.9 * m + 0.1 * g for m, g in zip(state["m"], grads, strict=True)]
        v = [0.999 * v + 0.001 * g * g for v, g in zip(state["v"], grads, strict=True)]
        new = {"t": t, "m": m, "v": v, "g": grads}
        decayed = [w * (1 - self.lr * self.decay) if self.kind == "adamw" else w for w in weights]
        return [w - self.lr * d for w, d in zip(decayed, self._adam(new), strict=True)], new

    def _adam(self, state: dict[str, Any]) -> Weights:
        t = state["t"]
        hats = [(m / (1 - 0.9**t), v / (1 - 0.999**t)) for m, v in zip(state["m"], state["v"], strict=True)]
        return [m / (v.sqrt() + 1e-8) for m, v in hats]

    def predict(self, weights: Weights, state: dict[str, Any], s: int) -> Weights:
        """Weights predicted `s` updates ahead (PipeOptim Table I and Equation 5)."""
        if not state["t"] or not s:
            return weights
        if self.kind == "sgd":
            delta = state["m"]
            if self.next_velocity:
                delta = [self.momentum * m + g for m, g in zip(state["m"], state["g"], strict=True)]
        else:
            delta = self._adam(state)
            if self.with_decay:
                delta = [d + self.decay * w for d, w in zip(delta, weights, strict=True)]
        return [w - self.lr * s * d for w, d in zip(weights, delta, strict=True)]


@dataclass
class Stage:
    """History of one stage.

    Attributes:
        grads: Gradients of each replica since the last update.
        drained: Version at the last drain.
    """

    names: list[list[str]]
    versions: list[Weights]
    states: list[dict[str, Any]]
    grads: list[Weights] = field(default_factory=list)
    open: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    drained: int = 0


class Pipeline:
    """A system on `stages` stages and `replicas` replicas, with an update every `every` microbatches.

    `system`: pipedream, 2bw, spectrain, pipeoptim, pipeoptim_inflight, pipeoptim_authors or latest.
    """

    def __init__(self, case: Case, system: str, rule: Rule, *, stages: int, replicas: int = 1, every: int = 1) -> None:
        self.case, self.system, self.rule = case, system, rule
        self.depth, self.replicas, self.every = stages, replicas, every
        self.split = evenly(len(case.layers), stages)
        self.layers = []
        for number, make in enumerate(case.layers):
            with drawing(*initial(SEED, number)):
                self.layers.append(make())
        self.stages = []
        for parameters in self.split:
            names = [[name for name, _ in self.layers[k].named_parameters()] for k in parameters]
            weights = [p.detach().clone() for k in parameters for p in self.layers[k].parameters()]
            self.stages.append(Stage(names, [weights], [rule.start(weights)]))
        self.first = 0

    # -- weights of a pass -------------------------------------------------------------------------------------------

    def _reads(self, r: int, index: int, due: int, *, forward: bool) -> Weights:
        stage, depth = self.stages[r], self.depth
        newest, state = stage.versions[-1], stage.states[-1]
        updates = len(stage.versions) - 1
        if self.system == "2bw":
            return stage.versions[max(stage.drained, due - 1)]
        if self.system == "pipedream" and not forward:
            return stage.open[index, 0]["weights"]
        ahead = {
            "pipeoptim": depth - r - 1,
            "pipeoptim_authors": depth - r,
            "pipeoptim_inflight": due - updates,
            "spectrain": r // 2 + depth - r - 1,
        }.get(self.system, 0)
        if not forward:
            ahead = r // 2 if self.system == "spectrain" else 0
        return self.rule.predict(newest, state, ahead)

    def _call(self, r: int, weights: Sequence[torch.Tensor], value: Any, targets: Any, sample: int, share: int) -> Any:
        at = 0
        for k, names in zip(self.split[r], self.stages[r].names, strict=True):
            parameters = dict(zip(names, weights[at : at + len(names)], strict=True))
            at += len(names)
            with drawing(SEED, k, sample):
                value = as_tuple(functional_call(self.layers[k], parameters, value))
        return self.case.loss(*value, *targets) / (share * self.replicas) if r == self.depth - 1 else value

    # -- an epoch, from drain to drain -------------------------------------------------------------------------------

    def train(self, batches: Sequence[tuple[Any, Any]]) -> list[float]:
        """Train on batches of one microbatch per replica. Returns the mean loss of each."""
        count, depth = len(batches), self.depth
        losses = [0.0] * count
        sent: dict[tuple[str, int, int, int], Any] = {}
        plans = [self._plan(r, count) for r in range(depth)]
        at = [0] * depth
        for stage in self.stages:
            stage.drained = len(stage.versions) - 1
        while any(at[r] < len(plans[r]) for r in range(depth)):
            for r in range(depth):
                if at[r] == len(plans[r]):
                    continue
                kind, index = plans[r][at[r]]
                need = ("F", r - 1) if kind == "F" else ("B", r + 1)
                if 0 <= need[1] < depth and (*need, index, 0) not in sent:
                    continue
                self._op(r, kind, index, batches, count, losses, sent)
                at[r] += 1
        self.first += count
        return losses

    def _plan(self, r: int, count: int) -> list[tuple[str, int]]:
        warm = min(self.depth - r - 1, count)
        plan = [("F", i) for i in range(warm)]
        for i in range(count):
            if i + warm < count:
                plan.append(("F", i + warm))
            plan.append(("B", i))
        return plan

    def _op(self, r: int, kind: str, index: int, batches: Any, count: int, losses: Any, sent: Any) -> None:
        stage, base = self.stages[r], self.stages[r].drained
        due = base + index // self.every
        share = min(self.every, count - (index // self.every) * self.every)
        for d in range(self.replicas):
            rows = slice(d * self.case.microbatch, (d + 1) * self.case.microbatch)
            sample = (self.first + index) * self.replicas + d
            if kind == "F":
                weights = self._reads(r, index, due, forward=True)
                value = tuple(p[rows] for p in as_tuple(batches[index][0])) if r == 0 else sent["F", r - 1, index, d]
                targets = tuple(p[rows] for p in as_tuple(batches[index][1]))
                with torch.no_grad():
                    output = self._call(r, weights, value, targets, sample, share)
                stage.open[index, d] = {"weights": weights, "value": value, "targets": targets}
                if r == self.depth - 1:
                    losses[index] += float(output.double()) * share
                else:
                    sent["F", r, index, d] = output
                continue
            weights = [w.detach().requires_grad_() for w in self._reads(r, index, due, forward=False)]
            saved = stage.open[index, d]
            value = tuple(v.detach().requires_grad_(v.is_floating_point()) for v in saved["value"])
            output = self._call(r, weights, value, saved["targets"], sample, share)
            floats = [v for v in value if v.requires_grad]
            output_gradients = None if r == self.depth - 1 else sent["B", r + 1, index, d]
            outputs = (output,) if output_gradients is None else tuple(o for o in output if o.is_floating_point())
            gradients = torch.autograd.grad(outputs, [*weights, *floats], output_gradients, allow_unused=True)
            gradients = [
                torch.zeros_like(x) if g is None else g for x, g in zip([*weights, *floats], gradients, strict=True)
            ]
            if len(stage.grads) <= d:
                stage.grads.append([torch.zeros_like(w) for w in weights])
            stage.grads[d] = [a + b for a, b in zip(stage.grads[d], gradients[: len(weights)], strict=True)]
            sent["B", r, index, d] = tuple(gradients[len(weights) :])
        if kind == "B" and (index + 1 == count or (index + 1) % self.every == 0):
            total = stage.grads[0]
            for more in stage.grads[1:]:
                total = [a + b for a, b in zip(total, more, strict=True)]
            weights, state = self.rule.step(stage.versions[-1], total, stage.states[-1])
            stage.versions.append(weights)
            stage.states.append(state)
            stage.grads = []
        if kind == "B":
            for d in range(self.replicas):
                del stage.open[index, d]


def engine_settings(case: Case, policy: Any, rule: Any, every: int | None) -> dict[str, Any]:
    """Arguments of an engine with a weight policy and an update rule."""
    return {
        "loss": case.loss,
        "optimizer": rule,
        "microbatch": case.microbatch,
        "weights": policy,
        "update_interval": every,
        "seed": SEED,
    }


def largest_difference(ours: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    differences = [float((a.double() - b.double()).abs().max()) for a, b in zip(ours, right, strict=True) if a.numel()]
    return max((math.inf if math.isnan(difference) else difference for difference in differences), default=0.0)
