"""Decides what PipeOptim's claims about weights come to: formulas by the engine's rules, distances in a small network.

The network is trained by replay with the paper's optimizers, learning rates and smallest mini-batch, on scikit-learn's
digits, from two seeds. How far predicted weights are from those that came is the figure that the paper does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from suite.analytic.question import Cases, Question
from suite.clusters.figure import Panel, figure
from suite.clusters.lab import Lab
from suite.clusters.small_pipeoptim import DEPTH, every, small
from suite.core.claim import Claim
from suite.data import images

if TYPE_CHECKING:
    from suite.engine.foreseen import Run

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
def _run(system: str, policy: Any, optimizer: str, seed: int, count: int, samples: int) -> Run:
    from suite.engine import foreseen

    rule = foreseen.RULES[optimizer]
    if system == "spectrain":
        policy, rule = foreseen.Reads(policy), foreseen.smoothed(optimizer)
    return foreseen.watched(policy, rule, batches(seed, count, samples), every=every(system, DEPTH), seed=seed)


def run(lab: Lab, system: str, optimizer: str, seed: int, count: int = MINI_BATCHES, samples: int = SAMPLES) -> Run:
    """A watched training. SpecTrain predicts by a smoothed gradient whatever optimizer steps: the engine refuses that,
    and what the paper says of it is looked at here."""
    policy: Any = lab.policies[system]
    return _run(system, policy, optimizer, seed, count, samples)


# -- formulas --------------------------------------------------------------------------------------------------------


@small("pipeoptim.eq2.update_sum", unit="none")
def update_sum(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import drifts

    values = [drifts.stepped(p["w"], p["lr"], [p["d0"], p["d1"], p["d2"]]) for p in question.points]
    return [values], "three steps of the engine's SGD without momentum, in double precision"


@small("pipeoptim.eq5.prediction", unit="none")
def prediction(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import drifts

    values = [drifts.ahead(p["w"], p["lr"], p["dw"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD after a step with this change, in double precision"


@small("pipeoptim.table2.spectrain.effective_learning", unit="none")
def smoothed(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import drifts

    values = [drifts.smoothed_ahead(p["w"], p["lr"], p["v"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD with momentum, in double precision"


@small("pipeoptim.table1.sgdm", unit="none")
def sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import drifts
    from suite.engine.optimizer import SGD

    values = [drifts.direction(SGD(0.5, p["u"], p["tau"]), p["g"], 2, velocity=p["v_prev"]) for p in question.points]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


@small("pipeoptim.table1.adam", "pipeoptim.table1.adamw", unit="none")
def adam(question: Question, lab: Lab) -> tuple[Cases, str]:
    """AdamW with the decay that conf/optimizer has, which its prediction leaves out."""
    from suite.engine import drifts
    from suite.engine.optimizer import Adam, AdamW

    kind = AdamW if question.id.endswith("adamw") else Adam
    values = [
        drifts.direction(
            kind(0.5, p["b1"], p["b2"], p["eps"]), p["g"], int(p["t"]), moment_1=p["m_prev"], moment_2=p["v_prev"]
        )
        for p in question.points
    ]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


@small("pipeoptim.table2.pipeoptim.effective_learning", unit="none")
def by_the_optimizer(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import drifts
    from suite.engine.optimizer import SGD, Adam, AdamW

    rules = (SGD(0.5, 0.9), Adam(0.5), AdamW(0.5, weight_decay=0.0))
    cases = [pair for rule in rules for pair in drifts.changes(rule)]
    return cases, "five weights after five updates with random gradients, predicted three updates ahead"


# -- a small network -------------------------------------------------------------------------------------------------


@small("pipeoptim.sec2c.gpipe_no_accuracy_loss", unit="none")
def gpipe(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import foreseen

    cases = foreseen.losses(lab.orders["gpipe"], batches(0, 12), pieces=4)
    return cases, f"plain PyTorch beside {DEPTH} stages and 4 microbatches by replay, SGD with momentum"


@small("pipeoptim.sec2c.spectrain_needs_sgdm", unit="none")
def needs_sgdm(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = []
    for seed in SEEDS:
        usual = run(lab, "spectrain", "sgdm", seed).removed
        for name in OPTIMIZERS[1:]:
            cases.append([run(lab, "spectrain", name, seed).removed, usual, run(lab, "pipeoptim", name, seed).removed])
    return cases, f"Adam and AdamW; {TAUGHT}"


@small("pipeoptim.table2.spectrain.inconsistency", unit="none")
def spectrain_inconsistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda found: found.total(found.between) / found.total(found.late))


@small("pipeoptim.table2.spectrain.staleness", unit="none")
def spectrain_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    return _shares(lab, lambda found: found.total(found.forward) / found.total(found.late))


def _shares(lab: Lab, share: Callable[[Run], float]) -> tuple[Cases, str]:
    return [[share(run(lab, "spectrain", name, seed)) for name in OPTIMIZERS] for seed in SEEDS], TAUGHT


@small("pipeoptim.table2.pipeoptim.staleness", unit="none")
def pipeoptim_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = [
        [run(lab, system, name, seed).staleness for system in question.terms] for seed in SEEDS for name in OPTIMIZERS
    ]
    return cases, f"SGDM, Adam and AdamW; {TAUGHT}"


@small("pipeoptim.fig5.spectrain_no_gnmt", unit="none")
def no_gnmt(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import foreseen

    first, last, why = foreseen.translated(lab.policies["spectrain"])
    return [[first, last]], f"a small GNMT on {DEPTH} stages: {why or 'it trained'}"


# -- the figure that the paper does not have -------------------------------------------------------------------------


def _panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    """Means over windows of mini-batches, one network."""
    starts = range(0, LONG, WINDOW)
    places = [str(start) for start in starts]
    found, distances = [], {}
    for name in OPTIMIZERS:
        seen = run(lab, "pipeoptim", name, 0, LONG)
        parts = [[i for i in range(start, start + WINDOW) if i in seen.steady] for start in starts]
        curves = {f"stage {stage}": [seen.share(part, stage) for part in parts] for stage in range(DEPTH - 1)}
        found.append(
            Panel(
                f"Distance of predicted from true weights, over that of the newest ones: {name}",
                "",
                places,
                curves,
                axis="mini-batch",
            )
        )
        for told, difference in (("predicted", seen.forward), ("newest", seen.late)):
            distances[f"{name}, {told}"] = [fmean(seen.distance(index, difference) for index in part) for part in parts]
    title = "Distance of weights at the forward pass from those that serial training reads, all stages"
    smaller = "The same of three systems with SGD and momentum, by the samples of a mini-batch"
    late = {
        system: [fmean(run(lab, system, "sgdm", seed, samples=n).staleness for seed in SEEDS) for n in SIZES]
        for system in ("pipedream", "pipedream_2bw", "pipeoptim")
    }
    sizes = Panel(smaller, "", [str(n) for n in SIZES], late, axis="samples")
    return [*found, Panel(title, "", places, distances, axis="mini-batch"), sizes]


figure("pipeoptim_distance", "Section III, Equation 5: not in the paper", _panels)
