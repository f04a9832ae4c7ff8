"""Answers to PipeOptim's claims on weights: formulas by the engine's update rules, distances in a small network.

The network is trained by replay on scikit-learn's digits with the paper's optimizers, learning rates and smallest
mini-batch, from two seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from suite.claims.answer import Cases, Question
from suite.claims.cluster_runs import Lab
from suite.data import images
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.counts import DEPTH

if TYPE_CHECKING:
    from suite.papers.pipeoptim.probes import WatchedTraining

OPTIMIZERS = ("sgdm", "adam", "adamw")
MINI_BATCHES, SAMPLES = 48, 56  # Section V-B trains with 56, 128 and 256 samples
SEEDS = (0, 1)
TAUGHT = f"scikit-learn's digits, {MINI_BATCHES} mini-batches of {SAMPLES} on {DEPTH} stages, seeds {SEEDS}"


def batches(seed: int) -> list[tuple[Any, Any]]:
    source, shape = images.digits(), SimpleNamespace(classes=images.DIGITS, colours=1, image=images.DIGITS_SIDE)
    return [source.batch(number, size=SAMPLES, seed=seed, shape=shape) for number in range(MINI_BATCHES)]


@cache
def _run(system: str, policy: Any, every: int, optimizer: str, seed: int) -> WatchedTraining:
    from suite.papers.pipeoptim import probes

    rule = probes.RULES[optimizer]
    if system == "spectrain":
        policy, rule = probes.UncheckedPolicy(policy), probes.smoothed(optimizer)
    return probes.train_watched(policy, rule, batches(seed), every=every, seed=seed)


def run(lab: Lab, system: str, optimizer: str, seed: int) -> WatchedTraining:
    """Watched training with the configured policy of a system.

    SpecTrain predicts from a smoothed gradient for every optimizer here. The engine rejects that; the probe allows it
    to test the paper's statements.
    """
    configured = systems.configured(system, DEPTH)
    policy: Any = configured.policy
    return _run(system, policy, configured.every or 1, optimizer, seed)


# -- formulas --------------------------------------------------------------------------------------------------------


def update_sum(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift

    values = [probes_drift.stepped(p["w"], p["lr"], [p["d0"], p["d1"], p["d2"]]) for p in question.points]
    return [values], "three steps of the engine's SGD without momentum, in double precision"


def prediction(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift

    values = [probes_drift.predict_sgd(p["w"], p["lr"], p["dw"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD after a step with this change, in double precision"


def smoothed(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift

    values = [probes_drift.predict_momentum(p["w"], p["lr"], p["v"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD with momentum, in double precision"


def sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine.optim.optimizer import SGD
    from suite.papers.pipeoptim import probes_drift

    values = [
        probes_drift.direction(SGD(0.5, p["u"], p["tau"]), p["g"], 2, velocity=p["v_prev"]) for p in question.points
    ]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


def adam(question: Question, lab: Lab, *, decoupled: bool) -> tuple[Cases, str]:
    """Increment of Adam, or of AdamW with the optimizer's default decay, which its prediction leaves out."""
    from suite.engine.optim.optimizer import Adam, AdamW
    from suite.papers.pipeoptim import probes_drift

    kind = AdamW if decoupled else Adam
    values = [
        probes_drift.direction(
            kind(0.5, p["b1"], p["b2"], p["eps"]), p["g"], int(p["t"]), moment_1=p["m_prev"], moment_2=p["v_prev"]
        )
        for p in question.points
    ]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


# -- a small network -------------------------------------------------------------------------------------------------


def needs_sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Removed distance by direction, as the length of SpecTrain's predicted step with Adam is not published."""
    cases = []
    for seed in SEEDS:
        for name in OPTIMIZERS[1:]:
            compared = (("spectrain", name), ("spectrain", "sgdm"), ("pipeoptim", name))
            cases.append([run(lab, system, rule, seed).removed_by_direction for system, rule in compared])
    return cases, f"Adam and AdamW; {TAUGHT}"


def spectrain_inconsistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda run: run.total(run.between) / run.total(run.late))


def spectrain_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda run: run.total(run.forward) / run.total(run.late))


def _shares(lab: Lab, share: Callable[[WatchedTraining], float]) -> tuple[Cases, str]:
    return [[share(run(lab, "spectrain", name, seed)) for name in OPTIMIZERS] for seed in SEEDS], TAUGHT


def pipeoptim_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [
        [run(lab, system, name, seed).staleness for system in question.terms] for seed in SEEDS for name in OPTIMIZERS
    ]
    return cases, f"SGDM, Adam and AdamW; {TAUGHT}"


# -- distances of predicted weights ----------------------------------------------------------------------------------
