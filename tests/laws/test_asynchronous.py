"""Law 7: asynchronous pipelines equal a reference of their definition, and hold the versions that their ledger says.

The reference (tests/support/asynchronous.py) keeps every version and shares no code with the engine. test_replays.py
compares ranks with their replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.config.families import content, groups
from suite.core.grid import Grid
from suite.core.op import Kind
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.engine.replay.replay import Replay
from suite.weights import Latest
from suite.weights.policy import Predict
from tests.support.asynchronous import Pipeline, Rule, engine_settings, largest_difference
from tests.support.cases import Case, gpt_case
from tests.support.drawn import drawn

POLICIES: dict[str, Callable[[str], Any]] = {
    "pipedream": Stash,
    "2bw": DoubleBuffer,
    "spectrain": SpecTrain,
    "pipeoptim": lambda graph: Predict("paper", graph),
    "pipeoptim_authors": lambda graph: Predict("authors", graph),
    "pipeoptim_inflight": lambda graph: Predict("inflight", graph),
    "latest": Latest,
}
RULES: dict[str, tuple[Rule, Any]] = {
    "sgdm": (Rule("sgd", 0.05, decay=5e-4), SGD(0.05, momentum=0.9, weight_decay=5e-4)),
    "sgdm_next": (Rule("sgd", 0.05, next_velocity=True), SGD(0.05, momentum=0.9, direction="next")),
    "adam": (Rule("adam", 0.01), Adam(0.01)),
    "adamw": (Rule("adamw", 0.01, decay=0.1), AdamW(0.01, weight_decay=0.1)),
    "adamw_decay": (
        Rule("adamw", 0.01, decay=0.1, with_decay=True),
        AdamW(0.01, weight_decay=0.1, predict_decay=True),
    ),
}
DEEP = gpt_case("dropout", "float64", tied=False, dropout=0.2, layers=4)
EPOCHS = (9, 6)  # microbatches per replica; the second is a prime


def epochs(case: Case, replicas: int) -> list[list[Any]]:
    return [[case.batch(100 * e + i, 1, replicas) for i in range(n)] for e, n in enumerate(EPOCHS)]


def weights_of(engine: Engine) -> list[torch.Tensor]:
    return [p.detach().clone() for p in engine.state.model_states.parameters]


def rows() -> list[tuple[str, str, Grid, int]]:
    """(system, rule, grid, microbatches per update): all systems and rules at depths 2 and 4, with 1 and 2 replicas."""
    cases = []
    for system in POLICIES:
        for rule in RULES:
            if system == "spectrain" and not rule.startswith("sgdm"):
                continue
            if rule in ("sgdm_next", "adamw_decay") and not system.startswith("pipeoptim"):
                continue
            for stages in (2, 4):
                every = stages if system == "2bw" else 1
                cases.append((system, rule, Grid(inter=stages), every))
    cases += [(system, "sgdm", Grid(inter=2, data=2), 2 if system == "2bw" else 1) for system in POLICIES]
    cases += [("pipeoptim", "adam", Grid(inter=2, data=2), 1), ("pipedream", "adamw", Grid(inter=4, data=2), 1)]
    cases += [(system, "sgdm", Grid(), 1) for system in POLICIES]  # all are serial there, but for the delay of 2BW
    return [*cases, ("pipeoptim_inflight", "adam", Grid(inter=3), 2), ("2bw", "adam", Grid(inter=2), 4)]


@pytest.mark.parametrize(("system", "rule", "grid", "every"), drawn(rows(), n=4), ids=str)
def test_pipeline_matches_reference_definition(system: str, rule: str, grid: Grid, every: int) -> None:
    theirs, ours = RULES[rule]
    right = Pipeline(DEEP, system, theirs, stages=grid.inter, replicas=grid.data, every=every)
    replay = Replay(DEEP.layers, grid=grid, **engine_settings(DEEP, POLICIES[system]("recompute"), ours, every))
    for epoch in epochs(DEEP, grid.data):
        expected, losses = right.train(epoch), list(replay.train(epoch))
        assert losses == pytest.approx(expected, abs=1e-11)
    for engine, stage in zip(replay.pipeline, right.stages, strict=True):
        assert largest_difference(weights_of(engine), stage.versions[-1]) < 1e-11
        assert largest_difference(weights_of(engine), stage.versions[0]) > 1e-3


class Slope(nn.Module):
    """A layer with a constant weight gradient: 2^-3 per sample and entry."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight * 0.125


