"""Plug-ins: objects are built from a configuration inside out, or refused before anything is built.

Arguments are checked against annotations, results and members against the type that a place requires.
"""

from __future__ import annotations

import builtins
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field

from suite.config.compose import composed
from suite.config.places import check_parts
from suite.config.plugins import build, check_arguments, check_class, misfit
from suite.config.protocols import PartitionMethod, Sampler, System
from suite.config.refusals import validated
from suite.config.run import RunConfig, settings_of
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.members import missing_members
from suite.core.protocols import CostModel, DataSource, Schedule
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.schedule import MessageDriven
from tests.support.drawn import drawn
from tests.support.refusals import refused

NAN, INF = float("nan"), float("inf")
SCHEDULE = "suite.schedule.message_driven.MessageDriven"

# -- building ---------------------------------------------------------------------------------------------------------


def test_build_calls_targets_inside_out() -> None:
    built = build({"a": {"_target_": "suite.core.grid.Grid", "inter": 2}, "b": [1, {"_target_": SCHEDULE}], "c": "x"})
    assert built == {"a": Grid(inter=2), "b": [1, MessageDriven()], "c": "x"}
    assert build({"_target_": SCHEDULE, "cap": 2}) == MessageDriven(cap=2)
    offloaded = {"_target_": "suite.memory.offloaded", "bucket": 4}
    assert build({**offloaded, "_partial_": True}).keywords == {"bucket": 4}
    with refused(InvalidRequest, "entries", subject="there is no entries"):
        build(offloaded)


def test_wrong_targets_and_arguments_are_refused() -> None:
    layout = "suite.memory.offloaded"
    for config, key, value, words in (
        ({"_target_": SCHEDULE, "limit": 3}, "x.limit", "x.limit", {"legal": "did you mean 'x.pipeline_limit'?"}),
        ({"_target_": "suite.gnn.plan.IntArray"}, "x._target_", ..., {"rule": "a public class or function"}),
        ({"_target_": SCHEDULE, "cap": "x"}, "x.cap", "x", {"rule": "a valid integer or null", "legal": "x.cap=null"}),
        ({"_target_": layout, "_partial_": True, "bucket": [5]}, "x.bucket", ..., {"legal": "x.bucket=1"}),
        ({"_target_": layout, "bucket": 4}, "x.entries", None, {"legal": "x.entries=1"}),
    ):
        with refused(InvalidRequest, key, value, **words):
            build(config, "x")


