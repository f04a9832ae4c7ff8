"""Each place of a configuration takes plug-ins of its type, and refuses others with its key."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.config.compose import composed, groups, resolve
from suite.config.locate import search
from suite.config.places import OF_DATA, OF_RANKS, PLACES, check_parts
from suite.core.errors import InvalidRequest, SuiteError
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from tests.support.refusals import refused

LINK = {"_target_": "suite.simulate.network.machine.Link", "latency": 0.0, "bandwidth": 1.0}
PLANTED = {"_target_": "suite.data.graphs.generate.Planted", "vertices": 64, "blocks": 2}
# one of every kind, with the arguments that it needs
PARTS: dict[str, dict[str, Any]] = {
    "schedule": {"_target_": "suite.schedule.OneFOneB"},
    "weights": {"_target_": "suite.weights.Latest"},
    "memory.layout": {"_target_": "suite.memory.resident", "_partial_": True},
    "system.simulation.layout": {"_target_": "suite.memory.mixed", "_partial_": True},
    "model.shape": {"_target_": "suite.workload.gcn.GCN"},
    "precision.loss_scale": {"_target_": "suite.engine.optim.loss_scaler.DynamicLossScaler"},
    "executor:plugin": {
        **{"kind": "plugin", "_target_": "suite.papers.pipeoptim.unit_time_executor.UnitTimeExecutor"},
        **{"forward": 4, "backward": 8, "batches": 8},
    },
    "executor:microbenchmark": {"kind": "microbenchmark", "_target_": "suite.runner.executors.message_sizes.Messages"},
    "executor:simulated.machine": {
        **{
            "_target_": "suite.simulate.network.machine.Machine",
            "name": "x",
            "devices_per_node": 1,
            "memory": 1.0,
            "peak": {},
        },
        **{"memory_bandwidth": 1.0, "within": LINK, "between": LINK, "adapters": 1, "host": LINK},
    },
    "executor:simulated.efficiency": {
        "_target_": "suite.simulate.cost.efficiency.Efficiency",
        "name": "x",
        "products": 1.0,
    },
    "executor:emulated.cost": {
        "_target_": "suite.simulate.cost.measured.Fixed",
        "forward": 1.0,
        "backward": 2.0,
        "message_bytes": 1,
    },
    "executor:plugin.stand_ins.any.source": {
        "_target_": "suite.data.graphs.generate.Planted",
        "vertices": 64,
        "blocks": 2,
    },
    "graph.source": {"_target_": "suite.data.graphs.generate.Planted", "vertices": 64, "blocks": 2},
    "partitioner": {"_target_": "suite.gnn.partition.simple.Block"},
    "optimizer": {"_target_": "suite.engine.optim.optimizer.Adam", "lr": 0.1},
    "pruning.ticket": {"_target_": "suite.pruning.magnitude.Magnitude"},
    "data.source": {"_target_": "suite.data.text.standard_library"},
    "system": {"_target_": "suite.engine.system.EngineSystem"},
    "exchange": {"_target_": "suite.gnn.exchange.Aware"},
}
ALL = {**PLACES, **OF_RANKS, **OF_DATA}
# a system loads checkpoints, as a source loads graphs: it is refused as it is built, for want of a world
GRAPHS = ("graph.source", "executor:plugin.stand_ins.any.source")
LAYOUTS = ("memory.layout", "system.simulation.layout")
ALIKE = {(path, other) for path in GRAPHS for other in (*GRAPHS, "system")} | set(permutations(LAYOUTS))


def place(path: str) -> str:
    return path.replace(".any.", ".*.")


def holding(path: str, value: Any) -> dict[str, Any]:
    """A config of one place alone."""
    for key in reversed(path.split(".")):
        name, _, kind = key.partition(":")
        value = {name: {**value, **({"kind": kind} if kind else {})} if isinstance(value, dict) else value}
    return dict(value)


def refusal(path: str, value: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check_parts(holding(path, value), {place(path): ALL[place(path)]})
    return str(caught.value)


def test_every_place_has_an_example() -> None:
    assert {place(path) for path in PARTS} == set(ALL)


@pytest.mark.parametrize("path", PARTS)
def test_place_accepts_its_own_type_only(path: str) -> None:
    check_parts(holding(path, PARTS[path]), {place(path): ALL[place(path)]})
    for other, value in PARTS.items():
        if other != path and (path, other) not in ALIKE:
            message = refusal(path, value)
            assert re.sub(r":\w+", "", path) in message, other
            assert value["_target_"] in message, other


def test_function_has_the_result_and_arguments_of_its_place() -> None:
    at_once = refusal("memory.layout", {"_target_": "suite.memory.resident"})
    assert "a function; the result is a Layout" in at_once
    assert "the result is a list" in refusal(
        "memory.layout", {"_target_": "suite.models.chain.layers", "_partial_": True}
    )
    mixed = {"_target_": "suite.memory.layout.mixed_precision", "_partial_": True}
    assert "it is called with dtype, entries, half, moments" in refusal("memory.layout", mixed)
    offloaded = {"_target_": "suite.memory.offloaded", "_partial_": True}
    assert "missing a required" in refusal("memory.layout", offloaded)
    check_parts(holding("memory.layout", {**offloaded, "bucket": 4}))


def test_every_choice_is_accepted_by_ranks() -> None:
    looked = 0
    for group, path in (("system", "system"), ("optimizer", "optimizer"), ("pruning", "pruning.ticket")):
        for choice in groups()[group]:
            path_of = ["pruning.ticket.path=x"] if choice == "saved" else []
            check_parts(resolve([f"{group}={choice}", *path_of]), {path: OF_RANKS[path]})
            looked += 1
    for choice in groups()["exchange"]:
        overrides = ["executor=volumes", "system=sparsity_aware", f"exchange={choice}"]
        check_parts(resolve(overrides), {"exchange": OF_RANKS["exchange"]})
    for choice in groups()["data"]:
        check_parts(resolve([f"data={choice}", "data.folder=nowhere"]), OF_DATA)
    assert looked > 20


MINE = """
class Lazy:  # says nothing of what its methods take, and is a schedule
    def program(self, place, interval): yield
    def in_flight(self, place, interval): return 1

