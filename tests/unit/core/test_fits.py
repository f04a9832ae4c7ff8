"""Decides whether an argument of the wrong kind is refused by its annotation, and one of the right kind is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from suite.core.build import build
from suite.core.errors import Refused
from suite.core.fits import fits, lacking, never, parts, shown
from suite.core.grid import Grid

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
    ],
)
def test_kinds(hint: Any, good: Sequence[Any], bad: Sequence[Any]) -> None:
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"_target_": "suite.schedule.MessageDriven", "pipeline_limit": "x"},
            "suite.schedule.MessageDriven: pipeline_limit='x'; rule: pipeline_limit is a whole number or null; "
            "legal: pipeline_limit=null",
        ),
        (
            {"_target_": "suite.simulate.stack.Stack", "name": "mine", "products": NAN},
            "suite.simulate.stack.Stack: products=nan; rule: products is a number; legal: products=1.0",
        ),
        (
            {"_target_": "suite.memory.offloaded", "_partial_": True, "bucket": [5]},
            "suite.memory.offloaded: bucket=[5]; rule: bucket is a whole number; legal: bucket=1",
        ),
    ],
)
def test_what_a_config_gives_is_held_to_the_annotation(config: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused) as caught:
        build(config)
    assert str(caught.value) == told


class Reads(Protocol):
    wide: bool  # may be set as one is made

    def read(self, at: int) -> int: ...


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
    ("target", "wanted", "partly", "words"),
    [
        (Reader, Reads, False, None),
        (reader, Reads, False, None),
        (reader, Reads, True, "made at once"),
        (reader, Callable[[], Reads], True, None),
        (reader, Callable, True, None),
        (reader, Callable, False, "a function, and what is made is a Reader"),
        (reader, Callable[[], Reads], False, "a function, and what is made is a Reader"),
        (either, Callable[[], int], True, None),
        (either, Reads, False, None),
        (either, str, False, "text, and what is made is a Reader"),
        (anything, Reads, False, None),
        (lambda: 1, Reads, False, None),
        (int, Reads, False, r"a Reads, and int has no read\(\)"),
        (int, float, False, None),
        (float, int, False, "a whole number, and what is made is a number"),
        (Reader, int | None, False, "a whole number"),
        (Reader, Reader | None, False, None),
        (Reader, Any, False, None),
        (list, Sequence[int], False, None),
        (Reader, Mapping[str, int], False, "a mapping"),
    ],
)
def test_what_is_made_is_known_before_it_is_made(
    target: Callable[..., Any], wanted: Any, partly: bool, words: str | None
) -> None:
    reason = never(target, wanted, partly=partly)
    assert (reason is None) if words is None else re.search(words, str(reason))


def test_an_object_has_all_of_a_protocol_and_a_class_its_methods() -> None:
    assert lacking(Reader, Reads) == []
    assert lacking(Reader(), Reads) == ["wide"]
    assert lacking(3, Reads) == ["read()", "wide"]


def test_parts_are_found_in_lists_and_groups() -> None:
    config = {"a": [{"_target_": "x"}, {"_target_": "y"}, 3], "b": {"_target_": "z"}}
    found = [(path, each["_target_"], kind) for path, each, kind in parts("top", config, Mapping[str, Sequence[Reads]])]
    assert found == [("top.a[0]", "x", Reads), ("top.a[1]", "y", Reads), ("top.b", "z", Sequence[Reads])]
    assert list(parts("top", 3, Reads)) == []


def test_a_value_is_shown_on_one_line() -> None:
    assert shown("x") == "'x'"
    assert len(shown(list(range(1000)))) == 100
    assert "\n" not in shown(type("Odd", (), {"__repr__": lambda self: "a\nb"})())
