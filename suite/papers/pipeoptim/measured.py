"""Probes for PipeOptim's claims on weights: distances of predicted from true weights in a small network.

The network is trained by replay on the paper's number of stages, once per system and optimizer. The weights that each
pass reads are stored together with the true versions. One thread computes, so results do not depend on the number of
cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from suite.claims.answer import Cases, Question
from suite.claims.cluster_runs import Lab
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.data import images
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RuleState
from suite.engine.random_state import drawing, initial
from suite.engine.replay.replay import Replay
from suite.papers.measured import PASSES, one_thread
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.counts import DEPTH
from suite.papers.pipeoptim.measured_drift import SMOOTHING
from suite.papers.pipeoptim.measured_ranks import TensorWatch

SMOOTHED = "smoothed"
MINI_BATCHES, SAMPLES = 48, 56  # Section V-B trains with 56, 128 and 256 samples
SEEDS = (0, 1)
TAUGHT = f"scikit-learn's digits, {MINI_BATCHES} mini-batches of {SAMPLES} on {DEPTH} stages, seeds {SEEDS}"
# Section V-B; the weight decay of AdamW is the authors'
RULES: Mapping[str, SGD | Adam] = {
    "sgdm": SGD(0.01, momentum=0.9, weight_decay=5e-4),
    "adam": Adam(0.001),
    "adamw": AdamW(0.001, weight_decay=5e-4),
}
OPTIMIZERS = tuple(RULES)
Batches = Sequence[tuple[Any, Any]]  # arrays or tensors: inputs [n, ...] and classes [n]


# -- a small network -------------------------------------------------------------------------------------------------


def network(seed: int = 0) -> list[nn.Module]:
    """One layer per stage, for 8 x 8 digits."""
    sizes = [64, *[32] * (DEPTH - 1), 10]
    layers: list[nn.Module] = []
    for number, (inputs, following) in enumerate(pairwise(sizes)):
        with drawing(*initial(seed, number)):
            linear = nn.Linear(inputs, following)
        layers.append(linear if number == DEPTH - 1 else nn.Sequential(linear, nn.Tanh()))
    return layers


def prepared(batches: Batches) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Byte images as rows of values between -1 and 1."""
    return [
        (torch.as_tensor(x).flatten(1).float() / 127.5 - 1, torch.as_tensor(y, dtype=torch.int64)) for x, y in batches
    ]


# -- predictions and actual versions ----------------------------------------------------------------------------------


class _Smoothed:
    """Mixin that gives an optimizer the drift of SGD with momentum: a smoothed gradient times its learning rate."""

    drift_states = (SMOOTHED,)

    def step(self, on: RuleState, grad: torch.Tensor) -> None:
        if (velocity := on.moments.get(SMOOTHED)) is not None:
            velocity.mul_(SMOOTHING).add_(grad)
        super().step(on, grad)  # type: ignore[misc]

    def drift(self, on: RuleState) -> torch.Tensor:
        return on.moments[SMOOTHED] * -float(self.lr)  # type: ignore[attr-defined, no-any-return]


class _SmoothedAdam(_Smoothed, Adam):
    pass


class _SmoothedAdamW(_Smoothed, AdamW):
    pass


def smoothed(name: str) -> Any:
    """A rule of RULES with SpecTrain's prediction."""
    rule = RULES[name]
    kinds: Mapping[str, type[Adam]] = {"adam": _SmoothedAdam, "adamw": _SmoothedAdamW}
    return kinds[name](rule.lr, weight_decay=rule.weight_decay) if name in kinds else rule


@dataclass(frozen=True)
class UncheckedPolicy(WeightPolicy):
    """Another policy without its requirements on the optimizer."""

    policy: WeightPolicy
    predicts = True

    def read(self, op: Op, versions: StageVersions) -> Read:
        return self.policy.read(op, versions)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return self.policy.needed(versions)


