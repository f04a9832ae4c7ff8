"""Plug-ins: objects are built from a configuration inside out, or refused before anything is built.

Arguments are checked against annotations, results and members against the type that a place requires.
"""

from __future__ import annotations

import builtins
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NewType, Protocol

import pytest
import yaml
from pydantic import Field, TypeAdapter, ValidationError

from suite.config import modules
from suite.config.compose import composed
from suite.config.locate import search
from suite.config.modules import network_module, source_module
from suite.config.places import PLACES, check_parts
from suite.config.plugins import Plugin, build
from suite.config.protocols import PartitionMethod, Sampler, System
from suite.config.results import check_class, mismatch, object_mismatch
from suite.config.signature import check_names, check_values, fits
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.members import missing_members
from suite.core.protocols import CostModel, DataSource, Schedule
from suite.engine.replay_system import ReplaySystem
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.schedule import MessageDriven
from tests.support.drawn import drawn
from tests.support.refusals import refused

NAN, INF = float("nan"), float("inf")
SCHEDULE = "suite.schedule.message_driven.MessageDriven"
READER = TypeAdapter(Plugin[Schedule])

# -- building ---------------------------------------------------------------------------------------------------------


def test_build_calls_targets_inside_out() -> None:
    built = build({"a": {"_target_": "suite.core.grid.Grid", "inter": 2}, "b": [1, {"_target_": SCHEDULE}], "c": "x"})
    assert built == {"a": Grid(inter=2), "b": [1, MessageDriven()], "c": "x"}
    assert build({"_target_": SCHEDULE, "cap": 2}, pipeline_limit=5) == MessageDriven(pipeline_limit=5, cap=2)
    assert build({"plain": 1}, more=2) == {"plain": 1, "more": 2}
    offloaded = {"_target_": "suite.memory.offloaded", "bucket": 4}
    assert build({**offloaded, "_partial_": True}).keywords == {"bucket": 4}
    with refused(InvalidRequest, subject="there is no entries"):
        build(offloaded)


