"""Arguments are checked against annotations, and results against the types that places require."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Protocol

import pytest
from pydantic import Field

from suite.config.plugins import build
from suite.config.results import mismatch
from suite.config.signature import check_names, check_values, fits
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from tests.support.refusals import refused

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
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
        (torch_like := type("Tensor", (), {"__module__": "another_package"}), [3, torch_like()], []),
    ],
)
def test_values_are_checked_against_their_type(hint: Any, good: Sequence[Any], bad: Sequence[Any]) -> None:
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"_target_": "suite.schedule.MessageDriven", "pipeline_limit": "x"},
            "suite.schedule.MessageDriven: pipeline_limit='x'; rule: pipeline_limit is a whole number or null; "
            "legal: pipeline_limit=null",
        ),
        (
            {"_target_": "suite.simulate.cost.efficiency.Efficiency", "name": "mine", "products": NAN},
            "suite.simulate.cost.efficiency.Efficiency: products=nan; rule: products is a number; legal: products=1.0",
        ),
        (
            {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": [5]},
            "suite.memory.offloaded: bucket=[5]; rule: bucket is a whole number; legal: bucket=1",
        ),
    ],
)
def test_argument_of_another_type_is_refused_with_a_legal_value(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build(config)
    assert str(caught.value) == message


class Reads(Protocol):
    wide: bool  # may be set in __init__

    def read(self, at: int) -> int: ...


Reads.__module__ = "suite.example"  # types of other packages are not checked


class Reader:
    def read(self, at: int) -> int:
        return at


def reader() -> Reader:
    return Reader()


def either() -> Reader | int:
    return 1


def anything() -> Any:
    return 1


@pytest.mark.parametrize(
    ("target", "required_type", "later", "words"),
    [
        (Reader, Reads, False, None),
        (reader, Reads, False, None),
        (reader, Reads, True, "built at once"),
        (reader, Callable[[], Reads], True, None),
        (reader, Callable, True, None),
        (reader, Callable, False, "a function; the result is a Reader"),
        (reader, Callable[[], Reads], False, "a function; the result is a Reader"),
        (either, Callable[[], int], True, None),
        (either, Reads, False, None),
        (either, str, False, "text; the result is a Reader"),
        (anything, Reads, False, None),
        (lambda: 1, Reads, False, None),
        (int, Reads, False, r"a Reads; int has no read\(\)"),
        (int, float, False, None),
        (float, int, False, "a whole number; the result is a number"),
        (Reader, int | None, False, "a whole number"),
        (Reader, Reader | None, False, None),
        (Reader, Any, False, None),
        (list, Sequence[int], False, None),
        (Reader, Mapping[str, int], False, "a mapping"),
    ],
)
def test_result_type_is_checked_before_building(
    target: Callable[..., Any], required_type: Any, later: bool, words: str | None
) -> None:
    reason = mismatch(target, required_type, later=later)
    assert (reason is None) if words is None else re.search(words, str(reason))


class Bounded:
    def __init__(self, share: Annotated[float, Field(ge=0, lt=1)] = 0.5, *, readers: Sequence[Reads] = ()) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 2}, "machine.share=2; rule: share is below 1.0; legal: machine.share=0.5"),
        ({"share": -1.0}, "machine.share=-1.0; rule: share is at least 0.0; legal: machine.share=0.5"),
        ({"share": "0.5"}, "machine.share='0.5'; rule: share is a number; legal: machine.share=0.5"),
        ({"readers": 3}, "machine.readers=3; rule: readers is a list, each entry Reads; legal: machine.readers=[]"),
        (
            {"readers": [{"_target_": "suite.core.grid.Grid"}]},
            "machine.readers[0]=suite.core.grid.Grid; rule: its place requires a Reads; Grid has no read()",
        ),
    ],
)
def test_refusal_has_the_whole_key(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_values("machine", "mine.Bounded", Bounded, arguments)
    assert str(caught.value) == message


def test_argument_names_are_checked() -> None:
    check_names("machine", "mine.Bounded", Bounded, ["share", "readers"])
    check_names("", "mine.either", lambda **anything: anything, ["whatever"])
    with refused(InvalidRequest, "machine.shar", "machine.shar", legal="did you mean 'machine.share'?") as caught:
        check_names("machine", "mine.Bounded", Bounded, ["shar"])
    assert "argument of mine.Bounded" in str(caught.value)


def test_unresolvable_annotations_check_nothing() -> None:
    def lazy(count: Absent) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    check_values("x", "mine.lazy", lazy, {"count": "x"})