@dataclass(frozen=True)
class WatchedTraining:
    """A watched training; measures are over mini-batches that enter a full pipeline.

    Attributes:
        stages: Weights of each stage.
        every: Mini-batches per update.
        mini_batches: Number of mini-batches.
    """

    stages: Sequence[TensorWatch]
    every: int
    mini_batches: int

    @property
    def steady(self) -> range:
        return range(max(DEPTH, self.every), self.mini_batches)

    def due(self, index: int) -> int:
        """Update of a mini-batch's gradient, and number of the version that serial training reads for it."""
        return index // self.every

    @cached_property
    def ahead(self) -> list[dict[int, int]]:
        """Updates that each forward pass predicted, by stage."""
        return [
            {
                op.index: read.predict_steps
                for op, read in watch.engine.passes
                if op.kind is Kind.FORWARD and read is not None
            }
            for watch in self.stages
        ]

    def distance(self, index: int, difference: Callable[[int, int], torch.Tensor]) -> float:
        """Norm of a difference in one mini-batch, over the weights of all stages."""
        return float(self._joined(index, difference).norm())

    def _joined(self, index: int, difference: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
        return torch.cat([difference(stage, index) for stage in range(len(self.stages))]).double()

    def total(self, difference: Callable[[int, int], torch.Tensor]) -> float:
        return sum(self.distance(index, difference) for index in self.steady)

    # differences of weights on one stage in one mini-batch

    def late(self, stage: int, index: int) -> torch.Tensor:
        """Newest weights at the forward pass minus the weights of serial training."""
        rank = self.stages[stage].rank
        return rank.versions[rank.read[Kind.FORWARD, index][0]] - rank.versions[self.due(index)]

    def forward(self, stage: int, index: int) -> torch.Tensor:
        """Weights that the forward pass read minus the weights of serial training."""
        rank = self.stages[stage].rank
        return rank.read[Kind.FORWARD, index][1] - rank.versions[self.due(index)]

    def between(self, stage: int, index: int) -> torch.Tensor:
        """Weights that the forward pass read minus those that the backward pass read."""
        forward, backward = (self.stages[stage].rank.read[kind, index][1] for kind in PASSES)
        return forward - backward

    def missed(self, stage: int, index: int) -> torch.Tensor:
        """Predicted weights minus the true version that they predict."""
        return self.stages[stage].rank.read[Kind.FORWARD, index][1] - self._aim(stage, index)

    def moved(self, stage: int, index: int) -> torch.Tensor:
        """Newest weights at the forward pass minus the true version that is predicted."""
        rank = self.stages[stage].rank
        return rank.versions[rank.read[Kind.FORWARD, index][0]] - self._aim(stage, index)

    def _aim(self, stage: int, index: int) -> torch.Tensor:
        rank = self.stages[stage].rank
        updates, _ = rank.read[Kind.FORWARD, index]
        return rank.versions[min(max(rank.versions), updates + self.ahead[stage][index])]

    @property
    def removed_by_direction(self) -> float:
        """Share of the distance between stale and true weights that predictions remove, each scaled by its best factor.

        It does not depend on the length of the predicted step, whose scale differs between optimizers.
        """
        remaining = 0.0
        for index in self.steady:
            missed, moved = (self._joined(index, difference) for difference in (self.missed, self.moved))
            predicted = missed - moved
            square = float(predicted @ predicted)
            scale = max(0.0, -float(moved @ predicted) / square) if square else 0.0
            remaining += float((moved + scale * predicted).norm())
        return 1 - remaining / self.total(self.moved)

    @property
    def staleness(self) -> float:
        """Mean distance between the weights of forward passes and the weights of serial training."""
        return self.total(self.forward) / len(self.steady)


def train_watched(
    policy: WeightPolicy, rule: Any, batches: Batches, *, every: int = 1, seed: int = 0
) -> WatchedTraining:
    """Train a small network under a policy; each batch is one mini-batch of one microbatch."""
    data = prepared(batches)
    replayed = Replay(
        network(seed),
        loss=nn.functional.cross_entropy,
        optimizer=rule,
        microbatch=len(data[0][0]),
        grid=Grid(inter=DEPTH),
        weights=policy,
        update_interval=every,
    )
    stages = [TensorWatch(engine) for engine in replayed.pipeline]
    with one_thread():
        for _ in replayed.train(data):
            pass
    for watch in stages:
        watch.record_versions()
    return WatchedTraining(stages, every, len(data))


# -- answers -----------------------------------------------------------------------------------------------------------


def batches(seed: int) -> list[tuple[Any, Any]]:
    source, sizes = images.digits(), {"classes": images.DIGITS, "colours": 1, "image": images.DIGITS_SIDE}
    shape = SimpleNamespace(content="images", **sizes)
    return [source.batch(number, size=SAMPLES, seed=seed, shape=shape) for number in range(MINI_BATCHES)]


@cache
def run(system: str, optimizer: str, seed: int) -> WatchedTraining:
    """Watched training with the configured policy of a system.

    SpecTrain predicts from a smoothed gradient for every optimizer here. The engine rejects that; this answer allows it
    to test the paper's statements.
    """
    configured = systems.configured(system, DEPTH)
    policy, rule = configured.policy, RULES[optimizer]
    if system == "spectrain":
        policy, rule = UncheckedPolicy(policy), smoothed(optimizer)
    return train_watched(policy, rule, batches(seed), every=configured.every or 1, seed=seed)


def needs_sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Removed distance by direction, as the length of SpecTrain's predicted step with Adam is not published."""
    cases = []
    for seed in SEEDS:
        for name in OPTIMIZERS[1:]:
            compared = (("spectrain", name), ("spectrain", "sgdm"), ("pipeoptim", name))
            cases.append([run(system, rule, seed).removed_by_direction for system, rule in compared])
    return cases, f"Adam and AdamW; {TAUGHT}"


def spectrain_inconsistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lambda run: run.total(run.between) / run.total(run.late))


def spectrain_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lambda run: run.total(run.forward) / run.total(run.late))


def _shares(share: Callable[[WatchedTraining], float]) -> tuple[Cases, str]:
    return [[share(run("spectrain", name, seed)) for name in OPTIMIZERS] for seed in SEEDS], TAUGHT


def pipeoptim_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [[run(system, name, seed).staleness for system in question.terms] for seed in SEEDS for name in OPTIMIZERS]
    return cases, f"SGDM, Adam and AdamW; {TAUGHT}"
