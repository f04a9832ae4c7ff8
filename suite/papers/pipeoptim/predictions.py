"""Answers to PipeOptim's claims on weights: formulas by the engine's rules, distances in a small network.

The network is trained by replay with the paper's optimizers, learning rates and smallest mini-batch, on scikit-learn's
digits, from two seeds. How far predicted weights are from those that came is the figure that the paper does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from suite.core.claim import Claim
from suite.core.figure import FigurePanel
from suite.data import images
from suite.papers.common.answer import Cases, Question
from suite.papers.common.cluster_runs import Lab
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.counts import DEPTH

if TYPE_CHECKING:
    from suite.papers.pipeoptim.probes import WatchedTraining

OPTIMIZERS = ("sgdm", "adam", "adamw")
MINI_BATCHES, SAMPLES = 48, 56  # Section V-B trains with 56, 128 and 256 samples
SEEDS = (0, 1)
SIZES = (8, SAMPLES, 128)  # what noise in gradients does to predictions
LONG, WINDOW = 192, 16  # mini-batches of the figure, and of a mean
TAUGHT = f"scikit-learn's digits, {MINI_BATCHES} mini-batches of {SAMPLES} on {DEPTH} stages, seeds {SEEDS}"


def batches(seed: int, count: int = MINI_BATCHES, samples: int = SAMPLES) -> list[tuple[Any, Any]]:
    source, shape = images.digits(), SimpleNamespace(classes=images.DIGITS, colours=1, image=images.DIGITS_SIDE)
    return [source.batch(number, size=samples, seed=seed, shape=shape) for number in range(count)]


@cache
def _run(system: str, policy: Any, every: int, optimizer: str, seed: int, count: int, samples: int) -> WatchedTraining:
    from suite.papers.pipeoptim import probes as foreseen

    rule = foreseen.RULES[optimizer]
    if system == "spectrain":
        policy, rule = foreseen.Reads(policy), foreseen.smoothed(optimizer)
    return foreseen.watched(policy, rule, batches(seed, count, samples), every=every, seed=seed)


def run(
    lab: Lab, system: str, optimizer: str, seed: int, count: int = MINI_BATCHES, samples: int = SAMPLES
) -> WatchedTraining:
    """A watched training with the policy of the system's config. SpecTrain predicts from a smoothed gradient for any
    optimizer: the engine refuses that, so the paper's statements on it are examined here.
    """
    configured = systems.configured(system, DEPTH)
    policy: Any = configured.policy
    return _run(system, policy, configured.every or 1, optimizer, seed, count, samples)


# -- formulas --------------------------------------------------------------------------------------------------------


def update_sum(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift as drifts

    values = [drifts.stepped(p["w"], p["lr"], [p["d0"], p["d1"], p["d2"]]) for p in question.points]
    return [values], "three steps of the engine's SGD without momentum, in double precision"


def prediction(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift as drifts

    values = [drifts.ahead(p["w"], p["lr"], p["dw"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD after a step with this change, in double precision"


def smoothed(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.papers.pipeoptim import probes_drift as drifts

    values = [drifts.smoothed_ahead(p["w"], p["lr"], p["v"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD with momentum, in double precision"


def sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine.optim.optimizer import SGD
    from suite.papers.pipeoptim import probes_drift as drifts

    values = [drifts.direction(SGD(0.5, p["u"], p["tau"]), p["g"], 2, velocity=p["v_prev"]) for p in question.points]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


def adam(question: Question, lab: Lab, *, decoupled: bool) -> tuple[Cases, str]:
    """AdamW with the decay that conf/optimizer has, which its prediction leaves out."""
    from suite.engine.optim.optimizer import Adam, AdamW
    from suite.papers.pipeoptim import probes_drift as drifts

    kind = AdamW if decoupled else Adam
    values = [
        drifts.direction(
            kind(0.5, p["b1"], p["b2"], p["eps"]), p["g"], int(p["t"]), moment_1=p["m_prev"], moment_2=p["v_prev"]
        )
        for p in question.points
    ]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


# -- a small network -------------------------------------------------------------------------------------------------


def needs_sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    """By direction: how long a step SpecTrain would predict with Adam is not published."""
    cases = []
    for seed in SEEDS:
        for name in OPTIMIZERS[1:]:
            compared = (("spectrain", name), ("spectrain", "sgdm"), ("pipeoptim", name))
            cases.append([run(lab, system, rule, seed).removed_by_direction for system, rule in compared])
    return cases, f"Adam and AdamW; {TAUGHT}"


def spectrain_inconsistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda found: found.total(found.between) / found.total(found.late))


def spectrain_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda found: found.total(found.forward) / found.total(found.late))


def _shares(lab: Lab, share: Callable[[WatchedTraining], float]) -> tuple[Cases, str]:
    return [[share(run(lab, "spectrain", name, seed)) for name in OPTIMIZERS] for seed in SEEDS], TAUGHT


def pipeoptim_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [
        [run(lab, system, name, seed).staleness for system in question.terms] for seed in SEEDS for name in OPTIMIZERS
    ]
    return cases, f"SGDM, Adam and AdamW; {TAUGHT}"


# -- the figure that the paper does not have -------------------------------------------------------------------------


def distance_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    """Means over windows of mini-batches, one network."""
    starts = range(0, LONG, WINDOW)
    places = [str(start) for start in starts]
    panels, distances = [], {}
    for name in OPTIMIZERS:
        seen = run(lab, "pipeoptim", name, 0, LONG)
        parts = [[i for i in range(start, start + WINDOW) if i in seen.steady] for start in starts]
        curves = {f"stage {stage}": [seen.share(part, stage) for part in parts] for stage in range(DEPTH - 1)}
        panels.append(
            FigurePanel(
                f"Distance of predicted from true weights, over that of the newest ones: {name}",
                "ratio",
                places,
                curves,
                axis="mini-batch",
                quantity="distance over that of the newest",
                evidence="derived",
            )
        )
        for label, difference in (("predicted", seen.forward), ("newest", seen.late)):
            distances[f"{name}, {label}"] = [
                fmean(seen.distance(index, difference) for index in part) for part in parts
            ]
    title = "Distance of weights at the forward pass from those that serial training reads, all stages"
    smaller = "The same of three systems with SGD and momentum, by the samples of a mini-batch"
    late = {
        system: [fmean(run(lab, system, "sgdm", seed, samples=n).staleness for seed in SEEDS) for n in SIZES]
        for system in ("pipedream", "pipedream_2bw", "pipeoptim")
    }
    sizes = FigurePanel(
        smaller,
        "ratio",
        [str(n) for n in SIZES],
        late,
        axis="samples",
        quantity="relative distance",
        evidence="derived",
    )
    steps = FigurePanel(
        title, "ratio", places, distances, axis="mini-batch", quantity="relative distance", evidence="derived"
    )
    return [*panels, steps, sizes]