def test_wrong_targets_and_arguments_are_refused() -> None:
    for config, later, key, value, words in (
        ({"_target_": SCHEDULE, "limit": 3}, {}, "limit", "limit", {"legal": "did you mean 'pipeline_limit'?"}),
        ({"_target_": SCHEDULE, "_partial_": True}, {"limit": 3}, "limit", "limit", {}),
        ({"_target_": "suite.gnn.plan.ASSIGNMENTS"}, {}, "", ..., {"rule": "a class or a function"}),
        ({"_target_": SCHEDULE, "pipeline_limit": "x"}, {}, "pipeline_limit", ..., {"legal": "pipeline_limit=null"}),
        (
            {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": [5]},
            {},
            "bucket",
            ...,
            {"legal": "bucket=1"},
        ),
    ):
        with refused(InvalidRequest, key, value, **words):
            build(config, **later)


def test_hostile_config_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any place in a config, before anything else is called."""
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it ran"))
    hostile = {"_target_": "subprocess.Popen", "args": ["true"]}
    for config in (hostile, [hostile], {"a": {"b": [hostile]}}, {"_target_": SCHEDULE, "cap": hostile}):
        with refused(InvalidRequest, subject="in no such folder"):
            build(config)


def test_plugin_is_built_and_dumped_unchanged() -> None:
    plugin = READER.validate_python({"_target_": SCHEDULE, "cap": 2})
    assert plugin.required_type is Schedule
    assert plugin.build(pipeline_limit=5) == MessageDriven(pipeline_limit=5, cap=2)
    for data in ({"_target_": SCHEDULE, "cap": 2}, {"_target_": "suite.memory.resident", "_partial_": True}):
        plugin = READER.validate_python(data)
        assert READER.dump_python(plugin) == plugin.data() == data
        assert READER.validate_python(plugin) == plugin
    for data in (None, 3, {}, {"cap": 2}, {"_target_": 3}):
        with pytest.raises(ValidationError, match="a group of keys with a class path in _target_"):
            READER.validate_python(data)


def test_plugin_of_another_type_is_refused_as_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(InvalidRequest, subject="=suite.weights.Latest", rule="its place requires a Schedule"):
        READER.validate_python({"_target_": "suite.weights.Latest"}).build()
    with refused(InvalidRequest, "within", "suite.schedule.OneFOneB", rule="its place requires a Link"):
        build(
            {
                **composed(["executor=simulated"])["executor"]["machine"],
                "within": {"_target_": "suite.schedule.OneFOneB"},
            }
        )
    for name in ("plugins", "results"):
        monkeypatch.setattr(f"suite.config.{name}.locate", lambda path: lambda: 3)
    with refused(InvalidRequest, subject="which returns 3", rule="its place requires a Schedule"):
        READER.validate_python({"_target_": "mine.anything"}).build()


# -- arguments and results --------------------------------------------------------------------------------------------

FITS: list[tuple[Any, list[Any], list[Any]]] = [  # type, legal and illegal values
    (int, [0, -3, 10**30], [True, 1.0, "1", None, [1]]),
    (float, [0, 1.5, -2], [True, NAN, INF, 10**400, "1", None]),
    (bool, [True, False], [0, "true", None]),
    (str, ["", "x"], [0, None, ["x"]]),
    (int | None, [None, 3], ["none", 1.5]),
    (Sequence[int], [[], [1, 2], (1,)], ["12", [1, "2"], {"a": 1}, 5]),
    (tuple[int, ...], [(1, 2), [1]], [["x"], 3]),
    (Mapping[str, float], [{}, {"a": 1}], [{"a": "1"}, [], 4]),
    (Callable[..., int], [len], [5]),
    (Grid, [Grid()], [{"data": 1}, 4, None]),
    (Any, [None, 5, "x"], []),
    (list, [[1, "x"], ()], ["12", {}]),
    (dict, [{}, {"a": []}], [[], "a"]),
    (tuple[int, str], [[1, "x"], (1, "x")], [["x", 1], [1], [1, "x", 2]]),
    (Literal["paper", "stale"], ["paper"], ["papers", None]),
    (Annotated[int, Field(ge=1)], [1, 10], [0, True, 1.0]),
    (Annotated[float, Field(gt=0)] | None, [None, 1, 0.5], [0, -1, "1"]),
    (NewType("Bytes", int), [1], [1.0, "1"]),
    (Sequence[Mapping[str, int | str]], [[{"a": 1}, {"b": "x"}]], [[{"a": 1.5}], [[1]]]),
    (type("Tensor", (), {"__module__": "another_package"}), [3], []),
]


def test_values_are_checked_against_their_type() -> None:
    for hint, good, bad in FITS:
        assert [value for value in good if not fits(value, hint)] == [], hint
        assert [value for value in bad if fits(value, hint)] == [], hint


class Reads(Protocol):
    wide: bool  # may be set in __init__

    def read(self, at: int) -> int: ...


Reads.__module__ = "suite.example"  # types of other packages are not checked


class Reader:
    def read(self, at: int) -> int:
        return at


class Bounded:
    def __init__(self, share: Annotated[float, Field(ge=0, lt=1)] = 0.5, *, readers: Sequence[Reads] = ()) -> None: ...


def reader() -> Reader:
    return Reader()


def either() -> Reader | int:
    return 1


def anything() -> Any:
    return 1


def lazy(count: Absent) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_result_type_is_checked_before_building() -> None:
    for target, required_type, later, legal in (
        (Reader, Reads, False, True),
        (reader, Reads, False, True),
        (reader, Reads, True, False),
        (reader, Callable[[], Reads], True, True),
        (reader, Callable, True, True),
        (reader, Callable, False, False),
        (reader, Callable[[], Reads], False, False),
        (either, Callable[[], int], True, True),
        (either, Reads, False, True),
        (either, str, False, False),
        (anything, Reads, False, True),
        (lambda: 1, Reads, False, True),
        (int, Reads, False, False),
        (int, float, False, True),
        (float, int, False, False),
        (Reader, int | None, False, False),
        (Reader, Reader | None, False, True),
        (Reader, Any, False, True),
        (list, Sequence[int], False, True),
        (Reader, Mapping[str, int], False, False),
    ):
        assert (mismatch(target, required_type, later=later) is None) is legal, (target, required_type, later)


def test_refusal_of_an_argument_has_the_whole_key() -> None:
    half = "machine.share=0.5"
    for arguments, key, rule, legal in (
        ({"share": 2}, "machine.share", "below 1.0", half),
        ({"share": -1.0}, "machine.share", "at least 0.0", half),
        ({"share": "0.5"}, "machine.share", "a number", half),
        ({"readers": 3}, "machine.readers", "a list, each entry Reads", "machine.readers=[]"),
        ({"readers": [{"_target_": "suite.core.grid.Grid"}]}, "", "Grid has no read()", ""),  # machine.readers[0]
    ):
        with refused(InvalidRequest, key, rule=rule, legal=legal):
            check_values("machine", "mine.Bounded", Bounded, arguments)
    check_values("x", "mine.lazy", lazy, {"count": "x"})  # an annotation that cannot be resolved checks nothing
    check_names("machine", "mine.Bounded", Bounded, ["share", "readers"])
    check_names("", "mine.either", lambda **anything: anything, ["whatever"])
    with refused(InvalidRequest, "machine.shar", "machine.shar", legal="did you mean 'machine.share'?"):
        check_names("machine", "mine.Bounded", Bounded, ["shar"])


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
    assert missing_members(ReplaySystem, System) == ["probe()"]
    derived = {base: type("Parts", (base,), {})() for base in (CostModel, DataSource, PartitionMethod, Sampler)}
    assert derived[CostModel].parts(None) == derived[DataSource].score([], []) == {}
    assert derived[PartitionMethod].name == "parts"
    assert derived[Sampler].streams is False


def test_missing_members_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = "which has no stream() and no score() and no decode() and no facts()"
    with refused(InvalidRequest, "system._target_", "mine.Plain", subject=subject):
        check_class("system._target_", "mine.Plain", Plain, System, ("world", "config"))
    missing = "no compute() and no message() and no update() and no parts()"
    assert object_mismatch(3, CostModel) == f"a CostModel; it has {missing}"
    assert missing in object_mismatch(3, CostModel | None)
    for name in ("plugins", "results"):
        monkeypatch.setattr(f"suite.config.{name}.locate", lambda path: lambda: Plain(None, None))
    plugin: Plugin[DataSource] = Plugin("mine.source", {}, required_type=DataSource, place="data.source")
    with refused(InvalidRequest, "data.source", "mine.source", rule="requires a DataSource; it has no batch()"):
        plugin.build()


def test_optional_members_of_a_users_module_have_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(**members: object) -> None:
        module = ModuleType("mine")
        vars(module).update(members)
        monkeypatch.setattr(modules, "module", lambda path: module)

    stand_in(layers=list, ties=list, loss=max, helper=min)
    network = network_module("mine")
    assert (network.layers, network.ties, network.loss) == (list, list, max)
    assert (network.scores, network.SCORES, network.decode) == (None, (), None)
    stand_in(layers=list, ties=list, loss=max, scores=min, SCORES=("top",), decode=sum)
    network = network_module("mine")
    assert (network.scores, network.SCORES, network.decode) == (min, ("top",), sum)
    stand_in(layers=list)
    with refused(InvalidRequest, "model.network", "mine", legal="suite.models.gpt"):
        network_module("mine")
    source_module("mine").check_shape("data", None, object())
    seen: list[object] = []
    stand_in(check_shape=lambda *values: seen.extend(values))
    source_module("mine").check_shape("data", None, 3)
    assert seen == ["data", None, 3]


# -- places -----------------------------------------------------------------------------------------------------------


def check_place(path: str, value: Any) -> None:
    """Check a config of one place alone."""
    *groups, name = path.split(".")
    config = {name: value}
    for group in reversed(groups):
        config = {group: config}
    check_parts(config, {path: PLACES[path]})


MINE = """
from suite.config.protocols import System

class Lazy:  # says nothing of what its methods take, and is a schedule
    def program(self, place, interval): yield
    def in_flight(self, place, interval): return 1

class Half:
    def program(self, place, interval): yield

def made():
    return Lazy()

class Whole(System):
    @classmethod
    def probe(cls, config): ...

class Trains:
    def train_batch(self, batch): ...
    close = print

class Remembers(Trains):
    memory: object = None

class Unknown(unseen.Base):
    pass
"""


def test_user_class_is_checked_by_its_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_a_user.py").write_text(MINE.replace("class Unknown(unseen.Base):\n    pass\n", ""))
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    for name in ("Lazy", "made"):  # a function that does not say what it makes is called
        check_place("schedule", {"_target_": f"parts_of_a_user.{name}"})
    legal = "schedule._target_=suite.schedule.MessageDriven"
    with refused(InvalidRequest, "schedule", "parts_of_a_user.Half", rule="Half has no in_flight()", legal=legal):
        check_place("schedule", {"_target_": "parts_of_a_user.Half"})


def test_class_that_only_ranks_import_is_checked_by_its_source(tmp_path: Path) -> None:
    (tmp_path / "own_systems.py").write_text(MINE)
    search([str(tmp_path)])
    for path, missing in (
        ("suite.core.grid.Grid", ("probe()", "train_batch()")),
        ("own_systems.Trains", ("probe()", "evaluate()", "observe()", "memory()", "stream()")),
        ("own_systems.Remembers", ("probe()", "evaluate()", "observe()", "stream()")),
        ("own_systems.Whole", ()),
        ("own_systems.Unknown", ()),  # its base cannot be read
    ):
        (run,) = expand([f"system._target_={path}", f"launch.python_path=[{tmp_path}]"])
        assert (" and no ".join(missing) if missing else "None") in str(run.refusal)


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
            "executor=check",
            "executor=volumes system=sparsity_aware model=gcn partitioner=gvb",
            "executor=graph_clusters executor.figure=gnn_fig3",
            "memory=offload precision=auto weights=predict schedule=gpipe",
        ],
        n=2,
    ),
)
def test_legal_argument_named_in_refusal_is_accepted(overrides: str) -> None:
    config = composed(overrides.split())
    before = repr(config)
    check_parts(config)
    assert repr(config) == before, "checking changes nothing"
    advised = 0
    for *within, key in arguments(
        {path: config[path] for path in {place.split(".")[0].split(":")[0] for place in PLACES}}
    ):
        group: Any = config
        for name in within:
            group = group[name]
        right = group[key]
        for wrong in (None, -0.5, "no such word", [], {}):
            group[key] = wrong
            try:
                check_parts(config)
            except (InvalidRequest, UnknownName) as error:
                path = ".".join((*within, key))
                named = path in str(error).partition("; ")[0]
                advised += named
                if error.legal.startswith(f"{path}="):
                    group[key] = yaml.safe_load(error.legal.partition("=")[2])
                    check_parts(config)
        group[key] = right
    assert advised