class Half:
    def program(self, place, interval): yield

def made():
    return Lazy()
"""


def test_user_class_is_checked_by_its_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_a_user.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    for name in ("Lazy", "made"):  # a function that does not say what it makes is called
        check_parts(holding("schedule", {"_target_": f"parts_of_a_user.{name}"}))
    message = refusal("schedule", {"_target_": "parts_of_a_user.Half"})
    assert message == (
        "schedule=parts_of_a_user.Half; rule: its place requires a Schedule; Half has no in_flight(); "
        "legal: schedule._target_=suite.schedule.MessageDriven"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["executor=messages", "grid.data=2", "executor._target_=suite.core.grid.Grid"],
        ["executor=check", "weights._target_=suite.schedule.OneFOneB"],
        ["executor=unit", "executor._target_=suite.schedule.OneFOneB"],
        ["executor=simulated", "system.simulation.layout._target_=suite.weights.Latest"],
        ["executor=simulated", "machine._target_=suite.weights.Latest"],
        ["executor=analytic", "executor.paper=axonn", "executor.models.gpt3_xl.shape._target_=suite.workload.VGG"],
        ["executor=analytic", "executor.paper=axonn", "~executor.models.gpt3_xl.shape"],
        ["executor=graph_clusters", "executor.figure=gnn_fig3", "~executor.stand_ins.amazon.source"],
        ["executor=check", "schedule._target_=suite.cli.claims.main"],
        [
            "optimizer.lr={_target_:suite.schedule.OneFOneB}",
            "executor=emulated",
            "executor.cost._target_=suite.weights.Latest",
        ],
    ],
)
def test_plugin_of_another_type_is_refused_before_the_run(overrides: list[str]) -> None:
    (run,) = expand(overrides)
    assert isinstance(run.refusal, SuiteError)
    assert "\n" not in str(run.refusal)


def test_draw_and_tune_check_plugins_too() -> None:
    with refused(InvalidRequest, "schedule", rule="its place requires a Schedule"):
        resolve(["schedule._target_=suite.weights.Latest"])


@pytest.mark.parametrize(
    "override", ["optimizer._target_=suite.schedule.OneFOneB", "system._target_=suite.weights.Latest"]
)
def test_ranks_refuse_plugins_that_they_import(tmp_path: Path, override: str) -> None:
    size = ["batch.size=4", "batch.microbatch=2", "measure.rounds=1", "measure.batches=1"]
    (record,) = measure(expand([override, *size, f"reports={tmp_path}"]), Progress(1.0))
    assert record.outcome.value == "unsupported"
    assert override.partition("=")[2] in record.reason
    assert "Traceback" not in record.reason


def test_checking_places_changes_nothing() -> None:
    config = resolve([])
    before = copy.deepcopy(config)
    check_parts(config)
    assert config == before


# every class that a shipped choice names, with its arguments: a typed value may be wrong in any of them
CHOICES = {
    "executor": ["executor=simulated"],
    "emulated": ["executor=emulated"],
    "check": ["executor=check"],
    "volumes": ["executor=volumes", "system=sparsity_aware", "model=gcn", "partitioner=gvb"],
    "graph_clusters": ["executor=graph_clusters", "executor.figure=gnn_fig3"],
    "offload": ["memory=offload", "precision=auto", "weights=predict", "schedule=gpipe"],
}


def arguments(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all plain arguments of classes in a config."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if "_target_" in value and not key.startswith("_") and not isinstance(each, dict | list):
            yield *path, key
        yield from arguments(each, (*path, key))


@pytest.mark.parametrize("choice", CHOICES)
def test_legal_argument_named_in_refusal_is_accepted(choice: str) -> None:
    config = composed(CHOICES[choice])
    check_parts(config)
    refused = 0
    for path in arguments({group: config[group] for group in {re.split("[.:]", place)[0] for place in PLACES}}):
        *within, key = path
        group: Any = config
        for name in within:
            group = group[name]
        before = group[key]
        for wrong in (None, -0.5, "no such word", [], {}):
            group[key] = wrong
            try:
                check_parts(config)
            except InvalidRequest as error:
                refused += 1
                whole, _, legal = str(error).partition("legal: ")
                assert whole.startswith(".".join(path))
                if legal:
                    assert legal.startswith(f"{'.'.join(path)}=")
                    group[key] = yaml.safe_load(legal.partition("=")[2])
                    check_parts(config)
        group[key] = before
    assert refused


def test_null_for_a_word_suggests_a_legal_word() -> None:
    key = "system.simulation.activation_checkpointing"
    (run,) = expand(["executor=simulated", f"{key}=null"])
    assert f"legal: {key}=interval" in str(run.refusal)
    (run,) = expand(["executor=simulated", f"{key}=interval"])
    assert run.refusal is None