def test_hostile_config_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any place in a config, before anything else is called."""
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it ran"))
    hostile = {"_target_": "subprocess.Popen", "args": ["true"]}
    for config in (hostile, [hostile], {"a": {"b": [hostile]}}, {"_target_": SCHEDULE, "cap": hostile}):
        with pytest.raises(InvalidRequest) as caught:
            build(config)
        assert "subprocess.Popen" in str(caught.value)
        assert "a module of the suite" in caught.value.rule


def test_plugin_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(InvalidRequest, "x", "suite.weights.Latest", rule="its place requires a Schedule"):
        build({"_target_": "suite.weights.Latest"}, "x", Schedule)
    machine = composed(["executor=simulated"])["executor"]["machine"]
    with refused(InvalidRequest, "x.within", "suite.schedule.OneFOneB", rule="its place requires a Link"):
        build({**machine, "within": {"_target_": "suite.schedule.OneFOneB"}}, "x")
    monkeypatch.setattr("suite.config.plugins.located", lambda key, path: lambda: 3)
    with refused(InvalidRequest, "x", "mine.anything", rule="a Schedule; it has no program()"):
        build({"_target_": "mine.anything"}, "x", Schedule)


# -- arguments and results --------------------------------------------------------------------------------------------

FITS: list[tuple[Any, list[Any], list[Any]]] = [  # type, legal and illegal values
    (int, [0, -3, 10**30], [True, 1.0, "1", None, [1]]),
    (float, [0, 1.5, -2], [True, NAN, INF, 10**400, "1", None]),
    (bool, [True, False], [0, "true", None]),
    (int | None, [None, 3], ["none", 1.5]),
    (Sequence[int], [[], [1, 2], (1,)], ["12", [1, "2"], {"a": 1}, 5]),
    (tuple[int, ...], [(1, 2), [1]], [["x"], 3]),
    (tuple[int, str], [[1, "x"], (1, "x")], [["x", 1], [1], [1, "x", 2]]),
    (Mapping[str, float], [{}, {"a": 1}], [{"a": "1"}, [], 4]),
    (Mapping[str, Schedule], [{}, {"a": MessageDriven()}], [{"a": Grid()}, [MessageDriven()]]),
    (Callable[..., int], [len], [5]),
    (Grid, [Grid()], [{"data": 1}, 4, None]),
    (Grid | None, [Grid(), None], [4]),
    (Any, [None, 5, "x"], []),
    (Literal["paper", "stale"], ["paper"], ["papers", None]),
    (Annotated[float, Field(gt=0)] | None, [None, 1, 0.5], [0, -1, "1"]),
]


def test_arguments_are_checked_against_their_type() -> None:
    for hint, good, bad in FITS:

        def target(argument: Any) -> None: ...

        target.__annotations__ = {"argument": hint}
        for value in good:
            check_arguments("x", target, {"argument": value})
        for value in bad:
            with refused(InvalidRequest, "x.argument"):
                check_arguments("x", target, {"argument": value})


class Bounded:
    def __init__(self, share: Annotated[float, Field(ge=0, lt=1)] = 0.5, *, sizes: Sequence[int] = ()) -> None: ...


def layout() -> Grid:
    return Grid()


def test_refusal_of_an_argument_has_the_whole_key() -> None:
    half = "machine.share=0.5"
    for arguments, key, rule, legal in (
        ({"share": 2}, "machine.share", "less than 1", half),
        ({"share": -1.0}, "machine.share", "greater than or equal to 0", half),
        ({"share": "0.5"}, "machine.share", "a valid number", half),
        ({"sizes": [1, "2"]}, "machine.sizes", "1: a valid integer", "machine.sizes=[]"),
        ({"shar": 0.5}, "machine.shar", "", "did you mean 'machine.share'?"),
    ):
        with refused(InvalidRequest, key, rule=rule, legal=legal):
            check_arguments("machine", Bounded, arguments)
    check_arguments("machine", lambda **anything: anything, {"whatever": 1})
    target = f"{__name__}.layout"
    with refused(InvalidRequest, "x", target, legal="x._partial_=false"):
        build({"_target_": target, "_partial_": True}, "x", Grid)
    with refused(InvalidRequest, "x", target, legal="x._partial_=true"):
        build({"_target_": target}, "x", Callable[[], Grid])


# -- members ----------------------------------------------------------------------------------------------------------


class Plain:
    """A system with the required members alone."""

    def __init__(self, world: Any, config: Any) -> None: ...

    def close(self, *_: Any) -> Any: ...

    def evaluate(self, batches: Sequence[Any]) -> float:
        return 2.0

    probe = train_batch = observe = memory = close


class Derived(Plain, System):
    pass


def test_derived_class_has_the_optional_members() -> None:
    system = Derived(None, None)
    assert missing_members(Derived, System) == missing_members(system, System) == []
    assert (system.streams, system.facts(), system.score([]), system.decode([])) == (False, {}, {"loss": 2.0}, None)
    with refused(Unsupported, subject="a stream of Derived"):
        system.stream([])
    derived = {base: type("Parts", (base,), {})() for base in (CostModel, DataSource, PartitionMethod, Sampler)}
    assert derived[CostModel].parts(None) == derived[DataSource].score([], []) == {}
    assert derived[PartitionMethod].name == "parts"
    assert derived[Sampler].streams is False


def test_missing_members_are_named() -> None:
    path, missing = f"{__name__}.Plain", "it has no stream() and no score() and no decode() and no facts()"
    with refused(InvalidRequest, "system._target_", path, rule=missing):
        check_class("system._target_", path, System, ("world", "config"))
    with refused(InvalidRequest, "system._target_", f"{__name__}.Derived", rule="called with world"):
        check_class("system._target_", f"{__name__}.Derived", System, ("world",))
    assert misfit(3, [CostModel]) == "a CostModel; it has no compute() and no message() and no update() and no parts()"


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("ranks start twice")
def test_ranks_refuse_plugins_that_they_import(tmp_path: Path) -> None:
    size = ["batch.size=4", "batch.microbatch=2", "measure.rounds=1", "measure.batches=1", f"reports={tmp_path}"]
    for override in ("optimizer._target_=suite.schedule.OneFOneB", "system._target_=suite.weights.Latest"):
        (record,) = measure(expand([override, *size]), Progress(1.0))
        assert record.outcome.value == "unsupported"
        assert override.partition("=")[2] in record.reason
        assert "Traceback" not in record.reason


def arguments(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all plain arguments of classes in a config."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if "_target_" in value and not key.startswith("_") and not isinstance(each, dict | list):
            yield *path, key
        yield from arguments(each, (*path, key))


@pytest.mark.parametrize(
    "overrides",
    drawn(  # every class that a shipped choice names, with its arguments: a typed value may be wrong in any of them
        [
            "executor=simulated",
            "executor=emulated",
            "executor=check grid.inter=2",
            "executor=volumes system=sparsity_aware model=gcn partitioner=gvb",
            "executor=graph_clusters executor.figure=gnn_fig3",
            "memory=offload precision=auto weights=predict schedule=gpipe",
        ],
        n=2,
    ),
)
def test_legal_argument_named_in_refusal_is_accepted(overrides: str) -> None:
    config, advised = composed(overrides.split()), 0

    def refusal() -> InvalidRequest | None:
        try:
            check_parts(validated(RunConfig, settings_of(config)))
        except InvalidRequest as error:
            return error
        return None

    groups = ("schedule", "weights", "memory", "model", "executor", "system", "partitioner", "graph")
    for *within, key in arguments({name: config[name] for name in groups}):
        group: Any = config
        for name in within:
            group = group[name]
        right, path = group[key], ".".join((*within, key))
        for wrong in (None, -0.5, "no such word", [], {}):
            group[key] = wrong
            if (error := refusal()) and error.legal.startswith(f"{path}="):
                advised += 1
                group[key] = yaml.safe_load(error.legal.partition("=")[2])
                other = refusal()
                assert other is None or other.rule != error.rule  # a rule between arguments may refuse it
        group[key] = right
    assert advised
