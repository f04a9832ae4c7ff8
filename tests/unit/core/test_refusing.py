"""Refusals: their key, value, rule and legal value; bounds of numbers; members that an object lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from suite.core.bounds import NonNegative, Positive, UnitInterval, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.keys import in_config_keys
from suite.core.members import missing_members
from tests.support.refusals import refused


def test_argument_names_become_keys_in_every_part_of_a_refusal() -> None:
    legal = "optimizer.clip_norm=1.0"
    expected = refused(InvalidRequest, "optimizer.clip_norm", rule="above 0, or null", legal=legal)
    with expected as caught, in_config_keys():
        raise InvalidRequest("clip_norm", None, "above 0, or None", "clip_norm=1.0")
    assert str(caught.value) == f"optimizer.clip_norm=null; rule: above 0, or null; legal: {legal}"
    with refused(UnknownName, "pruning.scope"), in_config_keys():
        raise UnknownName("scope", "bogus", ["weights"])


@dataclass
class Numbers:
    share: UnitInterval = 0.5
    size: Positive = 1.0
    time: NonNegative = 0.0
    free: float = -1.0

    def __post_init__(self) -> None:
        check_bounds(self)


def test_numbers_have_bounds() -> None:
    Numbers(share=0, size=1e-300, time=0)
    for name, values in {"share": (1.0, -0.1, math.nan), "size": (0.0, math.inf), "time": (-1, True)}.items():
        for value in values:
            with refused(InvalidRequest, name, value) as caught:
                Numbers(**{name: value})
            Numbers(**{name: float(caught.value.legal.partition("=")[2])})


class Reads(Protocol):
    wide: bool  # may be set by __init__

    def read(self, at: int) -> int: ...


class Reader:
    def read(self, at: int) -> int:
        return at


class Calls(Protocol):
    def __call__(self) -> int: ...


def test_object_needs_every_member_and_class_its_methods() -> None:
    assert missing_members(Reader, Reads) == []
    assert missing_members(Reader(), Reads) == ["wide"]
    assert missing_members(3, Reads) == ["read()", "wide"]
    assert missing_members(Reader, Calls) == ["__call__()"], "a class is not callable because its type is"