@pytest.mark.parametrize("stages", drawn([2, 4, 8], n=1))
def test_law_7_forward_reads_weights_of_its_backward(stages: int) -> None:
    """Plain SGD at constant gradient on dyadic numbers. After the first update, with the exact count, each forward pass
    reads bit for bit the weights that its backward pass reads. With the authors' count none does."""
    met: dict[tuple[int, Kind, int], torch.Tensor] = {}
    wrong = {}
    for s in ("paper", "inflight", "authors"):
        replay = Replay(
            [Slope for _ in range(stages)],
            loss=lambda x, target: x.sum(1).mean() + target.sum() * 0,
            optimizer=SGD(0.25),
            microbatch=1,
            grid=Grid(inter=stages),
            weights=Predict(s),
            update_interval=1,
        )
        for number, engine in enumerate(replay.pipeline):
            spied(engine, number, met)
        for epoch in range(2):
            list(replay.train([(torch.zeros(1, 5), torch.zeros(1))] * 20))
            steady = range(20 * epoch + stages + 1, 20 * (epoch + 1) - stages)
            for index in (
                steady if s != "inflight" else range(20 * epoch + (stages if not epoch else 0), 20 * epoch + 20)
            ):
                for stage in range(stages):
                    same = torch.equal(met[stage, Kind.FORWARD, index], met[stage, Kind.BACKWARD, index])
                    wrong[s] = wrong.get(s, 0) + (not same)
        assert float(replay.pipeline[0].state.stage.layers[0].weight.detach().max()) < -1
    assert wrong["paper"] == wrong["inflight"] == 0
    assert wrong["authors"] == stages * sum(len(range(20 * e + stages + 1, 20 * (e + 1) - stages)) for e in range(2))


def spied(engine: Engine, number: int, met: dict[tuple[int, Kind, int], torch.Tensor]) -> None:
    """Records the weight that each pass of a stage reads."""
    stage = engine.state.stage
    forward, backward = stage.forward, stage.backward

    def went(index: int, *args: Any, **kwargs: Any) -> Any:
        met[number, Kind.FORWARD, index] = stage.layers[0].weight.detach().clone()
        return forward(index, *args, **kwargs)

    def came(index: int, *args: Any) -> Any:
        met[number, Kind.BACKWARD, index] = stage.layers[0].weight.detach().clone()
        return backward(index, *args)

    stage.forward, stage.backward = went, came  # type: ignore[method-assign]


def asynchronous() -> list[str]:
    """Systems of conf/system with an update interval, read from the YAML files, as composing all takes seconds."""
    return [name for name in groups()["system"] if content("system", name).keys.get("update_interval")]


@pytest.mark.parametrize("name", drawn(asynchronous(), n=2))
def test_every_configured_asynchronous_system_trains(name: str) -> None:
    """A new YAML file is tested without registration."""
    case, grid = gpt_case("untied", "float32", tied=False), Grid(inter=2)
    config = resolve([f"system={name}", "grid.inter=2"])
    settings = engine_settings(case, config.weights.build(), SGD(0.05, momentum=0.9), config.update_interval)
    settings["schedule"] = config.schedule.build()
    replay = Replay(case.layers, grid=grid, **settings)
    losses = list(replay.train(epochs(case, 1)[0]))
    ranks = threads.run(
        2, lambda world: list(Engine(case.layers, grid=grid, world=world, **settings).train(epochs(case, 1)[0]))
    )
    assert ranks == [losses, losses]
